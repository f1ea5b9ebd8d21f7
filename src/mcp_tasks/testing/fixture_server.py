"""A server with tasks of every kind, to test clients and tools with.

    python -m mcp_tasks.testing.fixture_server --port 8000 --db tasks.db

It serves `/mcp` with the tools that the `tasks-*` scenarios of the official conformance suite call, and a few for
measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import BaseModel

from mcp_tasks.model.limits import Limits
from mcp_tasks.server.tasks import Tasks

REPEATABLE = ToolAnnotations(idempotent_hint=True)


class Confirmation(BaseModel):
    """Yes or no."""

    confirm: bool


class Name(BaseModel):
    """Somebody's name."""

    name: str


def build(tasks: Tasks, **options: Any) -> MCPServer[dict[str, object]]:
    """The fixture server with `tasks` as its extension, and with options of the SDK's server."""
    server = MCPServer("mcp-tasks-fixture", version="1", **tasks.wiring(), log_level="WARNING", **options)
    _add_conformance_tools(server, tasks)
    _add_asking_tools(server, tasks)
    _add_measuring_tools(server, tasks)
    return server


def _add_conformance_tools(server: MCPServer[dict[str, object]], tasks: Tasks) -> None:
    @server.tool()
    def greet(name: str) -> str:
        """Greet somebody, at once."""
        return f"Hello, {name}!"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def slow_compute(seconds: float, label: str, ctx: Context) -> str:
        """Take some time, and say how far it is."""
        started = time.monotonic()
        while (left := started + seconds - time.monotonic()) > 0:
            await ctx.report_progress(seconds - left, seconds, f"{label}: {seconds - left:.0f} s of {seconds:g} s")
            await anyio.sleep(min(left, 0.5))
        return f"{label}: done after {seconds:g} s"

    @server.tool()
    @tasks.task(mode="required")
    async def failing_job() -> str:
        """Work for a second, then fail as tools fail."""
        await anyio.sleep(1)
        raise ToolError("the job failed, as it always does")

    @server.tool()
    @tasks.task()
    async def protocol_error_job() -> str:
        """Fail with a JSON-RPC error."""
        await anyio.sleep(0.1)
        raise MCPError(code=INTERNAL_ERROR, message="the job ended in a protocol error, as it always does")

    @server.tool()
    @tasks.task(mode="required")
    async def test_tool_with_task(ctx: Context) -> str | InputRequiredResult:
        """Ask for a name before there is a task, then greet as one."""
        answer = (ctx.input_responses or {}).get("user_name")
        if not isinstance(answer, ElicitResult):
            question = ElicitRequestFormParams(message="What is your name?", requested_schema=Name.model_json_schema())
            return InputRequiredResult(input_requests={"user_name": ElicitRequest(params=question)})
        return f"Hello, {(answer.content or {}).get('name', 'stranger')}!"


def _add_asking_tools(server: MCPServer[dict[str, object]], tasks: Tasks) -> None:
    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def confirm_delete(filename: str, ctx: Context) -> str:
        """Ask before deleting (nothing is deleted)."""
        answer = await ctx.elicit(f"Delete {filename}?", Confirmation)
        if answer.action == "accept" and answer.data.confirm:
            return f"deleted {filename}"
        return f"kept {filename}"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def multi_input(ctx: Context) -> str:
        """Ask two things at once."""
        name, confirmation = await asyncio.gather(
            ctx.elicit("What is your name?", Name), ctx.elicit("Are you sure?", Confirmation)
        )
        return f"name: {name.action}, confirmation: {confirmation.action}"


def _add_measuring_tools(server: MCPServer[dict[str, object]], tasks: Tasks) -> None:
    @server.tool()
    def plain_noop() -> str:
        """Do nothing, never as a task."""
        return "ok"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def noop() -> str:
        """Do nothing, as a task."""
        return "ok"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def park(seconds: float) -> str:
        """Sleep."""
        await anyio.sleep(seconds)
        return "ok"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def job(n: int, seconds: float, log: str) -> str:
        """Write down when it starts and ends. May run again."""
        return await _logged_job(n, seconds, log)

    @server.tool()
    @tasks.task()
    async def fragile_job(n: int, seconds: float, log: str) -> str:
        """The same, and it may not run again."""
        return await _logged_job(n, seconds, log)

    @server.tool()
    @tasks.task()
    def blocking_job(seconds: float) -> str:
        """Block a thread."""
        time.sleep(seconds)
        return "ok"


async def _logged_job(n: int, seconds: float, log: str) -> str:
    _append(log, f"{time.time():.6f} start {n} {os.getpid()}\n")
    await anyio.sleep(seconds)
    _append(log, f"{time.time():.6f} end {n} {os.getpid()}\n")
    return f"job {n} done"


def _append(path: str, line: str) -> None:
    # One write of one line in append mode: lines of several processes do not mix.
    with Path(path).open("a") as file:
        file.write(line)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m mcp_tasks.testing.fixture_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--db", type=Path, required=True, help="SQLite file with the tasks; made if it is not there")
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of SSE streams")
    parser.add_argument("--concurrency", type=int, default=None, help="how many tools run at a time")
    parser.add_argument("--max-lost-runs", type=int, default=3, help="how often a task may be lost with its process")
    options = parser.parse_args(argv)
    tasks = Tasks(
        f"sqlite:///{options.db}",
        concurrency=options.concurrency,
        max_lost_runs=options.max_lost_runs,
        # Tests ask as quickly as they can.
        limits=Limits(anonymous=False),
    )
    build(tasks).run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
