"""`tasks/cancel`: acknowledged always, and what ends a task and what does not."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import anyio
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.http import HttpWire, http_client, serving_app
from harness.rpc import MODERN, PATIENCE, Tasking, notification, request, text_of
from harness.server import QUICK, Desk, build
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.model import TaskStatus
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("cancel/ack", "cancel/result-type")
async def test_a_cancellation_is_acknowledged_with_nothing_but_its_result_type(client: Tasking) -> None:
    ack = await client.cancel(await client.create("gated"))
    assert ack.keys() == {"resultType", "_meta"}
    assert ack["resultType"] == "complete"
    assert ack["_meta"].keys() == {"io.modelcontextprotocol/serverInfo"}


@pytest.mark.requirement("cancel/status")
async def test_a_running_tool_is_stopped(client: Tasking, desk: Desk) -> None:
    task_id = await client.create("gated")
    await desk.started.wait()
    await client.cancel(task_id)
    with anyio.fail_after(PATIENCE):
        await desk.stopped.wait()
    task = await client.until(task_id, "cancelled")
    assert task["statusMessage"]


@pytest.mark.requirement("cancel/status")
async def test_a_task_that_waits_for_input_is_cancelled_and_asks_nothing_more(client: Tasking) -> None:
    task_id = await client.create("ask_name")
    await client.until(task_id, "input_required")
    await client.cancel(task_id)
    assert "inputRequests" not in await client.until(task_id, "cancelled")


@pytest.mark.requirement("cancel/ack")
async def test_a_finished_task_is_acknowledged_too_and_stays_as_it_is(client: Tasking) -> None:
    done = await client.finish("echo", value=1)
    failed = await client.until(await client.create("breaks"), "failed")
    cancelled = await client.create("gated")
    await client.cancel(cancelled)
    for task in (done, failed, await client.until(cancelled, "cancelled")):
        assert (await client.cancel(task["taskId"]))["resultType"] == "complete"
        after = await client.get(task["taskId"])
        # The suggested interval is no state: it follows the age of the task.
        assert {**after, "pollIntervalMs": 0} == {**task, "pollIntervalMs": 0}


@pytest.mark.requirement("cancel/status")
async def test_a_result_that_comes_after_the_cancellation_is_ignored(client: Tasking, desk: Desk) -> None:
    task_id = await client.create("stubborn")
    await desk.started.wait()
    await client.cancel(task_id)
    with anyio.fail_after(PATIENCE):
        await desk.stopped.wait()
    # A later task runs to its end on the same engine, so the late result has had its chance.
    await client.finish("echo", value=1)
    task = await client.get(task_id)
    assert task["status"] == "cancelled"
    assert "result" not in task


@pytest.mark.requirement("cancel/not-by-notification")
async def test_the_cancelled_notification_does_not_cancel_a_task(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    call = request("tools/call", {"name": "gated", "arguments": {}})
    created = (await wire.send(call)).result
    await desk.started.wait()
    for named in (call["id"], created["taskId"]):
        answered = await wire.raw_post(
            json.dumps(notification("notifications/cancelled", {"requestId": named})),
            [("mcp-protocol-version", MODERN), ("mcp-method", "notifications/cancelled")],
        )
        assert answered.status_code == 202
    assert (await client.get(created["taskId"]))["status"] == "working"
    desk.gate.set()
    assert text_of((await client.until(created["taskId"], "completed"))["result"]) == "through"


class HangUpWatch:
    """An app that says when a client of another app has hung up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.hung_up = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up.set()
            return message

        await self._app(scope, watch if scope["type"] == "http" else receive, send)


@pytest.mark.requirement("streams/closing-cancels-the-request-only")
async def test_a_client_that_hangs_up_does_not_cancel_the_task_it_made() -> None:
    desk, store = Desk(), MemoryStore()
    # Long enough that the call is still being answered when the client hangs up.
    tasks = Tasks(store, grace=timedelta(seconds=PATIENCE), settings=QUICK)
    app = HangUpWatch(build(tasks, desk).streamable_http_app())
    async with serving_app(app) as base, http_client() as http:
        client = Tasking(HttpWire(f"{base}/mcp", http))
        call = asyncio.create_task(client.call("gated"))
        await desk.started.wait()
        call.cancel()
        with anyio.fail_after(PATIENCE):
            await app.hung_up.wait()
        [record] = await all_tasks(store)
        desk.gate.set()
        task = await client.until(record.id, TaskStatus.COMPLETED)
    assert text_of(task["result"]) == "through"
