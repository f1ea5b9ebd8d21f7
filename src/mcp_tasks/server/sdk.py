"""The official SDK's door: its request context to a `Caller`, its handlers to the methods of the protocol."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import MethodBinding
from mcp.server.request_state import compact_json
from mcp.server.session import ServerSession
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    CallToolRequestParams,
    RequestId,
    ServerNotification,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.types import Message as TypesMessage
from starlette.types import Receive, Scope, Send

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE, JsonObject, encode_in_pieces, is_large, short_message
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.dialect import Message, decoded
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.listen import End, Listening, StreamEnds
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller, Identity
from mcp_tasks.protocol.shapes import EXTENSION_ID, IDEMPOTENCY_CAPABILITY, AnyParams
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.creation import CallAnswer, InlineResult, Question
from mcp_tasks.server.tool_runner import OpenCalls, to_mcp_error

# ---- sdk listen
# `notifications/tasks` on a `subscriptions/listen` stream of the SDK, and when such a stream ends.


logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]


async def serve_listening(
    listening: Listening,
    ctx: RequestContext,
    call_next: CallNext,
    *,
    to_params: Callable[[Message], Awaitable[dict[str, Any]]],
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve the stream with the states of its tasks, until the client leaves, the stream's time is over, or the process
    is told to stop."""
    stream = _Stream(ctx.session, ctx.request_id, listening)

    async def send_states(end: End) -> None:
        await _send_states(listening, stream, to_params, end)

    return await _serve(replace(ctx, session=cast(ServerSession, stream)), call_next, send_states, stopping)


async def serve_other(
    ends: StreamEnds,
    second: int | None,
    ctx: RequestContext,
    call_next: CallNext,
    *,
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve a stream that is not about tasks. It ends like one that is, in that second at the latest."""

    async def keep_time(end: End) -> None:
        with ends.ending(second, end):
            await anyio.sleep_forever()

    return await _serve(ctx, call_next, keep_time, stopping)


async def _serve(
    ctx: RequestContext,
    call_next: CallNext,
    beside: Callable[[End], Coroutine[Any, Any, None]],
    stopping: Callable[[], Awaitable[object]],
) -> HandlerResult:
    """Serve a stream while something goes on beside it, which is given how to end the stream."""
    refused: Exception | None = None
    result: HandlerResult = None
    async with anyio.create_task_group() as group:
        group.start_soon(beside, group.cancel_scope.cancel)
        group.start_soon(_end_with, stopping, group)
        try:
            result = await call_next(ctx)
        except Exception as exc:
            # Out of the group it would come wrapped, and be no answer to the client any more.
            refused = exc
        group.cancel_scope.cancel()
    if refused is not None:
        raise refused
    if result is None:
        # Ended by us: a result is how a stream ends gracefully.
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: ctx.request_id}}
    return result


async def _end_with(stopping: Callable[[], Awaitable[object]], group: TaskGroup) -> None:
    await stopping()
    group.cancel_scope.cancel()


async def _send_states(
    listening: Listening,
    stream: _Stream,
    to_params: Callable[[Message], Awaitable[dict[str, Any]]],
    end: End,
) -> None:
    await stream.acknowledged.wait()
    try:
        async with aclosing(listening.states(end)) as states:
            async for state in states:
                await stream.send_state(await to_params(state))
    except LimitExceeded as exc:
        logger.info("a listen stream ends: %s", exc)
        end()


class _Stream:
    """The session of one listen stream: the SDK's, but that its acknowledgement names the task ids."""

    def __init__(self, session: ServerSession, request_id: RequestId | None, listening: Listening) -> None:
        self._session = session
        self._request_id = request_id
        self._listening = listening
        self.acknowledged = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def send_notification(
        self, notification: ServerNotification, related_request_id: RequestId | None = None
    ) -> None:
        """Send what the SDK's handler sends."""
        if not isinstance(notification, SubscriptionsAcknowledgedNotification):
            await self._session.send_notification(notification, related_request_id)
            return
        honored = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
        task_ids = list(self._listening.task_ids)
        filter_ = SubscriptionFilter.model_validate({**honored, "taskIds": task_ids}, by_name=False)
        params = notification.params.model_copy(update={"notifications": filter_})
        await self._session.send_notification(notification.model_copy(update={"params": params}), related_request_id)
        self.acknowledged.set()

    async def send_state(self, params: dict[str, Any]) -> None:
        """Send the state of a task, with the id of this subscription."""
        meta = {**params.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self._request_id}
        notification = PlainNotification(method=self._listening.method, params={**params, "_meta": meta})
        await self._session.send_notification(cast(Any, notification), self._request_id)


class PlainNotification(BaseModel):
    """A notification whose params are a plain dict: the SDK drops nulls from models, and `ttlMs` may be one."""

    method: str
    params: dict[str, Any] | None


# ---- era
# An era of the protocol that is older than the extension, as the SDK's door sees it: the seam it is passed in at.


@dataclass(frozen=True, kw_only=True, slots=True)
class EraParts:
    """What an era is given of the server that it serves.

    Attributes:
        stopping: Returns once the process is told to stop.
        exiting: Returns once the process has to exit. While a request awaits it, a stop waits for that request, as long
            as it waits for running tools.
        open_calls: How what a tool sends to its client reaches that.
        send_input: Whether callers may answer with `tasks/sendInput`, which is in no version of the protocol.
    """

    runtime: Callable[[], TaskRuntime]
    protocol: TasksProtocol
    offers: Catalogue
    stopping: Callable[[], Awaitable[object]]
    exiting: Callable[[], Awaitable[object]]
    open_calls: OpenCalls
    send_input: bool = False


class Era(Protocol):
    """Tasks of an older era, on a server of the SDK."""

    @property
    def versions(self) -> frozenset[str]:
        """The versions of the protocol that it serves."""
        ...

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts; called each time its lifespan is entered, before it serves anybody."""
        ...

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Add to the answer to `initialize`, which has settled on one of these versions, what the era has to say."""
        ...

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message of these versions, notifications too: answer it, or hand it on, changed or not.

        All but `initialize`, during which the version is not known yet.

        It is on the path of every message, so what has nothing to do with tasks must cost next to nothing.
        """
        ...


# ---- exchange
# The POST that a request came in over Streamable HTTP, where somebody watches it, and whether there is one at all.


_EXCHANGE: Final = "mcp_tasks.exchange"
"""Where in the scope of a POST its exchange is found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One POST and its answer.

    Attributes:
        can_resume: Whether a client that left can still come back for the rest of the answer.
        over: Set when the answer has been sent, or the SDK has noticed that the client has left.
        receive: What tells that the client has left, where the SDK does not look: it does so only while it streams.
    """

    can_resume: bool
    receive: Receive | None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ended(self) -> None:
        """Return when it is over."""
        if self.receive is None:
            await self.over.wait()
            return
        while (await self.receive())["type"] != "http.disconnect":
            # The rest of the request; the SDK has read all that there is.
            pass


def watch_exchange(scope: Scope, exchange: Exchange) -> None:
    """Let the handler of a POST know of its exchange."""
    scope[_EXCHANGE] = exchange


def exchange_of(ctx: RequestContext) -> Exchange | None:
    """The POST that a request came in; None if it is not known when that is over."""
    scope: Any = getattr(ctx.request, "scope", None)
    return None if scope is None else scope.get(_EXCHANGE)


def http_session_of(ctx: RequestContext) -> str | None:
    """The Streamable HTTP session of a message, whose streams are watched; None for any other."""
    # Only where the SDK has checked the header: elsewhere it is whatever a client makes of it.
    return None if exchange_of(ctx) is None else _session_header(ctx)


def is_pipe(ctx: RequestContext) -> bool:
    """Whether a message came over a connection that carries everything in both directions, for as long as it lasts."""
    return _session_header(ctx) is None


def _session_header(ctx: RequestContext) -> str | None:
    headers: Any = getattr(ctx.request, "headers", None)
    return None if headers is None else headers.get(MCP_SESSION_ID_HEADER)


# ---- spliced
# Large parts of an answer that are JSON already: the SDK writes the answer with a word in their place, and they are
# put in where it goes out.


_PARTS: Final = "mcp_tasks.large_parts"
"""Where in the scope of a POST the large parts of its answer are put."""

_LENGTH: Final = b"content-length"


class LargeParts:
    """The large parts of the answer to one POST.

    Args:
        send: Sends the answer.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._parts: dict[str, bytes] = {}
        self._start: TypesMessage | None = None

    def put(self, data: bytes) -> str:
        """Have JSON put in for the text that this gives."""
        # Nobody can guess it, so no text of anybody's is taken for it.
        word = f"mcp-tasks-{secrets.token_hex(16)}"
        self._parts[word] = data
        return word

    async def send(self, message: TypesMessage) -> None:
        """Send what the SDK sends, with the parts in it."""
        if not self._parts:
            await self._send(message)
        elif message["type"] == "http.response.start":
            # How long it is going to be is known with the body.
            self._start = message
        elif message["type"] == "http.response.body":
            body = self._filled(message.get("body", b""))
            more = message.get("more_body", False)
            if self._start is not None:
                await self._send(_with_length(self._start, None if more else len(body)))
                self._start = None
            await self._send({**message, "body": body})
        else:
            await self._send(message)

    def _filled(self, body: bytes) -> bytes:
        for word in [word for word in self._parts if word.encode() in body]:
            body = body.replace(f'"{word}"'.encode(), self._parts.pop(word), 1)
        return body


def _with_length(start: TypesMessage, length: int | None) -> TypesMessage:
    """The start of an answer whose body has so many bytes; None for nobody knows how many."""
    headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != _LENGTH]
    if length is not None and len(headers) < len(list(start.get("headers", ()))):
        headers.append((_LENGTH, b"%d" % length))
    return {**start, "headers": headers}


def take_parts(scope: Scope, send: Send) -> Send:
    """Let the handler of a POST have large parts of its answer put in. Gives what the SDK sends it with."""
    scope[_PARTS] = parts = LargeParts(send)
    return parts.send


async def with_parts(ctx: RequestContext, result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a request with words in the place of its large fields, where they are put in later."""
    parts = parts_of(ctx)
    if parts is None:
        return dict(result)
    return {
        name: parts.put(await asyncio.to_thread(encode_in_pieces, value)) if is_large(value) else value
        for name, value in result.items()
    }


def parts_of(ctx: RequestContext) -> LargeParts | None:
    """The large parts of the answer to a request; None where none can be put in."""
    scope: Any = getattr(ctx.request, "scope", None)
    exchange = exchange_of(ctx)
    if scope is None or (exchange is not None and exchange.can_resume):
        # What is kept to be sent once more is sent in another answer.
        return None
    return scope.get(_PARTS)


def is_part(data: bytes) -> bool:
    """Whether JSON is large enough to be put in later."""
    return len(data) > LARGE


RequestHandler: TypeAlias = Callable[[RequestContext, Any], Awaitable[HandlerResult]]

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
_RESERVED = "io.modelcontextprotocol/"
_EXTENSION: Final = repr(EXTENSION_ID)


def caller_of(ctx: RequestContext) -> Caller:
    """Who calls, as the SDK knows it."""
    # Starlette's headers: by lower-case name, and found in whatever case they are asked for.
    headers: Mapping[str, str] = getattr(ctx.request, "headers", {})
    connection = None if ctx.request is None else connection_of(getattr(ctx.request, "client", None))
    if ctx.protocol_version in _MODERN:
        return modern_caller(ctx.protocol_version, request_meta(ctx), headers, connection)
    handshake = ctx.session.client_params
    principal, identity = authenticated()
    return Caller(
        protocol_version=ctx.protocol_version,
        principal=principal,
        identity=identity,
        capabilities={} if handshake is None else _dumped(handshake.capabilities),
        client_info=None if handshake is None else _dumped(handshake.client_info),
        headers=headers,
        connection=connection,
    )


def modern_caller(version: str, meta: Mapping[str, Any], headers: Mapping[str, str], connection: str | None) -> Caller:
    """Who calls on a wire where every request says so itself, in its `_meta`."""
    # As they came, not dumped from the SDK's models again: a run has them parsed by the SDK, as this call had.
    principal, identity = authenticated()
    return Caller(
        protocol_version=version,
        principal=principal,
        identity=identity,
        capabilities=_object(meta.get(CLIENT_CAPABILITIES_META_KEY)) or {},
        client_info=_object(meta.get(CLIENT_INFO_META_KEY)),
        headers=headers,
        connection=connection,
    )


def connection_of(client: Sequence[Any] | None) -> str:
    """A network connection, by the `client` of its ASGI scope: host and port of the other side.

    No header is read here. Behind a proxy the HTTP server knows whether it is one that the operator trusts, and names
    the address that it forwards, with 0 for the port; connections of any other proxy are the proxy's own.
    """
    return "" if client is None else f"{client[0]} {client[1]}"


def authenticated() -> tuple[str, Identity] | tuple[None, None]:
    """The identity that the request was authenticated with, in the SDK's words for it (`authenticated_principal`, for
    who has no context of a request), and in its parts."""
    token = get_access_token()
    if token is None:
        return None, None
    client_id, issuer, subject = components = principal_components(token)
    identity = Identity(
        client_id=client_id,
        issuer=issuer,
        subject=subject,
        scopes=tuple(token.scopes),
        claims=token.claims or {},
        expires_at=token.expires_at,
    )
    # Stored with every task: it stays as it is.
    return compact_json(components), identity


def task_request(params: CallToolRequestParams, ctx: RequestContext, caller: Caller) -> TaskRequest:
    """Everything of a `tools/call` that a run needs, later and elsewhere.

    The legacy `params.task` is left out: SEP-2663 has servers treat it as unknown.
    """
    request = request_of(ctx.method, request_meta(ctx), caller, name=params.name, arguments=params.arguments or {})
    return replace(request, input_responses=_responses(params), request_state=params.request_state)


def request_of(
    method: str, meta: Mapping[str, Any], caller: Caller, *, name: str, arguments: Mapping[str, Any]
) -> TaskRequest:
    """What a run needs of any request, whichever method it is of, with the `_meta` that is the caller's own."""
    own = {key: value for key, value in meta.items() if not key.startswith(_RESERVED)}
    # It ends with the request, or is kept by whoever goes on to use it.
    own.pop("progressToken", None)
    return TaskRequest(
        method=method,
        name=name,
        arguments=arguments,
        meta=own,
        protocol_version=caller.protocol_version,
        client_info=caller.client_info,
        client_capabilities=caller.capabilities,
    )


async def to_result(message: Message, ctx: RequestContext | None = None) -> dict[str, Any]:
    """The message as the SDK wants it: a dict.

    Args:
        ctx: The request that is answered with it, if it is one.
    """
    if message.large is None:
        return message.fields
    name, data = message.large
    parts = None if ctx is None or not is_part(data) else parts_of(ctx)
    return {**message.fields, name: await decoded(data) if parts is None else parts.put(data)}


class SdkAdapter:
    """The methods and the middleware by which a server of the SDK serves tasks.

    Args:
        protocol: What answers.
        stopping: Returns once the process is told to stop; streams end then.
        eras: The older eras that are served beside the newest.
    """

    def __init__(
        self, protocol: TasksProtocol, stopping: Callable[[], Awaitable[object]], eras: Sequence[Era] = ()
    ) -> None:
        self._protocol = protocol
        self._stopping = stopping
        self._eras = {version: era for era in eras for version in era.versions}
        self._own: dict[int, RequestHandler] = {}
        # Any params: the SDK validates them before the handler sees the version, and on a wire without tasks a method
        # is unknown whatever its params are. The protocol validates.
        self._methods = [
            MethodBinding("tasks/get", AnyParams, self.own(self._handler("tasks/get", protocol.get))),
            MethodBinding("tasks/update", AnyParams, self.own(self._handler("tasks/update", protocol.update))),
            MethodBinding("tasks/cancel", AnyParams, self.own(self._handler("tasks/cancel", protocol.cancel))),
        ]

    def methods(self) -> Sequence[MethodBinding]:
        """The tasks methods. Which era has which of them is for the protocol to say."""
        return self._methods

    def own(self, handler: RequestHandler) -> RequestHandler:
        """Take note that a handler is made here. Gives the handler."""
        # By identity: everything else of a handler, whoever wraps it may copy.
        self._own[id(handler)] = handler
        return handler

    def is_own(self, handler: RequestHandler) -> bool:
        """Whether a handler is one that was made here, as it was made."""
        return id(handler) in self._own

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """What must be done before the SDK looks at a request: of everything else it costs a look-up or two."""
        if ctx.request_id is None and not ctx.method.startswith("notifications/"):
            # What asks for no answer is no request, whatever it calls itself: the SDK drops it.
            return await call_next(ctx)
        if ctx.protocol_version not in _MODERN:
            if ctx.method == "initialize":
                return await self._initialize(ctx, call_next)
            era = self._eras.get(ctx.protocol_version)
            return await call_next(ctx) if era is None else await era.serve(ctx, call_next)
        if ctx.method == "tools/call":
            has_task = ctx.params is not None and "task" in ctx.params
            return self._checked(ctx, await call_next(_without_task(ctx) if has_task else ctx))
        if ctx.method == "subscriptions/listen":
            return await self._listen(ctx, call_next)
        if ctx.method == "server/discover":
            return _honouring_keys(await call_next(ctx))
        return await call_next(ctx)

    def _checked(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """The answer to a call, unless it is a task and the client did not declare the extension.

        SEP-2663: servers MUST NOT return one then. The SDK lets whatever a handler returns with that mark pass, and the
        client cannot parse it.
        """
        mark = result.get("resultType") if isinstance(result, dict) else getattr(result, "result_type", None)
        if mark == "task" and not self._protocol.takes_tasks(caller_of(ctx)):
            name = short_message(str((ctx.params or {}).get("name")))
            message = (
                f"Tool {name!r} returned a CreateTaskResult, and the client did not declare the extension {_EXTENSION}"
            )
            logger.error("%s. Mark the tool with @tasks.task() instead, and return its result", message)
            raise MCPError(INTERNAL_ERROR, message)
        return result

    async def answer(self, caller: Caller, answer: CallAnswer) -> HandlerResult:
        """The answer to a `tools/call`, as the SDK wants it."""
        match answer:
            case TaskRecord():
                return await to_result(self._protocol.created(caller, answer))
            case Question():
                return await to_result(self._protocol.dialect(caller).question(answer.question))
            case InlineResult():
                return await decoded(self._protocol.dialect(caller).result(answer.outcome))

    async def _initialize(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """The handshake, with what the era says that it settled on. Until then the context's version is a guess."""
        result = _honouring_keys(await call_next(ctx))
        if isinstance(result, dict):
            era = self._eras.get(result.get("protocolVersion", ""))
            if era is not None:
                era.introduce(ctx, result)
        return result

    async def _listen(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        caller, params = caller_of(ctx), ctx.params or {}
        protocol, stopping = self._protocol, self._stopping
        try:
            if protocol.asks_to_listen(caller, params):
                listening = await protocol.listen(caller, params)
                close = listening.close
            else:
                listening, close = None, await protocol.open_stream(caller)
        except RpcError as exc:
            protocol.refused(caller, "subscriptions/listen", exc)
            raise to_mcp_error(exc) from exc
        try:
            if listening is not None:
                return await serve_listening(listening, ctx, call_next, to_params=to_result, stopping=stopping)
            # A pipe is one user's own, who would only be told to ask again.
            second = None if ctx.request is None else protocol.stream_ends.after(caller)
            return await serve_other(protocol.stream_ends, second, ctx, call_next, stopping=stopping)
        finally:
            close()

    def _handler(self, name: str, method: Callable[[Caller, JsonObject], Awaitable[Message]]) -> RequestHandler:
        async def handler(ctx: RequestContext, _: AnyParams) -> HandlerResult:
            caller, params = caller_of(ctx), ctx.params or {}
            try:
                return await to_result(await method(caller, params), ctx)
            except RpcError as exc:
                self._protocol.refused(caller, name, exc, task_id=params.get("taskId"))
                raise to_mcp_error(exc) from exc

        return handler


def _without_task(ctx: RequestContext) -> RequestContext:
    """The call without the legacy `params.task`.

    SEP-2663: servers MUST treat the field as unknown. The SDK still knows it, and would refuse a malformed one.
    """
    return replace(ctx, params={name: value for name, value in (ctx.params or {}).items() if name != "task"})


def _honouring_keys(result: HandlerResult) -> HandlerResult:
    """What the server says of itself, with that it honours idempotency keys."""
    told = _dumped(result) if isinstance(result, BaseModel) else result
    if not isinstance(told, dict):
        return result
    capabilities = _object(told.get("capabilities")) or {}
    experimental: dict[str, Any] = {**(_object(capabilities.get("experimental")) or {}), IDEMPOTENCY_CAPABILITY: {}}
    return {**told, "capabilities": {**capabilities, "experimental": experimental}}


def request_meta(ctx: RequestContext) -> Mapping[str, Any]:
    """The `_meta` of a request as it came; empty if there is none."""
    meta = (ctx.params or {}).get("_meta")
    return cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _dumped(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _responses(params: CallToolRequestParams) -> dict[str, Any] | None:
    if params.input_responses is None:
        return None
    dumped = params.model_dump(by_alias=True, mode="json", exclude_none=True, include={"input_responses"})
    return dumped["inputResponses"]
