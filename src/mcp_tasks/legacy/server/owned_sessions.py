"""Only the owner of an HTTP session uses it, and an owner has only so many of them.

The SDK binds a session to the access token that opened it. Where the author's own rule names the owner
(`Tasks(principal=)` over headers) there is no such token, and the session id alone would open a session's stream, and
with it the questions and the task ids of another user. So the owner is compared before the SDK sees a request, whatever
its method is. The SDK is given a request that is refused with an id that no session has: the answer is the same,
byte for byte, as for a session that it does not know.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Final, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks.adapters.sdk import authenticated
from mcp_tasks.errors import LimitExceeded
from mcp_tasks.legacy.shapes import VERSION
from mcp_tasks.protocol import Caller, TasksProtocol
from mcp_tasks.protocol.errors import to_error_data

AFTER_IDLE: Final = 1.0
"""Seconds for which a session is kept here after the SDK has ended it for not being used. The SDK must be first: what
is not known here is not let through."""

_SESSION_HEADER: Final = MCP_SESSION_ID_HEADER.encode()


class OwnedSessions:
    """The HTTP sessions of one `Tasks` object.

    Args:
        protocol: Says whose tasks a caller's are, and how many sessions an owner may have.
    """

    def __init__(self, protocol: TasksProtocol) -> None:
        self._protocol = protocol
        self._managers: WeakSet[StreamableHTTPSessionManager] = WeakSet()

    def put_before(self, server: MCPServer[Any] | Server[Any]) -> None:
        """Stand before the SDK's app of a server that starts, if it serves Streamable HTTP; once, however often."""
        try:
            manager = server.session_manager
        except RuntimeError:
            # It has none: it serves something else.
            return
        if manager not in self._managers:
            self._managers.add(manager)
            # Any ASGI app does; the SDK only says so less generally than it means it.
            manager.asgi_app = cast(Any, _OwnersApp(cast(ASGIApp, manager.asgi_app), manager, self._protocol))


class _Session:
    """One session.

    Attributes:
        in_flight: Requests that are being served, the open GET included.
        used: When the last of them ended.
    """

    __slots__ = ("close", "in_flight", "owner", "used")

    def __init__(self, owner: str | None, close: Callable[[], None]) -> None:
        self.owner = owner
        self.close = close
        self.in_flight = 0
        self.used = 0.0


class _OwnersApp:
    """The SDK's ASGI app, where every session has its owner."""

    def __init__(self, app: ASGIApp, manager: StreamableHTTPSessionManager, protocol: TasksProtocol) -> None:
        self._app = app
        self._manager = manager
        self._protocol = protocol
        self._sessions: dict[str, _Session] = {}
        self._swept = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        # There are no sessions in newer versions.
        has_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if scope["type"] != "http" or not has_sessions or self._manager.stateless:
            await self._app(scope, receive, send)
            return
        session_id, owner = headers.get(MCP_SESSION_ID_HEADER), self._owner(headers)
        if session_id is None:
            await self._open(owner, scope, receive, send)
            return
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            await self._app(_without_session(scope), receive, send)
        else:
            await self._use(session_id, session, scope, receive, send)

    def _owner(self, headers: Headers) -> str | None:
        # A GET says nothing of its client, so that is left out on every method; and so is which version it speaks,
        # which the first request does not say.
        principal, identity = authenticated()
        caller = Caller(protocol_version=VERSION, principal=principal, identity=identity, headers=headers)
        return self._protocol.known_owner(caller)

    async def _open(self, owner: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may open a session."""
        self._sweep()
        try:
            close = self._protocol.limiting.open_session(owner)
        except LimitExceeded as exc:
            await _refusal(exc)(scope, receive, send)
            return
        session = _Session(owner, close)
        opened: str | None = None

        async def watched(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                opened = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                if opened is not None:
                    # Before it is said: the next request may come at once.
                    self._sessions[opened] = session
            await send(message)

        session.in_flight += 1
        is_answered = False
        try:
            await self._app(scope, receive, watched)
            is_answered = True
        finally:
            session.in_flight -= 1
            session.used = time.monotonic()
            if opened is None:
                close()
            elif not is_answered:
                # The SDK ends a session whose first request was cut off.
                self._forget(opened)

    async def _use(self, session_id: str, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        statuses: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        session.in_flight += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            session.in_flight -= 1
            session.used = time.monotonic()
            is_deleted = scope["method"] == "DELETE" and any(200 <= status < 300 for status in statuses)
            if is_deleted or 404 in statuses:
                self._forget(session_id)

    def _sweep(self) -> None:
        """Forget the sessions that the SDK has ended because nobody used them."""
        now, idle = time.monotonic(), self._manager.session_idle_timeout
        if idle is None or now < self._swept + 1:
            return
        self._swept = now
        over = now - idle - AFTER_IDLE
        for session_id in [each for each, it in self._sessions.items() if not it.in_flight and it.used < over]:
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()


def _without_session(scope: Scope) -> Scope:
    """The request with the id of a session that there is not."""
    unknown = uuid.uuid4().hex.encode()
    return {
        **scope,
        "headers": [(name, unknown if name.lower() == _SESSION_HEADER else value) for name, value in scope["headers"]],
    }


def _refusal(exc: LimitExceeded) -> JSONResponse:
    error = to_error_data(exc)
    told = error.model_dump(mode="json", by_alias=True, exclude_none=True)
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": told}, status_code=429)
