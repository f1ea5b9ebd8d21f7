"""What a session of the 2025-11-25 wire is told of its tasks: their status, and their progress if it asked for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from mcp_tasks.legacy.sessions import HEAD_START, pause_between
from tests.legacy.asking_server import build_asking
from tests.legacy.http_session import RELATED, HttpSession, Stream, open_session

pytestmark = pytest.mark.anyio

STATUS, PROGRESS = "notifications/tasks/status", "notifications/progress"


@asynccontextmanager
async def served(desk: Desk | None = None, *, json_response: bool = False) -> AsyncGenerator[HttpWire]:
    # Kept for good, so that there is a null on the wire.
    server = build_asking(Tasks("memory://", default_ttl=None, settings=QUICK), desk)
    async with serving(server, json_response=json_response) as wire:
        yield wire


async def told(stream: Stream, task_id: str, status: str) -> dict[str, Any]:
    """The notification that a task has this status."""
    return (await stream.until(lambda each: _is_status(each, task_id, status)))["params"]


def _is_status(message: dict[str, Any], task_id: str, status: str) -> bool:
    params = message.get("params", {})
    return message.get("method") == STATUS and params["taskId"] == task_id and params["status"] == status


def statuses(stream: Stream) -> list[str]:
    return [message["params"]["status"] for message in stream.sent(STATUS)]


async def all_that_came(client: HttpSession, stream: Stream) -> list[dict[str, Any]]:
    """What a session was told, once it is told of the end of a task that it makes now: nothing is on its way then."""
    last = await client.create("echo", {"value": 1})
    await told(stream, last, "completed")
    return [message for message in stream.messages if message["params"].get("taskId") != last]


async def go_on(desk: Desk) -> None:
    """Let the tool make one step more."""
    await desk.started.wait()
    desk.started.clear()
    desk.gate.set()


# Status


async def test_each_change_of_status_is_told_with_the_whole_task() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asking = await told(own, task_id, "input_required")
            assert set(asking) == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
            assert asking["ttl"] is None
            await client.accept(await own.request("elicitation/create"), name="Ada")
            ended = await told(own, task_id, "completed")
            assert "_meta" not in ended
            shown = (await client.ask("tasks/get", taskId=task_id))["result"]
            assert {key: shown[key] for key in ended if key != "pollInterval"} == {
                key: value for key, value in ended.items() if key != "pollInterval"
            }
            assert statuses(own) in (
                ["input_required", "completed"],
                ["input_required", "working", "completed"],
            )


async def test_a_task_that_is_over_at_once_is_told_of_too() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("echo", {"value": 1})
            await told(own, task_id, "completed")


async def test_a_tool_that_reports_an_error_is_told_as_failed() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("fails")
            assert "it did not work out" in (await told(own, task_id, "failed"))["statusMessage"]


async def test_a_cancelled_task_is_told_once() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("gated")
            await client.ask("tasks/cancel", taskId=task_id)
            await told(own, task_id, "cancelled")
            assert [message["params"]["status"] for message in await all_that_came(client, own)] == ["cancelled"]


async def test_a_session_that_presented_the_id_is_told_and_another_is_not() -> None:
    desk = Desk()
    async with served(desk) as wire:
        maker, finder, stranger = [await open_session(wire) for _ in range(3)]
        async with maker.listen() as one, finder.listen() as two, stranger.listen() as three:
            task_id = await maker.create("gated")
            assert await finder.status(task_id) == "working"
            desk.gate.set()
            await told(one, task_id, "completed")
            await told(two, task_id, "completed")
            assert await all_that_came(stranger, three) == []


async def test_a_task_of_the_modern_wire_is_told_of_to_no_session_that_did_not_present_it() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        modern = Tasking(wire, EVERYTHING)
        async with client.listen() as own:
            task = await modern.create("gated")
            desk.gate.set()
            await modern.until(task, "completed")
            assert await all_that_came(client, own) == []


# Progress


async def test_progress_comes_under_the_token_of_the_call_until_the_end() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [1, 2]}, _meta={"progressToken": "mine"})
            await go_on(desk)
            first = (await own.request(PROGRESS))["params"]
            assert first == {
                "progressToken": "mine",
                "progress": 1,
                "total": 10,
                "message": "at 1.0",
                "_meta": {RELATED: {"taskId": task_id}},
            }
            await go_on(desk)
            assert (await own.request(PROGRESS, number=2))["params"]["progress"] == 2
            await go_on(desk)
            await told(own, task_id, "completed")
            assert (await all_that_came(client, own))[-1]["method"] == STATUS


async def test_progress_goes_to_an_open_result_if_there_is_one() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [1]}, _meta={"progressToken": 7})
            async with client.open_result(task_id) as result:
                await go_on(desk)
                assert (await result.request(PROGRESS))["params"]["progressToken"] == 7
                await go_on(desk)
                await result.answer()
            assert own.sent(PROGRESS) == []


async def test_progress_that_falls_back_is_not_told() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [5, 3, 5, 6]}, _meta={"progressToken": 7})
            await anyio.sleep(HEAD_START)  # sleep: until then the session is told nothing
            await go_on(desk)
            await own.request(PROGRESS)
            for _ in range(3):
                await go_on(desk)
                await anyio.sleep(0.05)  # sleep: each is looked at before the next comes
            await own.until(lambda each: each.get("params", {}).get("progress") == 6)
            await go_on(desk)
            await told(own, task_id, "completed")
            assert [each["params"]["progress"] for each in own.sent(PROGRESS)] == [5, 6]


async def test_without_a_token_no_progress_is_told() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [5]})
            await go_on(desk)
            await go_on(desk)
            await told(own, task_id, "completed")
            assert own.sent(PROGRESS) == []


async def test_progress_reaches_the_status_of_a_task_also_without_a_token() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [5]})
            await go_on(desk)
            status = await told(own, task_id, "working")
            assert status["statusMessage"] == "at 5.0"
            # The task ID stands in it.
            assert RELATED not in status["_meta"]
            await go_on(desk)
            assert "_meta" not in await told(own, task_id, "completed")


async def test_two_thousand_reports_give_at_most_a_hundred_statuses_and_the_last_is_told() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("count", {"reports": 2_000})
            message = "2000 of 2000"
            await own.until(lambda each: each.get("params", {}).get("statusMessage") == message)
            told_of = own.sent(STATUS)
            desk.gate.set()
            await told(own, task_id, "completed")
            assert 1 < len(told_of) <= 100
            assert {each["params"]["status"] for each in told_of} == {"working"}


@pytest.mark.parametrize("apart", [0.001, 0.1, 1.0, 60.0, 3600.0])
def test_that_holds_however_far_apart_the_reports_are(apart: float) -> None:
    statuses, free_at = 0, 0.0
    for report in range(1, 2_001):
        now = report * apart
        if now >= free_at:
            statuses, free_at = statuses + 1, now + pause_between(now)
    assert 1 < statuses <= 100


async def test_in_json_mode_progress_goes_to_the_sessions_own_stream() -> None:
    desk = Desk()
    async with served(desk, json_response=True) as wire:
        client: HttpSession = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("steps", {"values": [1]}, _meta={"progressToken": 7})
            async with anyio.create_task_group() as group:
                group.start_soon(client.result, task_id)
                await go_on(desk)
                assert (await own.request(PROGRESS))["params"]["progress"] == 1
                await go_on(desk)
