"""One request on the short way: looked at from the outside in, and answered, or handed over as it came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_tasks.adapters.asgi.admission import Admitted, EnvelopeCheck, HeaderCheck, sift
from mcp_tasks.adapters.asgi.body import LARGEST, read_body
from mcp_tasks.adapters.asgi.counts import Counts, Defects, DefectsHandedOver, HandedOver, Handover
from mcp_tasks.adapters.asgi.listening import MOST_LISTENERS, Listener, Listeners
from mcp_tasks.adapters.asgi.serving import Launches, Serving
from mcp_tasks.adapters.asgi.standing import Standing
from mcp_tasks.adapters.asgi.tracing import note_failure, traced
from mcp_tasks.adapters.asgi.wire import RpcRequest, parse_request
from mcp_tasks.adapters.sdk import RequestHandler, connection_of, modern_caller
from mcp_tasks.adapters.spliced import take_parts
from mcp_tasks.protocol import Caller, TasksProtocol
from mcp_tasks.telemetry.provider import is_traced

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
