"""`tasks/get`: every status with its own fields, and nothing that moves by being looked at."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.rpc import NOTHING, PATIENCE, Tasking, accept
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

ALWAYS = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "_meta"}
OWN_FIELDS = {
    "working": set[str](),
    "input_required": {"inputRequests"},
    "completed": {"result"},
    "failed": {"error", "statusMessage"},
    "cancelled": {"statusMessage"},
}


async def _in_status(client: Tasking, status: str) -> dict[str, Any]:
    tools = {"input_required": "ask_name", "completed": "echo", "failed": "breaks"}
    arguments = {"value": 1} if status == "completed" else {}
    task_id = await client.create(tools.get(status, "gated"), **arguments)
    if status == "cancelled":
        await client.cancel(task_id)
    return await client.until(task_id, status)


@pytest.mark.requirement(
    "get/by-status",
    "get/working",
    "get/input-required",
    "get/completed",
    "get/cancelled",
    "get/failed",
    "get/result-type",
    "task/fields",
)
@pytest.mark.parametrize("status", OWN_FIELDS)
async def test_a_task_has_exactly_the_fields_of_its_status(client: Tasking, status: str) -> None:
    task = await _in_status(client, status)
    assert task.keys() == ALWAYS | OWN_FIELDS[status]
    assert task["resultType"] == "complete"
    assert task["_meta"].keys() == {"io.modelcontextprotocol/serverInfo"}
    assert None not in [value for key, value in task.items() if key != "ttlMs"]
    if status == "completed":
        assert task["result"]["resultType"] == "complete"


@pytest.mark.requirement("get/input-required")
async def test_a_question_is_shown_as_the_request_it_stands_for(client: Tasking) -> None:
    task = await client.until(await client.create("ask_name"), "input_required")
    [question] = task["inputRequests"].values()
    assert question.keys() == {"method", "params"}
    assert question["method"] == "elicitation/create"
    assert question["params"].keys() == {"mode", "message", "requestedSchema"}
    assert question["params"]["message"] == "What is your name?"
    assert question["params"]["requestedSchema"]["required"] == ["name"]


@pytest.mark.requirement("get/all-outstanding")
async def test_questions_asked_together_are_shown_together(client: Tasking) -> None:
    task = await client.until(await client.create("ask_both"), "input_required")
    messages = {question["params"]["message"] for question in task["inputRequests"].values()}
    assert messages == {"Your name?", "Your age?"}


@pytest.mark.requirement("get/all-outstanding")
async def test_an_open_question_is_shown_at_every_poll(client: Tasking) -> None:
    first = await client.until(await client.create("ask_name"), "input_required")
    again = await client.get(first["taskId"])
    assert again["inputRequests"] == first["inputRequests"]


@pytest.mark.requirement("get/all-outstanding")
async def test_a_question_that_its_tool_gave_up_is_not_shown_any_more(client: Tasking, desk: Desk) -> None:
    task_id = await client.create("ask_briefly")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    task = await client.get(task_id)
    assert (task["status"], task.get("inputRequests")) == ("working", None)


@pytest.mark.requirement("get/completed", "errors/result-is-that-result")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("echo", {"value": "text"}), ("point", {"x": 1.5}), ("fails", {}), ("crashes", {}), ("logs", {})],
    ids=["text", "structured", "failing", "crashing", "talking"],
)
async def test_a_task_has_the_result_that_the_plain_call_has(
    client: Tasking, tool: str, arguments: dict[str, Any]
) -> None:
    plain = await client.declaring(NOTHING).call(tool, **arguments)
    as_task = (await client.finish(tool, **arguments))["result"]
    del plain["_meta"]
    assert as_task == plain


@pytest.mark.requirement("task/last-updated")
async def test_the_time_of_the_last_update_moves_only_when_something_changed() -> None:
    clock, desk = FakeClock(), Desk()
    async with serving(build(Tasks("memory://", clock=clock, settings=QUICK), desk)) as wire:
        client = Tasking(wire, {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}})
        task_id = await client.create("gated")
        await desk.started.wait()
        clock.advance(timedelta(seconds=10))
        await client.update(task_id, unknown=accept(name="Ada"))
        assert (await client.get(task_id))["lastUpdatedAt"] == "2026-01-01T12:00:00.000Z"

        desk.gate.set()
        assert (await client.until(task_id, "completed"))["lastUpdatedAt"] == "2026-01-01T12:00:10.000Z"

        clock.advance(timedelta(seconds=10))
        await client.cancel(task_id)
        await client.update(task_id, unknown=accept(name="Ada"))
        done = await client.get(task_id)
        assert (done["status"], done["lastUpdatedAt"]) == ("completed", "2026-01-01T12:00:10.000Z")


@pytest.mark.requirement("task/last-updated")
async def test_a_task_that_waited_for_its_turn_is_not_updated_by_starting() -> None:
    clock, desk = FakeClock(), Desk()
    async with serving(build(Tasks("memory://", clock=clock, concurrency=1, settings=QUICK), desk)) as wire:
        client = Tasking(wire)
        first = await client.create("gated")
        await desk.started.wait()
        desk.started.clear()
        second = await client.create("gated")
        clock.advance(timedelta(seconds=10))
        await client.cancel(first)
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        assert (await client.get(second))["lastUpdatedAt"] == "2026-01-01T12:00:00.000Z"


@pytest.mark.requirement("task/last-updated")
async def test_a_clock_that_jumps_back_never_puts_an_update_before_the_creation() -> None:
    clock, desk = FakeClock(), Desk()
    async with serving(build(Tasks("memory://", clock=clock, settings=QUICK), desk)) as wire:
        client = Tasking(wire)
        task_id = await client.create("gated")
        await desk.started.wait()
        clock.advance(-timedelta(hours=1))
        desk.gate.set()
        task = await client.until(task_id, "completed")
    assert task["createdAt"] == task["lastUpdatedAt"] == "2026-01-01T12:00:00.000Z"
    assert task["ttlMs"] > 0
