"""Questions and pushes where the tool runs in another process, over stdio, and on streams that are resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    JSONRPCMessage,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.applications import Starlette
from starlette.routing import Route

from harness.furnished import http_process
from harness.http import HttpWire, http_client, serving, serving_app
from harness.rpc import EVERYTHING, PATIENCE, accept, hello, legacy_request, notification, response
from harness.server import QUICK, Desk
from harness.stdio import StdioWire, stdio_process
from mcp_tasks import Tasks
from tests.legacy.asking_server import build_asking
from tests.legacy.http_session import RELATED, open_session
from tests.push.test_failing_store import MoodyStore
from tests.unit.running import FailingStore

pytestmark = pytest.mark.anyio

ELICIT, STATUS = "elicitation/create", "notifications/tasks/status"


# Another process


async def test_the_session_is_asked_here_although_the_tool_runs_in_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    with http_process("--store", store):
        here = build_asking(Tasks(store, settings=QUICK, runs_tools=False, namespace="furnished"))
        async with serving(here) as wire:
            client = await open_session(wire)
            async with client.listen() as own:
                task_id = await client.create("ask_name")
                await client.accept(await own.request(ELICIT), name="Ada")
                await own.until(lambda each: each.get("params", {}).get("status") == "completed")
                assert await client.result(task_id) == "Hello, Ada!"


# Over stdio


async def _initialize(wire: StdioWire) -> None:
    await wire.send(legacy_request("initialize", hello(EVERYTHING)))
    await wire.notify("notifications/initialized")


async def _create(wire: StdioWire, tool: str, token: str | None = None, **arguments: Any) -> str:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    params = {"name": tool, "arguments": arguments, "task": {}, **meta}
    return (await wire.send(legacy_request("tools/call", params))).result["task"]["taskId"]


def _of(wire: StdioWire, method: str) -> list[dict[str, Any]]:
    return [message for message in wire.others if message.get("method") == method]


@pytest.mark.parametrize("waits", [False, True], ids=["polling", "waiting for the result"])
async def test_over_stdio_a_question_is_asked_once(*, waits: bool) -> None:
    async with stdio_process() as wire, anyio.create_task_group() as group:
        await _initialize(wire)
        task_id = await _create(wire, "ask_name")
        if waits:
            group.start_soon(wire.send, legacy_request("tasks/result", {"taskId": task_id}))
        asked = await wire.wait_for(lambda each: each.get("method") == ELICIT)
        assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
        await wire.write(json.dumps(response(asked["id"], accept(name="Ada"))))
        result = await wire.send(legacy_request("tasks/result", {"taskId": task_id}))
        assert result.result["content"][0]["text"] == "Hello, Ada!"
        assert len(_of(wire, ELICIT)) == 1
        await wire.wait_for(lambda each: each.get("params", {}).get("status") == "completed")


async def test_a_client_hears_of_a_task_only_after_it_knows_it() -> None:
    async with stdio_process() as wire:
        await _initialize(wire)
        seen: list[str] = []
        for number in range(20):
            request = legacy_request("tools/call", {"name": "echo", "arguments": {"value": number}, "task": {}})
            reply = await wire.send(request)
            seen.append(reply.result["task"]["taskId"])
            assert {each["params"]["taskId"] for each in _of(wire, STATUS)} <= set(seen)


# Streams that are cut off and resumed


class Events(EventStore):
    """Every message of every stream, in memory."""

    def __init__(self) -> None:
        self.stored: list[tuple[StreamId, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        self.stored.append((stream_id, message))
        return str(len(self.stored))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        stream_id, _ = self.stored[int(last_event_id) - 1]
        for number, (stream, message) in enumerate(self.stored, start=1):
            if stream == stream_id and number > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


@asynccontextmanager
async def resumable(desk: Desk) -> AsyncGenerator[tuple[HttpWire, Events]]:
    events = Events()
    app = build_asking(Tasks("memory://", settings=QUICK), desk).streamable_http_app(event_store=events)
    async with serving_app(app) as base, http_client() as http:
        yield HttpWire(f"{base}/mcp", http), events


async def test_a_question_on_a_result_that_is_resumed_stays_asked() -> None:
    desk = Desk()
    async with resumable(desk) as (wire, events):
        client = await open_session(wire)
        task_id = await client.create("knock")
        await desk.started.wait()
        async with client.open("tasks/result", taskId=task_id) as cut_off:
            first_event = next(
                number for number, (stream, _) in enumerate(events.stored, 1) if stream == str(cut_off.request_id)
            )
        await anyio.sleep(0.2)  # sleep: nobody is told when the server sees that the stream is gone
        async with client.listen(**{"last-event-id": str(first_event)}) as resumed:
            desk.gate.set()
            asked = await resumed.request(ELICIT)
            await client.accept(asked, name="Ada")
            answer = await resumed.answer()
        assert answer["result"]["content"][0]["text"] == "Hello, Ada!"


async def test_a_question_on_the_sessions_own_stream_that_is_resumed_is_not_asked_again() -> None:
    desk = Desk()
    async with resumable(desk) as (wire, events):
        client = await open_session(wire)
        async with client.listen() as cut_off:
            task_id = await client.create("ask_name")
            asked = await cut_off.request(ELICIT)
            last = max(number for number, (stream, _) in enumerate(events.stored, 1) if stream == "_GET_stream")
        await anyio.sleep(0.2)  # sleep: nobody is told when the server sees that the stream is gone
        async with client.listen(**{"last-event-id": str(last)}) as resumed:
            await anyio.sleep(0.2)  # sleep: the time in which nothing may come
            assert resumed.messages == []
            await client.accept(asked, name="Ada")
            with anyio.fail_after(PATIENCE):
                assert await client.result(task_id) == "Hello, Ada!"


# Other ways to serve


@asynccontextmanager
async def own_manager() -> AsyncGenerator[HttpWire]:
    """A low-level server behind a session manager of the author's own, whose streams nobody watches."""
    tasks = Tasks("memory://", settings=QUICK)
    manager = StreamableHTTPSessionManager(_asking_lowlevel(tasks))
    app = Starlette(
        routes=[Route("/mcp", StreamableHTTPASGIApp(manager), methods=["GET", "POST", "DELETE"])],
        lifespan=lambda _: manager.run(),
    )
    async with serving_app(app) as base, http_client() as http:
        yield HttpWire(f"{base}/mcp", http)


def _asking_lowlevel(tasks: Tasks) -> Server[Any]:
    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        answer = await ctx.session.elicit_form("Who is there?", {"type": "object", "properties": {}})
        return CallToolResult(content=[TextContent(type="text", text=answer.action)])

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="ask", input_schema={"type": "object"})])

    server: Server[Any] = Server("asking", on_call_tool=call_tool, on_list_tools=list_tools)
    tasks.mark("ask")
    tasks.attach(server)
    return server


async def test_where_nobody_watches_streams_a_question_goes_to_the_newest_result() -> None:
    async with own_manager() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask")
        async with client.open("tasks/result", taskId=task_id) as hung_up:
            await hung_up.request(ELICIT)
        async with client.open("tasks/result", taskId=task_id) as result:
            await client.reply(await result.request(ELICIT), {"action": "decline"})
            assert (await result.answer())["result"]["content"][0]["text"] == "decline"


async def test_where_nobody_watches_streams_a_question_goes_to_the_sessions_own_and_then_to_a_result() -> None:
    async with own_manager() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            answered = await client.create("ask")
            await client.reply(await own.request(ELICIT), {"action": "decline"})
            await client.until_status(answered, "completed")
            moved = await client.create("ask")
            await own.request(ELICIT, number=2)
            async with client.open("tasks/result", taskId=moved) as result:
                await client.reply(await result.request(ELICIT), {"action": "cancel"})
                assert (await result.answer())["result"]["content"][0]["text"] == "cancel"


async def test_over_the_old_sse_transport_questions_and_pushes_come_on_its_one_stream() -> None:
    app = build_asking(Tasks("memory://", settings=QUICK)).sse_app()
    async with serving_app(app) as base, http_client() as http, http.stream("GET", f"{base}/sse") as opened:
        lines = opened.aiter_lines()

        async def data() -> str:
            with anyio.fail_after(PATIENCE):
                async for line in lines:
                    if line.startswith("data:"):
                        return line.removeprefix("data:").strip()
            raise AssertionError("the stream ended")

        endpoint = await data()

        async def message(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            while True:
                found = json.loads(await data())
                if wanted(found):
                    return found

        async def send(body: dict[str, Any]) -> None:
            assert (await http.post(f"{base}{endpoint}", json=body)).status_code == 202

        await send(legacy_request("initialize", hello(EVERYTHING)))
        await message(lambda each: "result" in each)
        await send(notification("notifications/initialized"))
        await send(legacy_request("tools/call", {"name": "ask_name", "arguments": {}, "task": {}}))
        asked = await message(lambda each: each.get("method") == ELICIT)
        await send(response(asked["id"], accept(name="Ada")))
        await message(lambda each: each.get("method") == STATUS and each["params"]["status"] == "completed")


# A client that has left


@pytest.mark.parametrize("json_response", [False, True], ids=["stream", "json"])
async def test_a_result_whose_client_has_left_does_not_wait_on(*, json_response: bool) -> None:
    desk = Desk()
    server = build_asking(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=json_response) as wire:
        client = await open_session(wire)
        task_id = await client.create("gated")
        before = _tasks_of_relay()
        with anyio.move_on_after(0.5):
            await client.ask("tasks/result", taskId=task_id)
        with anyio.fail_after(PATIENCE):
            while _tasks_of_relay() != before:  # noqa: ASYNC110 - nobody tells when a handler has ended
                await anyio.sleep(0.05)
        desk.gate.set()
        assert await client.result(task_id) == "through"


def _tasks_of_relay() -> int:
    return sum("end_with" in task.get_name() for task in asyncio.all_tasks())


# A store that is away


async def test_an_answer_is_kept_until_the_store_takes_it() -> None:
    store = FailingStore()
    async with serving(build_asking(Tasks(store, settings=QUICK))) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asked = await own.request(ELICIT)
            store.refuse_save(lambda record: not record.inputs.outstanding, times=3)
            await client.accept(asked, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"


async def test_a_session_is_told_of_a_task_that_could_not_be_looked_at() -> None:
    store = MoodyStore()
    settings = replace(QUICK, look_interval=timedelta(milliseconds=50))
    desk = Desk()
    async with serving(build_asking(Tasks(store, settings=settings), desk)) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("gated")
            await desk.started.wait()
            store.failures = 3
            desk.gate.set()
            told = await own.until(lambda each: each.get("params", {}).get("status") == "completed")
            assert told["params"]["taskId"] == task_id
