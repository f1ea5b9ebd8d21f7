"""A server to be killed: `python -m tests.chaos.subject [--fd N] --url STORE --folder FOLDER`.

Its tools write down what they do into the file `log` of the folder, and stop at gates: files there that a test makes
when one job may go on (`JOB.GATE`), or all may (`open`). With a file `die` that says `before create` or `after
end`, the process dies when it next makes a task, or has ended one.
"""

import argparse
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from harness.processes import crash
from harness.server import UNPACED
from harness.serving import serve_app
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.stores.url import store_from_url

NAME = "subject"


class Name(BaseModel):
    name: str


class Confirmation(BaseModel):
    confirm: bool


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, line: str) -> str:
        """Write a line down; one write in append mode, so lines of several processes do not mix."""
        with (self.folder / "log").open("a") as file:
            file.write(f"{line}\n")
        return line

    def is_open(self, job: str, gate: str) -> bool:
        return (self.folder / "open").exists() or (self.folder / f"{job}.{gate}").exists()

    async def pass_gate(self, job: str, gate: str = "work") -> None:
        """Say that the gate is reached, and wait until it is open."""
        self.note(f"{job} at {gate}")
        while not self.is_open(job, gate):  # noqa: ASYNC110 - another process makes the file, and looking costs little
            await anyio.sleep(0.02)

    def meet(self, moment: str) -> None:
        order = self.folder / "die"
        if order.exists() and order.read_text() == moment:
            order.unlink()
            crash()

    def watched(self, verb: str, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A call of the store, before and after which the process may die. To save an outcome is to `end` a task."""

        async def call(*args: Any, **options: Any) -> Any:
            named = verb if options.get("outcome") is None else "end"
            self.meet(f"before {named}")
            result = await write(*args, **options)
            self.meet(f"after {named}")
            return result

        return call


def build(url: str, folder: Path, drain: float) -> MCPServer[Any]:
    desk, store = Desk(folder), store_from_url(url)
    settings = Settings(
        drain_timeout=timedelta(seconds=drain),
        stop_timeout=timedelta(seconds=1),
        sweep_interval=timedelta(seconds=0.2),
        trial_duration=timedelta(seconds=0.5),
    )
    for verb in ("create", "save"):
        setattr(store, verb, desk.watched(verb, getattr(store, verb)))
    engine = "local" if url.startswith("sqlite") else url
    tasks = Tasks(store, engine=engine, concurrency=8, settings=settings, limits=UNPACED)
    server = MCPServer[Any](NAME, version="1", **tasks.wiring(), log_level="WARNING")
    add_working_tools(server, tasks, desk)
    add_asking_tools(server, tasks, desk)
    return server


def add_working_tools(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    @server.tool()
    def plain() -> str:
        return "here"

    async def again(job: str) -> str:
        desk.note(f"{job} start")
        try:
            await desk.pass_gate(job)
        except BaseException:
            desk.note(f"{job} stopped")
            raise
        return desk.note(f"{job} end")

    async def once(job: str) -> str:
        return await again(job)

    def blocks(job: str) -> str:
        desk.note(f"{job} start")
        desk.note(f"{job} at work")
        while not desk.is_open(job, "work"):
            time.sleep(0.02)
        return f"{job} end"

    async def instant(job: str) -> str:
        desk.note(f"{job} start")
        return f"{job} end"

    async def sleeps(job: str) -> str:
        desk.note(f"{job} start")
        await current_task().sleep(timedelta(seconds=3))
        return f"{job} end"

    async def parent(job: str) -> str:
        desk.note(f"{job} start")
        child = await tasks.start("again", {"job": f"{job}-child"}, ttl=timedelta(hours=1))
        result: Any = (await child.wait()).structured_content
        return result["result"]

    for tool in (again, sleeps, parent):
        server.tool()(tasks.task(recover="rerun", park_after=timedelta(0))(tool))
    server.tool()(tasks.task(recover="rerun")(instant))
    for tool in (once, blocks):
        server.tool()(tasks.task(recover="fail")(tool))


def add_asking_tools(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    async def survey(job: str, ctx: Context) -> str:
        step = current_task().step
        await step("before", desk.note, f"{job} step before")
        await desk.pass_gate(job, "asking")
        name = await ctx.elicit("What is your name?", Name)
        await step("between", desk.note, f"{job} step between")
        sure = await ctx.elicit("Are you sure?", Confirmation)
        await desk.pass_gate(job, "finishing")
        await step("after", desk.note, f"{job} step after")
        await desk.pass_gate(job, "ending")
        given = name.data.name if name.action == "accept" else name.action
        return f"{given}: {sure.data.confirm if sure.action == 'accept' else sure.action}"

    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    for tool in (survey, greet):
        server.tool()(tasks.task(recover="rerun")(tool))
    server.tool(name="parked_survey")(
        tasks.task(name="parked_survey", recover="rerun", park_after=timedelta(0))(survey)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, help="over HTTP, on this socket; over stdio without it")
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--drain", type=float, default=0.0)
    options = parser.parse_args()
    server = build(options.url, options.folder, options.drain)
    if options.fd is None:
        server.run("stdio")
    else:
        serve_app(server.streamable_http_app(), fd=options.fd)


if __name__ == "__main__":
    main()
