"""Sleeps: set once in the life of a task, and slept over restarts."""

from __future__ import annotations

import asyncio
from datetime import timedelta, timezone
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import QuestionTimedOut, UsageError
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    PARKS,
    SECOND,
    Tool,
    answer,
    at_once,
    cancel,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
    until_parked,
)

pytestmark = pytest.mark.anyio

HELD = ToolPolicy(rerun=True, park_after=HOUR)


async def sleep_an_hour(run: Run) -> Ending:
    await current_task().sleep(HOUR)
    return ok("awake")


async def ring(runtime: TaskRuntime, clock: FakeClock, by: timedelta = HOUR) -> None:
    """Let time go by, for those in memory and for those that left it."""
    await settle()
    clock.advance(by)
    runtime.alarms.stir()
    await runtime.janitor.sweep()


async def until_asleep(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    """The task once its first timer is set, which is the third version: created, taken, timer."""
    return await until(runtime, task, lambda record: record.version >= 3)


async def test_a_short_sleep_is_slept_in_memory_and_an_instant_that_has_passed_not_at_all() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta(milliseconds=10))
        await current_task().sleep(until=NOON)
        return ok(run.attempt)

    async with running(body, policy=HELD) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 1}


async def test_a_long_sleep_leaves_memory_and_ends_on_time() -> None:
    clock = FakeClock()
    async with running(sleep_an_hour, policy=PARKS, clock=clock) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        assert task.wake_at == clock() + HOUR
        await ring(runtime, clock, HOUR - SECOND)
        await settle()
        assert (await as_of_now(runtime, task)).attempt == 1
        await ring(runtime, clock, SECOND)
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": "awake"}, 2)


@pytest.mark.parametrize("clock_moves", [HOUR, -HOUR, 3 * HOUR], ids=["on time", "back", "far ahead"])
async def test_a_sleep_in_memory_goes_by_the_clock(clock_moves: timedelta) -> None:
    clock = FakeClock()
    async with running(sleep_an_hour, policy=HELD, clock=clock) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        await ring(runtime, clock, clock_moves)
        if clock_moves < HOUR:
            for _ in range(2):
                assert not (await as_of_now(runtime, task)).is_final
                await ring(runtime, clock)
        assert (await until_final(runtime, task)).attempt == 1


@pytest.mark.parametrize("policy", [PARKS, HELD], ids=["parked", "held"])
@pytest.mark.parametrize("dies", [True, False], ids=["process dies", "process stops"])
async def test_a_sleep_goes_on_in_the_next_process_and_is_not_begun_again(policy: ToolPolicy, dies: bool) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        assert [entry.kind for entry in await store.journal(task.id)] == ["timer"]
        if dies:
            await runtime.abandon()
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        await ring(runtime, clock, HOUR / 2)
        await settle()
        assert not (await as_of_now(runtime, task)).is_final
        await ring(runtime, clock, HOUR / 2)
        assert (await until_final(runtime, task)).result == {"value": "awake"}
        assert [entry.kind for entry in await store.journal(task.id)] == ["timer", "done"]


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

    async with running(whichever_is_first, policy=HELD, clock=clock, store=store) as one:
        task = await until_asking(one, await launch(one))
        await settle()
        await one.abandon()
    async with running(whichever_is_first, policy=HELD, clock=clock, store=store) as other:
        await until(other, task, lambda record: record.attempt == 2)
        await ring(other, clock)
        assert (await until_final(other, task)).result == {"value": "nobody answered"}


async def test_a_sleeping_run_uses_no_slot_and_can_be_cancelled() -> None:
    async with running({"sleep": Tool(sleep_an_hour), "work": Tool(at_once)}, concurrency=1) as runtime:
        asleep = await until_asleep(runtime, await launch(runtime, "sleep"))
        assert (await until_final(runtime, await launch(runtime, "work"))).is_final
        assert (await cancel(runtime, asleep)).status is TaskStatus.CANCELLED
        await settle()
        assert runtime.runs() == []


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


@pytest.mark.parametrize("other", ["asks", "works"])
async def test_a_run_that_sleeps_in_one_branch_and_does_something_in_another_stays_in_memory(other: str) -> None:
    clock, begun, gate = FakeClock(), list[str](), anyio.Event()

    async def work() -> str:
        begun.append("work")
        await gate.wait()
        return "yes"

    async def body(run: Run) -> Ending:
        context = current_task()
        beside = run.ask(question("Sure?")) if other == "asks" else context.step("work", work)
        return ok(await asyncio.gather(beside, context.sleep(HOUR)))

    async with running(body, policy=PARKS, clock=clock) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        await settle()
        if other == "asks":
            await answer(runtime, task, elicitation_1="yes")
        gate.set()
        await settle()
        # Then there is only the sleep left, but what waits for a branch, and for how long, is not seen.
        assert (await as_of_now(runtime, task)).worker == runtime.worker
        await ring(runtime, clock)
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": ["yes", None]}, 1)
        assert begun == ([] if other == "asks" else ["work"])


@pytest.mark.parametrize("by_name", [True, False], ids=["with a name", "until an instant"])
async def test_a_sleep_is_the_same_one_in_the_next_run(by_name: bool) -> None:
    clock, there = FakeClock(), timezone(timedelta(hours=9))

    async def body(run: Run) -> Ending:
        if by_name:
            # However long it is then.
            await current_task().sleep(run.attempt * HOUR, name="review")
        else:
            await current_task().sleep(until=(NOON + HOUR).astimezone(there))
        return ok("awake")

    async with running(body, policy=PARKS, clock=clock) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        assert task.wake_at == NOON + HOUR
        await ring(runtime, clock)
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": "awake"}, 2)


async def test_a_sleep_that_no_calendar_reaches_is_one_for_good() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta.max)
        return ok()

    async with running({"tool": Tool(body, PARKS)}) as runtime:
        await until_asleep(runtime, await launch(runtime))


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


# Outside of a task


@pytest.mark.parametrize("key", [None, "sure"])
async def test_outside_a_task_a_sleep_is_a_sleep_and_a_question_is_asked_as_it_is(key: str | None) -> None:
    with anyio.fail_after(5):
        await current_task().sleep(timedelta(milliseconds=1))
        await current_task().sleep(until=NOON)
        assert await current_task().ask(asyncio.sleep(0, "yes"), key=key) == "yes"
        assert await current_task().ask(asyncio.sleep(0, "yes"), key=key, timeout=HOUR) == "yes"
        with pytest.raises(QuestionTimedOut) as caught:
            await current_task().ask(anyio.sleep_forever(), timeout=timedelta(milliseconds=1))
    assert isinstance(caught.value, TimeoutError)


async def test_what_is_no_question_or_no_time_limit_is_refused() -> None:
    anything: Any = "Sure?"
    with pytest.raises(UsageError, match="ask takes what asks, not awaited yet"):
        await current_task().ask(anything)
    seconds: Any = 60
    with pytest.raises(UsageError, match="timeout must be a timedelta"):
        await current_task().ask(asyncio.sleep(0), timeout=seconds)


def test_outside_a_task_there_is_a_context_too() -> None:
    context = current_task()
    assert (context.id, context.owner, context.attempt, context.cancelled) == (None, None, 1, False)
