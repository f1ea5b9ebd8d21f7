"""The furnished server with tasks and without: nobody may notice which it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.server import Desk, furnish
from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges


class NoTasks:
    """In place of tasks, on the server without: no tool is marked."""

    def task(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: function


def build(tasks: Tasks | None, changes: ListChanges | None = None) -> MCPServer[Any]:
    more: Mapping[str, Any] = {**(changes.wiring() if changes else {}), **(tasks.wiring() if tasks else {})}
    server: MCPServer[Any] = MCPServer(
        "everything", title="Everything", version="1", instructions="Ask for anything.", log_level="CRITICAL", **more
    )
    marks: Any = tasks or NoTasks()
    furnish(server, marks, Desk())

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
