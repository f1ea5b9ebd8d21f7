"""`current_task()`: steps that are done once, sleeps that are slept once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.core import TaskRecord, TaskStatus
from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.runtime import Outcome, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    FailingStore,
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
AT_ONCE = ToolPolicy(rerun=True, hold=timedelta(0))
HELD = ToolPolicy(rerun=True, hold=HOUR)


# Steps


async def test_a_step_is_done_once_in_the_life_of_a_task() -> None:
    done: Counter[str] = Counter()

    def work(what: str) -> str:
        done[what] += 1
        return f"{what} {done[what]}"

    async def body(run: Run) -> Outcome:
        before = await current_task().step("before", work, "before")
        sure = await run.ask(question("Sure?"))
        after = await current_task().step("after", work, what="after")
        return ok([before, sure, after])

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": ["before 1", "yes", "after 1"]}, 2)
    assert done == {"before": 1, "after": 1}


@pytest.mark.parametrize(
    ("given", "kept"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (None, None), ("\ud800", "\ud800"), ([{"a": [1]}], [{"a": [1]}])],
    ids=["tuple", "numbered", "none", "surrogate", "nested"],
)
async def test_a_step_gives_the_first_time_what_it_will_give_later(given: Any, kept: Any) -> None:
    async def body(run: Run) -> Outcome:
        return ok(await current_task().step("value", lambda: given))

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": kept}
        assert [entry.value for entry in await runtime.journal(task.id)] == [kept]
    assert await current_task().step("value", lambda: given) == kept


async def test_a_step_may_be_async_and_a_sync_one_does_not_hold_the_event_loop() -> None:
    async def async_work() -> str:
        return threading.current_thread().name

    def sync_work() -> str:
        return threading.current_thread().name

    async def body(run: Run) -> Outcome:
        return ok([await current_task().step("async", async_work), await current_task().step("sync", sync_work)])

    async with running(body) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.result is not None
        here, there = record.result["value"]
        assert here == threading.current_thread().name != there


async def test_a_function_that_returns_something_to_await_is_awaited() -> None:
    async def late() -> int:
        return 7

    assert await current_task().step("late", lambda: late()) == 7


async def test_a_function_may_have_a_parameter_called_name() -> None:
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    keywords: dict[str, Any] = {"name": "Ann"}
    assert await current_task().step("greet", greet, **keywords) == "Hello, Ann!"


async def test_a_step_that_raises_leaves_nothing_in_the_journal() -> None:
    def broken() -> None:
        raise ValueError("no")

    async def body(run: Run) -> Outcome:
        try:
            await current_task().step("broken", broken)
        except ValueError as exc:
            return ok(str(exc))
        return ok()

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": "no"}
        assert await runtime.journal(task.id) == ()


async def test_a_value_that_is_no_json_is_refused_by_the_name_of_its_step() -> None:
    with pytest.raises(UsageError, match="step 'odd' gave a value that cannot be kept as JSON"):
        await current_task().step("odd", object)


async def test_two_steps_of_one_name_are_refused() -> None:
    async def body(run: Run) -> Outcome:
        await current_task().step("a", int)
        await current_task().step("a", int)
        return ok()

    async with running(body) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.error is not None
        assert record.error["data"] == {"type": "UsageError"}


async def test_a_step_that_cannot_be_stored_is_the_tools_to_handle() -> None:
    store = FailingStore()

    async def body(run: Run) -> Outcome:
        try:
            store.refuse_save(lambda record: True, times=1)
            await current_task().step("a", int)
        except StoreUnavailable:
            return ok("not stored")
        return ok()

    async with running(body, store=store) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": "not stored"}


async def test_steps_side_by_side_are_all_kept() -> None:
    def square(number: int) -> int:
        return number * number

    async def body(run: Run) -> Outcome:
        steps = [current_task().step(f"step {number}", square, number) for number in range(20)]
        return ok(await asyncio.gather(*steps))

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": [n * n for n in range(20)]}
        assert len(await runtime.journal(task.id)) == 20


# Sleeping


async def sleep_an_hour(run: Run) -> Outcome:
    await current_task().sleep(HOUR)
    return ok("awake")


async def until_asleep(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    """The task once its first timer is set, which is the third version: created, taken, timer."""
    asleep = await until(runtime, task, lambda record: record.version >= 3)
    assert [entry.kind for entry in await runtime.journal(task.id)] == ["timer"]
    return asleep


async def test_a_short_sleep_is_slept_in_memory() -> None:
    async def body(run: Run) -> Outcome:
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
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        assert task.wake_at == clock() + HOUR
        clock.advance(HOUR - timedelta(seconds=1))
        await runtime.janitor.sweep()
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": "awake"}, 2)


async def test_a_sleep_goes_on_in_the_next_process_and_is_not_begun_again() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=HELD, clock=clock, store=store) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
    clock.advance(HOUR / 2)
    async with running(sleep_an_hour, policy=HELD, clock=clock, store=store) as runtime:
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1
        clock.advance(HOUR / 2)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}


async def test_a_sleep_is_not_begun_again_after_its_process_died() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=HELD, clock=clock, store=store) as one:
        task = await until_asleep(one, await launch(one))
        await one.abandon()
        clock.advance(HOUR / 2)
        async with running(sleep_an_hour, policy=AT_ONCE, clock=clock, store=store) as other:
            asleep = await until(other, task, lambda record: record.attempt == 2 and record.holder is None)
            assert asleep.wake_at == clock() + HOUR / 2
            await settle()
            clock.advance(HOUR / 2)
            await other.janitor.sweep()
            record = await until_final(other, task)
            assert (record.result, record.attempt) == ({"value": "awake"}, 3)


async def test_the_timer_of_a_task_that_asks_too_is_not_lost_when_its_process_dies() -> None:
    clock, store = FakeClock(), MemoryStore()

    async def whichever_is_first(run: Run) -> Outcome:
        asked = asyncio.ensure_future(run.ask(question("Sure?")))
        slept = asyncio.ensure_future(current_task().sleep(HOUR))
        try:
            await asyncio.wait({asked, slept}, return_when=asyncio.FIRST_COMPLETED)
            return ok(asked.result() if asked.done() else "nobody answered")
        finally:
            asked.cancel()
            slept.cancel()

    policy = ToolPolicy(rerun=True, hold=2 * HOUR)
    async with running(whichever_is_first, policy=policy, clock=clock, store=store) as one:
        task = await until_asking(one, await launch(one))
        await settle()
        await one.abandon()
        async with running(whichever_is_first, policy=policy, clock=clock, store=store) as other:
            await until(other, task, lambda record: record.attempt == 2)
            clock.advance(HOUR)
            record = await until_final(other, task)
            assert record.result == {"value": "nobody answered"}


async def test_a_sleeping_run_uses_no_slot() -> None:
    async def work(run: Run) -> Outcome:
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
        assert (await runtime.cancel(task, "enough")).status is TaskStatus.CANCELLED


async def test_two_sleeps_are_two_timers() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Outcome:
        await current_task().sleep(HOUR)
        await current_task().sleep(HOUR)
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        for attempt in (1, 2):
            asleep = await until(runtime, task, lambda r, n=attempt: r.attempt == n and r.holder is None)
            assert asleep.wake_at == clock() + HOUR
            await settle()
            clock.advance(HOUR)
            await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}


async def test_a_task_that_slept_and_then_asks_is_not_started_before_its_answer() -> None:
    async def body(run: Run) -> Outcome:
        await current_task().sleep(timedelta(milliseconds=10))
        return ok(await run.ask(question("Sure?")))

    async with running(body, policy=ToolPolicy(rerun=True, hold=timedelta(milliseconds=30))) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await until(runtime, task, lambda record: record.holder is None)
        await settle()
        await runtime.janitor.sweep()
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1


async def test_a_task_that_was_answered_while_it_sleeps_too_is_not_started_before_its_time() -> None:
    clock = FakeClock()

    async def sleep_soon() -> None:
        await settle(5)
        await current_task().sleep(HOUR)

    async def body(run: Run) -> Outcome:
        return ok(await asyncio.gather(run.ask(question("Sure?")), sleep_soon()))

    policy = ToolPolicy(rerun=True, hold=timedelta(minutes=1))
    async with running(body, policy=policy, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        assert (task.status, task.wake_at) == (TaskStatus.INPUT_REQUIRED, clock() + HOUR)
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        await settle(300)
        assert (await runtime.get(task.id, owner=None)).attempt <= 2
        clock.advance(HOUR)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": ["yes", None]}


async def test_a_run_that_sleeps_in_one_branch_and_works_in_another_stays_in_memory() -> None:
    clock, begun, worked = FakeClock(), Counter[str](), anyio.Event()

    async def work() -> str:
        begun["work"] += 1
        await worked.wait()
        return "worked"

    async def body(run: Run) -> Outcome:
        context = current_task()
        return ok(await asyncio.gather(context.step("work", work), context.sleep(HOUR)))

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        await settle()
        worked.set()
        # Once the step is done there is only the sleep left, and the run may leave.
        await until(runtime, task, lambda record: record.holder is None, limit=2)
        clock.advance(HOUR)
        await settle()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": ["worked", None]}
    assert begun == {"work": 1}


async def test_a_step_that_failed_may_be_tried_again_under_its_name() -> None:
    tries: list[int] = []

    def work() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")
        return len(tries)

    async def body(run: Run) -> Outcome:
        try:
            return ok(await current_task().step("work", work))
        except OSError:
            return ok(await current_task().step("work", work))

    async with running(body) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 2}
