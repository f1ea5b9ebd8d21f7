"""The furnished server with tasks and without: nobody may notice which it is. And a low-level one with pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

from harness.server import Desk, furnish
from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges

PAGES = (("tool-0", "tool-1"), ("tool-2", "tool-3"), ("tool-4",))
"""The tools of a low-level server, as it lists them."""


class NoTasks:
    """In place of tasks, on the server without: no tool is marked."""

    def task(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: function


def build(tasks: Tasks | None, changes: ListChanges | None = None) -> MCPServer[Any]:
    """The server: with tasks, or the same one without."""
    more: Mapping[str, Any] = {**(changes.wiring() if changes else {}), **(tasks.wiring() if tasks else {})}
    server: MCPServer[Any] = MCPServer(
        "everything", title="Everything", version="1", instructions="Ask for anything.", log_level="CRITICAL", **more
    )
    marks: Any = tasks or NoTasks()
    furnish(server, marks, Desk())

    @server.tool()
    @marks.task()
    async def linger(ctx: Context) -> str:
        """Long enough for other requests to come meanwhile."""
        await ctx.report_progress(1, 2, "half")
        await anyio.sleep(0.3)
        return "lingered"

    @server.tool()
    @marks.task()
    async def more_tools(count: int, ctx: Context) -> str:
        """Add tools while the server runs, and say so for each, and that there are more prompts."""
        for number in range(count):
            server.add_tool(lambda: "fresh", name=f"fresh-{number}", description="New.")
        # All of it within one window, also where making tools takes its time.
        for _ in range(count):
            await ctx.notify_tools_changed()
            await ctx.notify_prompts_changed()
        return f"{count} more"

    @server.tool()
    @marks.task()
    async def fewer_tools(count: int, ctx: Context) -> str:
        for number in range(count):
            server.remove_tool(f"fresh-{number}")
            await ctx.notify_tools_changed()
        return f"{count} fewer"

    return server


def build_lowlevel(tasks: Tasks | None) -> Server[Any]:
    """A low-level server that lists its tools in pages: with tasks attached, or the same one without."""

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        page = 0 if params is None or params.cursor is None else int(params.cursor)
        tools = [Tool(name=name, input_schema={"type": "object"}) for name in PAGES[page]]
        return ListToolsResult(tools=tools, next_cursor=str(page + 1) if page + 1 < len(PAGES) else None)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=f"{params.name} done")])

    server: Server[Any] = Server("everything-low", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    if tasks is not None:
        for name in (name for page in PAGES for name in page):
            tasks.mark(name)
        tasks.attach(server)
    return server
