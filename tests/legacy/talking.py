"""A server whose tools send notifications. `python -m tests.legacy.talking` serves it over pipes."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.server import QUICK
from harness.serving import serve_stdio
from mcp_tasks import Tasks


def build(gate: asyncio.Event) -> MCPServer[Any]:
    """A server with a tool that says things, at once or when the test lets it."""
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("talking", **tasks.wiring())

    async def say(ctx: Context[Any, Any], count: int) -> None:
        for number in range(count):
            await ctx.info(f"said {number}")  # pyright: ignore[reportDeprecated]

    @server.tool()
    @tasks.task()
    async def talk(ctx: Context[Any, Any]) -> str:
        """Send one of each kind."""
        await gate.wait()
        await say(ctx, 1)
        await ctx.session.send_tool_list_changed()
        await ctx.session.send_resource_updated("demo://one")
        await ctx.session.send_elicit_complete("e1", related_request_id=ctx.request_id)
        await say(ctx, 1)
        return "talked"

    @server.tool()
    @tasks.task()
    async def chatter(count: int, ctx: Context[Any, Any]) -> str:
        """Say many things, and wait."""
        await say(ctx, count)
        await gate.wait()
        return "enough"

    @server.tool()
    @tasks.task()
    async def ping(ctx: Context[Any, Any]) -> str:
        """Ping the client when the test lets it."""
        await gate.wait()
        await ctx.session.send_ping()
        return "pinged"

    return server


def main() -> None:
    """Serve until stopped."""
    gate = asyncio.Event()
    gate.set()
    asyncio.run(serve_stdio(build(gate)))


if __name__ == "__main__":
    main()
