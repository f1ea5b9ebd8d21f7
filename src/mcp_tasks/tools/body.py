"""Runs a tool from its record, the same in the server that took the call, after a restart, and in a worker.

The tool gets the SDK's own context, built by hand over a `TaskChannel`, so it works in a task as in a call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from mcp_types import methods as mcp_methods
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import BaseModel, ValidationError

from mcp_tasks.core import InputRequest, JsonObject, TaskRequest
from mcp_tasks.core.text import valid_json, valid_text
from mcp_tasks.runtime import Failure, Outcome, Run, Success, Withdrawn
from mcp_tasks.server.bus import ServerBus
from mcp_tasks.server.channel import TaskChannel, require_capability
from mcp_tasks.server.clients import ClientCache
from mcp_tasks.server.guard import Guards
from mcp_tasks.server.rpc_errors import describe

logger = logging.getLogger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]


class ToolHost(Protocol):
    """A server as the source of tools, whichever of the SDK's two kinds it is."""

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
            if isinstance(exc, UnexpectedToolError):
                logger.exception("Tool %r raised an unexpected exception", params.name)
            else:
                logger.info("Tool %r failed: %r", params.name, str(exc))
            return CallToolResult(content=[TextContent(type="text", text=valid_text(str(exc)))], is_error=True)

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
        return await self._call_tool(ctx, params)

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


class ToolBody:
    """The body of every run: calls the tool that the record names."""

    def __init__(self, host: ToolHost, lifespan_state: Callable[[], Any], guards: Guards) -> None:
        self._host = host
        self._guards = guards
        self._lifespan_state = lifespan_state
        self._clients = ClientCache()

    async def __call__(self, run: Run) -> Outcome:
        """Call the tool, as often as it takes to answer what it asks by returning, and say how it ended."""
        request = run.record.request
        context = self._context(run)
        params = _params(request, request.input_responses, request.request_state)
        try:
            while True:
                result = await self._host.call(context, params)
                if not isinstance(result, InputRequiredResult):
                    return _success(request, result)
                if self._guards.offer(run.record.id, result):
                    return Withdrawn()
                responses = await run.ask_all(questions_of(result, request.client_capabilities))
                params = _params(request, responses, result.request_state)
        except Exception as exc:
            if not isinstance(exc, MCPError):
                logger.exception("the run of task %s failed", run.record.id)
            return Failure(describe(exc))

    def _context(self, run: Run) -> RequestContext:
        request = run.record.request
        channel = TaskChannel(run)
        client = self._clients.client_of(request)
        connection = Connection(channel, protocol_version=request.protocol_version, client_params=client.client_params)
        connection.client_capabilities = client.client_capabilities
        connection.initialized.set()
        return ServerRequestContext(
            session=ServerSession(channel, connection),
            lifespan_context=self._lifespan_state(),
            protocol_version=request.protocol_version,
            method=request.method,
            params={"name": request.name, "arguments": dict(request.arguments)},
            request_id=run.record.id,
            meta=cast(Any, dict(request.meta)),
        )


def questions_of(asked: InputRequiredResult, capabilities: JsonObject) -> dict[str, InputRequest]:
    """What a tool asked by returning, by its own keys.

    Raises:
        MCPError: -32021, if the client did not declare that it can be asked such a thing.
    """
    questions: dict[str, InputRequest] = {}
    for key, request in (asked.input_requests or {}).items():
        dumped = valid_json(request.model_dump(by_alias=True, mode="json", exclude_none=True))
        question = InputRequest(method=dumped["method"], params=dumped.get("params", {}))
        require_capability(question.method, question.params, capabilities)
        questions[key] = question
    return questions


def _params(request: TaskRequest, responses: JsonObject | None, state: str | None) -> CallToolRequestParams:
    fields: dict[str, Any] = {"name": request.name, "arguments": dict(request.arguments)}
    if responses is not None:
        fields["inputResponses"] = dict(responses)
    if state is not None:
        fields["requestState"] = state
    return CallToolRequestParams.model_validate(fields, by_name=False)


def _success(request: TaskRequest, result: Any) -> Outcome:
    """The result as the wire of the request's era would have carried it."""
    dumped = (
        result.model_dump(by_alias=True, mode="json", exclude_none=True)
        if isinstance(result, BaseModel)
        else dict(cast("Mapping[str, Any]", result or {}))
    )
    try:
        result = mcp_methods.serialize_server_result(request.method, request.protocol_version, dumped)
        # Half a character (a file name from `os.fsdecode`, say) is JSON to Python and to nobody else.
        json.dumps(result, ensure_ascii=False).encode()
        return Success(result)
    except UnicodeEncodeError:
        message = f"The result of tool {request.name!r} holds text that is not valid Unicode"
        return Failure(describe(MCPError(code=INTERNAL_ERROR, message=message)))
    except ValidationError:
        logger.exception("tool %r returned an invalid result", request.name)
        return Failure(describe(MCPError(code=INTERNAL_ERROR, message="Handler returned an invalid result")))


def _listing_context() -> RequestContext:
    connection = Connection.from_envelope(LATEST_MODERN_VERSION, None, {})
    return ServerRequestContext(
        session=ServerSession(cast(Any, connection.outbound), connection),
        lifespan_context={},
        protocol_version=LATEST_MODERN_VERSION,
        method="tools/list",
    )
