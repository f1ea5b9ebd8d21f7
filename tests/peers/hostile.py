"""A server over a bare socket that answers one method as a test wants, for as long as its client listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from harness.rpc import EXTENSION, METHOD_NOT_FOUND, MODERN, error_response, response
from tests.client.peer import TASK_ID, task

Body = Callable[[Mapping[str, Any]], AsyncIterator[bytes]]
"""What comes after the head of an answer to a request, piece by piece."""


class Hostile:
    """The server.

    Attributes:
        head: Header lines of the answer to the method, `content-type` among them.
        body: The rest of it.
        sent: How many bytes of such answers the client has taken, all in all.
    """

    def __init__(self, method: str, head: Mapping[str, str], body: Body) -> None:
        self.method = method
        self.head = head
        self.body = body
        self.sent = 0
        self.asked: list[str] = []
        self.connections: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        connection = asyncio.current_task()
        assert connection is not None
        self.connections.add(connection)
        try:
            await self._serve(reader, writer)
        finally:
            self.connections.discard(connection)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                if not length:
                    writer.write(b"HTTP/1.1 405 no\r\ncontent-length: 0\r\n\r\n")
                    continue
                request: dict[str, Any] = json.loads(await reader.readexactly(length))
                self.asked.append(request["method"])
                if request["method"] == self.method:
                    await self._answer(request, writer)
                else:
                    self._answer_well(request, writer)
                await writer.drain()

    async def _answer(self, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.head.items())
        writer.write(f"HTTP/1.1 200 OK\r\n{lines}transfer-encoding: chunked\r\n\r\n".encode())
        async for piece in self.body(request):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            self.sent += len(piece)
        writer.write(b"0\r\n\r\n")

    def _answer_well(self, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        results: Mapping[str, Any] = {
            "server/discover": {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/call": {**task(), "resultType": "task"},
            "tasks/get": task("completed", result={"content": [{"type": "text", "text": "done"}]}),
            "tasks/cancel": {"resultType": "complete"},
        }
        asked, result = request.get("id"), results.get(request["method"])
        refused = error_response(asked, METHOD_NOT_FOUND, "Method not found")
        body = json.dumps(refused if result is None else response(asked, result)).encode()
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )


@asynccontextmanager
async def serving_hostile(method: str, head: Mapping[str, str], body: Body) -> AsyncGenerator[tuple[str, Hostile]]:
    """The server while the block lasts; gives its URL as well."""
    hostile = Hostile(method, head, body)
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", hostile
    finally:
        server.close()
        for connection in list(hostile.connections):
            connection.cancel()
        await asyncio.gather(*hostile.connections, return_exceptions=True)


__all__ = ["TASK_ID", "Hostile", "serving_hostile"]
