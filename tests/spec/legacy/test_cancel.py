"""`tasks/cancel`: cancelled before the answer goes out, and for good."""

from __future__ import annotations

import anyio
import pytest

from harness.older import RELATED, HttpClient, OlderClient
from harness.rpc import INVALID_PARAMS, PATIENCE
from harness.server import Desk
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("older/cancelled-before-the-answer", "older/no-related-task-in-results")
async def test_the_answer_to_a_cancellation_is_the_cancelled_task(everywhere: OlderClient) -> None:
    for tool in ("gated", "ask_model", "stubborn"):
        task_id = await everywhere.start(tool)
        task = await everywhere.cancel(task_id)
        assert (task["taskId"], task["status"]) == (task_id, "cancelled")
        assert RELATED not in task.get("_meta", {})
        got = await everywhere.get(task_id)
        assert {key: got[key] for key in ("status", "lastUpdatedAt", "ttl")} == {
            key: task[key] for key in ("status", "lastUpdatedAt", "ttl")
        }


@pytest.mark.requirement("older/cancelled-before-the-answer")
async def test_a_cancellation_is_stored_before_it_is_answered(client: HttpClient, store: MemoryStore) -> None:
    task_id = await client.start("gated")
    await client.cancel(task_id)
    record = await store.get(task_id)
    assert record is not None
    assert record.status.value == "cancelled"


@pytest.mark.requirement("older/cancel-stops-the-work")
async def test_a_running_tool_is_stopped(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
        await client.cancel(task_id)
        await desk.stopped.wait()
    assert not desk.gate.is_set()


@pytest.mark.requirement("older/stays-cancelled")
async def test_a_result_that_comes_after_the_cancellation_changes_nothing(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("stubborn")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
        cancelled = await client.cancel(task_id)
        await desk.stopped.wait()
    reply = await client.result(task_id)
    assert "nobody asked for" not in str(reply.message)
    assert reply.error
    assert (await client.get(task_id))["status"] == cancelled["status"] == "cancelled"


@pytest.mark.requirement("older/cancel-refused")
async def test_a_task_that_has_ended_cannot_be_cancelled(everywhere: OlderClient) -> None:
    for tool, status in (("nothing", "completed"), ("fails", "failed"), ("breaks", "failed")):
        task_id = await everywhere.start(tool)
        before = await everywhere.until(task_id, status)
        reply = await everywhere.ask("tasks/cancel", {"taskId": task_id})
        assert reply.code == INVALID_PARAMS
        assert status in reply.error["message"]
        assert await everywhere.get(task_id) == before


@pytest.mark.requirement("older/cancel-refused")
async def test_a_cancelled_task_cannot_be_cancelled_again(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("gated")
    await everywhere.cancel(task_id)
    reply = await everywhere.ask("tasks/cancel", {"taskId": task_id})
    assert reply.code == INVALID_PARAMS
    assert "cancelled" in reply.error["message"]


@pytest.mark.requirement("older/cancelled-may-be-deleted")
async def test_a_cancelled_task_is_kept_as_long_as_any_other(client: HttpClient) -> None:
    task_id = await client.start("gated", task={"ttl": 60_000})
    cancelled = await client.cancel(task_id)
    assert cancelled["ttl"] >= 60_000
    assert [task["taskId"] for task in await client.listed()] == [task_id]
