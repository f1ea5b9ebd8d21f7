"""Servers that never stop: the client stays bounded, and says that something is wrong."""

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from harness.http import serving_app
from harness.rpc import EXTENSION, METHOD_NOT_FOUND, MODERN, PATIENCE, error_response, notification, response
from mcp_tasks.client import TasksClient, reconnecting_http, resume_task
from mcp_tasks.client.http import MAX_EVENT
from mcp_tasks.errors import TasksError
from tests.client.connecting import SHORT
from tests.client.peer import TASK_ID, task

Body = Callable[[Mapping[str, Any]], AsyncIterator[bytes]]
"""What comes after the head of an answer to a request, piece by piece."""


class Hostile:
    """The server."""

    def __init__(self, method: str, head: Mapping[str, str], body: Body) -> None:
        self.method = method
        self.head = head
        self.body = body
        self.sent = 0
        self.asked: list[str] = []

    async def answer(self, request: Request) -> Response:
        """What a request is answered with: all but the one method as by an honest server."""
        if request.method != "POST":
            return Response(status_code=405)
        message: dict[str, Any] = await request.json()
        method, asked = message["method"], message.get("id")
        self.asked.append(method)
        if method == self.method:
            return StreamingResponse(self._counted(message), headers=self.head)
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
        refused = error_response(asked, METHOD_NOT_FOUND, "Method not found")
        return JSONResponse(response(asked, results[method]) if method in results else refused)

    async def _counted(self, message: Mapping[str, Any]) -> AsyncIterator[bytes]:
        async for piece in self.body(message):
            yield piece
            self.sent += len(piece)
            # Otherwise it would not be heard that the client has gone.
            await asyncio.sleep(0)


@asynccontextmanager
async def serving_hostile(method: str, head: Mapping[str, str], body: Body) -> AsyncGenerator[tuple[str, Hostile]]:
    """The server while the block lasts; gives its URL as well."""
    hostile = Hostile(method, head, body)
    app = Starlette(routes=[Route("/mcp", hostile.answer, methods=["GET", "POST", "DELETE"])])
    async with serving_app(app) as base:
        yield f"{base}/mcp", hostile


MIB = 2**20
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}


async def look(url: str, expected: AbstractContextManager[Any] | None = None) -> None:
    async with Client(reconnecting_http(url), extensions=[TasksClient(patience=SHORT)]) as client:
        with anyio.fail_after(PATIENCE), expected or nullcontext():
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
        await look(url, pytest.raises((MCPError, TasksError)))
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
        await look(url, pytest.raises((MCPError, TasksError)))
        looks = hostile.asked.count("tasks/get")
        assert unpacked <= looks * (MAX_EVENT + 256 * MIB)


async def test_messages_that_were_not_asked_for_are_dropped_and_the_answer_is_found() -> None:
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
