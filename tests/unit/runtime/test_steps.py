"""Steps: done once in the life of a task, and ended in every later run as they ended in the first."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import InvalidOption, UsageError, ValueNotStorable
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import Body, Ending, Retry, Run, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from tests.unit.running import (
    CLIENT,
    FailingStore,
    Finished,
    answer,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_final,
)

pytestmark = pytest.mark.anyio

AT_ONCE = ToolPolicy(rerun=True, park_after=timedelta(0))


async def test_a_step_is_done_once_in_the_life_of_a_task() -> None:
    done: Counter[str] = Counter()

    def work(what: str) -> str:
        done[what] += 1
        return f"{what} {done[what]}"

    async def body(run: Run) -> Ending:
        before = await current_task().step("before", work, "before")
        sure = await run.ask(question("Sure?"))
        after = await current_task().step("after", work, what="after")
        return ok([before, sure, after])

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": ["before 1", "yes", "after 1"]}, 2)
    assert done == {"before": 1, "after": 1}


@pytest.mark.parametrize(
    ("given", "kept"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (None, None), ([{"a": [1]}], [{"a": [1]}])],
    ids=["tuple", "numbered", "none", "nested"],
)
async def test_a_step_gives_the_first_time_what_it_will_give_later(given: Any, kept: Any) -> None:
    async def body(run: Run) -> Ending:
        return ok(await current_task().step("value", lambda: given))

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": kept}
        assert [entry.value for entry in await runtime.store.journal(task.id)] == [{"value": kept}]
    assert await current_task().step("value", lambda: given) == kept


async def test_a_step_may_give_text_that_a_result_may_not_hold() -> None:
    async def body(run: Run) -> Ending:
        given = await current_task().step("value", lambda: "\ud800")
        return ok(given.encode(errors="surrogatepass").hex())

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": "eda080"}
        assert [entry.value for entry in await runtime.store.journal(task.id)] == [{"value": "\ud800"}]


async def test_a_step_may_be_async_and_a_sync_one_does_not_hold_the_event_loop() -> None:
    async def async_work() -> str:
        return threading.current_thread().name

    def sync_work() -> str:
        return threading.current_thread().name

    async def body(run: Run) -> Ending:
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


async def twice(body: Body, policy: ToolPolicy = AT_ONCE) -> Finished:
    """The outcome of a tool that is started, parked at its first question, and started again by the answer."""
    async with running(body, policy=policy) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
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

    async def body(run: Run) -> Ending:
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

    async def body(run: Run) -> Ending:
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

    async def body(run: Run) -> Ending:
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


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"attempts": 0}, "attempts must be a whole number of at least 1, got 0"),
        ({"attempts": "3"}, "attempts must be a whole number of at least 1, got '3'"),
        ({"wait": 1}, r"wait must be a timedelta, got 1: write wait=timedelta\(seconds=1\)"),
        ({"max_wait": -timedelta(seconds=1)}, "max_wait must not be negative, got -1 s"),
        ({"on": [ValueError]}, r"on must be an exception class, or a tuple of them such as .*; got \[<class"),
        ({"on": (OSError, "x")}, "on must be an exception class"),
        ({"on": int}, "on must be an exception class"),
    ],
    ids=str,
)
def test_a_retry_that_cannot_be_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Retry(**mistake)


async def _work() -> int:
    return 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", [_work, lambda: 5, lambda: None])
async def test_a_step_takes_a_function_and_not_what_it_returned(call: Callable[[], Any]) -> None:
    returned = call()
    name = "_work" if call is _work else "function"
    with pytest.raises(UsageError) as refused:
        await current_task().step("x", returned)
    assert str(refused.value) == (
        f"step('x', ...) takes a function and its arguments, not what the function returned: step('x', {name})"
    )
    if call is _work:
        # Closed, so that Python does not warn of it as well.
        assert inspect.getcoroutinestate(returned) == inspect.CORO_CLOSED


async def test_the_retry_of_a_step_is_a_retry() -> None:
    with pytest.raises(InvalidOption, match=r"retry must be a Retry, got 3: write retry=Retry\(\.\.\.\)"):
        await current_task().step("x", _work, retry=3)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_the_pauses_of_a_retry_double_up_to_a_limit() -> None:
    retry = Retry(wait=timedelta(seconds=1), max_wait=timedelta(seconds=5))
    assert [retry.pause_after(failures) for failures in range(1, 6)] == [1, 2, 4, 5, 5]


async def test_a_value_that_is_no_json_is_refused_by_the_name_of_its_step() -> None:
    with pytest.raises(UsageError, match="step 'odd' gave a value that cannot be kept as JSON"):
        await current_task().step("odd", object)


async def test_two_steps_of_one_name_are_refused() -> None:
    async def body(run: Run) -> Ending:
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

    async def body(run: Run) -> Ending:
        return ok(await current_task().step("a", work))

    async with running(body, store=store) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": "done"}
        assert [entry.key for entry in await runtime.store.journal(task.id)] == ["a"]
    assert done == {"work": 1}


class SmallStore(MemoryStore):
    """Keeps no entry that is longer than a page."""

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        if any(len(repr(entry.value)) > 4_096 for entry in entries):
            raise ValueNotStorable("a value is too large")
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)


async def test_a_value_that_the_store_cannot_keep_fails_its_step_now_and_later() -> None:
    seen: list[str] = []

    async def body(run: Run) -> Ending:
        try:
            await current_task().step("odd", lambda: "x" * 10_000)
        except UsageError as exc:
            seen.append(str(exc))
        return ok(await run.ask(question("Sure?")))

    async with running(body, policy=AT_ONCE, store=SmallStore()) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        await answer(runtime, task, elicitation_1="yes")
        await until_final(runtime, task)
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0].startswith("step 'odd' gave a value that the store cannot keep")


async def test_steps_side_by_side_are_all_kept() -> None:
    def square(number: int) -> int:
        return number * number

    async def body(run: Run) -> Ending:
        steps = [current_task().step(f"step {number}", square, number) for number in range(20)]
        return ok(await asyncio.gather(*steps))

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.result == {"value": [n * n for n in range(20)]}
        assert len(await runtime.store.journal(task.id)) == 20


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_a_sync_step_that_was_done_when_the_tool_gave_up_on_it_is_not_done_again(fails: bool) -> None:
    """A thread goes on to its end. What it gave is kept, should the tool come to the step again; a failure is not."""
    begun, may_end, times = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        times.append(1)
        begun.set()
        may_end.wait(5)
        if fails and len(times) == 1:
            raise OutOfPaper
        return len(times)

    async def body(run: Run) -> Ending:
        branch = asyncio.ensure_future(current_task().step("work", work))
        await asyncio.to_thread(begun.wait, 5)
        branch.cancel()
        await settle()
        may_end.set()
        await asyncio.wait({branch})
        assert branch.cancelled()
        return ok(await current_task().step("work", work))

    async with running(body) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert (record.result, len(times)) == (({"value": 2}, 2) if fails else ({"value": 1}, 1))


async def _leaves_its_steps(*steps: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of them. Unlike a gather, this cancels none when it is cancelled itself."""
    await asyncio.wait([asyncio.create_task(step) for step in steps], return_when=asyncio.FIRST_COMPLETED)


async def test_a_step_that_is_at_work_beside_the_tool_ends_with_a_run_that_is_stopped() -> None:
    """Another run may begin it, and a step is not to be done by two runs at a time."""
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    async def around() -> None:
        await current_task().step("inner", work, "inner")

    async def body(run: Run) -> Ending:
        await _leaves_its_steps(current_task().step("alone", work, "alone"), current_task().step("outer", around))
        raise AssertionError("no step ends")

    async with running(body) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
        await settle()
        await runtime.cancel(task, "enough", actor=CLIENT)
        await settle()
        assert sorted(ended) == ["alone", "inner"]


async def test_a_step_that_the_tool_has_cancelled_is_not_disturbed_by_the_end_of_its_run() -> None:
    cleared: list[str] = []
    may_clear = asyncio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await may_clear.wait()
            cleared.append("up")

    async def body(run: Run) -> Ending:
        branch = asyncio.create_task(current_task().step("work", work))
        await settle()
        branch.cancel()
        await asyncio.wait({branch})
        raise AssertionError("the step does not end before its run")

    async with running(body) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
        await settle()
        await runtime.cancel(task, "enough", actor=CLIENT)
        await settle()
        may_clear.set()
        await settle()
        assert cleared == ["up"]


async def test_a_step_that_a_tool_leaves_behind_when_it_returns_goes_on() -> None:
    may_end, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.set()

    async def body(run: Run) -> Ending:
        await _leaves_its_steps(current_task().step("slow", work), current_task().step("quick", asyncio.sleep, 0))
        return ok()

    async with running(body) as runtime:
        await until_final(runtime, await launch(runtime))
        await settle()
        may_end.set()
        await settle()
        assert done.is_set()
