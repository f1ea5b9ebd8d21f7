"""`current_task()`: steps that are done once, sleeps that are slept once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import Any

import anyio
import pytest

from mcp_tasks.core import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.errors import QuestionTimedOut, UsageError, ValueNotStorable
from mcp_tasks.runtime import Body, Outcome, Retry, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
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
        assert [entry.value for entry in await runtime.journal(task.id)] == [{"value": kept}]
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


async def twice(body: Body, policy: ToolPolicy = AT_ONCE) -> TaskRecord:
    """The outcome of a tool that is started, parked at its first question, and started again by the answer."""
    async with running(body, policy=policy) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        await answer(runtime, task, elicitation_1="yes")
        record = await until_final(runtime, task)
        assert record.attempt == 2
        return record


class OutOfPaper(Exception):
    """An exception of a tool's own."""


class Jammed(Exception):
    """One that cannot be made from its arguments again."""

    def __init__(self, tray: int) -> None:
        super().__init__(f"tray {tray} is jammed")


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (ValueError("no"), "ValueError: no"),
        (OutOfPaper("tray", 2), "OutOfPaper: ('tray', 2)"),
        (Jammed(2), "StepError: step 'broken' failed with Jammed: tray 2 is jammed"),
        (ValueError(object), f"StepError: step 'broken' failed with ValueError: {object}"),
    ],
    ids=["built-in", "own", "not to be made again", "not to be kept"],
)
async def test_a_step_that_failed_fails_in_every_run_and_is_not_done_again(raised: Exception, caught: str) -> None:
    done, seen = Counter[str](), list[str]()

    def broken() -> None:
        done["broken"] += 1
        raise raised

    async def body(run: Run) -> Outcome:
        try:
            await current_task().step("broken", broken)
        except Exception as exc:
            seen.append(f"{type(exc).__name__}: {exc}")
        return ok(await run.ask(question("Sure?")))

    assert (await twice(body)).result == {"value": "yes"}
    assert seen == [caught, caught]
    assert done == {"broken": 1}


async def test_a_step_that_failed_has_no_second_try_under_its_name() -> None:
    tries: list[int] = []

    def work() -> int:
        tries.append(1)
        raise OSError("not yet")

    async def body(run: Run) -> Outcome:
        try:
            await current_task().step("work", work)
        except OSError:
            await current_task().step("work", work)
        return ok()

    async with running(body) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.error is not None
        assert record.error["data"] == {"type": "UsageError"}
    assert len(tries) == 1


class FailsFirst:
    """Work that succeeds at its third try."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    async def __call__(self) -> int:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.tries


def retrying(attempts: int, on: type[Exception] = Exception) -> Retry:
    return Retry(attempts=attempts, wait=timedelta(0), on=on)


async def test_a_step_is_tried_as_often_as_its_retry_says_and_then_its_end_is_recorded() -> None:
    succeeds, fails = FailsFirst(OSError("a"), OSError("b")), FailsFirst(*[OSError(str(n)) for n in range(9)])

    async def body(run: Run) -> Outcome:
        good = await current_task().step("good", succeeds, retry=retrying(3))
        with pytest.raises(OSError, match="2"):
            await current_task().step("bad", fails, retry=retrying(3))
        await run.ask(question("Sure?"))
        return ok(good)

    assert (await twice(body)).result == {"value": 3}
    assert (succeeds.tries, fails.tries) == (3, 3)


async def test_a_retry_is_for_the_exceptions_that_it_names() -> None:
    work = FailsFirst(OSError("again"), ValueError("not again"))
    with pytest.raises(ValueError, match="not again"):
        await current_task().step("work", work, retry=retrying(10, on=OSError))
    assert work.tries == 2


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_retry_that_never_tries_is_refused(attempts: int) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        Retry(attempts=attempts)


def test_the_pauses_of_a_retry_double_up_to_a_limit() -> None:
    retry = Retry(wait=timedelta(seconds=1), max_wait=timedelta(seconds=5))
    assert [retry.pause_after(failures) for failures in range(1, 6)] == [1, 2, 4, 5, 5]


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


async def test_the_record_of_a_step_waits_for_a_store_that_is_away() -> None:
    store = FailingStore()
    done = Counter[str]()

    def work() -> str:
        done["work"] += 1
        store.refuse_save(lambda record: True, times=2)
        return "done"

    async def body(run: Run) -> Outcome:
        return ok(await current_task().step("a", work))

    async with running(body, store=store) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": "done"}
        assert [entry.key for entry in await runtime.journal(task.id)] == ["a"]
    assert done == {"work": 1}


class SmallStore(MemoryStore):
    """Keeps no entry that is longer than a page."""

    async def save(self, record: TaskRecord, *, expected: int, entries: Sequence[JournalEntry] = ()) -> None:
        if any(len(repr(entry.value)) > 4_096 for entry in entries):
            raise ValueNotStorable("a value is too large")
        await super().save(record, expected=expected, entries=entries)


async def test_a_value_that_the_store_cannot_keep_fails_its_step_now_and_later() -> None:
    seen: list[str] = []

    async def body(run: Run) -> Outcome:
        try:
            await current_task().step("odd", lambda: "x" * 10_000)
        except UsageError as exc:
            seen.append(str(exc))
        return ok(await run.ask(question("Sure?")))

    async with running(body, policy=AT_ONCE, store=SmallStore()) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        await answer(runtime, task, elicitation_1="yes")
        await until_final(runtime, task)
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0].startswith("step 'odd' gave a value that the store cannot keep")


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
        assert [entry.kind for entry in await runtime.journal(task.id)] == ["timer", "done"]


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
            other.alarms.stir()
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


async def test_a_run_that_asks_in_one_branch_and_sleeps_in_another_stays_in_memory() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Outcome:
        return ok(await asyncio.gather(run.ask(question("Sure?")), current_task().sleep(HOUR)))

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        await settle()
        asleep = await runtime.get(task.id, owner=None)
        assert (asleep.status, asleep.holder, asleep.attempt) == (TaskStatus.WORKING, runtime.holder, 1)
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

    async def body(run: Run) -> Outcome:
        context = current_task()
        return ok(await asyncio.gather(context.step("work", work), context.sleep(HOUR)))

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        await settle()
        worked.set()
        await until(runtime, task, lambda record: record.version >= 4)
        await settle()
        # With the step done there is only the sleep left, but what waits for a branch, and for how long, is not seen.
        assert (await runtime.get(task.id, owner=None)).holder == runtime.holder
        clock.advance(HOUR)
        runtime.alarms.stir()
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": ["worked", None]}, 1)
    assert begun == {"work": 1}


async def test_a_sleep_may_end_at_an_instant_that_the_tool_computed() -> None:
    clock = FakeClock()
    there = timezone(timedelta(hours=9))

    async def body(run: Run) -> Outcome:
        await current_task().sleep(until=(NOON + HOUR).astimezone(there))
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
        assert task.wake_at == NOON + HOUR
        await settle()
        clock.advance(HOUR)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": "awake"}


async def test_an_instant_that_has_passed_is_not_waited_for() -> None:
    async def body(run: Run) -> Outcome:
        await current_task().sleep(until=NOON)
        return ok(run.attempt)

    async with running(body, policy=HELD) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 1}
    with anyio.fail_after(5):
        await current_task().sleep(until=NOON)


async def test_a_sleep_with_a_name_is_the_same_one_in_the_next_run_however_long_it_is_then() -> None:
    clock = FakeClock()

    async def body(run: Run) -> Outcome:
        # As a tool does that computes what is left from the time of now.
        await current_task().sleep(run.attempt * HOUR, name="review")
        return ok("awake")

    async with running(body, policy=AT_ONCE, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.holder is None)
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


# Asking


async def reply() -> str:
    return "yes"


async def test_outside_a_task_a_question_is_asked_as_it_is() -> None:
    assert await current_task().ask(reply(), key="sure", timeout=HOUR) == "yes"


async def test_outside_a_task_a_question_has_its_time_limit_too() -> None:
    with pytest.raises(QuestionTimedOut) as caught:
        await current_task().ask(_never(), timeout=timedelta(milliseconds=1))
    assert isinstance(caught.value, TimeoutError)


async def _never() -> str:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


async def test_what_is_no_question_or_no_time_limit_is_refused() -> None:
    anything: Any = "Sure?"
    with pytest.raises(UsageError, match="ask takes what asks, not awaited yet"):
        await current_task().ask(anything)
    seconds: Any = 60
    with pytest.raises(UsageError, match="timeout must be a timedelta"):
        await current_task().ask(reply(), timeout=seconds)
