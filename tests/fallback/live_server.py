"""A server with one tool that says much of itself and of its call, once marked and once as a plain call.

python -m tests.fallback.live_server stdio
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations

from harness.auth import Tokens, server_with
from harness.server import QUICK, Desk
from harness.serving import serve_stdio
from mcp_tasks import Fallback, Tasks, current_task

MARKED, PLAIN = "talk", "talk_plainly"
REPEATABLE = ToolAnnotations(idempotent_hint=True)
SHORT = Fallback(wait=timedelta(milliseconds=500))
"""Long enough for a tool to have begun, on a busy machine too."""


def build_live(
    desk: Desk | None = None, *, store: str = "memory://", fallback: Fallback | None = None, guarded: bool = False
) -> MCPServer[Any]:
    """The server. With a desk, its tools wait at the gate before they end."""
    tasks = Tasks(store, settings=QUICK, fallback=fallback or Fallback())
    server = server_with(tasks, "live", Tokens() if guarded else None)

    async def say(ctx: Context) -> str:
        return await _say(ctx, desk)

    @server.tool(name=MARKED, annotations=REPEATABLE)
    @tasks.task(name=MARKED)
    async def talk(ctx: Context) -> str:
        return await say(ctx)

    @server.tool(name=PLAIN, annotations=REPEATABLE)
    @tasks.task(name=PLAIN, fallback="inline")
    async def talk_plainly(ctx: Context) -> str:
        return await say(ctx)

    @server.tool()
    @tasks.task()
    async def flood(path: str, ctx: Context) -> str:
        """Say more than any pipe holds, and leave a file at the end."""
        for _ in range(500):
            await ctx.info("x" * 10_000)  # pyright: ignore[reportDeprecated]
            await ctx.report_progress(1, message="x" * 10_000)
        await anyio.Path(path).write_text("done")
        return "done"

    return server


async def _say(ctx: Context, desk: Desk | None) -> str:
    seen = seen_of_call(ctx)
    await ctx.session.send_resource_updated("test://frames")
    await ctx.debug("it begins")  # pyright: ignore[reportDeprecated]
    await ctx.report_progress(1, 3, "first")
    await ctx.info({"frames": 3, "of": None})  # pyright: ignore[reportDeprecated]
    await ctx.report_progress(2, 3)
    await ctx.log("warning", "careful", logger_name="frames")  # pyright: ignore[reportDeprecated]
    if desk is not None:
        desk.seen.append(seen)
        desk.started.set()
        await desk.gate.wait()
    await ctx.report_progress(3, 3, "last")
    if desk is not None:
        desk.stopped.set()
    return json.dumps(seen)


def seen_of_call(ctx: Context) -> dict[str, Any]:
    """What the tool sees of its call."""
    token, meta = get_access_token(), ctx.request_context.meta or {}
    headers: Mapping[str, str] = ctx.headers or {}
    return {
        "attempt": current_task().attempt,
        "meta": dict(meta),
        "trace": headers.get("x-trace"),
        "client": None if token is None else token.client_id,
    }


if __name__ == "__main__":
    asyncio.run(serve_stdio(build_live()))
