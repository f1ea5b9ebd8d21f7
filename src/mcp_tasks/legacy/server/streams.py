"""Which streams of a Streamable HTTP server are open: what the SDK knows and does not tell.

A message on a session's own stream is dropped in silence while no GET is open for it, and so is one on the stream of a
request whose client has left. So the SDK's ASGI app, a public attribute of its session manager, is wrapped: the wrapper
sees every GET open and close, and leaves in the scope of each POST how a handler may know that the exchange is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, cast
from weakref import WeakSet

from mcp.server import MCPServer, Server
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks.adapters.exchange import Exchange, watch_exchange
from mcp_tasks.adapters.sdk import authenticated
from mcp_tasks.legacy.server.cancels import AskedTasks, naming_tasks
from mcp_tasks.legacy.server.polls import PollAnswer, may_poll
from mcp_tasks.protocol.stream_ends import StreamEnds, expiry


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
