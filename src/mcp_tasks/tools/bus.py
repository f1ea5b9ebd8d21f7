"""The server's own event bus, for tools in tasks that call `ctx.notify_tools_changed()` and its kin.

`MCPServer` hands its bus to the contexts it builds and to nobody else. It builds one for a direct `call_tool`, so a
tool that is there for a moment, before the server serves anybody, gets hold of such a context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ServerEvent, ToolsListChanged

_NAME = "mcp-tasks.find-bus"


class ServerBus:
    """Publishes on the bus of an `MCPServer`."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context

    @classmethod
    async def of(cls, server: MCPServer[Any]) -> ServerBus:
        """The bus of `server`."""
        found: list[Context[Any, Any]] = []

        async def find_bus(ctx: Context) -> None:
            found.append(ctx)

        server.add_tool(find_bus, name=_NAME)
        try:
            await server.call_tool(_NAME, {})
        finally:
            server.remove_tool(_NAME)
        return cls(found[0])

    async def publish(self, event: ServerEvent) -> None:
        """Tell whoever listens to the server."""
        match event:
            case ToolsListChanged():
                await self._context.notify_tools_changed()
            case PromptsListChanged():
                await self._context.notify_prompts_changed()
            case ResourcesListChanged():
                await self._context.notify_resources_changed()
            case _:
                await self._context.notify_resource_updated(event.uri)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Not offered: a tool's context only publishes."""
        raise RuntimeError("a task's context publishes events; it does not subscribe to them")
