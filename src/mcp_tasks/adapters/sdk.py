"""The official SDK's door: its request context to a `Caller`, its handlers to the methods of the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

from mcp.server import ServerRequestContext
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import MethodBinding
from mcp.server.request_state import compact_json
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, INTERNAL_ERROR, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from mcp_tasks.adapters.era import Era
from mcp_tasks.adapters.sdk_listen import serve_listening, serve_other
from mcp_tasks.adapters.spliced import is_part, parts_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.core.text import short_message
from mcp_tasks.protocol import Caller, Identity, Message, RpcError, TasksProtocol
from mcp_tasks.protocol.outcome import decoded
from mcp_tasks.quiet import get_logger
from mcp_tasks.tools.creation import CallAnswer, InlineResult, Question
from mcp_tasks.tools.sdk_errors import to_mcp_error
from mcp_tasks.wire import EXTENSION_ID, IDEMPOTENCY_CAPABILITY, AnyParams

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
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
