"""One run: how it ends, how it is stopped, how long it may take, and what is stored of what it says."""

import asyncio
import gc
import sys
import threading
import time
import weakref
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import RunStopped, StoreUnavailable, ValueNotStorable
from mcp_tasks.model import Progress, TaskRecord, TaskStatus
from mcp_tasks.model.json import LARGE, LONGEST_MESSAGE
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import AskedOnCall, Body, Ending, Failure, Run, Success, TaskOptions, current_task
from mcp_tasks.runtime.run import AT_ONCE, LONGEST
from tests.unit.losing import as_of_now
from tests.unit.running import (
    ONCE,
    PARKS,
    RERUN,
    SECOND,
    MeddledStore,
    answer,
    asks,
    at_once,
    cancel,
    ended,
    error_type,
    finished,
    happens,
    launch,
    never_ending,
    ok,
    running,
    settle,
    started,
    telling,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

CUT = "x" * (LONGEST_MESSAGE - len("…".encode())) + "…"
"""A long message, as it is kept."""

QUICKLY = TaskOptions(max_runtime=timedelta(milliseconds=50))


def returning(ending: Ending) -> Body:
    async def body(run: Run) -> Ending:
        return ending

    return body


# How it ends


@pytest.mark.parametrize("data", [None, "x" * 100_000], ids=["small", "large"])
async def test_a_failure_is_the_error_of_the_task(data: object) -> None:
    error = {"code": -32000, "message": "out of paper", "data": data}
    task = await ended(returning(Failure(error)))
    assert (task.status, task.error, task.status_message) == (TaskStatus.FAILED, error, "out of paper")


class Abort(BaseException):
    """What some libraries use to get past `except Exception`."""


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("a defect"),
        asyncio.CancelledError("somebody else's"),
        SystemExit(1),
        ExceptionGroup("both", [ValueError("one"), TypeError("two")]),
        Abort(),
        GeneratorExit(),
        BaseExceptionGroup("both", [ValueError("one"), Abort()]),
    ],
    ids=lambda raised: type(raised).__name__,
)
async def test_whatever_a_body_raises_the_task_ends_and_the_next_one_runs(raised: BaseException) -> None:
    async def by_number(run: Run) -> Ending:
        await anyio.lowlevel.checkpoint()
        if run.request.arguments["n"] == 1:
            raise raised
        return ok()

    async with running(by_number, concurrency=1) as runtime:
        bad, good = await launch(runtime, n=1), await launch(runtime, n=2)
        task = await until_final(runtime, bad)
        assert (task.status, task.error is None) == (TaskStatus.FAILED, False)
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("which", ["itself", "what it awaits"])
async def test_a_tool_that_cancels_itself_or_what_it_awaits_has_failed(which: str) -> None:
    async def body(run: Run) -> Ending:
        awaited = asyncio.ensure_future(anyio.sleep_forever())
        victim = asyncio.current_task() if which == "itself" else awaited
        assert victim is not None
        asyncio.get_running_loop().call_soon(victim.cancel)
        await awaited
        return ok()

    assert (await ended(body)).status is TaskStatus.FAILED


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Failure({"code": -1, "message": "odd", "data": object()}), None),
        (AskedOnCall(), None),
        (ok("\ud800"), "UsageError"),
        (ok("\ud800" + "x" * 3 * LARGE), "UsageError"),
        (ok(object()), "UsageError"),
    ],
    ids=["error is no JSON", "asked on no call", "no Unicode", "large and no Unicode", "no JSON"],
)
async def test_an_ending_that_cannot_be_stored_fails_the_task(ending: Ending, kind: str | None) -> None:
    task = await ended(returning(ending))
    assert task.status is TaskStatus.FAILED
    assert kind in (None, error_type(task))


@pytest.mark.parametrize(
    ("depth", "status"), [(5, TaskStatus.COMPLETED), (5 * sys.getrecursionlimit(), TaskStatus.FAILED)]
)
async def test_a_result_that_is_too_deep_fails_the_task(depth: int, status: TaskStatus) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    assert (await ended(returning(ok(value)))).status is status


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "text", "text": "no paper"}, {"type": "text", "text": "really"}], "no paper"),
        ([{"type": "image", "data": "AA"}, {"type": "text", "text": " "}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": "x" * (LONGEST_MESSAGE + 1)}], CUT),
        ([], None),
        ([7, {"text": 7}], None),
        ("odd", None),
    ],
)
@pytest.mark.parametrize("is_error", [True, False])
async def test_what_a_tool_says_of_its_error_is_kept_with_the_end(
    content: Any, said: str | None, is_error: bool
) -> None:
    task = await ended(returning(Success({"content": content, "isError": is_error, "_meta": {"a": "b"}})))
    assert (task.status, task.is_error) == (TaskStatus.COMPLETED, is_error)
    assert task.status_message == (said if is_error else None)
    assert task.result == {"content": content, "isError": is_error}, "the meta is kept apart"


@pytest.mark.parametrize("ending", [Success, Failure])
async def test_a_large_ending_is_encoded_in_another_thread_and_its_record_stays_small(ending: type[Any]) -> None:
    threads: set[int] = set()

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            threads.add(threading.get_ident())
            return super().items()

    large = {"code": -1, "message": "x" * 100_000, "data": Watched({str(n): "x" * 1_000 for n in range(200)})}
    task = await ended(returning(ending(large)))
    assert (task.result or task.error) == large
    assert len(repr(replace(task, result=None, error=None))) < 10_000
    assert task.status_message == (CUT if ending is Failure else None)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("ending", "kind", "says"),
    [
        (Success({"content": "x" * 2_000}), "TooLarge", "The result of tool 'tool' has 2,0"),
        (Success({"_meta": {"of": "x" * 2_000}}), "TooLarge", "The result of tool 'tool' has 2,0"),
        (Failure({"code": -1, "message": "x" * 2_000}), "TooLarge", "The error of tool 'tool' has 2,0"),
        (Failure({"code": -1, "message": "", "data": ["x" * 2_000]}), "TooLarge", "The error of tool 'tool' has"),
    ],
    ids=["result", "meta", "message", "data"],
)
async def test_a_task_with_too_large_an_ending_fails_and_says_what_the_limit_is(
    ending: Ending, kind: str, says: str
) -> None:
    task = await ended(returning(ending), limits=Limits(result_bytes=1_000))
    assert (task.status, error_type(task)) == (TaskStatus.FAILED, kind)
    assert task.error is not None
    assert says in task.error["message"]
    assert "at most 1,000 are kept (Limits.result_bytes)" in task.error["message"]


@pytest.mark.parametrize(("limit", "status"), [(102, TaskStatus.COMPLETED), (101, TaskStatus.FAILED)])
async def test_the_largest_result_that_is_kept_is_a_limit_in_bytes(limit: int, status: TaskStatus) -> None:
    largest = returning(Success({"_meta": {"of": "x" * 91}}))
    assert (await ended(largest, limits=Limits(result_bytes=limit))).status is status


async def test_a_body_knows_its_task_and_the_number_of_its_run() -> None:
    async def body(run: Run) -> Ending:
        context = current_task()
        return ok([context.id, context.owner, context.attempt, context.cancelled])

    task = await ended(body)
    assert task.result == {"value": [task.id, None, 1, False]}


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


async def test_what_is_done_beside_a_tool_and_fails_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise RuntimeError("out of paper")

    async def body(run: Run) -> Ending:
        run.help(fails())
        await settle()
        return ok()

    assert (await ended(body)).status is TaskStatus.COMPLETED
    assert [record.levelname for record in caplog.records] == ["ERROR"]


# How it is stopped


async def test_an_async_body_that_runs_too_long_is_stopped_and_the_task_says_so() -> None:
    stopped = anyio.Event()
    async with running(telling(stopped), policy=QUICKLY) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert (record.status, error_type(record)) == (TaskStatus.FAILED, "max_runtime")
        assert "0.05 s" in (record.status_message or "")
        await happens(stopped)


@pytest.mark.parametrize("policy", [ONCE, QUICKLY], ids=["cancelled", "too long"])
async def test_the_thread_of_a_sync_body_is_told_to_stop_and_what_it_returns_is_no_result(policy: TaskOptions) -> None:
    begun, told = threading.Event(), threading.Event()
    store = MeddledStore()
    # The store is away when the limit is reached, and back when the thread has returned.
    store.go_away("save", times=1, when=lambda record, _: record.status is TaskStatus.FAILED)

    def work() -> None:
        begun.set()
        deadline = time.monotonic() + 5
        while not current_task().cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        told.set()

    async def body(run: Run) -> Ending:
        await anyio.to_thread.run_sync(work)
        return ok("half of it")

    async with running(body, store=store, policy=policy) as runtime:
        task = await launch(runtime)
        assert await anyio.to_thread.run_sync(begun.wait, 5)
        if policy is ONCE:
            await cancel(runtime, task)
        record = await until_final(runtime, task)
        assert error_type(record) == (None if policy is ONCE else "max_runtime")
        assert await anyio.to_thread.run_sync(told.wait, 5)
        await settle()
        assert await finished(runtime, await as_of_now(runtime, task)) == record


@pytest.mark.parametrize("raises", [True, False], ids=["exception", "result"])
async def test_nothing_that_comes_after_the_cancellation_counts(raises: bool) -> None:
    returned, go_on = anyio.Event(), anyio.Event()

    async def stubborn(run: Run) -> Ending:
        with anyio.CancelScope(shield=True):
            await go_on.wait()
            await run.report(Progress(progress=1))
            # A verdict comes too late as well.
            await run.fail_with(RunStopped("interrupted", run.record.name))
            returned.set()
        if raises:
            raise RuntimeError("so there")
        return ok("too late")

    async with running(stubborn) as runtime:
        task = await started(runtime)
        cancelled = await cancel(runtime, task)
        go_on.set()
        await happens(returned)
        await settle()
        assert await as_of_now(runtime, task) == cancelled


# When the store is away


@simulated
async def test_a_task_can_be_cancelled_while_its_outcome_waits_for_the_store() -> None:
    store = MeddledStore()
    store.go_away("save", when=lambda record, _: record.status is TaskStatus.COMPLETED)
    async with running(at_once, store=store) as runtime:
        cancelled = await cancel(runtime, await started(runtime))
        store.before.clear()
        await time_passes(600)
        assert await as_of_now(runtime, cancelled) == cancelled


@simulated
async def test_a_run_that_leaves_memory_while_the_store_is_away_does_not_leave_its_task_behind() -> None:
    store = MeddledStore()
    async with running(asks, store=store, policy=PARKS) as runtime:
        store.go_away("save", times=1, when=lambda record, _: record.inputs.outstanding and record.worker is None)
        task = await until_asking(runtime, await launch(runtime))
        # Time for the run to be given up, and for whoever repairs it.
        for _ in range(3):
            await time_passes(0.05)
            await runtime.janitor.sweep()
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


@simulated
async def test_where_no_ending_at_all_can_be_stored_the_task_is_left_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MeddledStore()
    store.refuse(ValueNotStorable("a value is too odd"), "save", when=lambda record, _: record.is_final)
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await launch(runtime)
        await time_passes(1)
        assert "is left as it is, and the others go on" in caplog.text
        assert not (await as_of_now(runtime, task)).is_final
        assert caplog.text.count("ended with cannot be stored") == 2, "the result, and that it could not be kept"


# What it says of its progress


def reports(number: float, message: str | None = None) -> Progress:
    return Progress(progress=number, message=message)


@simulated
async def test_the_first_report_is_written_at_once_and_then_the_newest_after_each_pause() -> None:
    written, numbers = list[float](), asyncio.Queue[float]()

    async def chatty(run: Run) -> Ending:
        while number := await numbers.get():
            await run.report(reports(number))
        return ok()

    async def note(record: TaskRecord, **options: Any) -> None:
        if record.progress is not None:
            written.append(record.progress.progress)

    async with running(chatty, store=MeddledStore(save=note), progress_interval=SECOND) as runtime:
        task = await launch(runtime)
        for given, passes, seen in (
            ([1], 0.1, [1]),
            (range(2, 1_000), 0.1, [1]),
            ([], 1, [1, 999]),
            ([], 10, [1, 999]),
            ([1_000], 0.1, [1, 999, 1_000]),
            ([1_001, 0], 0.1, [1, 999, 1_000, 1_001]),
        ):
            for number in given:
                numbers.put_nowait(number)
            await time_passes(passes)
            assert written == seen
        ended = await as_of_now(runtime, task)
        assert (ended.is_final, ended.progress) == (True, reports(1_001)), "the last goes with the outcome"


class Hangs(Exception):
    """Said to the test's own store: take no end of time."""


@simulated
@pytest.mark.parametrize("failure", [TypeError("no JSON"), StoreUnavailable("away"), Hangs()], ids=repr)
async def test_a_report_that_the_store_does_not_take_hurts_nobody_and_what_follows_is_written(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    trouble, numbers = True, asyncio.Queue[float]()

    async def chatty(run: Run) -> Ending:
        while number := await numbers.get():
            await run.report(reports(number))
        return ok("precious")

    async def refuse(record: TaskRecord, **options: Any) -> None:
        if trouble and record.progress is not None and not record.is_final:
            if isinstance(failure, Hangs):
                await anyio.sleep_forever()
            raise failure

    async with running(chatty, store=MeddledStore(save=refuse)) as runtime:
        task = await launch(runtime)
        numbers.put_nowait(1)
        await time_passes(2)
        trouble = False
        numbers.put_nowait(2)
        await time_passes(LONGEST + 10)
        assert (await as_of_now(runtime, task)).progress == reports(2)
        numbers.put_nowait(0)
        assert (await until_final(runtime, task)).result == {"value": "precious"}
    assert ("progress is not stored" in caplog.text) is isinstance(failure, TypeError)


@simulated
async def test_only_so_many_reports_of_a_process_are_being_written_at_a_time() -> None:
    writing, most, gate = 0, 0, anyio.Event()
    store = MeddledStore()

    async def reporting(run: Run) -> Ending:
        await run.report(reports(1))
        return await never_ending(run)

    async def slowly(record: TaskRecord, **options: Any) -> None:
        nonlocal writing, most
        if record.progress is not None:
            writing += 1
            most = max(most, writing)
            await gate.wait()
            writing -= 1

    store.before["save"] = slowly
    async with running(reporting, store=store) as runtime:
        tasks = [await launch(runtime) for _ in range(3 * AT_ONCE)]
        await time_passes(1)
        assert most == AT_ONCE
        gate.set()
        for task in tasks:
            await until(runtime, task, lambda record: record.progress is not None)


async def test_a_long_message_is_cut() -> None:
    async def body(run: Run) -> Ending:
        await run.report(reports(1, "x" * (LONGEST_MESSAGE + 1)))
        return ok()

    assert (await ended(body)).progress == reports(1, CUT)
