"""A server whose tools have child processes that do not listen to SIGTERM: `tests.cli.deaf_farm:make()`.

`python -m tests.cli.deaf_farm HOW FILE` runs its tools in a program of an author's own, until the file is there. Then
the program ends, or raises.
"""

import asyncio
import contextvars
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from mcp.server import MCPServer

from mcp_tasks import Tasks, current_task
from tests.cli.farm import SETTINGS

PYTHON = (sys.executable, "-S", "-c")

DEAF = """
import os, signal, sys, time
from pathlib import Path

def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False

signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = Path(sys.argv[1])
if file.exists() and is_there(int(file.read_text())):
    Path(f"{file}.beside").touch()
new = Path(f"{file}.{os.getpid()}")
new.write_text(str(os.getpid()))
new.rename(file)
time.sleep(60)
"""
"""Writes its process id down, notes whether the one before it is still at work, and works on whatever it is told."""

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", *sys.argv[1:]])
time.sleep(60)
"""
"""Has such a child, and ends when it is told to."""


def make() -> MCPServer[Any]:
    return build(Tasks(settings=replace(SETTINGS, drain_timeout=timedelta(0))))


def make_patient() -> MCPServer[Any]:
    """The same, with more time for tools to end than a test waits."""
    return build(Tasks(settings=replace(SETTINGS, stop_timeout=timedelta(minutes=2))))


def build(tasks: Tasks) -> MCPServer[Any]:
    server = MCPServer("farm", **tasks.wiring(), log_level="ERROR")
    started: list[asyncio.Task[None]] = []

    @server.tool()
    @tasks.task(recover="rerun")
    async def in_async(file: str) -> str:
        return str(await current_task().run_process([*PYTHON, DEAF, file]))

    @server.tool()
    @tasks.task(recover="rerun")
    def in_thread(file: str) -> str:
        return str(anyio.from_thread.run(current_task().run_process, [*PYTHON, DEAF, file]))

    @server.tool()
    @tasks.task(recover="rerun")
    async def in_step(file: str) -> str:
        async def work() -> str:
            return str(await current_task().run_process([*PYTHON, DEAF, file]))

        return await current_task().step("work", work)

    @server.tool()
    @tasks.task(recover="rerun")
    async def of_child(file: str) -> str:
        return str(await current_task().run_process([*PYTHON, PARENT, DEAF, file]))

    @server.tool()
    @tasks.task(recover="fail")
    async def once(file: str) -> str:
        return str(await current_task().run_process([*PYTHON, PARENT, DEAF, file]))

    @server.tool()
    @tasks.task(recover="rerun")
    async def beside(file: str) -> str:
        # Work of the server's own, which belongs to no task.
        started.append(asyncio.create_task(_alone(file), context=contextvars.Context()))
        return "started"

    @server.tool()
    @tasks.task(recover="rerun")
    def block(file: str) -> str:
        # A thread that does not look whether it should stop.
        Path(file).write_text("0")
        time.sleep(60)
        return "never"

    return server


async def _alone(file: str) -> None:
    await current_task().run_process([*PYTHON, DEAF, file])


async def _main(how: str, file: str) -> None:
    tasks = Tasks(settings=replace(SETTINGS, drain_timeout=timedelta(0)))
    async with tasks.running(build(tasks)):
        while not await anyio.Path(file).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.02)
        if how == "raises":
            raise RuntimeError("the author's own code")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
