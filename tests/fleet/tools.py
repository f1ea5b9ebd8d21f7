"""The tools that a fleet runs, each of which writes down what it does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from mcp_tasks import Tasks, current_task
from tests.fleet.notes import Notes

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
    """An answer."""

    word: str


@dataclass(frozen=True, slots=True)
class Tools:
    """A server that gets tools, and where they write down what they do."""

    server: MCPServer
    tasks: Tasks
    notes: Notes
    process: str

    def add(self, function: Callable[..., Awaitable[Any]], **options: Any) -> None:
        """Add one as a task."""
        self.server.tool()(self.tasks.task(**options)(function))

    def note(self, job: str, what: str, *, key: str = "", value: str = "") -> None:
        """Write down what the run that is calling does."""
        task = current_task()
        self.notes.add(job, what, task=task.id, attempt=task.attempt, process=self.process, key=key, value=value)

    @asynccontextmanager
    async def noted(self, job: str) -> AsyncGenerator[None]:
        """Write down that a run starts, and how it ends."""
        self.note(job, "start")
        try:
            yield
        except asyncio.CancelledError:
            self.note(job, "stopped")
            raise
        self.note(job, "end")


def add_chaos_tools(tools: Tools) -> None:
    """One tool for each kind of task that there is."""

    async def quick(job: str) -> str:
        """End at once."""
        async with tools.noted(job):
            return job

    async def long(job: str, seconds: float, ctx: Context) -> str:
        """Work for a while, and tell how far it is."""
        async with tools.noted(job):
            await _work(seconds, ctx)
            return job

    async def asking(job: str, ctx: Context) -> str:
        """Ask, and wait for the answer however long it takes."""
        async with tools.noted(job):
            answer = await ctx.elicit(f"A word for {job}?", Word)
            return f"{job}: {answer.data.word if answer.action == 'accept' else answer.action}"

    async def stepping(job: str, steps: int, seconds: float) -> str:
        """Do several things, each of them once."""
        async with tools.noted(job):
            values: list[str] = []
            for number in range(steps):
                values.append(await current_task().step(f"step-{number}", partial(_token, seconds)))
                # It has its value: from now on there is no other.
                tools.note(job, "step", key=f"step-{number}", value=values[-1])
            return " ".join(values)

    async def sleeping(job: str, seconds: float) -> str:
        """Wait for an hour that comes, in no process at all."""
        async with tools.noted(job):
            await current_task().sleep(timedelta(seconds=seconds))
            return job

    async def failing(job: str) -> str:
        """Fail."""
        async with tools.noted(job):
            raise ToolError(f"{job} failed")

    async def endless(job: str, ctx: Context) -> str:
        """Work until cancelled."""
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
        """Take the process down."""
        tools.note(job, "start")
        await asyncio.sleep(0.1)
        os._exit(9)

    async def once(job: str, seconds: float) -> str:
        """Do what must not be done twice."""
        async with tools.noted(job):
            await asyncio.sleep(seconds)
            return job

    for again in (quick, long, asking, stepping, sleeping, failing, endless, deaf):
        tools.add(again, recover="rerun", max_lost_runs=OFTEN, park_after=SOON)
    tools.add(poison, recover="rerun", max_lost_runs=2)
    tools.add(once, recover="fail")

    @tools.server.tool()
    def process() -> str:
        """A plain call: which process answers."""
        return tools.process


def add_pool_tools(tools: Tools, *, rare: bool) -> None:
    """Tools with limits, queues and priorities; `rare` is not everywhere."""

    async def limited(job: str, seconds: float) -> str:
        """At most two at a time, in the whole fleet."""
        async with tools.noted(job):
            await asyncio.sleep(seconds)
            return job

    async def drawn(job: str) -> str:
        """Only where there is a graphics card."""
        async with tools.noted(job):
            return tools.process

    async def urgent(job: str) -> str:
        """Before the others."""
        async with tools.noted(job):
            return tools.process

    async def dull(job: str, seconds: float) -> str:
        """After the others."""
        async with tools.noted(job):
            await asyncio.sleep(seconds)
            return tools.process

    async def special(job: str) -> str:
        """A tool that some workers lack."""
        async with tools.noted(job):
            return tools.process

    tools.add(limited, recover="rerun", max_at_work=2)
    tools.add(drawn, recover="rerun", queue="gpu")
    tools.add(urgent, recover="rerun", priority=10)
    tools.add(dull, recover="rerun")
    if rare:
        tools.add(special, recover="rerun")


async def _work(seconds: float, ctx: Context) -> None:
    loop = asyncio.get_running_loop()
    ends, number = loop.time() + seconds, 0
    while loop.time() < ends:
        await asyncio.sleep(min(0.1, ends - loop.time()))
        number += 1
        await ctx.report_progress(number)


async def _token(seconds: float) -> str:
    """Something that no other call of it gives."""
    await asyncio.sleep(seconds)
    return uuid4().hex[:8]
