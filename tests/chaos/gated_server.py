"""A server whose tools stop at gates: files that a test makes when the tool may go on.

python -m tests.chaos.gated_server --port 8000 --db tasks.db --concurrency 4

Without a port it serves stdio.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from harness.server import UNPACED
from mcp_tasks import Tasks, current_task

REPEATABLE = ToolAnnotations(idempotent_hint=True)


class Name(BaseModel):
    """Somebody's name."""

    name: str


class Confirmation(BaseModel):
    """Yes or no."""

    confirm: bool


def note(folder: str, line: str) -> str:
    """Write a line down; one write in append mode, so lines of several processes do not mix."""
    with Path(folder, "log").open("a") as file:
        file.write(f"{line}\n")
    return line


async def pass_gate(folder: str, gate: str) -> None:
    """Say that the gate is reached, and wait until it is open."""
    note(folder, f"at {gate}")
    opened = Path(folder, gate)
    while not opened.exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file, and looking costs little
        await anyio.sleep(0.02)


async def ask_twice(folder: str, ctx: Context) -> str:
    """Two questions, with a step before, between and after."""
    await current_task().step("before", note, folder, "step before")
    await pass_gate(folder, "asking")
    name = await ctx.elicit("What is your name?", Name)
    await current_task().step("between", note, folder, "step between")
    sure = await ctx.elicit("Are you sure?", Confirmation)
    await pass_gate(folder, "finishing")
    await current_task().step("after", note, folder, "step after")
    await pass_gate(folder, "ending")
    given = name.data.name if name.action == "accept" else name.action
    return f"{given}: {sure.data.confirm if sure.action == 'accept' else sure.action}"


def build(tasks: Tasks) -> MCPServer[dict[str, object]]:
    """The gated server with `tasks` as its extension."""
    server = MCPServer("gated", version="1", **tasks.wiring(), log_level="WARNING")

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def survey(folder: str, ctx: Context) -> str:
        """Ask twice, staying in memory in between."""
        return await ask_twice(folder, ctx)

    @server.tool(annotations=REPEATABLE)
    @tasks.task(park_after=timedelta(0))
    async def parked_survey(folder: str, ctx: Context) -> str:
        """Ask twice, leaving memory in between."""
        return await ask_twice(folder, ctx)

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def petition(folder: str, ctx: Context) -> str:
        """Ask once, and say which error came back."""
        try:
            answer = await ctx.elicit("May I?", Confirmation)
        except MCPError as exc:
            said = f"{exc.code} {exc.message} {exc.data}"
        else:
            said = answer.action
        await pass_gate(folder, "deciding")
        return said

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def hog(folder: str) -> str:
        """Use a slot."""
        await pass_gate(folder, "hogging")
        return "ok"

    @server.tool(annotations=REPEATABLE)
    @tasks.task(early_start=True)
    async def instant(folder: str, n: int) -> str:
        """Say that it runs, and return."""
        return note(folder, f"ran {n}")

    @server.tool()
    @tasks.task()
    async def watched(folder: str) -> str:
        """Write down when it is cancelled."""
        note(folder, "started")
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            note(folder, "cancelled")
            raise
        return "unreachable"

    return server


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--concurrency", type=int, default=None)
    options = parser.parse_args()
    tasks = Tasks(f"sqlite:///{options.db}", concurrency=options.concurrency, limits=UNPACED)
    server = build(tasks)
    if options.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
