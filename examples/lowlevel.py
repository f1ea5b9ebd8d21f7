"""Tasks on the SDK's low-level server, which has no decorators: `tasks.mark` by name, then `tasks.attach`.

python examples/lowlevel.py            # a client starts the server, tries it in both eras, and says so
python examples/lowlevel.py serve      # the server alone, over stdio
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, TaskWasCancelled, start_task, stdio_transport

COUNT = {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]}


async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
    """What there is."""
    return ListToolsResult(tools=[Tool(name="count", description="Count slowly.", input_schema=COUNT)])


async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
    """Runs in the background for a task, in the request for a plain call; it does not have to know."""
    to = int((params.arguments or {})["to"])
    for number in range(1, to + 1):
        await ctx.session.report_progress(number, to, f"{number} of {to}")
        await anyio.sleep(0.05)
    return CallToolResult(content=[TextContent(type="text", text=f"counted to {to}")])


tasks = Tasks("memory://")
server: Server[Any] = Server("counter", version="1.0.0", on_list_tools=list_tools, on_call_tool=call_tool)
tasks.mark("count")
tasks.attach(server)


async def serve() -> None:
    """Over standard input and output."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def visit(mode: str) -> None:
    """One task to its end, and one that is cancelled."""
    command = StdioServerParameters(command=sys.executable, args=[__file__, "serve"], env=dict(os.environ))
    async with Client(stdio_transport(command), extensions=[TasksClient()], mode=mode) as client:
        counting = await start_task(client, "count", {"to": 5})
        endless = await start_task(client, "count", {"to": 1_000_000})
        assert isinstance(counting, TaskHandle)
        assert isinstance(endless, TaskHandle)

        [text] = (await counting.result()).content
        assert isinstance(text, TextContent)
        assert text.text == "counted to 5"

        await endless.cancel()
        try:
            await endless.result()
        except TaskWasCancelled:
            print(f"{client.protocol_version}: {text.text}; the endless one was cancelled")
        else:
            raise SystemExit("the task was cancelled, and has a result")


async def main() -> None:
    """Both eras of the protocol, one after the other."""
    for mode in ("auto", "legacy"):
        await visit(mode)


if __name__ == "__main__":
    anyio.run(serve if sys.argv[1:] == ["serve"] else main)
