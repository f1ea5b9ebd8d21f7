"""What a tool in a task sends to a call that is still open for it, and what it knows of the call."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.rpc import text_of
from harness.server import QUICK
from mcp_tasks import Fallback, Tasks, current_task

HOUR = timedelta(hours=1)


def _now() -> datetime:
    return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)


def new_server(**options: Any) -> tuple[MCPServer[Any], Tasks]:
    tasks = Tasks("memory://", fallback=Fallback(wait=HOUR), settings=QUICK, clock=_now, **options)
    return MCPServer("open", **tasks.wiring(), log_level="CRITICAL"), tasks


async def test_what_a_tool_sends_reaches_the_call_in_order_and_progress_of_another_token_does_not() -> None:
    server, tasks = new_server()
    heard, logged = list[Any](), list[Any]()
    others: list[str] = []
    outside: list[str | None] = []
    from_thread: Any = anyio.from_thread.run

    @server.tool()
    @tasks.task()
    def tool(ctx: Context) -> str:
        for done in range(3):
            from_thread(ctx.report_progress, done, 3, f"frame {done}")
        send, meta = ctx.session.send_progress_notification, ctx.request_context.meta or {}
        from_thread(partial(send, meta.get("progress_token", ""), 3, 3, "by itself", related_request_id=ctx.request_id))
        from_thread(send, "of somebody else", 4, 4)
        from_thread(ctx.session.send_resource_updated, "test://a")
        from_thread(ctx.error, "half \ud800")  # pyright: ignore[reportDeprecated]
        return "done"

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        # The tool's own context is not that of whoever hears it.
        outside.append(current_task().id)

    async def log(params: Any) -> None:
        logged.append((params.level, params.data))

    async def message(message: Any) -> None:
        others.append(message.method)

    async with Client(server, mode="legacy", logging_callback=log, message_handler=message) as client:
        result = await client.call_tool("tool", {}, progress_callback=progress)
    assert text_of(result.model_dump()) == "done"
    frames = [(done, 3, f"frame {done}") for done in range(3)]
    assert (heard, logged) == ([*frames, (3, 3, "by itself")], [("error", "half \ufffd")])
    assert outside == [None] * 4
    assert "notifications/resources/updated" in others
    gc.collect()


# Tasks of this process, in a tool that waits for one
