"""A server of the SDK as the source of tools, whichever of its two kinds it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.core.text import valid_text
from mcp_tasks.errors import StepError, TasksError
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.tools.bus import ServerBus

logger: Final = logging.getLogger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]


class ToolHost(Protocol):
    """Where tools are found and called."""

    @property
    def publishes_schemas(self) -> bool:
        """Whether the schemas of its tools are those that the SDK makes of functions."""
        ...

    async def prepare(self) -> None:
        """Get ready, before the server serves anybody."""
        ...

    async def call(self, ctx: RequestContext, params: CallToolRequestParams) -> Any:
        """Call the tool as the server would for a request."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them."""
        ...


class MCPServerHost:
    """Tools of an `MCPServer`."""

    publishes_schemas = True

    def __init__(self, server: MCPServer[Any]) -> None:
        self._server = server
        self._bus: ServerBus | None = None

    async def call(self, ctx: RequestContext, params: CallToolRequestParams) -> Any:
        """Call the tool; what it raises becomes an `isError` result, as in a plain call."""
        context: Context[Any, Any] = Context(
            request_context=ctx, mcp_server=self._server, input_params=params, subscriptions=self._bus
        )
        try:
            return await self._server.call_tool(params.name, params.arguments or {}, context)
        except MCPError:
            raise
        except ToolError as exc:
            short = str(ctx.request_id)[:12]
            if isinstance(exc, UnexpectedToolError):
                logger.exception("task %s…: tool %r raised an unexpected exception", short, params.name)
            else:
                # Without its text, which may quote arguments or answers; the client has it.
                logger.info("task %s…: tool %r failed", short, params.name)
            return CallToolResult(content=[TextContent(type="text", text=_told(exc))], is_error=True)

    async def prepare(self) -> None:
        """Find the server's bus, while nobody is served who could see how."""
        self._bus = await ServerBus.of(self._server)

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them."""
        return await self._server.list_tools()


class LowLevelHost:
    """Tools of a low-level `Server`: whatever its handlers answer."""

    publishes_schemas = False

    def __init__(self, server: Server[Any], call_tool: Callable[[RequestContext, Any], Any]) -> None:
        self._server = server
        self._call_tool = call_tool

    async def prepare(self) -> None:
        """Nothing to do."""

    async def call(self, ctx: RequestContext, params: CallToolRequestParams) -> Any:
        """Call the server's own `tools/call` handler."""
        result = await self._call_tool(ctx, params)
        if isinstance(result, ErrorData):
            # A server of the SDK takes it for an error that was raised.
            raise MCPError.from_error_data(result)
        return result

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them; none for a server whose listing needs a live request."""
        entry = self._server.get_request_handler("tools/list")
        if entry is None:
            return []
        try:
            listed = await entry.handler(_listing_context(), PaginatedRequestParams())
        except Exception as exc:
            logger.warning("tools could not be listed, so their annotations decide nothing: %s", exc)
            return []
        return listed.tools if isinstance(listed, ListToolsResult) else []


def _told(exc: ToolError) -> str:
    """What a client reads of a tool's failure.

    The SDK withholds the text of exceptions that nobody expected. Those of ours are written to be read: a misuse of
    `current_task()` should not take a look into the server's log. The exception of a step is the tool's own.
    """
    cause = _unexpected(exc)
    if not isinstance(cause, TasksError) or isinstance(cause, StepError):
        return valid_text(str(exc))
    return f"{valid_text(str(exc))}: {to_error_data(cause).message}"


def _unexpected(exc: BaseException) -> BaseException | None:
    """What a tool, or the tool that it called, raised and the SDK withholds."""
    cause: BaseException | None = exc
    while isinstance(cause, UnexpectedToolError):
        cause = cause.__cause__
    return cause


def _listing_context() -> RequestContext:
    connection = Connection.from_envelope(LATEST_MODERN_VERSION, None, {})
    return ServerRequestContext(
        session=ServerSession(cast(Any, connection.outbound), connection),
        lifespan_context={},
        protocol_version=LATEST_MODERN_VERSION,
        method="tools/list",
    )
