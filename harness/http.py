"""A server under test behind a real HTTP port in this process, and a client that sends it raw requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn
from mcp.server import MCPServer, Server
from starlette.types import ASGIApp

from harness.ports import base_url, listening, port_of
from harness.rpc import LEGACY, MODERN, PATIENCE, Reply, hello, legacy_request, loads, notification

Headers = Sequence[tuple[str, str]]
"""Headers in order; a name may be there twice."""


class HttpWire:
    def __init__(self, url: str, client: httpx2.AsyncClient, *, token: str | None = None) -> None:
        self.url = url
        self.client = client
        self.token = token

    def as_user(self, token: str) -> HttpWire:
        return HttpWire(self.url, self.client, token=token)

    async def send(self, message: Mapping[str, Any], *, capabilities: Mapping[str, Any] | None = None) -> Reply:
        return await self.post(json.dumps(message), modern_headers(message))

    async def post(self, body: str | bytes, headers: Headers) -> Reply:
        """Send a body as it is, and give the one answer to it."""
        response = await self.raw_post(body, headers)
        messages = _messages(response)
        return Reply(
            message=messages[-1], status=response.status_code, headers=response.headers, notifications=messages[:-1]
        )

    async def raw_post(self, body: str | bytes, headers: Headers) -> httpx2.Response:
        """Send a body as it is, and give whatever comes back."""
        content = body.encode() if isinstance(body, str) else body
        return await self.client.post(self.url, content=content, headers=[*self._base_headers(), *headers])

    @asynccontextmanager
    async def stream(self, message: Mapping[str, Any]) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """The messages of an answer as they come; leaving closes the stream."""
        headers = [*self._base_headers(), *modern_headers(message)]
        async with self.client.stream("POST", self.url, content=json.dumps(message), headers=headers) as response:
            assert response.status_code == 200
            lines = stream_messages(response)
            async with contextlib.aclosing(lines):
                yield lines

    def _base_headers(self) -> list[tuple[str, str]]:
        base = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
        return base if self.token is None else [*base, ("authorization", f"Bearer {self.token}")]


class LegacyHttpWire:
    """A session of the 2025-11-25 wire, or an older one, over Streamable HTTP; without an id, requests without one."""

    def __init__(self, wire: HttpWire, session_id: str | None, version: str = LEGACY) -> None:
        self._wire = wire
        self._session_id = session_id
        self._version = version

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        return await self._wire.post(json.dumps(legacy_request(method, params)), self.headers)

    async def notify(self, method: str) -> int:
        """Send a notification; gives the HTTP status."""
        return (await self._wire.raw_post(json.dumps(notification(method)), self.headers)).status_code

    @property
    def headers(self) -> Headers:
        version = [("mcp-protocol-version", self._version)]
        return version if self._session_id is None else [*version, ("mcp-session-id", self._session_id)]


async def initialize(
    wire: HttpWire, capabilities: Mapping[str, Any], version: str = LEGACY
) -> tuple[LegacyHttpWire, dict[str, Any]]:
    """Do the handshake of 2025-11-25, or of an older version; gives the session and the server's answer."""
    reply = await wire.post(json.dumps(legacy_request("initialize", hello(capabilities, version))), [])
    session = LegacyHttpWire(wire, reply.headers.get("mcp-session-id"), version)
    assert await session.notify("notifications/initialized") == 202
    return session, reply.result


def modern_headers(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The routing headers that a client of the 2026-07-28 wire sends with a request."""
    method, params = message["method"], message["params"]
    headers = [("mcp-protocol-version", MODERN), ("mcp-method", method)]
    key = "uri" if method == "resources/read" else "taskId" if method.startswith("tasks/") else "name"
    name = params.get(key)
    if isinstance(name, str) and method != "completion/complete":
        headers.append(("mcp-name", name))
    return headers


@asynccontextmanager
async def serving(
    server: MCPServer[Any] | Server[Any], *, json_response: bool = False, stateless: bool = False
) -> AsyncGenerator[HttpWire]:
    """Serve on a port of its own while the block lasts."""
    app = server.streamable_http_app(json_response=json_response, stateless_http=stateless)
    async with serving_app(app) as base, http_client() as client:
        yield HttpWire(f"{base}/mcp", client)


def http_client() -> httpx2.AsyncClient:
    """A client that goes straight to the server under test."""
    # A TLS context that loads nothing: no test here speaks TLS, and reading the certificates takes longer than a test.
    return httpx2.AsyncClient(timeout=PATIENCE, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


@asynccontextmanager
async def serving_app(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free port; gives its base URL."""
    # A connection that a client keeps is not closed under its next request because both were kept waiting for a core.
    config = uvicorn.Config(app, log_config=None, timeout_keep_alive=int(PATIENCE) + 1)
    server = _QuickServer(config)
    with listening() as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.wait_until_started(running)
            yield base_url(port_of(listener))
        finally:
            server.leave.set()
            await running


class _QuickServer(uvicorn.Server):
    """A server that says when it has started, stops when told and leaves the signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.leave = asyncio.Event()
        self._up = asyncio.Event()

    async def wait_until_started(self, running: asyncio.Task[None]) -> None:
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        up.cancel()
        if running.done():
            running.result()
        assert self.started, "the server did not start"

    async def main_loop(self) -> None:
        self._up.set()
        await self.leave.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            # Requests that are still served: streams that a test left open.
            _, late = await asyncio.wait(self.server_state.tasks, timeout=1)
            for request in late:
                request.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


def _messages(response: httpx2.Response) -> tuple[dict[str, Any], ...]:
    if is_stream(response):
        data = [line.removeprefix("data:") for line in response.text.splitlines() if line.startswith("data:")]
        return tuple(loads(line) for line in data if line.strip())
    assert response.headers.get("content-type", "").startswith("application/json"), (
        response.status_code,
        response.text,
    )
    return (loads(response.content),)


async def stream_messages(response: httpx2.Response) -> AsyncGenerator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and line.removeprefix("data:").strip():
            yield loads(line.removeprefix("data:"))
