"""Servers that never stop: the client stays bounded, and says that something is wrong."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from harness.rpc import EXTENSION, METHOD_NOT_FOUND, MODERN, PATIENCE, error_response, notification, response
from mcp_tasks.client import TasksClient, reconnecting_http, resume_task
from mcp_tasks.client.http import MAX_EVENT
from mcp_tasks.errors import TasksError
from tests.client.connecting import SHORT
from tests.client.peer import TASK_ID, task

pytestmark = pytest.mark.anyio

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


MIB = 2**20
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}


async def look(url: str) -> None:
    async with Client(reconnecting_http(url), extensions=[TasksClient(patience=SHORT)]) as client:
        with anyio.fail_after(PATIENCE):
            await resume_task(client, TASK_ID).status()


async def failing_look(url: str) -> None:
    async with Client(reconnecting_http(url), extensions=[TasksClient(patience=SHORT)]) as client:
        with anyio.fail_after(PATIENCE), pytest.raises((MCPError, TasksError)):
            await resume_task(client, TASK_ID).status()


async def spaces(_request: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """White space without end: a JSON parser would wait for the rest."""
    while True:
        yield b" " * MIB


async def one_line(_request: Mapping[str, Any]) -> AsyncIterator[bytes]:
    yield b"data: "
    while True:
        yield b"x" * MIB


async def many_lines(_request: Mapping[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield (b"data: " + b"x" * 1_017 + b"\n") * 1_024


@pytest.mark.parametrize(
    ("head", "body"), [(JSON, spaces), (EVENTS, one_line), (EVENTS, many_lines)], ids=["json", "line", "event"]
)
async def test_an_answer_without_end_is_cut_off(head: Mapping[str, str], body: Any) -> None:
    async with serving_hostile("tasks/get", head, body) as (url, hostile):
        await failing_look(url)
        looks = hostile.asked.count("tasks/get")
        # As much as one answer may have, and what was on its way.
        assert hostile.sent <= looks * (MAX_EVENT + 32 * MIB)


async def test_a_small_body_that_unpacks_to_a_huge_one_is_cut_off() -> None:
    unpacked = 0

    async def bomb(_request: Mapping[str, Any]) -> AsyncIterator[bytes]:
        nonlocal unpacked
        packer = zlib.compressobj(wbits=31)
        first, again = (packer.compress(b" " * MIB) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        yield first
        while True:
            yield again
            unpacked += MIB
            # The socket takes a great many of them at once.
            await asyncio.sleep(0)

    async with serving_hostile("tasks/get", {**JSON, "content-encoding": "gzip"}, bomb) as (url, hostile):
        await failing_look(url)
        looks = hostile.asked.count("tasks/get")
        assert unpacked <= looks * (MAX_EVENT + 256 * MIB)


async def test_messages_that_nobody_asked_for_are_dropped_and_the_answer_is_found() -> None:
    count = 300

    async def flood(request: Mapping[str, Any]) -> AsyncIterator[bytes]:
        odd = [notification("notifications/tasks", {**task(), "taskId": f"other-{number}"}) for number in range(50)]
        odd += [notification("notifications/unheard-of", {"x": "y" * 100})] * 50
        events = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in odd]
        for _ in range(count // len(events)):
            yield b"".join(events)
        yield b"data: " + json.dumps(response(request["id"], task("working"))).encode() + b"\n\n"

    async with serving_hostile("tasks/get", EVENTS, flood) as (url, _):
        await look(url)
