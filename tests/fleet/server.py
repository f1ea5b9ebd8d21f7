"""One process of a fleet: a replica, which serves HTTP and may run tools, or a worker, which only runs them.

python -m tests.fleet.server replica --url URL --folder FOLDER --name NAME --port PORT [--serves-only]
python -m tests.fleet.server worker --url URL --folder FOLDER --name NAME

Its tools write down what they do, beside all stores: a line for each thing that happened, in one file.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from harness.server import UNPACED
from harness.serving import serving_until_told
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks, current_task

LIMIT = 60.0
"""Seconds for what must happen; only a failing test waits so long."""

LEASE = timedelta(seconds=3)
SWEEP = timedelta(milliseconds=300)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that a run of a tool did.

    Attributes:
        job: Which call it was, by the caller's count.
        what: `start`, `end`, `stopped` (the run was cancelled), or `step` (one was handed its value).
        attempt: Which run of the task.
        process: The name that the process goes by in its fleet, as it was started.
        at: Seconds on a clock that all processes of the machine share.
        key: Of a step: its name.
        value: Of a step: what it gave.
    """

    job: str
    what: str
    task: str
    attempt: int
    process: str
    at: float
    key: str = ""
    value: str = ""


class Notes:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes.jsonl"

    def add(self, note: Note) -> None:
        """Write one down. A single write to the end of the file: processes that die tear no line apart."""
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, json.dumps(asdict(note)).encode() + b"\n")
        finally:
            os.close(file)

    def read(self) -> Sequence[Note]:
        if not self.path.exists():
            return []
        return [Note(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def of(self, job: str, what: str) -> Sequence[Note]:
        return [note for note in self.read() if note.job == job and note.what == what]

    async def run_of(self, job: str, attempt: int = 1, what: str = "start") -> Note:
        """Wait until a run of the job has started, or come to what is asked for."""
        [note] = await eventually(lambda: [note for note in self.of(job, what) if note.attempt == attempt][:1], LIMIT)
        return note


OFTEN = 1000
"""How often a tool may be lost that is not to blame: in a fleet that is shot at, any of them may be, over and over."""

FOREVER = 600.0
"""Seconds that nobody waits out."""

DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = os.getppid()
with open(sys.argv[1], "wb", buffering=0) as file:
    # Not longer than the worker: the fleet of a test ends as by a power cut.
    while os.getppid() == worker:
        os.pwrite(file.fileno(), f"{time.monotonic():.6f}".encode(), 0)
        time.sleep(0.005)
"""

SOON = timedelta(milliseconds=300)


class Word(BaseModel):
    word: str


@dataclass(frozen=True, slots=True)
class Tools:
    server: MCPServer
    tasks: Tasks
    notes: Notes
    process: str

    def add(self, function: Callable[..., Awaitable[Any]], **options: Any) -> None:
        self.server.tool()(self.tasks.task(**options)(function))

    def note(self, job: str, what: str, *, key: str = "", value: str = "") -> None:
        task = current_task()
        at = time.monotonic()
        self.notes.add(Note(job, what, task.id or "", task.attempt, self.process, at, key, value))

    @asynccontextmanager
    async def noted(self, job: str) -> AsyncGenerator[None]:
        self.note(job, "start")
        try:
            yield
        except asyncio.CancelledError:
            self.note(job, "stopped")
            raise
        self.note(job, "end")


def add_chaos_tools(tools: Tools) -> None:
    async def quick(job: str, ctx: Context) -> str:
        return await long(job, 0.0, ctx)

    async def long(job: str, seconds: float, ctx: Context) -> str:
        async with tools.noted(job):
            await _work(seconds, ctx)
            return job

    async def asking(job: str, ctx: Context) -> str:
        async with tools.noted(job):
            answer = await ctx.elicit(f"A word for {job}?", Word)
            return f"{job}: {answer.data.word if answer.action == 'accept' else answer.action}"

    async def stepping(job: str, steps: int, seconds: float) -> str:
        async with tools.noted(job):
            values: list[str] = []
            for number in range(steps):
                values.append(await current_task().step(f"step-{number}", partial(_token, seconds)))
                # It has its value: from now on there is no other.
                tools.note(job, "step", key=f"step-{number}", value=values[-1])
            return " ".join(values)

    async def sleeping(job: str, seconds: float) -> str:
        async with tools.noted(job):
            await current_task().sleep(timedelta(seconds=seconds))
            return job

    async def failing(job: str) -> str:
        async with tools.noted(job):
            raise ToolError(f"{job} failed")

    async def endless(job: str, ctx: Context) -> str:
        async with tools.noted(job):
            await _work(FOREVER, ctx)
            return job

    async def deaf(job: str) -> str:
        """Work in a child process that does not listen to SIGTERM, and notes again and again that it is there."""
        async with tools.noted(job):
            alive = tools.notes.path.with_name(f"{job}.{current_task().attempt}.alive")
            await current_task().run_process([sys.executable, "-S", "-c", DEAF, str(alive)])
            return job

    async def poison(job: str) -> str:
        tools.note(job, "start")
        await asyncio.sleep(0.1)
        os._exit(9)

    async def once(job: str, seconds: float) -> str:
        async with tools.noted(job):
            await asyncio.sleep(seconds)
            return job

    for again in (quick, long, asking, stepping, sleeping, failing, endless, deaf):
        tools.add(again, recover="rerun", max_lost_runs=OFTEN, park_after=SOON)
    tools.add(poison, recover="rerun", max_lost_runs=2)
    tools.add(once, recover="fail")


async def _work(seconds: float, ctx: Context) -> None:
    loop = asyncio.get_running_loop()
    ends, number = loop.time() + seconds, 0
    while loop.time() < ends:
        await asyncio.sleep(min(0.1, ends - loop.time()))
        number += 1
        await ctx.report_progress(number)


async def _token(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return uuid4().hex[:8]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("replica", "worker"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--serves-only", action="store_true")
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--lease", type=float, default=LEASE.total_seconds())
    parser.add_argument("--look", type=float, default=1.0)
    parser.add_argument("--sweep", type=float, default=SWEEP.total_seconds())
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    server, tasks = build(options)
    if options.role == "worker":
        asyncio.run(tasks.work(server))
    else:
        asyncio.run(_serve(server, options))


def build(options: argparse.Namespace) -> tuple[MCPServer, Tasks]:
    """The server, the same in every process but for what the options say of this one."""
    # Everything quicker than usual, so that a test sees many of its turns.
    settings = Settings(
        lease_duration=timedelta(seconds=options.lease),
        sweep_interval=timedelta(seconds=options.sweep),
        look_interval=timedelta(seconds=options.look),
        drain_timeout=timedelta(seconds=1),
        stop_timeout=timedelta(seconds=1),
        progress_interval=timedelta(milliseconds=50),
        trial_duration=timedelta(milliseconds=700),
    )
    tasks = Tasks(
        options.url,
        concurrency=options.concurrency,
        settings=settings,
        runs_tools=options.role == "worker" or not options.serves_only,
        limits=UNPACED,
    )
    server: MCPServer = MCPServer("fleet", **tasks.wiring())
    tools = Tools(server, tasks, Notes(options.folder), options.name)
    add_chaos_tools(tools)
    return server, tasks


async def _serve(server: MCPServer, options: argparse.Namespace) -> None:
    app = server.streamable_http_app()
    await serving_until_told(app, port=options.port, log_config=None, access_log=False)


if __name__ == "__main__":
    main()
