"""The fast path: an ASGI app before the SDK's. It answers a request, or hands it over as it came."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from traceback import walk_tb
from typing import Any, Final, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import INTERNAL_ERROR, SERVER_INFO_META_KEY
from opentelemetry.trace import Span
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ServerMessage

from mcp_tasks.errors import TasksError
from mcp_tasks.protocol.answers import AnswerMisfit
from mcp_tasks.protocol.cache import ResponseCache
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.shapes import ENCODED_HEADER, LIMIT_EXCEEDED, Message
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.server.catalog import Catalogue, Served
from mcp_tasks.server.fast_path.admission import Admission, Admitted, Eligibility
from mcp_tasks.server.fast_path.listening import MOST_LISTENERS, Listener, Listeners
from mcp_tasks.server.fast_path.requests import (
    LARGEST,
    Counts,
    HandedOver,
    Handover,
    RpcRequest,
    note_failure,
    read_body,
    replaying,
    send_error,
    send_result,
    traced,
)
from mcp_tasks.server.sdk import make_caller, request_of, take_parts
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.telemetry.traces import is_traced

logger: Final = get_logger(__name__)

_CALL_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
"""The params of a plain call. With others it may be one of several requests, or asks for something rare."""

_LISTEN_PARAMS: Final = frozenset({"notifications", "_meta"})
_TASKS_ALONE: Final = frozenset({"taskIds"})
"""The subject of a stream that is served here: nothing of the SDK's own."""

_LONGEST_ID: Final = 256
"""Of a stream that is served here: a listener keeps it, and there may be thousands. The SDK serves fewer."""


class FastPath:
    """Answers hot requests before the SDK's app sees them, for one `Tasks` object.

    Args:
        protocol: Answers requests.
        catalogue: Which calls become tasks.
        own_handlers: The ids of handlers of requests that were made for these tasks.
        stopping: Returns once the process is told to stop; streams end then.
        max_listeners: How many streams there may be at a time.

    Attributes:
        counts: How many were answered, and why others were not.
    """

    def __init__(
        self,
        protocol: TasksProtocol,
        catalogue: Catalogue,
        own_handlers: Set[int],
        stopping: Callable[[], Awaitable[object]],
        max_listeners: int = MOST_LISTENERS,
    ) -> None:
        self.counts: Counts = Counts()
        self.protocol: TasksProtocol = protocol
        self.catalogue: Catalogue = catalogue
        self._own_handlers = own_handlers
        self._stopping = stopping
        self._max_listeners = max_listeners
        self._managers: WeakSet[StreamableHTTPSessionManager] = WeakSet()
        self._defects: set[tuple[str, int]] = set()

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
            eligibility = Eligibility(manager.app, harmless, self._own_handlers, is_lowlevel=isinstance(server, Server))
            listeners = Listeners(self._stopping, self.counts, self._max_listeners)
            # Any ASGI app does; the SDK only says so less generally than it means it.
            manager.asgi_app = cast(Any, _App(self, manager, eligibility, listeners))

    def hand_over(self, exc: Exception) -> None:
        """Take note of a request that goes to the SDK. Every request may meet the same defect, so each is logged in
        full view only when it is the first that was raised in its place."""
        reason = exc.reason if isinstance(exc, HandedOver) else Handover.FAILED
        self.counts.handed_over[reason] += 1
        if reason is Handover.FAILED:
            defect = exc.__cause__ or exc
            *_, (frame, line) = walk_tb(defect.__traceback__)
            place = (frame.f_code.co_filename, line)
            level = logging.DEBUG if place in self._defects else logging.WARNING
            self._defects.add(place)
            logger.log(level, "a request is left to the SDK after a defect on the short way", exc_info=quietly(defect))


class _App:
    """The SDK's ASGI app, with the fast path before it."""

    def __init__(
        self, path: FastPath, manager: StreamableHTTPSessionManager, eligibility: Eligibility, listeners: Listeners
    ) -> None:
        self._path = path
        self._protocol = path.protocol
        self._app = cast(ASGIApp, manager.asgi_app)
        self._server = manager.app
        # A body that the SDK refuses for its size is not answered here either.
        self._largest = min(LARGEST, manager.max_request_body_size)
        self._admission = Admission(manager, self._largest)
        self._eligibility = eligibility
        self._listeners = listeners
        # As the SDK puts it into every result. It is fixed when a server is made.
        self._meta: Mapping[str, Any] = {SERVER_INFO_META_KEY: manager.app.server_info_stamp}
        self._cache = ResponseCache(self._meta)
        self._schemas: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = await self._take(scope, receive, send)
        if stream is not None:
            # Out here nothing of the request is left but this: a stream lasts long.
            await stream.stay(receive)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> Listener | None:
        """Answer a request, or hand it over. Gives the stream that it began, if it did."""
        messages: list[ServerMessage] = []
        is_reading = False
        try:
            admitted = await self._admission.admit(scope)
            tool = self._tool(admitted)
            is_reading = True
            data, messages = await read_body(receive, self._largest)
            is_reading = False
            request = self._admission.understand(admitted, data)
            caller = make_caller(admitted.version, request.meta, Headers(raw=scope["headers"]), scope)
            arguments = self._arguments(admitted, request, caller, tool) if admitted.method == "tools/call" else None
        except Exception as exc:
            if is_reading:
                # The author's middleware refuses the body, say. The SDK would get only the rest of it.
                raise
            # A defect in code that only looks at a request: the SDK may well answer it.
            self._path.hand_over(exc)
        else:
            try:
                if self._eligibility.makes_spans and is_traced():
                    with traced(request, caller.protocol_version) as span:
                        stream = await self._answer(request, caller, send, tool, arguments, span)
                        if stream is None:
                            span.end()
                        else:
                            # Of a stream, the span is its whole life, as the SDK has it.
                            stream.when_over(span.end)
                else:
                    stream = await self._answer(request, caller, send, tool, arguments)
            except HandedOver as exc:
                self._path.hand_over(exc)
            else:
                self._path.counts.answered[admitted.method] += 1
                return stream
        if scope["type"] == "http" and scope["method"] == "POST" and self._eligibility.allows("tasks/get"):
            # Middleware that looks at the SDK's answers is to see all of them.
            send = take_parts(scope, send)
        await self._app(scope, replaying(messages, receive), send)
        return None

    # Looking at a request: nothing has been done then

    def _tool(self, admitted: Admitted) -> Served | None:
        """The tool of a call; None for another method, and for a call that is no task."""
        if not self._eligibility.allows(admitted.method):
            raise HandedOver(Handover.SERVER)
        if admitted.method != "tools/call":
            return None
        name, catalogue = admitted.name or "", self._path.catalogue
        tool = catalogue.known_tool(name)
        if tool is not None and tool.is_plain:
            # Its body is not even read here.
            raise HandedOver(Handover.OTHER_METHOD)
        return None if name in catalogue.companions else tool

    def _arguments(
        self, admitted: Admitted, request: RpcRequest, caller: Caller, tool: Served | None
    ) -> Mapping[str, Any]:
        """The arguments of a call that becomes a task at once."""
        name, told = request.params.get("name"), request.params.get("arguments", {})
        if not (request.params.keys() <= _CALL_PARAMS and type(name) is str and type(told) is dict):
            raise HandedOver(Handover.PARAMS)
        arguments = cast("dict[str, Any]", told)
        # The SDK decodes a name that is encoded; one that is not needs no decoding.
        is_named = admitted.name == name and not name.startswith(ENCODED_HEADER)
        if not is_named or (arguments and self._has_header_params(name)):
            raise HandedOver(Handover.PARAMS)
        if tool is None or not (caller.takes_tasks and tool.takes_at_once(arguments)):
            raise HandedOver(Handover.CALL)
        return arguments

    def _has_header_params(self, tool: str) -> bool:
        """Whether arguments of the tool have to be in headers as well, which the SDK compares."""
        lookup = self._server.get_tool_input_schema
        schema = None if lookup is None else lookup(tool)
        if schema is None:
            # The SDK lists the tools to find out, or has nothing to compare.
            return True
        known = self._schemas.get(tool)
        if known is None or known[0] is not schema:
            known = self._schemas[tool] = (schema, bool(x_mcp_header_map(schema)))
        return known[1]

    # Answering it

    async def _answer(
        self,
        request: RpcRequest,
        caller: Caller,
        send: Send,
        tool: Served | None,
        arguments: Mapping[str, Any] | None,
        span: Span | None = None,
    ) -> Listener | None:
        """Answer a request. If that begins a stream, give it to be seen to its end.

        Raises:
            HandedOver: It is for the SDK. Nothing has been sent, and nothing done that would be done twice.
        """
        protocol = self._protocol
        try:
            match request.method:
                case "tasks/get":
                    answer = await protocol.get_encoded(caller, request.params, self._cache)
                case "tools/call" if tool is not None and arguments is not None:
                    name = cast(str, request.params["name"])
                    call = request_of(request.method, request.meta, caller, name=name, arguments=arguments)
                    answer = self._encoded(await protocol.create(caller, call, tool.options, retention=tool.retention))
                case "tasks/update":
                    answer = self._encoded(await protocol.update(caller, request.params))
                case "tasks/cancel":
                    answer = self._encoded(await protocol.cancel(caller, request.params))
                case _:
                    answer = await self._listen(request, caller)
        except Exception as exc:
            told = self._told_in_place_of(exc, request, caller)
            protocol.refused(caller, request.method, exc, task_id=request.params.get("taskId"))
            if span is not None:
                note_failure(span, told)
            await send_error(send, request.id, modern_error_data(told))
            return None
        if isinstance(answer, bytes):
            await send_result(send, request.id, answer)
            return None
        try:
            return await self._listeners.open(answer, request.id, send)
        except BaseException:
            answer.close()
            raise

    async def _listen(self, request: RpcRequest, caller: Caller) -> Listening:
        """The stream of a listener that is for tasks alone, and keeps little while it lasts."""
        wanted = request.params.get("notifications")
        is_slight = request.params.keys() <= _LISTEN_PARAMS and isinstance(wanted, dict)
        is_long = isinstance(request.id, str) and len(request.id) > _LONGEST_ID
        if not is_slight or is_long or cast("dict[str, Any]", wanted).keys() != _TASKS_ALONE:
            raise HandedOver(Handover.PARAMS)
        self._listeners.require_room()
        return await self._protocol.listen(caller, request.params)

    def _encoded(self, message: Message) -> bytes:
        meta = {**message.fields.get("_meta", {}), **self._meta}
        return Message(fields={**message.fields, "_meta": meta}, large=message.large).encode()

    def _told_in_place_of(self, exc: Exception, request: RpcRequest, caller: Caller) -> Exception:
        """The exception that the SDK would answer with an error, where this one was raised.

        An error that is the server's fault is answered here: asked again, an unavailable store would be waited for
        twice. So are requests beyond a limit, and answers that do not fit: asked again, they would count and cost
        twice. A call is, too, once its task is being made: handed over then, it might become two tasks.

        Raises:
            HandedOver: The request is refused, or was not understood after all: the SDK asks again, and words the
                refusal.
        """
        if isinstance(exc, HandedOver):
            raise exc
        if request.method == "tools/call":
            return to_mcp_error(exc) if isinstance(exc, RpcError | TasksError) else exc
        if not isinstance(exc, RpcError):
            raise HandedOver(Handover.FAILED) from exc
        if exc.code in (INTERNAL_ERROR, LIMIT_EXCEEDED) or isinstance(exc, AnswerMisfit):
            return to_mcp_error(exc)
        self._protocol.give_back(caller, request.method, exc)
        raise HandedOver(Handover.REFUSED) from exc
