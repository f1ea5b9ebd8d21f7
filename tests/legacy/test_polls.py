"""`tasks/get` over Streamable HTTP opens no stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId

from harness.http import HttpWire, http_client, initialize, serving, serving_app
from harness.rpc import INVALID_PARAMS, notification, response, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.legacy.streams import PollAnswer
from tests.legacy.tasking import ASKABLE, OldTasks, over_http

pytestmark = pytest.mark.anyio

STREAM, JSON = "text/event-stream", "application/json"
ANSWER = response(1, {})
NOTE = notification("notifications/message", {})


async def test_a_poll_is_answered_with_plain_json_and_everything_else_as_before() -> None:
    async with serving(build(Tasks("memory://", settings=QUICK), Desk())) as wire:
        old = await over_http(wire)
        task_id = (await old.create("gated"))["taskId"]
        seen = await old.ask("tasks/get", {"taskId": task_id})
        assert (seen.headers["content-type"], seen.result["status"]) == (JSON, "working")
        assert int(seen.headers["content-length"]) > 0
        assert seen.headers["mcp-session-id"]
        unknown = await old.ask("tasks/get", {"taskId": "unknown"})
        assert (unknown.headers["content-type"], unknown.code) == (JSON, INVALID_PARAMS)
        call = await old.ask("tools/call", {"name": "echo", "arguments": {"value": "tasks/get"}})
        assert (call.headers["content-type"].partition(";")[0], text_of(call.result)) == (STREAM, "tasks/get")
        assert (await old.ask("tasks/list")).headers["content-type"].startswith(STREAM)


class Kept(EventStore):
    """Events of resumable streams, none of which is ever asked for."""

    def __init__(self) -> None:
        self.count = 0

    async def store_event(self, stream_id: StreamId, message: Any) -> EventId:
        self.count += 1
        return str(self.count)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        await send_callback(EventMessage(message=None))  # pyright: ignore[reportArgumentType]
        return None


async def test_so_it_is_where_streams_can_be_resumed() -> None:
    app = build(Tasks("memory://", settings=QUICK), Desk()).streamable_http_app(event_store=Kept())
    async with serving_app(app) as base, http_client() as client:
        session, _ = await initialize(HttpWire(f"{base}/mcp", client), ASKABLE)
        old = OldTasks(session)
        task_id = (await old.create("gated"))["taskId"]
        assert (await old.ask("tasks/get", {"taskId": task_id})).headers["content-type"] == JSON


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


async def test_the_answer_is_found_among_what_else_a_stream_has() -> None:
    plain = (JSON, json.dumps(ANSWER).encode())
    assert await sent_for(POLL, event(ANSWER)) == plain
    assert (
        await sent_for(POLL, b": ping\r\n\r\n", b"id: 1\r\ndata: \r\n\r\n", event(ANSWER), b": ping\r\n\r\n") == plain
    )
    whole = event(ANSWER)
    assert await sent_for(POLL, whole[:20], whole[20:30], whole[30:]) == plain


@pytest.mark.parametrize(
    "chunks", [(event(NOTE), event(ANSWER)), (), (b": ping\r\n\r\n",), (b"data: nonsense\r\n\r\n", event(ANSWER))]
)
async def test_a_stream_that_is_not_just_an_answer_stays_one(chunks: tuple[bytes, ...]) -> None:
    assert await sent_for(POLL, *chunks) == (STREAM, b"".join(chunks))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"tasks/get",
        b"[" * 3000 + b'"tasks/get"',
        b'["tasks/get"]',
        json.dumps({"method": "tools/call", "params": {"name": "tasks/get"}}).encode(),
        json.dumps({"method": "tasks/get", "params": {"taskId": "x" * 5000}}).encode(),
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_what_is_not_a_poll_passes_untouched(body: bytes) -> None:
    assert await sent_for(body, event(ANSWER)) == (STREAM, event(ANSWER))
    assert await sent_for(POLL, b"{}", kind=JSON) == (JSON, b"{}")
