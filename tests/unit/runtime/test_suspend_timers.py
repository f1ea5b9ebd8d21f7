"""Sleeps: set once in the life of a task, and slept over restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta, timezone
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import UsageError
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from tests.unit.running import (
    CLIENT,
    Tool,
    answer,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
AT_ONCE = ToolPolicy(rerun=True, park_after=timedelta(0))
HELD = ToolPolicy(rerun=True, park_after=HOUR)


async def sleep_an_hour(run: Run) -> Ending:
    await current_task().sleep(HOUR)
    return ok("awake")


async def until_asleep(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    """The task once its first timer is set, which is the third version: created, taken, timer."""
    asleep = await until(runtime, task, lambda record: record.version >= 3)
    assert [entry.kind for entry in await runtime.store.journal(task.id)] == ["timer"]
    return asleep


async def test_a_short_sleep_is_slept_in_memory() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta(milliseconds=10))
        return ok(run.attempt)

    async with running(body, policy=HELD) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 1}


async def test_outside_a_task_a_sleep_is_a_sleep() -> None:
    with anyio.fail_after(5):
        await current_task().sleep(timedelta(milliseconds=1))


async def test_a_long_sleep_leaves_memory_and_ends_on_time() -> None:
    clock = FakeClock()
    async with running(sleep_an_hour, policy=AT_ONCE, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        assert task.wake_at == clock() + HOUR
        clock.advance(HOUR - timedelta(seconds=1))
        await runtime.janitor.sweep()
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": "awake"}, 2)


@pytest.mark.parametrize("policy", [AT_ONCE, HELD], ids=["parked", "held"])
async def test_a_sleep_goes_on_in_the_next_process_and_is_not_begun_again(policy: ToolPolicy) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
    clock.advance(HOUR / 2)
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        await settle()
        assert not (await runtime.get(task.id, owner=None)).is_final
        clock.advance(HOUR / 2)
        runtime.alarms.stir()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}
        assert [entry.kind for entry in await runtime.store.journal(task.id)] == ["timer", "done"]


async def test_a_sleep_is_not_begun_again_after_its_process_died() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=HELD, clock=clock, store=store) as one:
        task = await until_asleep(one, await launch(one))
        await one.abandon()
        clock.advance(HOUR / 2)
        async with running(sleep_an_hour, policy=AT_ONCE, clock=clock, store=store) as other:
            asleep = await until(other, task, lambda record: record.attempt == 2 and record.worker is None)
            assert asleep.wake_at == clock() + HOUR / 2
            await settle()
            clock.advance(HOUR / 2)
            await other.janitor.sweep()
            record = await until_final(other, task)
            assert (record.result, record.attempt) == ({"value": "awake"}, 3)


async def test_the_timer_of_a_task_that_asks_too_is_not_lost_when_its_process_dies() -> None:
    clock, store = FakeClock(), MemoryStore()

    async def whichever_is_first(run: Run) -> Ending:
        asked = asyncio.ensure_future(run.ask(question("Sure?")))
        slept = asyncio.ensure_future(current_task().sleep(HOUR))
        try:
            await asyncio.wait({asked, slept}, return_when=asyncio.FIRST_COMPLETED)
            return ok(asked.result() if asked.done() else "nobody answered")
        finally:
            asked.cancel()
            slept.cancel()

    policy = ToolPolicy(rerun=True, park_after=2 * HOUR)
    async with running(whichever_is_first, policy=policy, clock=clock, store=store) as one:
        task = await until_asking(one, await launch(one))
        await settle()
        await one.abandon()
        async with running(whichever_is_first, policy=policy, clock=clock, store=store) as other:
            await until(other, task, lambda record: record.attempt == 2)
            clock.advance(HOUR)
            other.alarms.stir()
            record = await until_final(other, task)
            assert record.result == {"value": "nobody answered"}


async def test_a_sleeping_run_uses_no_slot() -> None:
    async def work(run: Run) -> Ending:
        return ok()

    clock = FakeClock()
    tools = {"sleep": Tool(sleep_an_hour), "work": Tool(work)}
    async with running(tools, clock=clock, concurrency=1) as runtime:
        asleep = await launch(runtime, "sleep")
        await until_asleep(runtime, asleep)
        assert (await until_final(runtime, await launch(runtime, "work"))).is_final


async def test_a_sleeping_task_can_be_cancelled() -> None:
    async with running(sleep_an_hour) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        assert (await runtime.cancel(task, "enough", actor=CLIENT)).status is TaskStatus.CANCELLED


async def test_two_sleeps_are_two_timers() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Ending:
        await current_task().sleep(HOUR)
        await current_task().sleep(HOUR)
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        for attempt in (1, 2):
            asleep = await until(runtime, task, lambda r, n=attempt: r.attempt == n and r.worker is None)
            assert asleep.wake_at == clock() + HOUR
            await settle()
            clock.advance(HOUR)
            await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}


async def test_a_task_that_slept_and_then_asks_is_not_started_before_its_answer() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta(milliseconds=10))
        return ok(await run.ask(question("Sure?")))

    async with running(body, policy=ToolPolicy(rerun=True, park_after=timedelta(milliseconds=30))) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await until(runtime, task, lambda record: record.worker is None)
        await settle()
        await runtime.janitor.sweep()
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1


async def test_a_run_that_asks_in_one_branch_and_sleeps_in_another_stays_in_memory() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Ending:
        return ok(await asyncio.gather(run.ask(question("Sure?")), current_task().sleep(HOUR)))

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        await settle()
        asleep = await runtime.get(task.id, owner=None)
        assert (asleep.status, asleep.worker, asleep.attempt) == (TaskStatus.WORKING, runtime.worker, 1)
        clock.advance(HOUR)
        runtime.alarms.stir()
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": ["yes", None]}, 1)


async def test_a_run_that_sleeps_in_one_branch_and_works_in_another_stays_in_memory() -> None:
    clock, begun, worked = FakeClock(), Counter[str](), anyio.Event()

    async def work() -> str:
        begun["work"] += 1
        await worked.wait()
        return "worked"

    async def body(run: Run) -> Ending:
        context = current_task()
        return ok(await asyncio.gather(context.step("work", work), context.sleep(HOUR)))

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        await settle()
        worked.set()
        await until(runtime, task, lambda record: record.version >= 4)
        await settle()
        # With the step done there is only the sleep left, but what waits for a branch, and for how long, is not seen.
        assert (await runtime.get(task.id, owner=None)).worker == runtime.worker
        clock.advance(HOUR)
        runtime.alarms.stir()
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": ["worked", None]}, 1)
    assert begun == {"work": 1}


async def test_a_sleep_may_end_at_an_instant_that_the_tool_computed() -> None:
    clock = FakeClock()
    there = timezone(timedelta(hours=9))

    async def body(run: Run) -> Ending:
        await current_task().sleep(until=(NOON + HOUR).astimezone(there))
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        assert task.wake_at == NOON + HOUR
        await settle()
        clock.advance(HOUR)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}


async def test_an_instant_that_has_passed_is_not_waited_for() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(until=NOON)
        return ok(run.attempt)

    async with running(body, policy=HELD) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 1}
    with anyio.fail_after(5):
        await current_task().sleep(until=NOON)


async def test_a_sleep_with_a_name_is_the_same_one_in_the_next_run_however_long_it_is_then() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Ending:
        # As a tool does that computes what is left from the time of now.
        await current_task().sleep(run.attempt * HOUR, name="review")
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        await settle()
        clock.advance(HOUR)
        await runtime.janitor.sweep()
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": "awake"}, 2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "either a duration or until="),
        ({"duration": HOUR, "until": NOON}, "either a duration or until="),
        ({"duration": 60}, "duration must be a timedelta"),
        ({"until": NOON.replace(tzinfo=None)}, "takes an aware datetime"),
    ],
    ids=["nothing", "both", "number", "naive"],
)
async def test_a_sleep_that_says_nothing_sensible_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        await current_task().sleep(**arguments)
