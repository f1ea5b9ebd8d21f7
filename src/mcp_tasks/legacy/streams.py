"""Streams to clients of 2025-11-25, and the Streamable HTTP sessions that have them.

A message on a session's own stream is dropped silently while no GET is open for it, and so is one on the stream of a
request whose client has disconnected. The SDK does not tell which streams are open. So its ASGI app, a public attribute
of its session manager, is wrapped: the wrapper sees every GET open and close, tells the handlers of a POST when the
exchange is over, and lets only the owner of a session use it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.server.session import ServerSession
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import RequestId
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import LimitExceeded
from mcp_tasks.legacy.shapes import RELATED_TASK, VERSION, related_task
from mcp_tasks.model.record import InputRequest
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.protocol.listen import expiry
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.versions import VERSIONS
from mcp_tasks.server.questions import ClientStream, SentQuestion
from mcp_tasks.server.sdk import Exchange, PlainNotification, authenticated, watch_exchange

if TYPE_CHECKING:
    from mcp_tasks.legacy.sessions import Session, Sessions


class SessionStream(ClientStream):
    """A stream on which a client can be asked and told things: that of an open `tasks/result`, or a session's own.

    Attributes:
        session: The session that it belongs to, if there is one.
        is_open: Whether messages on it arrive, as far as is known. A closed stream may open again if its client resumes
            it.
    """

    def __init__(
        self, server_session: ServerSession, request_id: RequestId | None = None, *, session: Session | None
    ) -> None:
        super().__init__(server_session, request_id)
        self.session: Session | None = session
        self.is_open: bool = True

    def renewed(self) -> SessionStream:
        """The same stream, opened anew: messages on the old one that had not arrived are lost."""
        return SessionStream(self._session, self._request_id, session=self.session)

    def takes(self, question: InputRequest) -> bool:
        """Whether the question can be sent here now."""
        return self.is_open and super().takes(question)

    def hosts(self, question: InputRequest) -> bool:
        """Whether the question is to be a task of the client, and the client declared that it takes such tasks."""
        declared: Any = self.declared
        for name in ("tasks", "requests", *question.method.split("/")):
            declared = cast("dict[str, Any]", declared).get(name) if isinstance(declared, dict) else None
        return "task" in question.params and declared is not None and self._session.protocol_version == VERSION

    def has(self, sent: SentQuestion, other: ClientStream) -> bool:
        """Whether the client still has the question."""
        return self.is_open

    def lose(self) -> None:
        """Nothing more arrives here."""
        self.is_open = False

    async def tell(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification, which may not arrive."""
        await self._session.send_notification(
            cast(Any, PlainNotification(method=method, params=params)), self._request_id
        )


class Subscribers:
    """The clients of this process that have a task: sessions, and open `tasks/result` requests.

    They are kept in their order, because the newest is the most likely to be connected still.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, dict[Session, None]] = {}
        self._results: dict[str, list[SessionStream]] = {}

    def join(self, task_id: str, session: Session) -> None:
        """The session has the task from now on."""
        self._sessions.setdefault(task_id, {})[session] = None

    def leave(self, task_id: str, session: Session) -> None:
        """The session does not have the task any more."""
        sessions = self._sessions.get(task_id, {})
        sessions.pop(session, None)
        if not sessions:
            self._sessions.pop(task_id, None)

    @contextmanager
    def waiting(self, task_id: str, stream: SessionStream) -> Generator[None]:
        """Inside this block, a `tasks/result` waits for the task."""
        self._results.setdefault(task_id, []).append(stream)
        try:
            yield
        finally:
            results = self._results[task_id]
            results.remove(stream)
            if not results:
                del self._results[task_id]

    def has_task(self, task_id: str) -> bool:
        """Whether a client here has the task."""
        return task_id in self._sessions or task_id in self._results

    def streams(self, task_id: str) -> Sequence[SessionStream] | None:
        """The streams for messages about the task, those of open requests first; None if no client has the task."""
        if not self.has_task(task_id):
            return None
        own = [session.own for session in reversed(self._sessions.get(task_id, {})) if session.own is not None]
        return [*reversed(self._results.get(task_id, ())), *own]

    def results_of(self, session: Session, task_id: str) -> Sequence[SessionStream]:
        """The streams of a session's open `tasks/result` requests for a task."""
        return [stream for stream in self._results.get(task_id, ()) if stream.session is session]

    def open_streams(self, session: Session, task_id: str, *, related: bool = True) -> Iterator[SessionStream]:
        """The open streams of a session for messages about a task; only its own if they are not `related` to it."""
        results = self.results_of(session, task_id) if related else ()
        return (each for each in (*results, session.own) if each is not None and each.is_open)


# ---- polls
# `tasks/get` over Streamable HTTP is answered with plain JSON, although the SDK opens a stream for every request.


_VERSION_HEADER: Final = (b"mcp-protocol-version", VERSION.encode())
_STREAM: Final = b"text/event-stream"
_LARGEST_POLL: Final = 4096
"""Bytes. A request with an id of ours and some `_meta` is far smaller; a larger one is not looked at."""


class PollAnswer:
    """The answer to one POST, if that is a poll. Others pass through unchanged."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_poll = False
        self._held: list[Message] | None = None
        self._is_sent = False

    async def receive(self) -> Message:
        """A message from the client, looked at on its way."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) <= _LARGEST_POLL and b"tasks/get" in body:
                self._is_poll = self._is_poll or (_parsed(body) or {}).get("method") == "tasks/get"
        return message

    async def send(self, message: Message) -> None:
        """A message to the client."""
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
        if found is not None and (_parsed(found) or {}).keys() & {"result", "error"}:
            self._is_sent = True
            start = held[0]
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-type"]
            length = str(len(found)).encode()
            headers += [(b"content-type", b"application/json"), (b"content-length", length)]
            await self._send({**start, "headers": headers})
            await self._send({"type": "http.response.body", "body": found})
        elif found is not None or not held[-1].get("more_body"):
            # Another message comes first, or none at all: then it stays a stream.
            self._held, self._is_poll = None, False
            for message in held:
                await self._send(message)


def _opens_stream(message: Message) -> bool:
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in message["headers"]
    )


def _first_message(stream: bytes) -> bytes | None:
    """The data of the first event that has some, once it is complete."""
    # The last line may not be complete.
    for line in stream.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:") and line[5:].strip():
            return line[5:].strip()
    return None


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


# ---- cancelled questions
# 2025-11-25: the notification that cancels a question of a task names the task. The SDK sends it without.


MAX_ASKED: Final = 1_000
"""Questions of one session that are remembered. Few are open at a time."""

_CANCELLED: Final = b'"notifications/cancelled"'
_METHOD, _ID, _RELATED = b'"method"', b'"id"', RELATED_TASK.encode()
_HEAD: Final = 300
"""Bytes at the start of an event that hold its method, if it has one: a large result is not searched."""


class AskedTasks:
    """The tasks of the questions that were sent to one session, by the ids of the requests."""

    def __init__(self) -> None:
        self._tasks: BoundedDict[str | int, str] = BoundedDict(MAX_ASKED)

    def look(self, event: bytes) -> bytes:
        """An event on its way to the client, with the task named if it cancels a question of one."""
        head = event[:_HEAD]
        is_request = _METHOD in head and _ID in head
        if _CANCELLED not in head and not (is_request and _RELATED in event):
            return event
        lines = event.split(b"\r\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data:") and (named := self._named(line[5:])) is not None:
                lines[number] = b"data: " + named
        return b"\r\n".join(lines)

    def _named(self, data: bytes) -> bytes | None:
        message = _parsed(data)
        params: Any = None if message is None else message.get("params")
        if message is None or not isinstance(params, dict):
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


# ---- HTTP sessions


AFTER_IDLE: Final = 1.0
"""Seconds for which a session is kept here after the SDK has ended it for being idle. The SDK must be first, because
requests of sessions that are not known here are refused."""

_SESSION_HEADER: Final = MCP_SESSION_ID_HEADER.encode()


@dataclass(eq=False, slots=True)
class _OwnedSession:
    """A session with its owner, the number of its requests that are being served, and when the last of them ended."""

    owner: str | None
    close: Callable[[], None]
    in_flight: int = 0
    used: float = 0.0


class SessionsApp:
    """The SDK's ASGI app. Only the owner of a session uses it, and an owner may have only so many."""

    def __init__(
        self, app: ASGIApp, manager: StreamableHTTPSessionManager, sessions: Sessions, protocol: TasksProtocol
    ) -> None:
        self._app = app
        self._manager = manager
        self._sessions = sessions
        self._protocol = protocol
        self._owned: dict[str, _OwnedSession] = {}
        self._swept = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        # Newer versions have no sessions.
        has_sessions = version is None or (version in VERSIONS and not VERSIONS[version].has_extension)
        if scope["type"] != "http" or not has_sessions or self._manager.stateless:
            await self._serve(scope, receive, send)
            return
        session_id, owner = headers.get(MCP_SESSION_ID_HEADER), self._owner(headers)
        if session_id is None:
            await self._open(owner, scope, receive, send)
            return
        session = self._owned.get(session_id)
        if session is None or session.owner != owner:
            unknown = uuid.uuid4().hex.encode()
            hidden = [(key, unknown if key.lower() == _SESSION_HEADER else value) for key, value in scope["headers"]]
            await self._serve({**scope, "headers": hidden}, receive, send)
        else:
            await self._use(session, session_id, scope, receive, send)

    # Owners

    def _owner(self, headers: Mapping[str, str]) -> str | None:
        # The client info and the version are left out: a GET does not have the one, nor the first request the other.
        principal, identity = authenticated()
        caller = Caller(protocol_version=VERSION, principal=principal, identity=identity, headers=headers)
        return self._protocol.owners.known(caller)

    async def _open(self, owner: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may open a session."""
        self._sweep()
        try:
            close = self._protocol.limiting.open_session(owner)
        except LimitExceeded as exc:
            error = to_error_data(exc).model_dump(mode="json", by_alias=True, exclude_none=True)
            refusal = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=429)
            await refusal(scope, receive, send)
            return
        await self._use(_OwnedSession(owner, close), None, scope, receive, send)

    async def _use(
        self, session: _OwnedSession, session_id: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request of a session; of one that the request opens, if it has no id yet."""
        is_new, is_answered = session_id is None, False
        statuses: list[int] = []

        async def watched(message: Message) -> None:
            nonlocal session_id
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if is_new and message["status"] < 400:
                    session_id = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                    if session_id is not None:
                        # Before the client knows it: its next request may come at once.
                        self._owned[session_id] = session
            await send(message)

        session.in_flight += 1
        try:
            await self._serve(scope, receive, watched)
            is_answered = True
        finally:
            session.in_flight -= 1
            session.used = time.monotonic()
            is_deleted = scope["method"] == "DELETE" and any(200 <= status < 300 for status in statuses)
            # The SDK ends a session whose first request was cut off.
            if session_id is None:
                session.close()
            elif is_deleted or 404 in statuses or (is_new and not is_answered):
                self._forget(session_id)

    def _sweep(self) -> None:
        """Forget the sessions that the SDK has ended for being idle."""
        now, idle = time.monotonic(), self._manager.session_idle_timeout
        if idle is None or now < self._swept + 1:
            return
        self._swept = now
        over = now - idle - AFTER_IDLE
        for session_id in [each for each, it in self._owned.items() if not it.in_flight and it.used < over]:
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        session = self._owned.pop(session_id, None)
        if session is not None:
            session.close()

    # Streams

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = Headers(scope=scope).get(MCP_SESSION_ID_HEADER) if scope["type"] == "http" else None
        if session_id is not None:
            send = self._naming_tasks(session_id, send)
        method = scope.get("method")
        if method == "POST":
            await self._post(scope, receive, send)
        elif method == "GET" and session_id is not None and not self._manager.stateless:
            await self._get(session_id, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _naming_tasks(self, session_id: str, send: Send) -> Send:
        async def named(message: Message) -> None:
            body: bytes = message.get("body", b"") if message["type"] == "http.response.body" else b""
            asked = self._sessions.asked(session_id) if body else None
            await send(message if asked is None else {**message, "body": asked.look(body)})

        return named

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        manager = self._manager
        exchange = Exchange(
            can_resume=manager.event_store is not None and not manager.json_response,
            receive=receive if manager.json_response else None,
        )
        watch_exchange(scope, exchange)
        # Only this version polls with `tasks/get`, and has no other use for the stream.
        if not manager.json_response and _VERSION_HEADER in scope["headers"]:
            poll = PollAnswer(receive, send)
            receive, send = poll.receive, poll.send
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            # In the middle of its request. Each would be a traceback in the log.
            pass
        finally:
            exchange.over.set()

    async def _get(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a session's own stream, until the token that opened it expires or it has lasted as long as it may.

        A resumed stream may be that of a `tasks/result`, and lasts as long as its token.
        """
        is_resumed = LAST_EVENT_ID_HEADER in Headers(scope=scope)
        is_open = is_done = False

        async def watched(message: Message) -> None:
            nonlocal is_open, is_done
            await send(message)
            is_done = message["type"] == "http.response.body" and not message.get("more_body", False)
            # The SDK refuses a second stream, and an unknown session, with another status.
            if message["type"] == "http.response.start" and message["status"] == 200:
                is_open = True
                self._sessions.stream_opened(session_id, resumed=is_resumed)

        identity, ends = authenticated()[1], self._protocol.stream_ends
        second = expiry(identity) if is_resumed else ends.after_token(identity)
        expired = asyncio.Event()
        try:
            with ends.ending(second, expired.set):
                await self._app(scope, receive if second is None else _until(expired, receive), watched)
            if expired.is_set() and is_open and not is_done:
                # The SDK believes that the client has left, and does not end the answer.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if is_open:
                self._sessions.stream_closed(session_id)


def _until(expired: asyncio.Event, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Receive from the client, which seems to leave when the event is set."""

    async def until_expired() -> Message:
        told, over = asyncio.ensure_future(receive()), asyncio.ensure_future(expired.wait())
        try:
            await asyncio.wait((told, over), return_when=asyncio.FIRST_COMPLETED)
            return told.result() if told.done() else {"type": "http.disconnect"}
        finally:
            told.cancel()
            over.cancel()

    return until_expired
