"""Tasks on Streamable HTTP: plain answers, streams that may be left, sessions that end."""

from __future__ import annotations

import json

import anyio
import pytest

from harness.http import serving
from harness.older import HttpClient, http_session
from harness.rpc import PATIENCE, legacy_request, text_of
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from tests.spec.legacy.furnished import furnished

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("older/get-opens-no-stream")
async def test_with_json_answers_a_poll_opens_no_stream() -> None:
    server = furnished(Tasks("memory://", settings=QUICK))
    async with serving(server, json_response=True) as way, http_session(way) as client:
        task_id = await client.start("gated")
        reply = await client.ask("tasks/get", {"taskId": task_id})
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.requirement("older/get-opens-no-stream", "older/streamable-http")
async def test_a_poll_opens_no_stream(client: HttpClient) -> None:
    task_id = await client.start("gated")
    headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
    body = json.dumps(legacy_request("tasks/get", {"taskId": task_id}))
    with anyio.fail_after(PATIENCE):
        response = await client.wire.client.post(client.wire.url, content=body, headers=[*client.headers(), *headers])
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json()["result"]["taskId"] == task_id


@pytest.mark.requirement("older/may-disconnect", "older/streamable-http")
async def test_a_client_may_leave_the_stream_of_a_poll(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    for _ in range(5):
        poll = client.begin("tasks/get", {"taskId": task_id})
        await anyio.lowlevel.checkpoint()
        await poll.leave()
    desk.gate.set()
    assert text_of((await client.result(task_id)).result) == "through"


@pytest.mark.requirement("older/outlives-its-session")
async def test_a_task_outlives_the_session_that_made_it(client: HttpClient, desk: Desk) -> None:
    async with http_session(client.wire) as first, first.listening():
        task_id = await first.start("gated")
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        ended = await first.wire.client.delete(first.wire.url, headers=first.headers())
        assert ended.status_code == 200
    assert (await client.get(task_id))["status"] == "working"
    desk.gate.set()
    assert text_of((await client.result(task_id)).result) == "through"
