"""One run: how it ends, how it is stopped, and what reaches the store of what it says."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcp_tasks.errors import Interrupted, ValueNotStorable
from mcp_tasks.model import JournalEntry, Progress, TaskRecord, TaskStatus
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import Ending, Failure, Run, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.running import (
    CLIENT,
    FailingStore,
    Tool,
    finished,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

QUICKLY = ToolPolicy(max_runtime=timedelta(milliseconds=50))


# How it ends


async def test_a_failure_is_the_error_of_the_task() -> None:
    async def failing(run: Run) -> Ending:
        return Failure({"code": -32000, "message": "out of paper"})

    async with running(failing) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert (record.status, record.error) == (TaskStatus.FAILED, {"code": -32000, "message": "out of paper"})


class Abort(BaseException):
    """What some libraries use to get past `except Exception`."""


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("a defect"),
        asyncio.CancelledError(),
        asyncio.CancelledError("somebody else's"),
        SystemExit(1),
        ExceptionGroup("both", [ValueError("one"), TypeError("two")]),
        TimeoutError(),
        Abort(),
        GeneratorExit(),
        BaseExceptionGroup("both", [ValueError("one"), Abort()]),
    ],
    ids=lambda raised: type(raised).__name__,
)
async def test_whatever_a_body_raises_the_task_ends(raised: BaseException) -> None:
    async def raising(run: Run) -> Ending:
        await anyio.lowlevel.checkpoint()
        raise raised

    async with running(raising) as runtime:
        record = await until_final(runtime, await launch(runtime), limit=5)
        assert record.status is TaskStatus.FAILED
        assert record.error is not None


async def test_a_body_that_awaits_something_cancelled_elsewhere_fails_and_is_not_stuck() -> None:
    async def waits(run: Run) -> Ending:
        other = asyncio.ensure_future(anyio.sleep_forever())
        asyncio.get_running_loop().call_soon(other.cancel)
        await other
        return ok()

    async with running(waits) as runtime:
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.FAILED


async def test_the_engine_goes_on_after_a_body_that_raised() -> None:
    async def by_number(run: Run) -> Ending:
        if run.request.arguments["n"] == 1:
            raise SystemExit(1)
        return ok()

    async with running(by_number, concurrency=1) as runtime:
        bad, good = await launch(runtime, n=1), await launch(runtime, n=2)
        assert (await until_final(runtime, bad)).status is TaskStatus.FAILED
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED


# How it is stopped


async def test_a_cancellation_reaches_an_async_body_where_it_awaits() -> None:
    cancelled = anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ok()

    async with running(body) as runtime:
        task = await launch(runtime)
        task = await until(runtime, task, lambda record: record.attempt == 1)
        record = await runtime.cancel(task, "enough", actor=CLIENT)
        assert (record.status, record.status_message) == (TaskStatus.CANCELLED, "enough")
        with anyio.fail_after(5):
            await cancelled.wait()


async def test_a_cancellation_is_told_to_the_thread_of_a_sync_body() -> None:
    started, told = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        deadline = time.monotonic() + 5
        while not current_task().cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        if current_task().cancelled:
            told.set()

    async def body(run: Run) -> Ending:
        await anyio.to_thread.run_sync(work)
        return ok()

    async with running(body) as runtime:
        task = await launch(runtime)
        assert await anyio.to_thread.run_sync(started.wait, 5)
        await runtime.cancel(task, "enough", actor=CLIENT)
        assert await anyio.to_thread.run_sync(told.wait, 5)
        await settle()
        assert (await runtime.get(task.id, owner=None)).status is TaskStatus.CANCELLED


async def test_a_result_after_the_cancellation_is_ignored() -> None:
    returned = anyio.Event()
    go_on = anyio.Event()

    async def stubborn(run: Run) -> Ending:
        with anyio.CancelScope(shield=True):
            await go_on.wait()
            await run.report(Progress(progress=1))
            returned.set()
        return ok("too late")

    async with running(stubborn) as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.attempt == 1)
        cancelled = await runtime.cancel(task, "enough", actor=CLIENT)
        go_on.set()
        with anyio.fail_after(5):
            await returned.wait()
        await settle()
        assert await runtime.get(task.id, owner=None) == cancelled


async def test_an_exception_after_the_cancellation_is_ignored() -> None:
    async def spiteful(run: Run) -> Ending:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("so there")
        return ok()

    async with running(spiteful) as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.attempt == 1)
        cancelled = await runtime.cancel(task, "enough", actor=CLIENT)
        await settle()
        assert await runtime.get(task.id, owner=None) == cancelled


async def test_a_task_that_is_removed_under_its_run_stops_it() -> None:
    stopped = anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            while True:
                await run.report(Progress(progress=1))
                await anyio.sleep(0.01)
        finally:
            stopped.set()

    async with running(body, progress_interval=timedelta(milliseconds=1)) as runtime:
        task = await launch(runtime)
        task = await until(runtime, task, lambda record: record.progress is not None)
        await runtime.discard(await runtime.get(task.id, owner=None))
        with anyio.fail_after(5):
            await stopped.wait()


# How long it may take


async def test_an_async_body_that_runs_too_long_is_stopped_and_the_task_says_so() -> None:
    stopped = anyio.Event()

    async def slow(run: Run) -> Ending:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ok()

    async with running(slow, policy=QUICKLY) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.status is TaskStatus.FAILED
        assert record.error is not None
        assert record.error["data"] == {"type": "RanTooLong"}
        assert "0.05 s" in (record.status_message or "")
        with anyio.fail_after(5):
            await stopped.wait()


async def test_a_thread_that_runs_too_long_is_told_and_the_task_ends_without_it() -> None:
    told, release = threading.Event(), threading.Event()

    def work() -> None:
        while not release.is_set():
            if current_task().cancelled:
                told.set()
            release.wait(0.005)

    async def slow(run: Run) -> Ending:
        await anyio.to_thread.run_sync(work)
        return ok("too late")

    async with running(slow, policy=QUICKLY) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.error is not None
        assert record.error["data"] == {"type": "RanTooLong"}
        assert await anyio.to_thread.run_sync(told.wait, 5)
        release.set()
        await settle()
        assert await finished(runtime, await runtime.get(record.id, owner=None)) == record


async def test_what_a_thread_returns_because_it_was_told_to_stop_is_no_result() -> None:
    store = FailingStore()

    def work() -> None:
        deadline = time.monotonic() + 5
        while not current_task().cancelled and time.monotonic() < deadline:
            time.sleep(0.001)

    async def slow(run: Run) -> Ending:
        await anyio.to_thread.run_sync(work)
        return ok("half of it")

    async with running(slow, store=store, policy=QUICKLY) as runtime:
        # The store is away when the limit is reached, and back when the thread has returned.
        store.refuse_save(lambda record: record.status is TaskStatus.FAILED, times=1)
        record = await until_final(runtime, await launch(runtime))
        assert record.status is TaskStatus.FAILED


@simulated
async def test_a_body_within_its_limit_is_left_alone() -> None:
    async def quick(run: Run) -> Ending:
        return ok()

    async with running(quick, policy=QUICKLY) as runtime:
        record = await until_final(runtime, await launch(runtime))
        await time_passes(60)
        assert await finished(runtime, await runtime.get(record.id, owner=None)) == record


@simulated
async def test_the_time_a_person_takes_does_not_count_for_the_limit() -> None:
    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async with running(asking, policy=QUICKLY) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await time_passes(60)
        await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT)
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_the_limit_still_holds_after_a_wait() -> None:
    async def asking(run: Run) -> Ending:
        await run.ask(question("Sure?"))
        await anyio.sleep_forever()
        return ok()

    async with running(asking, policy=QUICKLY) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT)
        record = await until_final(runtime, task)
        assert record.error is not None
        assert record.error["data"] == {"type": "RanTooLong"}


@simulated
async def test_the_time_in_line_for_a_slot_does_not_count_for_the_limit() -> None:
    release = anyio.Event()

    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    async def hogging(run: Run) -> Ending:
        await release.wait()
        return ok()

    tools = {"asking": Tool(asking, QUICKLY), "hogging": Tool(hogging)}
    async with running(tools, concurrency=1) as runtime:
        task = await until_asking(runtime, await launch(runtime, "asking"))
        hog = await launch(runtime, "hogging")
        await until(runtime, hog, lambda record: record.attempt == 1)
        await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT)
        await time_passes(60)
        release.set()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# What it says of its progress


async def test_ten_thousand_reports_make_few_writes_and_the_last_one_counts() -> None:
    store, reported, end = FailingStore(), anyio.Event(), anyio.Event()

    async def chatty(run: Run) -> Ending:
        for number in range(1, 10_001):
            await run.report(Progress(progress=number, total=10_000))
        reported.set()
        await end.wait()
        return ok()

    async with running(chatty, store=store) as runtime:
        task = await launch(runtime)
        with anyio.fail_after(20):
            await reported.wait()
        record = await until(runtime, task, lambda record: record.progress == Progress(progress=10_000, total=10_000))
        assert store.saves < 100
        end.set()
        assert (await until_final(runtime, record)).progress == Progress(progress=10_000, total=10_000)


async def test_the_first_report_is_seen_at_once() -> None:
    async def slow(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        await anyio.sleep_forever()
        return ok()

    async with running(slow, progress_interval=timedelta(hours=1)) as runtime:
        await until(runtime, await launch(runtime), lambda record: record.progress is not None)


async def test_a_report_right_before_the_end_is_kept_with_the_outcome() -> None:
    store = FailingStore()

    async def quick(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        await settle()
        await run.report(Progress(progress=2, message="done"))
        return ok()

    async with running(quick, store=store, progress_interval=timedelta(hours=1)) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert record.progress == Progress(progress=2, message="done")
        assert store.saves == 3


async def test_progress_that_cannot_be_stored_hurts_nobody() -> None:
    store = FailingStore()

    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        await settle()
        return ok()

    async with running(body, store=store) as runtime:
        store.refuse_save(lambda record: record.progress is not None and not record.is_final)
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.COMPLETED


class PickyStore(MemoryStore):
    """Refuses progress that is no JSON, as stores that write do; but not for ever, so that a test can end."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        if record.progress is not None and isinstance(record.progress.progress, Decimal) and self.refusals < 10:
            self.refusals += 1
            raise TypeError("Object of type Decimal is not JSON serializable")
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)


NO_JSON = Progress(progress=cast(float, Decimal(1)))


async def test_progress_that_is_no_json_does_not_keep_the_result_from_being_written() -> None:
    store = PickyStore()

    async def body(run: Run) -> Ending:
        await run.report(Progress(progress=0))
        await settle()
        await run.report(NO_JSON)
        return ok("precious")

    async with running(body, store=store, progress_interval=timedelta(hours=1)) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert store.refusals <= 1
        assert record.result == {"value": "precious"}


async def test_progress_that_is_no_json_is_dropped_and_what_follows_is_not(caplog: pytest.LogCaptureFixture) -> None:
    store = PickyStore()

    async def body(run: Run) -> Ending:
        await run.report(NO_JSON)
        await settle()
        await run.report(Progress(progress=2))
        await anyio.sleep_forever()
        return ok()

    async with running(body, store=store, progress_interval=timedelta(milliseconds=1)) as runtime:
        await until(runtime, await launch(runtime), lambda record: record.progress == Progress(progress=2))
    gc.collect()
    assert "exception was never retrieved" not in caplog.text


# When the store is away


async def test_an_outcome_is_not_lost_while_the_store_is_away() -> None:
    store = FailingStore()
    store.refuse_save(lambda record: record.is_final, times=3)

    async def body(run: Run) -> Ending:
        return ok("precious")

    async with running(body, store=store) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert (record.result, record.attempt) == ({"value": "precious"}, 1)


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), _nested(100_000)], ids=["no JSON", "too deep"])
async def test_a_result_that_cannot_be_stored_fails_the_task(value: object, tmp_path: Path) -> None:
    async def body(run: Run) -> Ending:
        return ok(value)

    async with running(body, store=SqliteStore(tmp_path / "tasks.db")) as runtime:
        assert (await until_final(runtime, await launch(runtime), limit=10)).status is TaskStatus.FAILED


@simulated
async def test_a_task_can_be_cancelled_while_its_outcome_waits_for_the_store() -> None:
    store = FailingStore()
    store.refuse_save(lambda record: record.status is TaskStatus.COMPLETED)

    async def body(run: Run) -> Ending:
        return ok()

    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.attempt == 1)
        cancelled = await runtime.cancel(task, "enough", actor=CLIENT)
        store.recover()
        await time_passes(600)
        assert await runtime.get(task.id, owner=None) == cancelled


@simulated
@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        pytest.param(
            ToolPolicy(max_runtime=timedelta(milliseconds=20)),
            TaskStatus.FAILED,
            id="ran too long",
        ),
        pytest.param(
            ToolPolicy(rerun=True, park_after=timedelta(0)),
            TaskStatus.INPUT_REQUIRED,
            id="unwound",
        ),
    ],
)
async def test_a_run_that_is_given_up_while_the_store_is_away_does_not_leave_its_task_behind(
    policy: ToolPolicy, refused: TaskStatus
) -> None:
    store = FailingStore()

    async def body(run: Run) -> Ending:
        if policy.max_runtime is not None:
            await anyio.sleep_forever()
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=store, policy=policy) as runtime:
        store.refuse_save(lambda record: record.status is refused and record.worker is None, times=1)
        task = await launch(runtime)
        # Time for the run to be given up, and for whoever repairs it.
        for _ in range(5):
            await time_passes(0.05)
            await runtime.janitor.sweep()
            record = await runtime.get(task.id, owner=None)
            if record.status is TaskStatus.INPUT_REQUIRED:
                await runtime.answer(record, {"elicitation-1": "yes"}, actor=CLIENT)
        assert (await runtime.get(task.id, owner=None)).is_final


async def test_a_body_knows_its_task_and_the_number_of_its_run() -> None:
    async def body(run: Run) -> Ending:
        context = current_task()
        return ok([context.id, context.owner, context.attempt, context.cancelled])

    async with running(body) as runtime:
        task = await launch(runtime)
        assert (await until_final(runtime, task)).result == {"value": [task.id, None, 1, False]}


def test_outside_a_task_there_is_a_context_too() -> None:
    context = current_task()
    assert (context.id, context.owner, context.attempt, context.cancelled) == (None, None, 1, False)


async def test_a_tool_that_cancels_itself_has_failed() -> None:
    async def body(run: Run) -> Ending:
        own = asyncio.current_task()
        assert own is not None
        own.cancel()
        await anyio.sleep_forever()
        return ok()

    async with running(body) as runtime:
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.FAILED


async def test_a_run_that_has_ended_is_freed_at_once_and_not_by_the_garbage_collector() -> None:
    runs: list[weakref.ref[Run]] = []

    async def noted(run: Run) -> Ending:
        runs.append(weakref.ref(run))
        return ok()

    gc.disable()
    try:
        async with running(noted) as runtime:
            await until_final(runtime, await launch(runtime))
            await settle()
            assert [run() for run in runs] == [None]
    finally:
        gc.enable()


async def test_a_verdict_over_a_run_that_was_stopped_comes_too_late() -> None:
    judged = anyio.Event()

    async def body(run: Run) -> Ending:
        run.stop()
        with anyio.CancelScope(shield=True):
            await run.judge(Interrupted(run.record.name))
        judged.set()
        return ok()

    async with running(body) as runtime:
        task = await launch(runtime)
        with anyio.fail_after(5):
            await judged.wait()
        await settle()
        assert (await runtime.get(task.id, owner=None)).status is TaskStatus.WORKING


async def test_where_no_ending_at_all_can_be_stored_the_task_is_left_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class KeepsNoEndings(MemoryStore):
        async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
            if record.is_final:
                raise ValueNotStorable("a value is too odd")
            return await super().save(record, **options)

    async def body(run: Run) -> Ending:
        return ok()

    async with running(body, store=KeepsNoEndings(), policy=ToolPolicy(rerun=True)) as runtime:
        task = await launch(runtime)
        with anyio.fail_after(5):
            while "is left as it is, and the others go on" not in caplog.text:  # noqa: ASYNC110 - only said
                await anyio.sleep(0.001)
        assert not (await runtime.get(task.id, owner=None)).is_final
        assert caplog.text.count("ended with cannot be stored") == 2, "the result, and that it could not be kept"
