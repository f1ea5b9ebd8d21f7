"""A low-level server that lists nothing, and a client that calls it by whatever name it likes."""

from __future__ import annotations

from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from harness.http import HttpWire
from harness.rpc import EVERYTHING, Tasking
from mcp_tasks import Tasks


def low_level(tasks: Tasks) -> Server[Any]:
    """A server that takes every name; its author marked one."""

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[Any] = Server("low", version="1", on_call_tool=call_tool)
    tasks.mark("own")
    tasks.attach(server)
    return server


async def call(wire: HttpWire, name: str) -> None:
    """Call a tool as a task, and wait for its end."""
    client = Tasking(wire, EVERYTHING)
    await client.until(await client.create(name), "completed")
