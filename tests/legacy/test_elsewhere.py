"""Tasks of 2025-11-25 where the tool runs in another process, on streams that are resumed, and on other transports."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp_types import CallToolRequestParams, CallToolResult, TextContent
from starlette.applications import Starlette
from starlette.routing import Route

from harness.furnished import http_process
from harness.http import HttpWire, http_client, serving, serving_app
from harness.older import OWN_STREAM, HttpClient, OlderClient, PipeClient, http_session, pipe_session
from harness.rpc import (
    EVERYTHING,
    INVALID_PARAMS,
    LEGACY,
    METHOD_NOT_FOUND,
    PATIENCE,
    accept,
    legacy_request,
    notification,
    response,
    text_of,
)
from harness.server import QUICK, UNPACED, Desk
from harness.stdio import stdio_process
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.legacy.streams import PollAnswer
from mcp_tasks.stores.memory import MemoryStore
from tests.conformance.everything_server import MemoryEvents
from tests.spec.furnished import furnished
from tests.unit.running import MeddledStore

ELICIT, STATUS = "elicitation/create", "notifications/tasks/status"
ADA = accept(name="Ada")
STREAM, JSON = "text/event-stream", "application/json"


async def said(client: OlderClient, task_id: str) -> str:
    return text_of((await client.result(task_id)).result)


async def test_the_session_is_asked_here_although_the_tool_runs_in_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    here = furnished(Tasks(store, settings=QUICK, runs_tools=False, namespace="furnished"))
    with http_process("--store", store):
        async with serving(here) as wire, http_session(wire) as client, client.listening():
            task_id = await client.start("ask_name")
            await client.answer(await client.question(task_id), ADA)
            await client.status(task_id, "completed")
            assert await said(client, task_id) == "Hello, Ada!"


async def test_over_pipes_nothing_is_served_before_the_handshake() -> None:
    async with stdio_process("--store", "memory://") as wire:
        early = PipeClient(wire)
        assert (await early.call("echo", {"value": 1}, task={})).code == INVALID_PARAMS
        for method in ("tasks/get", "tasks/cancel"):
            assert (await early.ask(method, {"taskId": "any"})).code == INVALID_PARAMS
        for method in ("tasks/result", "tasks/list"):
            assert (await early.ask(method, {"taskId": "any"})).code == METHOD_NOT_FOUND
        await early.close()
        async with pipe_session(wire) as client:
            assert await client.listed() == []


# Streams that are cut off and resumed


class Events(MemoryEvents):
    """Every message of every stream, in memory."""

    def last_of(self, stream_id: str) -> int:
        """The newest event of a stream; 0 without any."""
        return max((number for number, stream, _ in self.stored if stream == stream_id), default=0)


@asynccontextmanager
async def resumable(desk: Desk) -> AsyncGenerator[tuple[HttpClient, Events]]:
    events = Events()
    app = furnished(Tasks("memory://", settings=QUICK), desk).streamable_http_app(event_store=events)
    async with serving_app(app) as base, http_client() as http, http_session(HttpWire(f"{base}/mcp", http)) as client:
        yield client, events


@asynccontextmanager
async def resumed(client: HttpClient, event: int) -> AsyncGenerator[None]:
    """With a stream that goes on after that event, once the server has seen that the one before it is gone."""
    async with asyncio.timeout(PATIENCE):
        client.wire.client.headers["last-event-id"] = str(event)
        while True:
            listening = client.listening()
            try:
                await listening.__aenter__()
                break
            except AssertionError:
                await anyio.sleep(0.02)
        del client.wire.client.headers["last-event-id"]
    try:
        yield
    finally:
        await listening.__aexit__(None, None, None)


async def test_a_question_on_a_result_that_is_resumed_stays_asked() -> None:
    desk = Desk()
    async with resumable(desk) as (client, events):
        task_id = await client.start("knock")
        await desk.started.wait()
        cut_off = client.begin_result(task_id)
        first_event = await eventually(lambda: events.last_of(str(cut_off.request_id)))
        await cut_off.leave()
        async with resumed(client, first_event):
            desk.gate.set()
            await client.answer(await client.question(task_id), ADA)
            assert await said(client, task_id) == "Hello, Ada!"


async def test_a_question_on_the_sessions_own_stream_that_is_resumed_is_not_asked_again() -> None:
    desk = Desk()
    async with resumable(desk) as (client, events):
        async with client.listening():
            task_id = await client.start("ask_name")
            asked = await client.question(task_id)
            last = events.last_of("_GET_stream")
        seen = len(client.arrived)
        async with resumed(client, last):
            # The end of another task comes on the same stream: the question would have come before.
            await client.status(await client.start("must"), "completed")
            assert [one.method for one in client.arrived[seen:] if one.method == ELICIT] == []
            await client.answer(asked, ADA)
            assert await said(client, task_id) == "Hello, Ada!"


# Polls


async def test_a_poll_is_answered_with_plain_json_and_everything_else_as_before() -> None:
    async with resumable(Desk()) as (client, _):
        task_id = await client.start("gated")
        seen = await client.ask("tasks/get", {"taskId": task_id})
        assert (seen.headers["content-type"], seen.result["status"]) == (JSON, "working")
        assert int(seen.headers["content-length"]) > 0
        assert seen.headers["mcp-session-id"]
        call = await client.call("echo", {"value": "tasks/get"})
        assert (call.headers["content-type"].partition(";")[0], text_of(call.result)) == (STREAM, "tasks/get")
        assert (await client.ask("tasks/list")).headers["content-type"].startswith(STREAM)


def event(message: Any) -> bytes:
    return f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n".encode()


async def sent_for(body: bytes, *chunks: bytes, kind: str = STREAM) -> tuple[str, bytes]:
    """What a client gets for a POST with this body, if the SDK answers with these chunks."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    poll = PollAnswer(receive, send)
    await poll.receive()
    await poll.send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
    for chunk in chunks:
        await poll.send({"type": "http.response.body", "body": chunk, "more_body": True})
    await poll.send({"type": "http.response.body", "body": b""})
    [content_type] = [value for name, value in sent[0]["headers"] if name == b"content-type"]
    return content_type.decode(), b"".join(message["body"] for message in sent[1:])


POLL = json.dumps({"method": "tasks/get"}).encode()
ANSWER = response(1, {})
NO_POLLS = [
    b"",
    b"tasks/get",
    b"[" * 3000 + b'"tasks/get"',
    b'["tasks/get"]',
    json.dumps({"method": "tools/call", "params": {"name": "tasks/get"}}).encode(),
    json.dumps({"method": "tasks/get", "params": {"taskId": "x" * 5000}}).encode(),
]


async def test_the_answer_to_a_poll_is_found_among_what_else_a_stream_has_and_nothing_else_is_touched() -> None:
    plain, whole, ping = (JSON, json.dumps(ANSWER).encode()), event(ANSWER), b": ping\r\n\r\n"
    assert await sent_for(POLL, whole) == plain
    assert await sent_for(POLL, ping, b"id: 1\r\ndata: \r\n\r\n", whole, ping) == plain
    assert await sent_for(POLL, whole[:20], whole[20:30], whole[30:]) == plain
    note = event(notification("notifications/message", {}))
    for chunks in ((note, whole), (), (ping,), (b"data: nonsense\r\n\r\n", whole)):
        assert await sent_for(POLL, *chunks) == (STREAM, b"".join(chunks))
    for body in NO_POLLS:
        assert await sent_for(body, whole) == (STREAM, whole)
    assert await sent_for(POLL, b"{}", kind=JSON) == (JSON, b"{}")


# Other ways to serve


@asynccontextmanager
async def own_manager() -> AsyncGenerator[HttpClient]:
    """A client of a low-level server behind a session manager of the author's own, whose streams nobody watches."""
    tasks = Tasks("memory://", settings=QUICK)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        answer = await ctx.session.elicit_form("Who is there?", {"type": "object", "properties": {}})
        return CallToolResult(content=[TextContent(type="text", text=answer.action)])

    server: Server[Any] = Server("asking", on_call_tool=call_tool)
    tasks.mark("ask")
    tasks.attach(server)
    manager = StreamableHTTPSessionManager(server)
    app = Starlette(
        routes=[Route("/mcp", StreamableHTTPASGIApp(manager), methods=["GET", "POST", "DELETE"])],
        lifespan=lambda _: manager.run(),
    )
    async with serving_app(app) as base, http_client() as http, http_session(HttpWire(f"{base}/mcp", http)) as client:
        yield client


async def test_where_nobody_watches_streams_a_question_goes_to_the_sessions_own_and_then_to_the_newest_result() -> None:
    async with own_manager() as client:
        task_id = await client.start("ask")
        hung_up = client.begin_result(task_id)
        await client.question(task_id)
        await hung_up.leave()
        waiting = client.begin_result(task_id)
        again = await client.question(task_id, after=len(client.arrived))
        await client.answer(again, {"action": "decline"})
        assert text_of((await waiting.reply()).result) == "decline"
        async with client.listening():
            answered = await client.start("ask")
            question = await client.question(answered)
            assert question.stream == OWN_STREAM
            await client.answer(question, {"action": "decline"})
            await client.until(answered, "completed")
            moved = await client.start("ask")
            assert (await client.question(moved)).stream == OWN_STREAM
            waiting = client.begin_result(moved)
            again = await client.wait_for(lambda seen: seen.related == moved and seen.stream == "tasks/result")
            await client.answer(again, {"action": "cancel"})
            assert text_of((await waiting.reply()).result) == "cancel"


# Sessions: what they cost, and that nothing of them is left when they end


async def test_no_log_has_the_whole_id_of_a_session_and_no_task_has_it_either(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK logs it in full, and whoever has it uses the session."""
    caplog.set_level("INFO", logger="mcp")
    store = MemoryStore()
    async with serving(furnished(Tasks(store, settings=QUICK))) as wire, http_session(wire) as client:
        record = await store.get(await client.start("must"))
        assert record is not None
        assert record.session
        session_id = str(client.session_id)
        assert session_id not in repr(record)
        assert (await wire.client.delete(wire.url, headers=client.headers())).status_code == 200
        ended = await wire.raw_post(json.dumps(legacy_request("ping")), client.headers())
        assert ended.status_code == 404
    said = [record.getMessage() for record in caplog.records if record.name.startswith("mcp.server")]
    for words in ("Created new transport", "Terminating session"):
        assert [line for line in said if words in line and session_id[:8] in line], words
    assert not [line for line in said if session_id in line]


@pytest.fixture
def few_objects() -> Generator[None]:
    """What is there already is not looked at: there are a million objects, and each look takes a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def kept() -> int:
    """How many objects there are of what serves sessions."""
    gc.collect()
    return sum(str(type(each).__module__).startswith("mcp_tasks.legacy") for each in gc.get_objects())


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("handshake", ["complete", "begun"])
async def test_sessions_that_end_leave_nothing_behind(handshake: str) -> None:
    server = furnished(Tasks("memory://", settings=QUICK, limits=UNPACED))
    async with serving(server) as wire, http_session(wire) as maker:
        task_id = await maker.start("ask_name")
        await maker.until(task_id, "input_required")

        async def visit() -> None:
            async with http_client() as http:
                client = HttpClient(HttpWire(wire.url, http))
                client.session_id = (await client.greet(EVERYTHING, LEGACY)).headers["mcp-session-id"]
                client.version = LEGACY
                if handshake == "complete":
                    await client.notify("notifications/initialized")
                waiting = client.begin_result(task_id)
                await client.question(task_id)
                await waiting.leave()
                assert (await http.delete(wire.url, headers=client.headers())).status_code == 200

        # The first fills what is kept once for all sessions.
        await visit()
        objects, running = kept(), len(asyncio.all_tasks())
        for _ in range(5):
            await visit()
        await eventually(lambda: kept() <= objects and len(asyncio.all_tasks()) <= running)


async def test_a_client_that_says_twice_that_its_handshake_is_complete_is_told_once() -> None:
    async with serving(furnished(Tasks("memory://", settings=QUICK))) as wire, http_session(wire) as client:
        await client.notify("notifications/initialized")
        async with client.listening():
            tasks: list[str] = []
            for _ in range(2):
                tasks.append(await client.start("must"))
                await client.status(tasks[-1], "completed")
            # What was to be told twice of the first would have been before the second.
            assert [told.params["taskId"] for told in client.arrived if told.method == STATUS] == tasks


async def test_many_tasks_of_a_session_cost_no_asyncio_task_each() -> None:
    desk = Desk()
    tasks = Tasks("memory://", settings=QUICK, concurrency=1)
    async with serving(furnished(tasks, desk)) as wire, http_session(wire) as client, client.listening():
        first = await client.start("gated")
        before = len(asyncio.all_tasks())
        waiting = {first, *[await client.start("gated") for _ in range(150)]}
        # The answer to each has a head start, for which something has to wait.
        await eventually(lambda: len(asyncio.all_tasks()) < before + 20)
        desk.gate.set()
        await eventually(lambda: waiting <= {told.params["taskId"] for told in client.arrived})


@pytest.mark.parametrize("json_response", [False, True], ids=["stream", "json"])
async def test_a_result_whose_client_has_left_does_not_wait_on(*, json_response: bool) -> None:
    desk = Desk()
    server = furnished(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=json_response) as wire, http_session(wire) as client:
        task_id = await client.start("gated")
        await client.get(task_id)
        before = len(asyncio.all_tasks())
        waiting = client.begin_result(task_id)
        await client.get(task_id)
        assert len(asyncio.all_tasks()) > before + 1
        await waiting.leave()
        await eventually(lambda: len(asyncio.all_tasks()) <= before)
        desk.gate.set()
        assert await said(client, task_id) == "through"


# A store that is away


async def test_answers_are_kept_and_changes_are_told_although_the_store_is_away_for_a_moment() -> None:
    store, desk, away = MeddledStore(), Desk(), StoreUnavailable("not now")
    settings = replace(QUICK, look_interval=timedelta(milliseconds=50))
    async with (
        serving(furnished(Tasks(store, settings=settings), desk)) as wire,
        http_session(wire) as client,
        client.listening(),
    ):
        task_id = await client.start("ask_name")
        asked = await client.question(task_id)
        store.refuse(away, "save", times=3, when=lambda record, _: not record.inputs.outstanding)
        await client.answer(asked, ADA)
        assert await said(client, task_id) == "Hello, Ada!"
        gated = await client.start("gated")
        await desk.started.wait()
        store.refuse(away, "get", times=12)
        desk.gate.set()
        await client.status(gated, "completed")
