"""A server of the SDK, of either kind, as the source of tools, prompts and resources."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import (
    ResourceError,
    ResourceNotFoundError,
    ToolError,
    UnexpectedResourceError,
    UnexpectedToolError,
)
from mcp.server.session import ServerSession
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ServerEvent, ToolsListChanged
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    PaginatedRequestParams,
    Prompt,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestId,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.errors import StepError, TasksError
from mcp_tasks.model.json import valid_text
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger, quietly, what

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

Params: TypeAlias = CallToolRequestParams | GetPromptRequestParams | ReadResourceRequestParams
"""The params of a tool call, of a prompt, or of a read of a resource."""

Listing: TypeAlias = Literal["tools/list", "prompts/list", "resources/list", "resources/templates/list"]

MOST_PAGES: Final = 1_000
"""Pages that are read of a listing: a cursor that never ends is the author's mistake, and must not block the start."""

_UNEXPECTED_BEFORE: Final = 0
"""The SDK's code for an exception in older versions of the protocol."""


# ---- requests without a client


class LoneChannel:
    """Stands in for the client, with the methods of `mcp.shared.dispatcher.DispatchContext`: it cannot be asked, and
    gets no progress."""

    transport: TransportContext = TransportContext(kind="local", can_send_request=False)
    can_send_request: bool = False
    request_id: RequestId | None = None
    message_metadata: MessageMetadata = None

    @property
    def cancel_requested(self) -> anyio.Event:
        """Never set: a cancellation reaches the tool itself."""
        return anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Refuse it, as for a client that cannot be asked."""
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Drop it."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Drop it."""


def lone_context(method: str, lifespan_state: Any, params: dict[str, Any] | None = None) -> RequestContext:
    """The context of a request that code in this process makes."""
    channel = LoneChannel()
    connection = Connection.from_envelope(LATEST_MODERN_VERSION, None, {}, outbound=channel)
    return ServerRequestContext(
        session=ServerSession(channel, connection),
        lifespan_context=lifespan_state,
        protocol_version=LATEST_MODERN_VERSION,
        method=method,
        params=params,
    )


# ---- hosts


class ToolHost(ABC):
    """Lists and calls tools, and prompts and resources with them.

    Attributes:
        publishes_schemas: Whether the schemas of its tools are those that the SDK makes of functions.
        requires_authentication: Whether the server itself says that it accepts no request over HTTP without a token.
    """

    publishes_schemas: bool = False
    requires_authentication: bool = False

    async def prepare(self) -> None:  # noqa: B027 - most hosts have nothing to do
        """Get ready, before the server accepts requests."""

    @abstractmethod
    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Call the tool, or get the prompt or the resource, as the server would for a request."""

    @abstractmethod
    async def listed(self, method: Listing) -> Sequence[Any]:
        """Everything that a client sees in a listing."""

    async def tools(self) -> Sequence[Tool]:
        """The tools, as clients see them."""
        return await self.listed("tools/list")

    async def prompts(self) -> Sequence[Prompt]:
        """The prompts, as clients see them."""
        return await self.listed("prompts/list")

    async def resources(self) -> Sequence[Resource]:
        """The resources with a fixed URI, as clients see them."""
        return await self.listed("resources/list")

    async def resource_templates(self) -> Sequence[ResourceTemplate]:
        """The resources with parameters in their URI, as clients see them."""
        return await self.listed("resources/templates/list")


class MCPServerHost(ToolHost):
    """Tools of an `MCPServer`."""

    publishes_schemas = True

    def __init__(self, server: MCPServer[Any]) -> None:
        self.requires_authentication: bool = server.settings.auth is not None
        self._server = server
        self._bus: ServerBus | None = None

    async def prepare(self) -> None:
        """Find the server's bus, before a client could see how."""
        self._bus = await ServerBus.of(self._server)

    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Do the same as for a plain call; an exception of a tool becomes an `isError` result."""
        context: Context[Any, Any] = Context(
            request_context=ctx, mcp_server=self._server, input_params=params, subscriptions=self._bus
        )
        if isinstance(params, GetPromptRequestParams):
            return await _prompt(self._server, context, params)
        if isinstance(params, ReadResourceRequestParams):
            return await _resource(self._server, context, str(params.uri))
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
            return CallToolResult(content=[TextContent(type="text", text=_text_of(exc))], is_error=True)

    async def listed(self, method: Listing) -> Sequence[Any]:
        """Everything that a client sees in a listing."""
        server = self._server
        lists: dict[Listing, Callable[[], Any]] = {
            "tools/list": server.list_tools,
            "prompts/list": server.list_prompts,
            "resources/list": server.list_resources,
            "resources/templates/list": server.list_resource_templates,
        }
        return await lists[method]()


class LowLevelHost(ToolHost):
    """Tools of a low-level `Server`, through its own handlers. Its app, not the server, knows of authentication."""

    def __init__(self, server: Server[Any], call_tool: Callable[[RequestContext, Any], Any]) -> None:
        self._server = server
        self._call_tool = call_tool

    async def call(self, ctx: RequestContext, params: Params) -> Any:
        """Call the server's own handler."""
        if isinstance(params, CallToolRequestParams):
            # Not the server's present handler: that one creates tasks.
            handler = self._call_tool
        else:
            method = "prompts/get" if isinstance(params, GetPromptRequestParams) else "resources/read"
            entry = self._server.get_request_handler(method)
            if entry is None:
                raise MCPError(METHOD_NOT_FOUND, f"The server has no handler for {method}")
            handler = entry.handler
        result = await handler(ctx, params)
        if isinstance(result, ErrorData):
            # A server of the SDK treats it as an error that was raised.
            raise MCPError.from_error_data(result)
        return result

    async def listed(self, method: Listing) -> Sequence[Any]:
        """Everything that the handler lists for a client that declares nothing, page by page. Empty if there is no
        handler, or if it needs a live request."""
        entry = self._server.get_request_handler(method)
        name = "resource_templates" if method == "resources/templates/list" else method.removesuffix("/list")
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES if entry is not None else 0):
            try:
                page = await cast(Any, entry).handler(lone_context(method, {}), PaginatedRequestParams(cursor=cursor))
            except Exception as exc:
                logger.warning("could not call %s; its entries are ignored: %s", method, what(exc))
                return []
            found += getattr(page, name, [])
            cursor = getattr(page, "next_cursor", None)
            if cursor is None:
                break
        return found


_NAME = "mcp-tasks.find-bus"


class ServerBus:
    """The event bus of an `MCPServer`, for tools in tasks that call `ctx.notify_tools_changed()` and its kin."""

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
        """Tell the server's listeners."""
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


# ---- prompts and resources of an MCPServer, with the errors of a plain request


async def _prompt(
    server: MCPServer[Any], context: Context[Any, Any], params: GetPromptRequestParams
) -> GetPromptResult | InputRequiredResult:
    try:
        return await server.get_prompt(params.name, dict(params.arguments or {}), context)
    except MCPError:
        raise
    except Exception as exc:
        logger.info("prompt %r failed", params.name)
        version = version_of(context.request_context.protocol_version)
        code = INTERNAL_ERROR if version.marks_results else _UNEXPECTED_BEFORE
        raise MCPError(code, valid_text(str(exc))) from exc


async def _resource(
    server: MCPServer[Any], context: Context[Any, Any], uri: str
) -> ReadResourceResult | InputRequiredResult:
    try:
        found = await server.read_resource(uri, context)
    except ResourceError as exc:
        if isinstance(exc, UnexpectedResourceError):
            # Without its address, which holds the arguments of a template.
            logger.error("a resource raised an unexpected exception", exc_info=quietly())
        code = INVALID_PARAMS if isinstance(exc, ResourceNotFoundError) else INTERNAL_ERROR
        raise MCPError(code, valid_text(str(exc)), {"uri": uri}) from exc
    if isinstance(found, InputRequiredResult):
        return found
    contents: list[TextResourceContents | BlobResourceContents] = []
    for item in found:
        if isinstance(item.content, bytes):
            blob, mime_type = base64.b64encode(item.content).decode(), item.mime_type or "application/octet-stream"
            contents.append(BlobResourceContents(uri=uri, blob=blob, mime_type=mime_type, _meta=item.meta))
        else:
            mime_type = item.mime_type or "text/plain"
            contents.append(TextResourceContents(uri=uri, text=item.content, mime_type=mime_type, _meta=item.meta))
    return ReadResourceResult(contents=contents)


def _text_of(exc: ToolError) -> str:
    """The text of a tool's failure for the client.

    The SDK withholds the text of unexpected exceptions. Ours are written for the reader: a misuse of `current_task()`
    should not need the server's log. The exception of a step is the tool's own.
    """
    cause: BaseException | None = exc
    # A tool may have called another.
    while isinstance(cause, UnexpectedToolError):
        cause = cause.__cause__
    if not isinstance(cause, TasksError) or isinstance(cause, StepError):
        return valid_text(str(exc))
    return f"{valid_text(str(exc))}: {to_error_data(cause).message}"
