"""Listen streams straight at an ASGI app: what it sends is seen as it sends it, and the test is the web server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server import MCPServer, Server
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.http import modern_headers
from harness.rpc import PATIENCE, loads


class Peer:
    """The web server and the client at the other end of one stream."""

    def __init__(self, body: bytes = b"") -> None:
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.sent: list[bytes] = []
        self.is_complete = False
        self.reads = asyncio.Event()
        """Cleared, `send` waits, as it does when a socket is full."""
        self.reads.set()
        self.broken: Exception | None = None
        """What `send` raises, if anything."""
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self._changed = asyncio.Event()

    async def receive(self) -> Message:
        return await self._incoming.get()

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        if self.broken is not None:
            raise self.broken
        assert not self.is_complete, "sent after the end"
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        else:
            self.sent.append(message["body"])
            self.is_complete = not message.get("more_body", False)
        self._changed.set()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def events(self) -> list[str]:
        return [event for event in b"".join(self.sent).decode().split("\r\n\r\n") if event]

    @property
    def frames(self) -> list[dict[str, Any]]:
        data = [event.removeprefix("event: message\r\ndata: ") for event in self.events if not event.startswith(":")]
        return [loads(text) for text in data]

    async def until(self, condition: Callable[[Peer], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def statuses(self, task_id: str) -> list[str]:
        states = [frame["params"] for frame in self.frames if frame.get("method") == "notifications/tasks"]
        return [state["status"] for state in states if state["taskId"] == task_id]


@asynccontextmanager
async def app_of(server: MCPServer[Any] | Server[Any]) -> AsyncGenerator[ASGIApp]:
    app = server.streamable_http_app()
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def at(
    app: Callable[[Scope, Receive, Send], Any], message: Mapping[str, Any], headers: Sequence[tuple[str, str]] = ()
) -> AsyncGenerator[Peer]:
    """The answer to one request, in the making. At the end the client leaves, and the app has to as well."""
    body = json.dumps(message).encode()
    peer = Peer(body)
    base = [("host", "127.0.0.1:80"), ("content-type", "application/json"), ("content-length", str(len(body)))]
    usual = {"accept": "application/json, text/event-stream", **dict(headers)}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in (*base, *usual.items(), *modern_headers(message))],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    serving = asyncio.ensure_future(app(scope, peer.receive, peer.send))
    try:
        yield peer
    finally:
        peer.leave()
        with anyio.fail_after(PATIENCE):
            await serving
