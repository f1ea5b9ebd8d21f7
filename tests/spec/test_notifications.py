"""What a server pushes about a task, and what it must not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, modern_headers
from harness.rpc import (
    EVERYTHING,
    EXTENSION,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    NOTHING,
    PATIENCE,
    Tasking,
    accept,
    request,
)
from harness.schema import check_notification, check_task_notification
from harness.server import Desk

pytestmark = pytest.mark.anyio

WANTS_LOGS = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "mine"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def _listen(**wanted: Any) -> dict[str, Any]:
    """A request to listen, that would take logs and progress as well."""
    return request("subscriptions/listen", {"notifications": wanted}, capabilities=EVERYTHING, meta=WANTS_LOGS)


async def _acknowledged(messages: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
    first = await anext(messages)
    check_notification("SubscriptionsAcknowledgedNotification", first)
    return first["params"]["notifications"]


async def _next_task(messages: AsyncGenerator[dict[str, Any]], *statuses: str) -> dict[str, Any]:
    """The next notification with one of the statuses; on the way everything must be a task."""
    while True:
        message = await anext(messages)
        check_task_notification(message)
        if message["params"]["status"] in statuses:
            return message


@pytest.mark.requirement("notifications/missing-capability", "errors/listen-missing-capability")
async def test_listening_for_tasks_needs_the_extension(client: Tasking) -> None:
    wanted = {"notifications": {"taskIds": [await client.create("gated")], "toolsListChanged": True}}
    reply = await client.declaring(NOTHING).ask("subscriptions/listen", wanted)
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.requirement("notifications/acknowledged")
async def test_the_acknowledgement_names_the_tasks_that_will_be_reported(client: Tasking, wire: HttpWire) -> None:
    first, second = await client.create("gated"), await client.create("gated")
    listen = _listen(taskIds=[first, "nope", second, "x" * 1000], toolsListChanged=True)
    with anyio.fail_after(PATIENCE):
        async with wire.stream(listen) as messages:
            honoured = await _acknowledged(messages)
        async with wire.stream(_listen(taskIds=["nope"])) as messages:
            assert await _acknowledged(messages) == {"taskIds": []}
    assert sorted(honoured["taskIds"]) == sorted([first, second])
    assert honoured["toolsListChanged"] is True


@pytest.mark.requirement("notifications/acknowledged")
async def test_task_ids_that_are_no_list_of_strings_are_refused(client: Tasking) -> None:
    wrong: list[Any] = ["nope", 7, {"nope": True}, [7], [None], [["nope"]]]
    for task_ids in wrong:
        reply = await client.ask("subscriptions/listen", {"notifications": {"taskIds": task_ids}})
        assert (reply.status, reply.code) == (400, INVALID_PARAMS)


@pytest.mark.requirement("notifications/complete")
async def test_a_notification_is_what_tasks_get_would_have_answered(client: Tasking, wire: HttpWire) -> None:
    asking, breaking = await client.create("ask_name"), await client.create("breaks")
    cancelled = await client.create("gated")
    await client.until(asking, "input_required")
    listen = _listen(taskIds=[asking])
    with anyio.fail_after(PATIENCE):
        async with wire.stream(listen) as messages:
            await _acknowledged(messages)
            seen = [await _next_task(messages, "input_required")]
            assert _state(seen[0]["params"]) == _state(await client.get(asking))
            await client.update(asking, **{"elicitation-1": accept(name="Ada")})
            seen.append(await _next_task(messages, "completed"))
            assert _state(seen[1]["params"]) == _state(await client.get(asking))
        for task_id, status in ((breaking, "failed"), (cancelled, "cancelled")):
            async with wire.stream(_listen(taskIds=[task_id])) as messages:
                await _acknowledged(messages)
                if status == "cancelled":
                    await client.cancel(task_id)
                last = await _next_task(messages, status)
                assert _state(last["params"]) == _state(await client.get(task_id))
    for message in seen:
        assert "resultType" not in message["params"]
        assert message["params"]["_meta"][SUBSCRIPTION] == listen["id"]


def _state(task: dict[str, Any]) -> dict[str, Any]:
    """The task without what belongs to the message it came in, or moves with time alone."""
    return {key: value for key, value in task.items() if key not in ("resultType", "pollIntervalMs", "_meta")}


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_on_a_stream_for_a_task_is_a_state_of_the_task(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    task_id = await client.create("progressing", steps=1, total=2, message="half of it")
    await desk.started.wait()
    with anyio.fail_after(PATIENCE):
        async with wire.stream(_listen(taskIds=[task_id])) as messages:
            await _acknowledged(messages)
            while (await _next_task(messages, "working"))["params"].get("statusMessage") != "half of it":
                pass
            desk.gate.set()
            await _next_task(messages, "completed")


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_and_logs_of_a_task_reach_no_listen_stream(client: Tasking, wire: HttpWire) -> None:
    seen: list[dict[str, Any]] = []
    with anyio.fail_after(PATIENCE):
        async with wire.stream(_listen(toolsListChanged=True)) as messages:
            await _acknowledged(messages)
            await client.finish("logs")
            # What comes last on the stream is known, so everything before it has been seen.
            await client.finish("grow")
            while not seen or seen[-1]["method"] != "notifications/tools/list_changed":
                seen.append(await anext(messages))
    check_notification("ToolListChangedNotification", seen[-1])
    assert [message["method"] for message in seen] == ["notifications/tools/list_changed"]


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_and_logs_of_a_task_do_not_reach_the_call_that_made_it(client: Tasking, wire: HttpWire) -> None:
    call = request("tools/call", {"name": "logs", "arguments": {}}, capabilities=EVERYTHING, meta=WANTS_LOGS)
    reply = await wire.post(json.dumps(call), modern_headers(call))
    assert reply.result["resultType"] == "task"
    assert reply.notifications == ()
    await client.until(reply.result["taskId"], "completed")
