"""Clients that do not read: the layer around all that a server answers over Streamable HTTP.

A large body is sent in pieces, so that the buffers of the HTTP server hold little of it, and counts until it has been
sent (`protocol.outcomes`). A response whose client reads nothing for `Limits.read_wait`, or too slowly, is given up: an
answer as well as a stream, whose token may have expired meanwhile. Its request is cancelled, the connection is closed,
and all that was held for it is free. One clock watches all responses; one that does not wait costs next to nothing.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Final, cast
from weakref import WeakSet

import anyio
from mcp.server import MCPServer, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.outcomes import Held, current_held
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.quiet import get_logger
from mcp_tasks.server.sdk import authenticated

logger: Final = get_logger(__name__)

PIECE: Final = 128 * 1024
"""Bytes of a large body that are handed to the server at a time."""

SLOWEST: Final = 32 * 1024
"""Bytes a second, on average, at which a large body must be read."""

LOOKS: Final = 4
"""How often, in the time that a client is waited for, the clock looks at who is waited for."""


class ReadLimits:
    """The layer for one `Tasks` object."""

    def __init__(self, protocol: TasksProtocol) -> None:
        self._protocol = protocol
        self._managers: WeakSet[StreamableHTTPSessionManager] = WeakSet()
        wait = protocol.limiting.limits.read_wait
        self._clock = None if wait is None else _Clock(wait.total_seconds())

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
            manager.asgi_app = cast(Any, _ReadApp(cast(ASGIApp, manager.asgi_app), self._protocol, self._clock))


class _ReadApp:
    def __init__(self, app: ASGIApp, protocol: TasksProtocol, clock: _Clock | None) -> None:
        self._app = app
        self._protocol = protocol
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(self._protocol, self._clock, scope, send)
        token = current_held.set(response)
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            if not response.is_given_up or response.is_cancelled_by_others():
                raise
        finally:
            response.request = None
            response.close()
            current_held.reset(token)
        if response.refused is not None:
            # Nothing of the answer has been sent.
            error = to_error_data(response.refused).model_dump(mode="json", by_alias=True, exclude_none=True)
            answer = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=503)
            await answer(scope, receive, send)


class _Response(Held):
    """One response on its way.

    Attributes:
        refused: Why it is not sent.
        is_given_up: Whether its request was cancelled here.
        request: The asyncio task of the request; None once it is over.
    """

    __slots__ = ("_clock", "_http", "_protocol", "_send", "_start", "is_given_up", "refused", "request")

    def __init__(self, protocol: TasksProtocol, clock: _Clock | None, http: Scope, send: Send) -> None:
        super().__init__(protocol.limiting.unread)
        self.refused: LimitExceeded | None = None
        self.is_given_up: bool = False
        self._protocol = protocol
        self._clock = clock
        self._http = http
        self.request: asyncio.Task[Any] | None = asyncio.current_task()
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Send what the app sends."""
        if message["type"] == "http.response.start" and not any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in message["headers"]
        ):
            # Until it is known that there is room for the rest.
            self._start = message
        elif len(body := message.get("body", b"")) <= LARGE:
            await self._send_in_time(message)
        else:
            await self._send_large(message, body)

    async def _send_large(self, message: Message, body: bytes) -> None:
        try:
            if not self.size:
                self.take(self._owner_of_request(), len(body))
        except LimitExceeded as exc:
            if self._start is not None:
                self.refused = exc
            logger.info("a response of %d bytes is not sent: %s", len(body), exc)
            self.give_up()
            # Until that arrives: the app may send from a task of its own.
            await anyio.sleep_forever()
        began = asyncio.get_running_loop().time()
        try:
            for at in range(0, len(body), PIECE):
                piece = {**message, "body": body[at : at + PIECE]}
                if at + PIECE < len(body):
                    piece["more_body"] = True
                await self._send_in_time(piece, began + at / SLOWEST)
        finally:
            self.give_back()

    def _owner_of_request(self) -> str | None:
        """The owner behind the request, as far as one is known."""
        headers = Headers(scope=self._http)
        principal, identity = authenticated()
        version = headers.get("mcp-protocol-version", "")
        caller = Caller(protocol_version=version, principal=principal, identity=identity, headers=headers)
        return self._protocol.owners.known(caller)

    async def _send_in_time(self, message: Message, since: float | None = None) -> None:
        start, self._start = self._start, None
        clock = self._clock
        if clock is not None:
            clock.watch(self, since)
        try:
            if start is not None:
                await self._send(start)
            await self._send(message)
        finally:
            if clock is not None:
                clock.waiting.pop(self, None)

    def give_up(self) -> None:
        """Cancel the request."""
        # Not by a cancel scope around every request: that takes as long as the answer to a poll.
        if not self.is_given_up and self.request is not None:
            self.is_given_up = True
            self.request.cancel()

    def is_cancelled_by_others(self) -> bool:
        """Whether the request was cancelled for another reason as well."""
        return self.request is not None and self.request.uncancel() > 0


class _Clock:
    """Gives up responses that wait for their clients for too long.

    Args:
        wait: Seconds.

    Attributes:
        waiting: The responses that wait for their clients, and since when.
    """

    def __init__(self, wait: float) -> None:
        self.waiting: dict[_Response, float] = {}
        self._wait = wait
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0

    def watch(self, response: _Response, since: float | None) -> None:
        """A response is waiting for its client: since now, or as if since then."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.waiting[response] = now if since is None else min(since, now)
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        # In a context of its own: it outlasts the request that happens to be the first.
        self._due = loop.time() + self._wait / LOOKS
        self._timer = loop.call_at(self._due, self._tick, context=Context())

    def _tick(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        # After a standstill of this process, clients have not had the time.
        late = now - self._wait if now < self._due + self._wait / LOOKS else -1.0
        for response in [each for each, since in self.waiting.items() if since <= late]:
            del self.waiting[response]
            logger.info("a client has not read its response for %g s: its connection is closed", self._wait)
            response.give_up()
        if self.waiting:
            self._schedule(loop)
