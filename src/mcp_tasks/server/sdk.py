"""The SDK as an entry point: its request context to a `Caller`, its handlers to the methods of the protocol."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, cast

import anyio
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
from pydantic import BaseModel
from starlette.types import Message as TypesMessage
from starlette.types import Receive, Scope, Send

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE, JsonObject, encode_in_pieces, is_large, object_in, short_message
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.listen import End, Listening
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.outcomes import decoded
from mcp_tasks.protocol.owners import Caller, Identity
from mcp_tasks.protocol.shapes import (
    EXTENSION_ID,
    IDEMPOTENCY_CAPABILITY,
    AnyParams,
    Message,
    render_created,
    render_result,
)
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.creation import CallAnswer, InlineResult, Question
from mcp_tasks.server.tool_runner import OpenCalls, to_mcp_error

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

# ---- listen
# `notifications/tasks` on a `subscriptions/listen` stream of the SDK, and when such a stream ends.


async def serve_until(
    ctx: RequestContext,
    call_next: CallNext,
    stopping: Callable[[], Awaitable[object]],
    beside: Callable[[End], Coroutine[Any, Any, None]],
) -> HandlerResult:
    """Serve a stream until its client leaves, or it is ended: because the process is told to stop, or by the work that
    is done beside it, which is given how to end it."""
    refused: Exception | None = None
    result: HandlerResult = None
    async with anyio.create_task_group() as group:
        end = group.cancel_scope.cancel

        async def end_with_server() -> None:
            await stopping()
            end()

        group.start_soon(beside, end)
        group.start_soon(end_with_server)
        try:
            result = await call_next(ctx)
        except Exception as exc:
            # Out of the group it would come wrapped, and be no answer to the client any more.
            refused = exc
        end()
    if refused is not None:
        raise refused
    if result is None:
        # Ended by us: a result is how a stream ends gracefully.
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: ctx.request_id}}
    return result


class _Stream:
    """The session of one listen stream: the SDK's, but that its acknowledgement names the task ids."""

    def __init__(self, session: ServerSession, request_id: RequestId | None, listening: Listening) -> None:
        self._session = session
        self._request_id = request_id
        self._listening = listening
        self._acknowledged = anyio.Event()

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
        self._acknowledged.set()

    async def send_states(self, end: End) -> None:
        """Send the states of the tasks, with the id of this subscription, once it is acknowledged."""
        await self._acknowledged.wait()
        try:
            async with aclosing(self._listening.states(end)) as states:
                async for state in states:
                    params = await to_result(state)
                    meta = {**params.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self._request_id}
                    notification = PlainNotification(method="notifications/tasks", params={**params, "_meta": meta})
                    await self._session.send_notification(cast(Any, notification), self._request_id)
        except LimitExceeded as exc:
            logger.info("a listen stream ends: %s", exc)
            end()


class PlainNotification(BaseModel):
    """A notification whose params are a plain dict: the SDK drops nulls from models, and `ttlMs` may be one."""

    method: str
    params: dict[str, Any] | None


# ---- era
# The seam at which an older version of the protocol is passed in.


@dataclass(frozen=True, kw_only=True, slots=True)
class EraParts:
    """The parts of a server that an older version is served with.

    Attributes:
        offers: The tools, prompts and resources whose calls may be tasks.
        stopping: Returns once the process is told to stop.
        exiting: Returns once the process has to exit. While a request awaits it, a stop waits for that request, as long
            as it waits for running tools.
        open_calls: How the messages of a tool reach its client.
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
    """Tasks of an older version, on a server of the SDK."""

    @property
    def versions(self) -> frozenset[str]:
        """The versions of the protocol that it serves."""
        ...

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts; called each time its lifespan is entered, before it serves requests."""
        ...

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Add to the answer to `initialize`, which has settled on one of these versions."""
        ...

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message of these versions, notifications too: answer it, or hand it on, changed or not.

        All but `initialize`, during which the version is not known yet. It is on the path of every message, so one that
        has nothing to do with tasks must cost next to nothing.
        """
        ...


# ---- exchange
# The POST that a request came in over Streamable HTTP, if it is watched.


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


# ---- large parts
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
        # It cannot be guessed, so no other text is taken for it.
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
            body: bytes = message.get("body", b"")
            for word in [word for word in self._parts if word.encode() in body]:
                body = body.replace(f'"{word}"'.encode(), self._parts.pop(word), 1)
            start, self._start = self._start, None
            if start is not None:
                given = list(start.get("headers", ()))
                headers = [(name, value) for name, value in given if name.lower() != _LENGTH]
                if not message.get("more_body", False) and len(headers) < len(given):
                    headers.append((_LENGTH, b"%d" % len(body)))
                await self._send({**start, "headers": headers})
            await self._send({**message, "body": body})
        else:
            await self._send(message)


def take_parts(scope: Scope, send: Send) -> Send:
    """Let the handler of a POST have large parts of its answer put in. Gives what the SDK sends it with."""
    scope[_PARTS] = parts = LargeParts(send)
    return parts.send


def _parts_of(ctx: RequestContext) -> LargeParts | None:
    """The large parts of the answer to a request; None where none can be put in."""
    scope: Any = getattr(ctx.request, "scope", None)
    exchange = exchange_of(ctx)
    if scope is None or (exchange is not None and exchange.can_resume):
        # What is kept to be sent once more is sent in another answer.
        return None
    return scope.get(_PARTS)


async def with_parts(ctx: RequestContext, result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a request with words in the place of its large fields, where they are put in later."""
    parts = _parts_of(ctx)
    if parts is None:
        return dict(result)
    return {
        name: parts.put(await asyncio.to_thread(encode_in_pieces, value)) if is_large(value) else value
        for name, value in result.items()
    }


async def to_result(message: Message, ctx: RequestContext | None = None) -> dict[str, Any]:
    """The message as the SDK wants it: a dict.

    Args:
        ctx: The request that is answered with it, if it is one.
    """
    if message.large is None:
        return message.fields
    name, data = message.large
    parts = None if ctx is None or len(data) <= LARGE else _parts_of(ctx)
    return {**message.fields, name: await decoded(data) if parts is None else parts.put(data)}


async def encode_answer(answer: CallAnswer) -> HandlerResult:
    """The answer to a `tools/call`, as the SDK wants it."""
    match answer:
        case TaskRecord():
            return render_created(answer)
        case Question():
            return {"resultType": "input_required", **answer.question}
        case InlineResult():
            return await decoded(render_result(answer.outcome))


# ---- requests


RequestHandler: TypeAlias = Callable[[RequestContext, Any], Awaitable[HandlerResult]]

_RESERVED: Final = "io.modelcontextprotocol/"


def caller_of(ctx: RequestContext) -> Caller:
    """Who calls, as the SDK knows it."""
    # Starlette's headers: by lower-case name, and found in whatever case they are asked for.
    headers: Mapping[str, str] = getattr(ctx.request, "headers", {})
    scope: Any = None if ctx.request is None else getattr(ctx.request, "scope", {})
    if version_of(ctx.protocol_version).describes_client:
        # As they came, not dumped from the SDK's models again: a run has them parsed by the SDK, as this call had.
        return make_caller(ctx.protocol_version, request_meta(ctx), headers, scope)
    handshake = ctx.session.client_params
    meta: dict[str, Any] = {}
    if handshake is not None:
        capabilities, client_info = _dumped(handshake.capabilities), _dumped(handshake.client_info)
        meta = {CLIENT_CAPABILITIES_META_KEY: capabilities, CLIENT_INFO_META_KEY: client_info}
    return make_caller(ctx.protocol_version, meta, headers, scope)


def make_caller(
    version: str, meta: Mapping[str, Any], headers: Mapping[str, str], scope: Mapping[str, Any] | None
) -> Caller:
    """Who calls, by what a client says of itself in the `_meta` of each request.

    Args:
        scope: The ASGI scope of the request; None on other transports.
    """
    principal, identity = authenticated()
    capabilities, client_info = meta.get(CLIENT_CAPABILITIES_META_KEY), meta.get(CLIENT_INFO_META_KEY)
    # No header is read here. Behind a proxy the HTTP server knows whether it is one that the operator trusts, and names
    # the address that it forwards, with 0 for the port; connections of any other proxy are the proxy's own.
    client: Sequence[Any] | None = None if scope is None else scope.get("client")
    address = "" if client is None else f"{client[0]} {client[1]}"
    return Caller(
        protocol_version=version,
        principal=principal,
        identity=identity,
        capabilities=cast("JsonObject", capabilities) if isinstance(capabilities, dict) else {},
        client_info=cast("JsonObject", client_info) if isinstance(client_info, dict) else None,
        headers=headers,
        connection=None if scope is None else address,
    )


def authenticated() -> tuple[str, Identity] | tuple[None, None]:
    """The identity that the request was authenticated with: as one string like the SDK's `authenticated_principal`,
    which needs the context of a request, and in its parts."""
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
    if params.input_responses is None and params.request_state is None:
        return request
    dumped = params.model_dump(by_alias=True, mode="json", exclude_none=True, include={"input_responses"})
    return replace(request, input_responses=dumped.get("inputResponses"), request_state=params.request_state)


def request_of(
    method: str, meta: Mapping[str, Any], caller: Caller, *, name: str, arguments: Mapping[str, Any]
) -> TaskRequest:
    """Everything of a request that a run needs, whichever method it is of. Its `_meta` is the caller's own."""
    own = {key: value for key, value in meta.items() if not key.startswith(_RESERVED)}
    # It ends with the request.
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


def request_meta(ctx: RequestContext) -> Mapping[str, Any]:
    """The `_meta` of a request as it came; empty if there is none."""
    meta = (ctx.params or {}).get("_meta")
    return cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}


class SdkAdapter:
    """The methods and the middleware by which a server of the SDK serves tasks.

    Args:
        protocol: Answers requests.
        stopping: Returns once the process is told to stop; streams end then.
        eras: The older versions that are served beside the newest.

    Attributes:
        methods: The tasks methods. Which version has which of them is for the protocol to say.
        own_handlers: The ids of handlers that were made here. By identity: a wrapper may copy everything else.
    """

    def __init__(
        self, protocol: TasksProtocol, stopping: Callable[[], Awaitable[object]], eras: Sequence[Era] = ()
    ) -> None:
        self._protocol = protocol
        self._stopping = stopping
        self._eras = {version: era for era in eras for version in era.versions}
        self._own: list[RequestHandler] = []
        self.own_handlers: set[int] = set()
        # Any params: the SDK validates them before the handler sees the version, and on a wire without tasks a method
        # is unknown whatever its params are. The protocol validates.
        self.methods: Sequence[MethodBinding] = [
            MethodBinding(name, AnyParams, self.own(self._handler(name, method)))
            for name, method in (
                ("tasks/get", protocol.get),
                ("tasks/update", protocol.update),
                ("tasks/cancel", protocol.cancel),
            )
        ]

    def own(self, handler: RequestHandler) -> RequestHandler:
        """Take note that a handler is made here. Gives the handler."""
        # Kept, so that no other handler ever has its id.
        self._own.append(handler)
        self.own_handlers.add(id(handler))
        return handler

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Do what must be done before the SDK looks at a request. Any other request costs a look-up or two."""
        if ctx.request_id is None and not ctx.method.startswith("notifications/"):
            # A message that asks for no answer is no request, whatever it calls itself: the SDK drops it.
            return await call_next(ctx)
        if not version_of(ctx.protocol_version).has_extension:
            if ctx.method == "initialize":
                return await self._initialize(ctx, call_next)
            era = self._eras.get(ctx.protocol_version)
            return await call_next(ctx) if era is None else await era.serve(ctx, call_next)
        if ctx.method == "tools/call":
            if ctx.params is not None and "task" in ctx.params:
                # SEP-2663: servers MUST treat the legacy `params.task` as unknown. The SDK still knows it, and would
                # refuse a malformed one.
                ctx = replace(ctx, params={name: value for name, value in ctx.params.items() if name != "task"})
            return _checked(ctx, await call_next(ctx))
        if ctx.method == "subscriptions/listen":
            return await self._listen(ctx, call_next)
        if ctx.method == "server/discover":
            return _honouring_keys(await call_next(ctx))
        return await call_next(ctx)

    async def _initialize(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """The handshake, with the additions of the version that it settled on. Until then the context's is a guess."""
        result = _honouring_keys(await call_next(ctx))
        if isinstance(result, dict):
            era = self._eras.get(result.get("protocolVersion", ""))
            if era is not None:
                era.introduce(ctx, result)
        return result

    async def _listen(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        caller, params, protocol = caller_of(ctx), ctx.params or {}, self._protocol
        try:
            listening = await protocol.listen(caller, params) if protocol.asks_to_listen(caller, params) else None
            close = await protocol.open_stream(caller) if listening is None else listening.close
        except RpcError as exc:
            protocol.refused(caller, "subscriptions/listen", exc)
            raise to_mcp_error(exc) from exc

        async def keep_time(end: End) -> None:
            # A pipe is one user's own, who would only be told to ask again.
            second = None if ctx.request is None else protocol.stream_ends.after_token(caller.identity)
            with protocol.stream_ends.ending(second, end):
                await anyio.sleep_forever()

        beside = keep_time
        if listening is not None:
            stream = _Stream(ctx.session, ctx.request_id, listening)
            ctx, beside = replace(ctx, session=cast(ServerSession, stream)), stream.send_states
        try:
            return await serve_until(ctx, call_next, self._stopping, beside)
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


def _checked(ctx: RequestContext, result: HandlerResult) -> HandlerResult:
    """The answer to a call, unless it is a task and the client did not declare the extension.

    SEP-2663: servers MUST NOT return one then. The SDK lets any result with that mark pass, and the client cannot parse
    it.
    """
    mark = result.get("resultType") if isinstance(result, dict) else getattr(result, "result_type", None)
    if mark == "task" and not caller_of(ctx).takes_tasks:
        name = short_message(str((ctx.params or {}).get("name")))
        message = (
            f"Tool {name!r} returned a CreateTaskResult, and the client did not declare the extension {EXTENSION_ID!r}"
        )
        logger.error("%s. Mark the tool with @tasks.task() instead, and return its result", message)
        raise MCPError(INTERNAL_ERROR, message)
    return result


def _honouring_keys(result: HandlerResult) -> HandlerResult:
    """A server's description of itself, with that it honours idempotency keys."""
    told = _dumped(result) if isinstance(result, BaseModel) else result
    if not isinstance(told, dict):
        return result
    capabilities = object_in(told, "capabilities") or {}
    experimental: dict[str, Any] = {**(object_in(capabilities, "experimental") or {}), IDEMPOTENCY_CAPABILITY: {}}
    return {**told, "capabilities": {**capabilities, "experimental": experimental}}


def _dumped(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
