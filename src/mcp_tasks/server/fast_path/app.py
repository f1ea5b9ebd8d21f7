"""One request on the short way: looked at from the outside in, and answered, or handed over as it came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, Final, Protocol, TypeAlias, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.context import ServerMiddleware
from mcp.server.extension import compose_tool_call_handler
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import ListenHandler
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import INTERNAL_ERROR, SERVER_INFO_META_KEY
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_tasks.errors import TasksError
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.answers import AnswerMisfit
from mcp_tasks.protocol.cache import Texts
from mcp_tasks.protocol.dialect import Message
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.shapes import EXTENSION_ID, LIMIT_EXCEEDED, NAME_HEADER
from mcp_tasks.server.fast_path.admission import Admitted, EnvelopeCheck, HeaderCheck, sift
from mcp_tasks.server.fast_path.listening import MOST_LISTENERS, Listener, Listeners
from mcp_tasks.server.fast_path.requests import (
    LARGEST,
    Counts,
    Defects,
    DefectsHandedOver,
    HandedOver,
    Handover,
    RpcRequest,
    note_failure,
    parse_request,
    read_body,
    send_error,
    send_result,
    traced,
)
from mcp_tasks.server.sdk import RequestHandler, connection_of, modern_caller, request_of, take_parts
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.telemetry.traces import is_traced

# ---- serving
# The methods that are served on the short way. What is refused is handed over; what has begun is seen to its end.


_CALL_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
"""What a plain call has. With anything else it may be one of several requests, or asks for something rare."""

_ENCODED: Final = "=?base64?"
"""How a name begins that is written in another way. A tool might be called so, and would be taken for another."""

_LISTEN_PARAMS: Final = frozenset({"notifications", "_meta"})
_TASKS_ALONE: Final = frozenset({"taskIds"})
"""What a stream is about that is served here: nothing of the SDK's own."""

_LONGEST_ID: Final = 256
"""Of a stream that is served here: a listener keeps it, and there may be thousands. The SDK serves fewer."""

Launch: TypeAlias = Callable[[], Awaitable[TaskRecord]]
"""Makes a task. Once it has begun, the call is answered by who began it, also with an error: were the call handed over
then, there might be two tasks."""


class Launches(Protocol):
    """Which calls become tasks: the author's rules, as they hold for every door."""

    def is_plain(self, name: str) -> bool:
        """Whether calls of the tool are known not to become tasks. Asked before a call is read."""
        ...

    def plan(self, caller: Caller, request: TaskRequest) -> Launch | None:
        """How to make the task of this call, if it becomes one at once and whatever its tool does; None for any other
        call. Nothing has been done then."""
        ...


class Serving:
    """Serves the methods for one server.

    Args:
        listeners: Where streams are kept.
    """

    def __init__(self, server: Server[Any], protocol: TasksProtocol, launches: Launches, listeners: Listeners) -> None:
        self._server = server
        self._protocol = protocol
        self._launches = launches
        self._listeners = listeners
        # As the SDK puts it into every result. It is fixed when a server is made.
        self._meta: Mapping[str, Any] = {SERVER_INFO_META_KEY: server.server_info_stamp}
        self._texts = Texts(self._meta)
        self._schemas: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def serve(
        self, request: RpcRequest, caller: Caller, send: Send, failed: Callable[[Exception], None] | None = None
    ) -> Listener | None:
        """Answer one request. If that begins a stream, give it to be seen to its end.

        Args:
            failed: Called with what a request comes to that is answered with an error.

        Raises:
            HandedOver: It is for the SDK. Nothing has been sent, and nothing done that would be done twice.
        """
        try:
            answer = await self._answer(request, caller)
        except Exception as exc:
            told = _told_in_place_of(exc)
            if isinstance(told, HandedOver):
                if isinstance(exc, RpcError):
                    self._protocol.hands_over(caller, request.method, exc)
                if told is exc:
                    raise
                raise told from exc
            why = exc.__cause__ if isinstance(exc, _Failed) and isinstance(exc.__cause__, Exception) else exc
            self._protocol.refused(caller, request.method, why, task_id=request.params.get("taskId"))
            if failed is not None:
                failed(told)
            await send_error(send, request.id, modern_error_data(told))
            return None
        if isinstance(answer, Listening):
            try:
                return await self._listeners.open(answer, request.id, send)
            except BaseException:
                answer.close()
                raise
        await send_result(send, request.id, answer)
        return None

    async def _answer(self, request: RpcRequest, caller: Caller) -> bytes | Listening:
        protocol = self._protocol
        match request.method:
            case "tasks/get":
                return await protocol.get_text(caller, request.params, self._texts)
            case "tools/call":
                return await self._call(request, caller)
            case "tasks/update":
                return self._encoded(await protocol.update(caller, request.params))
            case "tasks/cancel":
                return self._encoded(await protocol.cancel(caller, request.params))
            case "subscriptions/listen":
                return await self._listen(request, caller)
            case _:
                raise HandedOver(Handover.OTHER_METHOD)

    async def _call(self, request: RpcRequest, caller: Caller) -> bytes:
        launch = self._planned(request, caller)
        try:
            return self._encoded(self._protocol.created(caller, await launch()))
        except Exception as exc:
            raise _Failed(to_mcp_error(exc) if isinstance(exc, RpcError | TasksError) else exc) from exc

    def _planned(self, request: RpcRequest, caller: Caller) -> Launch:
        name, told = request.params.get("name"), request.params.get("arguments", {})
        if not (request.params.keys() <= _CALL_PARAMS and type(name) is str and type(told) is dict):
            raise HandedOver(Handover.PARAMS)
        arguments = cast("dict[str, Any]", told)
        # The SDK decodes a name that is encoded; one that is not needs no decoding.
        is_named = caller.headers.get(NAME_HEADER) == name and not name.startswith(_ENCODED)
        if not is_named or self._has_header_params(name, arguments):
            raise HandedOver(Handover.PARAMS)
        asked = request_of(request.method, request.meta, caller, name=name, arguments=arguments)
        launch = self._launches.plan(caller, asked)
        if launch is None:
            raise HandedOver(Handover.CALL)
        return launch

    def _has_header_params(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether arguments of the tool have to be in headers as well, which the SDK compares."""
        if not arguments:
            return False
        lookup = self._server.get_tool_input_schema
        schema = None if lookup is None else lookup(tool)
        if schema is None:
            # The SDK lists the tools to find out, or has nothing to compare.
            return True
        known = self._schemas.get(tool)
        if known is None or known[0] is not schema:
            known = self._schemas[tool] = (schema, bool(x_mcp_header_map(schema)))
        return known[1]

    async def _listen(self, request: RpcRequest, caller: Caller) -> Listening:
        if not _is_slight(request):
            raise HandedOver(Handover.PARAMS)
        self._listeners.require_room()
        return await self._protocol.listen(caller, request.params)

    def _encoded(self, message: Message) -> bytes:
        meta = {**message.fields.get("_meta", {}), **self._meta}
        return Message(fields={**message.fields, "_meta": meta}, large=message.large).encode()


def _is_slight(request: RpcRequest) -> bool:
    """Whether a listener is for tasks alone, and keeps little while it lasts."""
    wanted = request.params.get("notifications")
    if not (request.params.keys() <= _LISTEN_PARAMS and isinstance(wanted, dict)):
        return False
    named = cast("dict[str, Any]", wanted)
    if named.keys() != _TASKS_ALONE:
        return False
    return not (isinstance(request.id, str) and len(request.id) > _LONGEST_ID)


class _Failed(Exception):
    """The request is answered with an error, here."""

    def __init__(self, told: Exception) -> None:
        super().__init__(told)
        self.told = told


def _told_in_place_of(exc: Exception) -> Exception:
    """What the SDK would meet, and answer with an error, where this was raised; or `HandedOver`, if it is refused, or
    was not understood after all: the SDK asks again, and words the refusal.

    What fails for a reason of the server's is answered here: asked again, a store that is away would be waited for
    twice. So is what is beyond a limit, or answers that do not fit: asked again, they would count and cost twice.
    """
    match exc:
        case HandedOver():
            return exc
        case _Failed():
            return exc.told
        case RpcError():
            is_told = exc.code in (INTERNAL_ERROR, LIMIT_EXCEEDED) or isinstance(exc, AnswerMisfit)
            return to_mcp_error(exc) if is_told else HandedOver(Handover.REFUSED)
        case _:
            return HandedOver(Handover.FAILED)


# ---- standing
# Whether a server is one whose answers are known here: nothing of its author's own has to see the requests.


_OURS: Final = __name__.partition(".")[0]


class Standing:
    """What of a server could change an answer, looked at as cheaply as it must be on every request.

    Args:
        harmless: Other extensions that are known not to look at calls.
        is_own: Whether a handler of requests is one that was made for the tasks of the server.
        is_lowlevel: Whether its author put it together, of handlers.
    """

    def __init__(
        self,
        server: Server[Any],
        harmless: frozenset[str],
        is_own: Callable[[RequestHandler], bool],
        *,
        is_lowlevel: bool,
    ) -> None:
        self._server = server
        self._is_own = is_own
        self._is_lowlevel = is_lowlevel
        self._harmless = harmless | {EXTENSION_ID}
        # What every server has from the start. Its spans are made here, too; states of calls never come here.
        self._tracing = tuple(type(each) for each in Server[Any]("any").middleware)
        self._usual = (*self._tracing, RequestStateBoundary)
        self._middleware: list[ServerMiddleware[Any]] = []
        self._is_known = False
        self.makes_spans: bool = False
        """Whether the SDK would make a span of each request."""

    def serves(self, method: str) -> bool:
        """Whether requests of the method may be answered here, as the server stands now."""
        server = self._server
        if server.middleware != self._middleware:
            self._look_at_middleware()
        entry = server.get_request_handler(method)
        if entry is None or not self._is_known or method in server.cache_hints:
            return False
        match method:
            case "tools/call":
                return server.extensions.keys() <= self._harmless and self._is_usual_call(entry.handler)
            case "subscriptions/listen":
                # A low-level server's is its author's: closing it has to end every stream, so it has them.
                return not self._is_lowlevel and type(entry.handler) is ListenHandler
            case _:
                return self._is_own(entry.handler)

    def _is_usual_call(self, handler: RequestHandler) -> bool:
        """Whether a handler of calls leaves them to the extensions first, and nothing is around that."""
        if self._is_lowlevel:
            return self._is_own(handler)
        # The SDK makes it of all extensions of a server, and does not say which it is.
        return getattr(handler, "__code__", None) is _COMPOSED

    def _look_at_middleware(self) -> None:
        self._middleware = list(self._server.middleware)
        self._is_known = all(type(each) in self._usual or _is_ours(each) for each in self._middleware)
        self.makes_spans = any(type(each) in self._tracing for each in self._middleware)


def _is_ours(each: object) -> bool:
    """Whether it is of this package: then what it does to a request is done here as well, or not needed."""
    # All of ours are methods. Of a function nothing can be told: one that wraps ours may have its name and module.
    return isinstance(each, MethodType) and type(each.__self__).__module__.partition(".")[0] == _OURS


async def _nothing(ctx: object, params: object) -> None:
    """The least handler that there can be."""


_COMPOSED: Final = getattr(compose_tool_call_handler((), _nothing), "__code__", object())
"""The code of every handler of calls that the SDK has put together of extensions."""


_DEFECTS_HANDED_OVER: Final = DefectsHandedOver()


class ShortWay:
    """Answers hot requests before the SDK's app sees them, for one `Tasks` object.

    Args:
        protocol: What answers.
        launches: Which calls become tasks.
        is_own: Whether a handler of requests is one that was made for these tasks.
        stopping: Returns once the process is told to stop; streams end then.
        max_listeners: How many streams there may be at a time.

    Attributes:
        counts: How many were answered, and why others were not.
    """

    def __init__(
        self,
        protocol: TasksProtocol,
        launches: Launches,
        is_own: Callable[[RequestHandler], bool],
        stopping: Callable[[], Awaitable[object]],
        max_listeners: int = MOST_LISTENERS,
    ) -> None:
        self.counts: Counts = Counts()
        self._defects = Defects()
        self._managers: WeakSet[StreamableHTTPSessionManager] = WeakSet()
        self._protocol = protocol
        self._launches = launches
        self._is_own = is_own
        self._stopping = stopping
        self._max_listeners = max_listeners

    def put_before(self, server: MCPServer[Any] | Server[Any], harmless: frozenset[str]) -> None:
        """Stand before the SDK's app of a server that starts, if it serves Streamable HTTP; once, however often.

        Args:
            harmless: Other extensions that are known not to look at calls.
        """
        try:
            manager = server.session_manager
        except RuntimeError:
            # It has none: it serves something else.
            return
        if manager not in self._managers:
            self._managers.add(manager)
            standing = Standing(manager.app, harmless, self._is_own, is_lowlevel=isinstance(server, Server))
            listeners = Listeners(self._stopping, self.counts, self._max_listeners)
            serving = Serving(manager.app, self._protocol, self._launches, listeners)
            app = _App(cast(ASGIApp, manager.asgi_app), manager, standing, serving, self)
            # Any ASGI app does; the SDK only says so less generally than it means it.
            manager.asgi_app = cast(Any, app)

    def note(self, handed_over: HandedOver) -> None:
        """Take note of a request that goes to the SDK."""
        self.counts.handed_over[handed_over.reason] += 1
        if handed_over.reason is Handover.FAILED and handed_over.__cause__ is not None:
            self._defects.tell(handed_over.__cause__)

    def is_plain(self, name: str) -> bool:
        """Whether calls of the tool are known not to become tasks."""
        return self._launches.is_plain(name)


class _App:
    """The SDK's ASGI app, with the short way before it."""

    def __init__(
        self,
        app: ASGIApp,
        manager: StreamableHTTPSessionManager,
        standing: Standing,
        serving: Serving,
        way: ShortWay,
    ) -> None:
        self._app = app
        self._headers = HeaderCheck(manager)
        # What the SDK refuses for its size is not answered here either.
        self._largest = min(LARGEST, manager.max_request_body_size)
        self._envelopes = EnvelopeCheck()
        self._standing = standing
        self._serving = serving
        self._way = way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = await self._take(scope, receive, send)
        if stream is not None:
            # Out here nothing of the request is left but this: a stream lasts long.
            await stream.stay(receive)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> Listener | None:
        """Answer a request, or hand it over. Gives the stream that it began, if it did."""
        stream: Listener | None = None
        try:
            with _DEFECTS_HANDED_OVER:
                admitted = await self._admit(scope)
            body = await read_body(receive, self._largest)
            receive = body.replay
            with _DEFECTS_HANDED_OVER:
                request, caller = self._understand(admitted, body.data, scope)
            stream = await self._answer(request, caller, send)
        except HandedOver as exc:
            self._way.note(exc)
            handed_over = True
        else:
            self._way.counts.answered[admitted.method] += 1
            handed_over = False
        if handed_over:
            # Out of the block above: what goes wrong in there has nothing to do with what was looked at here.
            await self._app(scope, receive, self._send_with_parts(scope, send))
        return stream

    def _send_with_parts(self, scope: Scope, send: Send) -> Send:
        """What the SDK answers a request with. Whoever else looks at answers is to see all of them."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        return take_parts(scope, send) if is_post and self._standing.serves("tasks/get") else send

    async def _admit(self, scope: Scope) -> Admitted:
        """See from the headers alone whether the request may be answered here."""
        if scope["type"] != "http" or scope["method"] != "POST":
            raise HandedOver(Handover.OTHER_WIRE)
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        if not isinstance(headers, (list, tuple)):
            # Anything that can be gone through, if only once.
            headers = scope["headers"] = list(headers)
        sifted = sift(headers, self._largest)
        admitted = self._headers.known(sifted.judged) or await self._headers.judge(scope, sifted.judged)
        if isinstance(admitted, Handover):
            raise HandedOver(admitted)
        if not self._standing.serves(admitted.method):
            raise HandedOver(Handover.SERVER)
        if not sifted.is_plain or (admitted.method == "subscriptions/listen" and not admitted.takes_streams):
            raise HandedOver(Handover.HEADERS)
        if admitted.method == "tools/call":
            if sifted.name is None or sifted.has_params:
                raise HandedOver(Handover.HEADERS)
            if self._way.is_plain(sifted.name.decode("latin-1")):
                raise HandedOver(Handover.OTHER_METHOD)
        return admitted

    def _understand(self, admitted: Admitted, data: bytes | None, scope: Scope) -> tuple[RpcRequest, Caller]:
        """See from the body what is asked for, and by whom."""
        request = None if data is None else parse_request(data)
        if request is None:
            raise HandedOver(Handover.BODY)
        if request.method != admitted.method or not self._envelopes.passes(admitted, request.meta):
            raise HandedOver(Handover.ENVELOPE)
        headers, connection = Headers(raw=scope["headers"]), connection_of(scope.get("client"))
        return request, modern_caller(admitted.version, request.meta, headers, connection)

    async def _answer(self, request: RpcRequest, caller: Caller, send: Send) -> Listener | None:
        if not (self._standing.makes_spans and is_traced()):
            return await self._serving.serve(request, caller, send)
        with traced(request, caller.protocol_version) as span:
            stream = await self._serving.serve(request, caller, send, partial(note_failure, span))
            if stream is None:
                span.end()
            else:
                # Of a stream, the span is its whole life, as the SDK has it.
                stream.when_over(span.end)
        return stream
