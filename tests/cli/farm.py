"""A server whose tools are for workers: `tests.cli.farm:make()`. Its store is what MCP_TASKS_URL says.

Tools that wait do so for files, so that a test in another process decides when they go on.
"""

import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer

from mcp_tasks import Settings, Tasks

SETTINGS = Settings(sweep_interval=timedelta(milliseconds=50), stop_timeout=timedelta(milliseconds=500))


def make() -> MCPServer[Any]:
    return build(Tasks(settings=SETTINGS))


def make_brisk() -> MCPServer[Any]:
    """The same, with workers that look often at what operators say."""
    return build(Tasks(settings=replace(SETTINGS, lease_duration=timedelta(seconds=3))))


def build(tasks: Tasks) -> MCPServer[Any]:
    server = MCPServer("farm", **tasks.wiring(), log_level="ERROR")

    @server.tool()
    @tasks.task()
    def where() -> str:
        return str(os.getpid())

    @server.tool()
    @tasks.task(queue="gpu", version="2", max_at_work=2, priority=5)
    def paint() -> str:
        return str(os.getpid())

    @server.tool()
    @tasks.task(recover="rerun")
    async def hold(file: str) -> str:
        await _wait(file)
        return "held"

    @server.tool()
    @tasks.task(recover="fail")
    async def hold_once(file: str) -> str:
        await _wait(file)
        return "held"

    @server.tool()
    @tasks.task(recover="rerun")
    def block(file: str) -> str:
        # A thread that does not look whether it should stop.
        Path(f"{file}.started").touch()
        time.sleep(60)
        return "never"

    @server.tool()
    def plain() -> str:
        return "no task"

    return server


async def _wait(file: str) -> None:
    await anyio.Path(f"{file}.started").touch()
    while not await anyio.Path(file).exists():  # noqa: ASYNC110 - another process makes it
        await anyio.sleep(0.02)
