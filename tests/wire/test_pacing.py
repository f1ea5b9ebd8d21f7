"""When to ask again, and how long a task is kept: numbers that move with time, in one direction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from harness.http import HttpWire, serving
from harness.rpc import INVALID_PARAMS, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

TTL = timedelta(hours=1)
TTL_MS = 3_600_000
SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves on."""
    return FakeClock()


@pytest.fixture
def desk() -> Desk:
    """Where tools wait for the test."""
    return Desk()


@pytest.fixture
def tasks(clock: FakeClock) -> Tasks:
    """Tasks that are kept for an hour."""
    return Tasks("memory://", clock=clock, default_ttl=TTL, settings=QUICK)


@pytest.fixture
async def wire(tasks: Tasks, desk: Desk) -> AsyncGenerator[HttpWire]:
    """A way to the furnished server."""
    server = build(tasks, desk)
    tasks.mark("gated", poll_interval=None)
    async with serving(server) as way:
        yield way


@pytest.fixture
async def running(wire: HttpWire, desk: Desk) -> dict[str, Any]:
    """A task whose tool runs until the test lets it end."""
    created = await Tasking(wire).call("gated")
    await desk.started.wait()
    return created


async def test_the_poll_interval_grows_with_the_age_of_a_task_and_is_bounded(
    wire: HttpWire, clock: FakeClock, running: dict[str, Any]
) -> None:
    client, intervals = Tasking(wire), [running["pollIntervalMs"]]
    for _ in range(12):
        clock.advance(10 * SECOND)
        intervals.append((await client.get(running["taskId"]))["pollIntervalMs"])
    clock.advance(timedelta(days=365))
    intervals.append((await client.get(running["taskId"]))["pollIntervalMs"])
    assert intervals == sorted(intervals)
    assert intervals[:4] == [200, 1000, 2000, 3000]
    assert intervals[-1] == intervals[-2] == 10_000


async def test_an_author_may_fix_the_poll_interval(tasks: Tasks, wire: HttpWire, clock: FakeClock) -> None:
    tasks.mark("gated", poll_interval=timedelta(milliseconds=1500))
    client = Tasking(wire)
    created = await client.call("gated")
    clock.advance(timedelta(hours=1))
    assert created["pollIntervalMs"] == 1500
    assert (await client.get(created["taskId"]))["pollIntervalMs"] == 1500


async def test_the_ttl_of_a_running_task_is_renewed_and_never_shrinks(
    wire: HttpWire, clock: FakeClock, desk: Desk, running: dict[str, Any]
) -> None:
    client, seen = Tasking(wire), [running["ttlMs"]]
    age = timedelta(0)
    for _ in range(30):
        clock.advance(timedelta(minutes=7))
        age += timedelta(minutes=7)
        task = await client.get(running["taskId"])
        seen.append(task["ttlMs"])
        # Never overdue: what is promised from the creation on always ends well ahead of now.
        assert timedelta(milliseconds=task["ttlMs"]) - age >= TTL / 2
    desk.gate.set()
    done = await client.until(running["taskId"], "completed")
    seen.append(done["ttlMs"])
    assert seen == sorted(seen)
    assert seen[0] == TTL_MS
    assert done["ttlMs"] == TTL_MS + age // timedelta(milliseconds=1)


async def test_the_ttl_stays_the_same_over_most_polls(
    wire: HttpWire, clock: FakeClock, running: dict[str, Any]
) -> None:
    client = Tasking(wire)
    values = {running["ttlMs"]}
    for _ in range(20):
        clock.advance(timedelta(minutes=1))
        values.add((await client.get(running["taskId"]))["ttlMs"])
    assert values == {TTL_MS}


async def test_a_running_task_never_expires(wire: HttpWire, clock: FakeClock, running: dict[str, Any]) -> None:
    clock.advance(timedelta(days=3650))
    assert (await Tasking(wire).get(running["taskId"]))["status"] == "working"


async def test_a_finished_task_is_kept_for_its_ttl_after_the_end_and_no_longer(
    wire: HttpWire, clock: FakeClock, desk: Desk, running: dict[str, Any]
) -> None:
    client = Tasking(wire)
    clock.advance(timedelta(days=2))
    desk.gate.set()
    await client.until(running["taskId"], "completed")
    clock.advance(TTL - SECOND)
    assert (await client.get(running["taskId"]))["status"] == "completed"
    clock.advance(SECOND)
    assert (await client.ask("tasks/get", {"taskId": running["taskId"]})).code == INVALID_PARAMS


async def test_a_tool_may_have_a_ttl_of_its_own(tasks: Tasks, wire: HttpWire) -> None:
    client = Tasking(wire)
    tasks.mark("gated", ttl=timedelta(minutes=5))
    assert (await client.call("gated"))["ttlMs"] == 300_000
    tasks.mark("gated", ttl=None)
    assert (await client.call("gated"))["ttlMs"] is None


@pytest.mark.parametrize("ms", [1, 1_000, 2**53 - 1])
async def test_every_ttl_that_can_be_said_can_be_served(ms: int) -> None:
    clock = FakeClock()
    async with serving(build(Tasks("memory://", clock=clock, default_ttl_ms=ms, settings=QUICK))) as wire:
        client = Tasking(wire)
        done = await client.finish("echo", value=1)
    assert done["ttlMs"] is None or done["ttlMs"] >= ms
