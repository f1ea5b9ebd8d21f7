"""A server whose tools ask in every way, when the test lets them."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.provider import TokenVerifier
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from harness.server import REPEATABLE, Desk, Name, build
from mcp_tasks import Tasks


def build_asking(tasks: Tasks, desk: Desk | None = None, *, verifier: TokenVerifier | None = None) -> MCPServer[Any]:
    """The furnished server, with more tools that ask."""
    place = desk or Desk()
    server = build(tasks, place, verifier=verifier)

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def knock(ctx: Context) -> str:
        """Ask when the test says so."""
        place.started.set()
        await place.gate.wait()
        answer = await ctx.elicit("Who is there?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def insist(ctx: Context) -> str:
        """Ask, and say which error came back."""
        try:
            answer = await ctx.elicit("Who is there?", Name)
        except MCPError as exc:
            return f"{exc.code} {exc.message} {exc.data}"
        return f"no error, but {answer.action}"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def waver(ctx: Context) -> str:
        """Ask, and go on without an answer after a second."""
        with anyio.move_on_after(1):
            await ctx.elicit("Who is there?", Name)
        await place.gate.wait()
        return "went on"

    @server.tool()
    @tasks.task()
    async def trust(ctx: Context) -> str:
        """Ask, and let whatever goes wrong go wrong."""
        answer = await ctx.elicit("Who is there?", Name)
        return f"{answer.action}"

    @server.tool()
    @tasks.task()
    async def steps(values: list[float], ctx: Context) -> str:
        """Report progress value by value, each when the test says so."""
        for value in values:
            place.started.set()
            await place.gate.wait()
            place.gate.clear()
            await ctx.report_progress(value, 10, f"at {value}")
        place.started.set()
        await place.gate.wait()
        return "done"

    @server.tool()
    @tasks.task()
    async def count(reports: int, ctx: Context) -> str:
        """Report progress many times, and wait."""
        for number in range(1, reports + 1):
            await ctx.report_progress(number, reports)
            await anyio.sleep(0.001)  # sleep: the work between two reports
        await place.gate.wait()
        return "counted"

    @server.tool()
    @tasks.task()
    async def delegate() -> str:
        """Have a child ask."""
        return (await tasks.start("ask_name")).id

    return server
