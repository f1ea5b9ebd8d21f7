"""A server of the SDK as the source of tools, prompts and resources, whichever of its two kinds it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    GetPromptRequestParams,
    Prompt,
    ReadResourceRequestParams,
    Resource,
    ResourceTemplate,
    TextContent,
    Tool,
)

from mcp_tasks.core.text import valid_text
from mcp_tasks.errors import StepError, TasksError
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.tools.bus import ServerBus
from mcp_tasks.tools.listing import listed
from mcp_tasks.tools.reads import prompt_of, resource_of

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

Params: TypeAlias = CallToolRequestParams | GetPromptRequestParams | ReadResourceRequestParams
"""What a tool is called, a prompt is got, or a resource is read with."""


class ToolHost(Protocol):
    """Where tools are found and called, and prompts and resources with them."""

    @property
    def publishes_schemas(self) -> bool:
        """Whether the schemas of its tools are those that the SDK makes of functions."""
        ...

    @property
    def requires_authentication(self) -> bool:
        """Whether the server says itself that it lets nobody in without a token."""
        ...

    async def prepare(self) -> None:
        """Get ready, before the server serves anybody."""
        ...

    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Call the tool, or get the prompt or the resource, as the server would for a request."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them."""
        ...

    async def prompts(self) -> Sequence[Prompt]:
        """The prompts, as clients see them."""
        ...

    async def resources(self) -> Sequence[Resource]:
        """The resources with a fixed URI, as clients see them."""
        ...

    async def resource_templates(self) -> Sequence[ResourceTemplate]:
        """The resources with parameters in their URI, as clients see them."""
        ...


class MCPServerHost:
    """Tools of an `MCPServer`."""

    publishes_schemas = True

    @property
    def requires_authentication(self) -> bool:
        """Whether the server lets nobody in over HTTP without a token, as far as it says so itself."""
        return self._server.settings.auth is not None

    def __init__(self, server: MCPServer[Any]) -> None:
        self._server = server
        self._bus: ServerBus | None = None

    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Do what a plain call does; what a tool raises becomes an `isError` result."""
        context: Context[Any, Any] = Context(
            request_context=ctx, mcp_server=self._server, input_params=params, subscriptions=self._bus
        )
        if isinstance(params, GetPromptRequestParams):
            return await prompt_of(self._server, context, params)
        if isinstance(params, ReadResourceRequestParams):
            return await resource_of(self._server, context, params)
        return await self._call_tool(ctx, context, params)

    async def _call_tool(self, ctx: RequestContext, context: Context[Any, Any], params: CallToolRequestParams) -> Any:
        try:
            return await self._server.call_tool(params.name, params.arguments or {}, context)
        except MCPError:
            raise
        except ToolError as exc:
            # A call in this process need not be part of a task.
            where = "" if ctx.request_id is None else f"task {str(ctx.request_id)[:12]}…: "
            if isinstance(exc, UnexpectedToolError):
                logger.error("%stool %r raised an unexpected exception", where, params.name, exc_info=quietly())
            else:
                # Without its text, which may quote arguments or answers; the client has it.
                logger.info("%stool %r failed", where, params.name)
            return CallToolResult(content=[TextContent(type="text", text=_told(exc))], is_error=True)

    async def prepare(self) -> None:
        """Find the server's bus, while nobody is served who could see how."""
        self._bus = await ServerBus.of(self._server)

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them."""
        return await self._server.list_tools()

    async def prompts(self) -> Sequence[Prompt]:
        """The prompts, as clients see them."""
        return await self._server.list_prompts()

    async def resources(self) -> Sequence[Resource]:
        """The resources with a fixed URI, as clients see them."""
        return await self._server.list_resources()

    async def resource_templates(self) -> Sequence[ResourceTemplate]:
        """The resources with parameters in their URI, as clients see them."""
        return await self._server.list_resource_templates()


class LowLevelHost:
    """Tools of a low-level `Server`: whatever its handlers answer."""

    publishes_schemas = False
    # Its app is told so, not the server.
    requires_authentication = False

    def __init__(self, server: Server[Any], call_tool: Callable[[RequestContext, Any], Any]) -> None:
        self._server = server
        self._call_tool = call_tool

    async def prepare(self) -> None:
        """Nothing to do."""

    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Call the server's own handler."""
        result = await self._handler(params)(ctx, params)
        if isinstance(result, ErrorData):
            # A server of the SDK takes it for an error that was raised.
            raise MCPError.from_error_data(result)
        return result

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them; none for a server whose listing needs a live request."""
        return await listed(self._server, "tools/list")

    async def prompts(self) -> Sequence[Prompt]:
        """The prompts, as clients see them; none for a server whose listing needs a live request."""
        return await listed(self._server, "prompts/list")

    async def resources(self) -> Sequence[Resource]:
        """The resources, as clients see them; none for a server whose listing needs a live request."""
        return await listed(self._server, "resources/list")

    async def resource_templates(self) -> Sequence[ResourceTemplate]:
        """The templates, as clients see them; none for a server whose listing needs a live request."""
        return await listed(self._server, "resources/templates/list")

    def _handler(self, params: Params) -> Callable[[RequestContext, Any], Any]:
        if isinstance(params, CallToolRequestParams):
            # Not the server's own of now: that one makes tasks.
            return self._call_tool
        method = "prompts/get" if isinstance(params, GetPromptRequestParams) else "resources/read"
        entry = self._server.get_request_handler(method)
        if entry is None:
            raise MCPError(METHOD_NOT_FOUND, f"The server has no handler for {method}")
        return entry.handler


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
