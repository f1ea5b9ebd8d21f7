"""Which streams of a Streamable HTTP server are open: what the SDK knows and does not tell.

A message on a session's own stream is dropped in silence while no GET is open for it, and so is one on the stream of a
request whose client has left. So the SDK's ASGI app, a public attribute of its session manager, is wrapped: the wrapper
sees every GET open and close, and leaves in the scope of each POST how a handler may know that the exchange is over.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.session import ServerSession
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import RequestId
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.legacy.shapes import RELATED_TASK, VERSION, plain_data, related_task
from mcp_tasks.model.json import valid_json
from mcp_tasks.model.record import InputRequest
from mcp_tasks.protocol.listen import StreamEnds, expiry
from mcp_tasks.protocol.shapes import QUESTION_META_KEY
from mcp_tasks.server.sdk import Exchange, PlainNotification, authenticated, watch_exchange
from mcp_tasks.server.tool_runner import ClientStream

# ---- polls
# `tasks/get` over Streamable HTTP: answered with plain JSON, although the SDK opens a stream for every request.


_VERSION_HEADER: Final = (b"mcp-protocol-version", VERSION.encode())
_STREAM: Final = b"text/event-stream"
_LARGEST_POLL: Final = 4096
"""A request with an id of ours and some `_meta` is far smaller; a larger one is not looked at."""


class PollAnswer:
    """The answer to one POST, if that is a poll; any other passes through untouched."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_poll = False
        self._held: list[Message] | None = None
        self._is_sent = False

    async def receive(self) -> Message:
        """What comes from the client, looked at on its way."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._is_poll = self._is_poll or _is_poll(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """What goes to the client."""
        if self._is_sent:
            # The end of the stream that was never opened.
            return
        if self._held is not None:
            self._held.append(message)
            await self._try_to_answer(self._held)
        elif self._is_poll and _opens_stream(message):
            self._held = [message]
        else:
            await self._send(message)

    async def _try_to_answer(self, held: list[Message]) -> None:
        found = _first_message(b"".join(message.get("body", b"") for message in held))
        if found is not None and _is_answer(found):
            self._is_sent = True
            start = held[0]
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-type"]
            length = str(len(found)).encode()
            headers += [(b"content-type", b"application/json"), (b"content-length", length)]
            await self._send({**start, "headers": headers})
            await self._send({"type": "http.response.body", "body": found})
        elif found is not None or not held[-1].get("more_body"):
            # Something else comes first, or nothing at all: then it is a stream after all.
            self._held, self._is_poll = None, False
            for message in held:
                await self._send(message)


def may_poll(scope: Scope) -> bool:
    """Whether a POST is of the version that polls with `tasks/get` and would have no stream for it."""
    return _VERSION_HEADER in scope["headers"]


def _is_poll(body: bytes) -> bool:
    if len(body) > _LARGEST_POLL or b"tasks/get" not in body:
        return False
    try:
        request: Any = json.loads(body)
    except (ValueError, RecursionError):
        # For the SDK to refuse.
        return False
    return isinstance(request, dict) and cast("dict[str, Any]", request).get("method") == "tasks/get"


def _opens_stream(message: Message) -> bool:
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in message["headers"]
    )


def _first_message(stream: bytes) -> bytes | None:
    """The data of the first event that has some, once it has come whole; None until then."""
    # The last line may not have come whole.
    for line in stream.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:") and line[5:].strip():
            return line[5:].strip()
    return None


def _is_answer(data: bytes) -> bool:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and ("result" in message or "error" in message)


# ---- carriers
# A stream on which a client can be asked and told things: that of an open `tasks/result`, or a session's own.


class Carrier(ClientStream):
    """One stream to a client.

    Attributes:
        is_open: Whether what is sent on it arrives, as far as is known. One that is closed may be opened again if its
            client takes it up where it was cut off.
    """

    def __init__(self, session: ServerSession, request_id: RequestId | None = None) -> None:
        super().__init__(session, request_id)
        self.is_open: bool = True

    def renewed(self) -> Carrier:
        """The same stream, opened anew: what was sent on the old one and had not arrived is lost."""
        return Carrier(self._session, self._request_id)

    def hosts(self, question: InputRequest) -> bool:
        """Whether the client declared that it takes such questions as tasks of its own."""
        declared: Any = self.declared
        for name in ("tasks", "requests", *question.method.split("/")):
            declared = cast("dict[str, Any]", declared).get(name) if isinstance(declared, dict) else None
        return declared is not None and self._session.protocol_version == VERSION

    async def ask(self, task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
        """The client's answer, as `put` gives it, to a question of a task that the client knows.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await self.put(question.method, related_params(task_id, key, question))
        except AnswerRefused as exc:
            raise AnswerRefused(exc.code, exc.message, plain_data(exc.data)) from exc

    async def tell(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification; nobody knows whether it arrives."""
        await self._session.send_notification(
            cast(Any, PlainNotification(method=method, params=params)), self._request_id
        )


def related_params(task_id: str, key: str, question: InputRequest) -> dict[str, Any]:
    """The params of a question, which task it is of, and which of its questions it is."""
    params: dict[str, Any] = valid_json(question.params)
    return {**params, "_meta": {**params.get("_meta", {}), **related_task(task_id), QUESTION_META_KEY: key}}


# ---- audience
# Who has which task, among the clients of this process, and on which streams they can be reached.


class Holder(Protocol):
    """A session that has tasks, and its own stream."""

    @property
    def own(self) -> Carrier | None:
        """Its own stream; None before the handshake is complete."""
        ...


@dataclass(eq=False, frozen=True, slots=True)
class OpenResult:
    """A `tasks/result` that waits for its task to end, on a stream that can carry more than its answer."""

    task_id: str
    carrier: Carrier
    holder: Holder | None


class Audience:
    """Sessions and open results, by task."""

    def __init__(self) -> None:
        # In order, the newest last: whoever came last is the most likely to be still there.
        self._holders: dict[str, dict[Holder, None]] = {}
        self._results: dict[str, list[OpenResult]] = {}

    def join(self, task_id: str, holder: Holder) -> None:
        """The session has the task from now on."""
        self._holders.setdefault(task_id, {})[holder] = None

    def leave(self, task_id: str, holder: Holder) -> None:
        """The session does not have the task any more."""
        holders = self._holders.get(task_id, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(task_id, None)

    @contextmanager
    def waiting(self, result: OpenResult) -> Generator[None]:
        """While a `tasks/result` waits."""
        self._results.setdefault(result.task_id, []).append(result)
        try:
            yield
        finally:
            results = self._results[result.task_id]
            results.remove(result)
            if not results:
                del self._results[result.task_id]

    def has_task(self, task_id: str) -> bool:
        """Whether anybody here has the task."""
        return task_id in self._holders or task_id in self._results

    def carriers(self, task_id: str) -> Iterator[Carrier]:
        """The streams on which the task may be spoken of: those of open results first, then those of sessions."""
        for result in reversed(self._results.get(task_id, ())):
            yield result.carrier
        for holder in reversed(self._holders.get(task_id, {})):
            if holder.own is not None:
                yield holder.own

    def results_of(self, holder: Holder, task_id: str) -> Sequence[OpenResult]:
        """The open results of one session for a task."""
        return [result for result in self._results.get(task_id, ()) if result.holder is holder]


# ---- cancels
# The task of a question that is cancelled at the client: it stands in the notification, as 2025-11-25 has it.


MAX_ASKED: Final = 1_000
"""Questions of one session that are remembered. It is for a few to be open at a time."""

_CANCELLED: Final = b'"notifications/cancelled"'
_METHOD, _ID, _RELATED = b'"method"', b'"id"', RELATED_TASK.encode()
_HEAD: Final = 300
"""Bytes of an event in which its method stands, if it has one: a large result is not searched."""


class AskedTasks:
    """The tasks of the questions that were sent to one session, by the ids of the requests."""

    def __init__(self) -> None:
        self._tasks: BoundedDict[str | int, str] = BoundedDict(MAX_ASKED)

    def look(self, event: bytes) -> bytes:
        """An event on its way out, with the task named where a question of one is cancelled."""
        head = event[:_HEAD]
        is_cancel = _CANCELLED in head
        is_request = _METHOD in head and _ID in head
        if not is_cancel and not (is_request and _RELATED in event):
            return event
        lines = event.split(b"\r\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data:"):
                named = self._named(line[5:])
                if named is not None:
                    lines[number] = b"data: " + named
        return b"\r\n".join(lines)

    def _named(self, data: bytes) -> bytes | None:
        try:
            message: Any = json.loads(data)
        except (ValueError, RecursionError):
            return None
        params: Any = cast("dict[str, Any]", message).get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict):
            return None
        meta: dict[str, Any] = cast("dict[str, Any]", params).get("_meta") or {}
        if "id" in message:
            if RELATED_TASK in meta:
                self._tasks[message["id"]] = meta[RELATED_TASK]["taskId"]
            return None
        task_id = self._tasks.get(cast("str | int", params.get("requestId")))
        if message.get("method") != "notifications/cancelled" or task_id is None:
            return None
        params["_meta"] = {**meta, **related_task(task_id)}
        return json.dumps(message, separators=(",", ":")).encode()


def naming_tasks(send: Send, find: Callable[[], AskedTasks | None]) -> Send:
    """Send what goes out to a session, with the tasks of cancelled questions in it.

    Args:
        find: The questions of the session, once it is known.
    """

    async def named(message: Message) -> None:
        body: bytes = message.get("body", b"") if message["type"] == "http.response.body" else b""
        asked = find() if body else None
        await send(message if asked is None else {**message, "body": asked.look(body)})

    return named


class StreamWatcher(Protocol):
    """Who is told of the streams that sessions have of their own."""

    def stream_opened(self, http_session: str, *, resumed: bool) -> None:
        """A session has a stream from now on: a new one, or one that takes up where another was cut off."""
        ...

    def stream_closed(self, http_session: str) -> None:
        """A session has no stream of its own any more."""
        ...

    def asked(self, http_session: str) -> AskedTasks | None:
        """Which questions a session was sent; None for one that is not known."""
        ...


class Streams:
    """The streams that the sessions of one server have of their own.

    Args:
        ends: What ends them with the token that opened them.
    """

    def __init__(self, watcher: StreamWatcher, ends: StreamEnds) -> None:
        self._watcher = watcher
        self.ends: StreamEnds = ends
        self._open: Counter[str] = Counter()
        self._watched: WeakSet[StreamableHTTPSessionManager] = WeakSet()

    def watch(self, server: MCPServer[Any] | Server[Any]) -> None:
        """See the streams of the server from now on, if it serves Streamable HTTP; once, however often it starts."""
        try:
            manager = server.session_manager
        except RuntimeError:
            # It has none: it serves something else.
            return
        if manager not in self._watched:
            self._watched.add(manager)
            # Any ASGI app does; the SDK only says so less generally than it means it.
            manager.asgi_app = cast(Any, _WatchedApp(cast(ASGIApp, manager.asgi_app), manager, self))

    def is_open(self, http_session: str) -> bool:
        """Whether the session has a stream of its own now."""
        return self._open[http_session] > 0

    def asked(self, http_session: str) -> AskedTasks | None:
        """Which questions the session was sent."""
        return self._watcher.asked(http_session)

    def opened(self, http_session: str, *, resumed: bool) -> None:
        """A GET is being answered with a stream."""
        self._open[http_session] += 1
        self._watcher.stream_opened(http_session, resumed=resumed)

    def closed(self, http_session: str) -> None:
        """A GET has been answered."""
        self._open[http_session] -= 1
        if not self.is_open(http_session):
            del self._open[http_session]
            self._watcher.stream_closed(http_session)


class _WatchedApp:
    """The SDK's ASGI app, watched."""

    def __init__(self, app: ASGIApp, manager: StreamableHTTPSessionManager, streams: Streams) -> None:
        self._app = app
        self._manager = manager
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = Headers(scope=scope).get(MCP_SESSION_ID_HEADER) if scope["type"] == "http" else None
        if session is not None:
            send = naming_tasks(send, lambda: self._streams.asked(session))
        match scope.get("method"):
            case "POST":
                await self._post(scope, receive, send)
            case "GET":
                await self._get(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        manager = self._manager
        exchange = Exchange(
            can_resume=manager.event_store is not None and not manager.json_response,
            receive=receive if manager.json_response else None,
        )
        watch_exchange(scope, exchange)
        if not manager.json_response and may_poll(scope):
            poll = PollAnswer(receive, send)
            receive, send = poll.receive, poll.send
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            # In the middle of its request. Nobody is there to be told, and each would be a traceback in the log.
            pass
        finally:
            exchange.over.set()

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        session, resumed = headers.get(MCP_SESSION_ID_HEADER), LAST_EVENT_ID_HEADER in headers
        if session is None or self._manager.stateless:
            await self._app(scope, receive, send)
            return
        closing: list[Callable[[], None]] = []
        is_done = False
        expiring = _Expiring(receive, self._streams.ends, resumed=resumed)

        async def watched(message: Message) -> None:
            nonlocal is_done
            await send(message)
            is_done = message["type"] == "http.response.body" and not message.get("more_body", False)
            # The SDK refuses a second stream, and a session that it does not know, with another status.
            if message["type"] == "http.response.start" and message["status"] == 200:
                closing.append(lambda: self._streams.closed(session))
                self._streams.opened(session, resumed=resumed)

        try:
            with expiring:
                await self._app(scope, expiring.receive, watched)
            if expiring.is_over and closing and not is_done:
                # The SDK believes that the client has left, and leaves the answer without an end.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for close in closing:
                close()


class _Expiring:
    """The stream of a GET, which is over for the SDK when the token that opened it has expired, or when it has lasted
    for as long as one may. One that is resumed may be that of a `tasks/result`, and lasts as long as its token."""

    def __init__(self, receive: Receive, ends: StreamEnds, *, resumed: bool) -> None:
        self._receive = receive
        self._ends = ends
        identity = authenticated()[1]
        self._second = expiry(identity) if resumed else ends.after_token(identity)
        self._expired = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self._expired.is_set()

    async def receive(self) -> Message:
        """What the client sends next, or that it has left."""
        if self._second is None:
            return await self._receive()
        told, expired = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._expired.wait())
        try:
            await asyncio.wait((told, expired), return_when=asyncio.FIRST_COMPLETED)
            return told.result() if told.done() else {"type": "http.disconnect"}
        finally:
            told.cancel()
            expired.cancel()

    def __enter__(self) -> None:
        if self._second is not None:
            self._ends.add(self._second, self._expired.set)

    def __exit__(self, *_: object) -> None:
        if self._second is not None:
            self._ends.leave(self._second, self._expired.set)
