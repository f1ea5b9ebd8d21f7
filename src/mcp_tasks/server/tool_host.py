"""A server of the SDK as the source of tools, prompts and resources, whichever of its two kinds it is."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, cast

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.lowlevel.helper_types import ReadResourceContents
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
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from mcp_tasks.errors import StepError, TasksError
from mcp_tasks.model.json import valid_text
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.quiet import get_logger, quietly, what

# ---- reads
# A prompt and a resource of an `MCPServer`, as a plain request would be answered with them.


logger: Final = get_logger(__name__)

_UNEXPECTED_BEFORE: Final = 0
"""The code that the SDK answers an exception with in older eras."""


async def prompt_of(
    server: MCPServer[Any], context: Context[Any, Any], params: GetPromptRequestParams
) -> GetPromptResult | InputRequiredResult:
    """The prompt; what it raises is the error that the plain request would be answered with, and keeps its text."""
    try:
        return await server.get_prompt(params.name, dict(params.arguments or {}), context)
    except MCPError:
        raise
    except Exception as exc:
        logger.info("prompt %r failed", params.name)
        is_modern = context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS
        code = INTERNAL_ERROR if is_modern else _UNEXPECTED_BEFORE
        raise MCPError(code, valid_text(str(exc))) from exc


async def resource_of(
    server: MCPServer[Any], context: Context[Any, Any], params: ReadResourceRequestParams
) -> ReadResourceResult | InputRequiredResult:
    """The resource; what it raises is the error that the plain request would be answered with."""
    uri = str(params.uri)
    try:
        found = await server.read_resource(uri, context)
    except ResourceError as exc:
        if isinstance(exc, UnexpectedResourceError):
            # Not which one: what a template is filled with stands in its address.
            logger.error("a resource raised an unexpected exception", exc_info=quietly())
        code = INVALID_PARAMS if isinstance(exc, ResourceNotFoundError) else INTERNAL_ERROR
        raise MCPError(code, valid_text(str(exc)), {"uri": uri}) from exc
    if isinstance(found, InputRequiredResult):
        return found
    return ReadResourceResult(contents=[_content(uri, item) for item in found])


def _content(uri: str, item: ReadResourceContents) -> TextResourceContents | BlobResourceContents:
    if isinstance(item.content, bytes):
        return BlobResourceContents(
            uri=uri,
            blob=base64.b64encode(item.content).decode(),
            mime_type=item.mime_type or "application/octet-stream",
            _meta=item.meta,
        )
    return TextResourceContents(uri=uri, text=item.content, mime_type=item.mime_type or "text/plain", _meta=item.meta)


# ---- lone
# The context of a request that no client made: nobody can be asked, and nobody hears of progress.


RequestContext: TypeAlias = ServerRequestContext[Any, Any]


class LoneChannel:
    """Where the client would be: the shape of `mcp.shared.dispatcher.DispatchContext`."""

    transport: TransportContext = TransportContext(kind="local", can_send_request=False)
    can_send_request: bool = False
    request_id: RequestId | None = None
    message_metadata: MessageMetadata = None

    def __init__(self) -> None:
        self.cancel_requested: anyio.Event = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> NoReturn:
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


# ---- listing
# What a low-level server lists, asked for by nobody: as a client sees it that declares nothing.


Listing: TypeAlias = Literal["tools/list", "prompts/list", "resources/list", "resources/templates/list"]

_FIELDS: Final[dict[Listing, str]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
}

MOST_PAGES: Final = 1_000
"""Pages that are asked for: a cursor that never ends is the author's mistake, and not ours to run into."""


async def listed(server: Server[Any], method: Listing) -> Sequence[Any]:
    """All that the server's own handler lists, page by page; nothing if it has none, or needs a live request."""
    entry = server.get_request_handler(method)
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES if entry is not None else 0):
        try:
            page = await cast(Any, entry).handler(lone_context(method, {}), PaginatedRequestParams(cursor=cursor))
        except Exception as exc:
            logger.warning("%s could not be asked for, so what it would list decides nothing: %s", method, what(exc))
            return []
        found += getattr(page, _FIELDS[method], [])
        cursor = getattr(page, "next_cursor", None)
        if cursor is None:
            break
    return found


# ---- bus
# The server's own event bus, for tools in tasks that call `ctx.notify_tools_changed()` and its kin.


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
