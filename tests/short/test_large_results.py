"""Large results: whatever a request looks like, they are put into its answer as they are kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http import EventStore

from harness.http import HttpWire, http_client, initialize, modern_headers, serving_app
from harness.rpc import NOTHING, TASKS, Tasking, legacy_request, request
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.server.fast_path.requests import LARGEST
from mcp_tasks.server.sdk import RequestContext
from tests.conformance.everything_server import MemoryEvents

pytestmark = pytest.mark.anyio

ITEMS = 5_000
MANY = 40_000
"""So many that whatever else belongs to a request takes next to nothing."""


def _items(count: int) -> list[dict[str, Any]]:
    return [{"number": number, "text": 'Grüße, "you"\n'} for number in range(count)]


@dataclass
class Large:
    """A server with a task that has ended with a large result."""

    wire: HttpWire
    tasks: Tasks
    task_id: str

    def poll(self) -> dict[str, Any]:
        """A request for the task."""
        return request("tasks/get", {"taskId": self.task_id}, capabilities=TASKS)


@asynccontextmanager
async def large(
    *,
    json_response: bool,
    items: int = ITEMS,
    events: EventStore | None = None,
    watch: Callable[[Any], None] | None = None,
) -> AsyncGenerator[Large]:
    """Such a server behind a port."""
    tasks = Tasks(settings=QUICK)
    server: MCPServer[Any] = MCPServer("large", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    def rows(count: int) -> list[dict[str, Any]]:
        """Give so many rows."""
        return _items(count)

    if watch is not None:

        async def see(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
            result = await call_next(ctx)
            if ctx.method.startswith("tasks/"):
                watch(result)
            return result

        server.middleware.append(see)
    app = server.streamable_http_app(json_response=json_response, event_store=events)
    async with serving_app(app) as base, http_client() as client:
        wire = HttpWire(f"{base}/mcp", client)
        ended = await Tasking(wire).finish("rows", count=items)
        assert ended["result"]["structuredContent"] == {"result": _items(items)}
        yield Large(wire, tasks, ended["taskId"])


def _with_large_body(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "params": {**message["params"], "more": "x" * LARGEST}}


SLOW: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a large body": _with_large_body,
    "a member that nobody knows": lambda message: {**message, "more": 1},
    "an id that is not the same to all": lambda message: {**message, "id": 2**60},
}


@pytest.mark.parametrize("json_response", [True, False], ids=["JSON", "streams"])
@pytest.mark.parametrize("what", SLOW)
async def test_a_request_that_the_sdk_answers_is_answered_as_any_other(what: str, json_response: bool) -> None:
    async with large(json_response=json_response) as server:
        usual = await server.wire.send(server.poll())
        before = sum(server.tasks.short_way.handed_over.values())
        slow = await server.wire.send(SLOW[what](server.poll()))
        assert sum(server.tasks.short_way.handed_over.values()) == before + 1
        assert slow.result == {**usual.result, "ttlMs": slow.result["ttlMs"]}


async def test_arguments_in_headers_do_not_keep_a_poll_from_the_short_way() -> None:
    async with large(json_response=True) as server:
        counts = server.tasks.short_way
        answered, message = counts.answered["tasks/get"], server.poll()
        headers = [*modern_headers(message), ("mcp-param-region", "us"), ("mcp-param-region", "eu")]
        reply = await server.wire.post(json.dumps(message), headers)
        assert reply.result["status"] == "completed"
        assert counts.answered["tasks/get"] == answered + 1


@pytest.mark.parametrize("way", ["JSON", "streams", "streams that are kept"])
async def test_an_older_client_is_given_the_same_result(way: str) -> None:
    events = MemoryEvents() if way == "streams that are kept" else None
    async with large(json_response=way == "JSON", events=events) as server:
        usual = (await server.wire.send(server.poll())).result["result"]
        session, _ = await initialize(server.wire, NOTHING)
        result = (await session.ask("tasks/result", {"taskId": server.task_id})).result
        assert result["structuredContent"] == usual["structuredContent"]
        assert result["content"] == usual["content"]
        assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": server.task_id}


async def test_middleware_of_the_author_sees_all_of_a_result() -> None:
    seen: list[Any] = []
    async with large(json_response=True, watch=seen.append) as server:
        seen.clear()
        poll = (await server.wire.send(server.poll())).result
        session, _ = await initialize(server.wire, NOTHING)
        older = (await session.ask("tasks/result", {"taskId": server.task_id})).result
        assert seen[0]["result"]["structuredContent"] == poll["result"]["structuredContent"]
        assert seen[1]["structuredContent"] == older["structuredContent"]


async def _work_on_the_loop(do: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Processor seconds that the event loop's thread takes for it, its client in another one."""
    began = time.thread_time()
    await asyncio.create_task(asyncio.to_thread(asyncio.run, do()))
    return time.thread_time() - began


@pytest.mark.parametrize("wire", ["the newest", "the older"])
async def test_the_event_loop_writes_no_large_result(wire: str) -> None:
    async with large(json_response=True, items=MANY) as server:
        kept = (await server.wire.send(server.poll())).result["result"]
        session, _ = await initialize(server.wire, NOTHING)

        async def ask() -> None:
            async with http_client() as client:
                own = HttpWire(server.wire.url, client)
                if wire == "the newest":
                    message = SLOW["a member that nobody knows"](server.poll())
                    await own.raw_post(json.dumps(message), modern_headers(message))
                else:
                    older = legacy_request("tasks/result", {"taskId": server.task_id})
                    await own.raw_post(json.dumps(older), session.headers)

        began = time.thread_time()
        json.loads(json.dumps(kept))
        by_hand = time.thread_time() - began
        assert await _work_on_the_loop(ask) < 0.6 * by_hand
