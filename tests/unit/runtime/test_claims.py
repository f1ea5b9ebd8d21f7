"""Claiming tasks: those that take their process down, claims that got no answer, and what is read of a task before."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine
from itertools import pairwise, product
from typing import Any, TypeVar

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model import JournalEntry, RunStarted, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.machine import InputRequested
from mcp_tasks.model.record import Trial
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.claims import is_guilty
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.testing import make_record
from tests.unit.losing import ANOTHER, GONE, as_of_now, claimed_by, queued, sweep_for
from tests.unit.running import (
    ONCE,
    PARKS,
    REQUEST,
    RERUN,
    SECOND,
    FailingStore,
    Held,
    MeddledStore,
    PausingStore,
    Seconds,
    TogetherStore,
    Tool,
    asks,
    at_once,
    cancel,
    create,
    error_type,
    launch,
    make_runtime,
    never_ending,
    ok,
    opened_by,
    question,
    running,
    settle,
    started,
    until,
    until_asking,
    until_final,
    until_parked,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

SUSPECT = ToolPolicy(rerun=True, max_lost_runs=2)
"""One lost run makes a suspect of a task."""


async def _nothing() -> None:
    pass


# Losing runs


@pytest.mark.parametrize(
    ("lost", "trial", "guilty"),
    [
        (1, "alone", False),
        (2, None, False),
        (2, "beside", False),
        (2, "alone", True),
        (10, None, False),
        (11, None, True),
    ],
)
def test_only_who_is_lost_alone_or_for_ever_is_ended(lost: int, trial: Trial | None, guilty: bool) -> None:
    assert is_guilty(make_record(lost=lost, trial=trial), RERUN) is guilty


async def test_a_tool_that_takes_its_process_down_is_given_up_after_so_many_runs() -> None:
    store = MemoryStore()
    task = await create(make_runtime(never_ending, store=store))
    for attempt in (1, 2, 3):
        async with running(never_ending, store=store, policy=RERUN) as runtime:
            await until(runtime, task, lambda record, n=attempt: record.attempt == n and record.worker is not None)
            await runtime.abandon()
    async with running(never_ending, store=store, policy=RERUN) as runtime:
        ended = await until_final(runtime, task)
        assert (ended.status, ended.attempt, error_type(ended)) == (TaskStatus.FAILED, 3, "LostTooOften")


async def test_a_run_that_gets_further_begins_the_count_anew_and_keeps_no_other_back() -> None:
    async def stepping(run: Run) -> Ending:
        await current_task().step("further", _nothing)
        return await never_ending(run)

    async with running({"stepping": Tool(stepping, RERUN), "quick": Tool(at_once, RERUN)}) as runtime:
        one, other = await queued(runtime, "stepping", lost=2), await queued(runtime, "quick", lost=2)
        await runtime.engine.submit(one.id)
        further = await until(runtime, one, lambda record: record.attempt == 3 and record.lost == 0)
        assert further.worker == runtime.worker
        await runtime.engine.submit(other.id)
        assert (await until_final(runtime, other)).status is TaskStatus.COMPLETED


async def test_parking_draining_and_releasing_are_no_losses() -> None:
    tools = {"parked": Tool(asks, PARKS), "waiting": Tool(asks, RERUN), "busy": Tool(never_ending, RERUN)}
    async with running(tools) as runtime:
        parked, waiting, busy = [await launch(runtime, name) for name in tools]
        await until_parked(runtime, parked)
        await until_asking(runtime, waiting)
        await until(runtime, busy, lambda record: record.attempt == 1)
    records = [await as_of_now(runtime, task) for task in (parked, waiting, busy)]
    assert [(record.worker, record.lost, record.is_final) for record in records] == [(None, 0, False)] * 3


async def test_a_task_that_cannot_be_lost_once_more_runs_apart_from_others_like_it() -> None:
    order: list[str] = []
    ended: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def suspect(run: Run) -> Ending:
        order.append(run.record.id)
        await ended[run.record.id].wait()
        return ok()

    async with running({"suspect": Tool(suspect, RERUN), "fine": Tool(at_once, RERUN)}) as runtime:
        suspects = [await queued(runtime, "suspect", lost=2) for _ in range(3)]
        lost_once = await queued(runtime, "suspect", lost=1)
        fine = await launch(runtime, "fine")
        await runtime.janitor.sweep()
        await settle()
        assert order == [suspects[0].id, lost_once.id]
        assert (await until_final(runtime, fine)).status is TaskStatus.COMPLETED
        for now, following in pairwise(suspects):
            ended[now.id].set()
            await until_final(runtime, now)
            # Without a sweep: whoever was turned away is called.
            await until(runtime, following, lambda record: record.worker is not None)
            await settle()
            assert order[-1] == following.id


@pytest.mark.parametrize("what", ["journal", "store", "cancelled"])
async def test_a_suspect_that_could_not_be_started_does_not_keep_the_others_back(what: str) -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        bad, good = await queued(runtime, lost=2), await queued(runtime, lost=2)
        damaged, away = TaskUnreadable(bad.id, "the journal is damaged"), StoreUnavailable("the disk is full")
        store.refuse(damaged if what == "journal" else away, "journal", times=1)
        await runtime.engine.submit(bad.id)
        await settle()
        if what == "cancelled":
            await cancel(runtime, await as_of_now(runtime, bad))
        await runtime.engine.submit(good.id)
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED


@simulated
@pytest.mark.parametrize(("lost", "seconds"), [(1, 10), (3, 40)])
async def test_a_suspect_that_lasts_for_long_enough_has_passed_its_trial(lost: int, seconds: int) -> None:
    async with running(never_ending, policy=SUSPECT) as runtime:
        task = await queued(runtime, lost=lost)
        await runtime.engine.submit(task.id)
        await time_passes(seconds - 1)
        assert (await as_of_now(runtime, task)).trial is not None
        await time_passes(2)
        passed = await as_of_now(runtime, task)
        assert (passed.trial, passed.attempt, passed.worker) == (None, lost + 1, runtime.worker)


@simulated
async def test_a_trial_goes_on_if_its_end_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.claims")
    store = FailingStore()
    store.refuse_save(lambda record: record.attempt == 2 and record.trial is None)
    async with running(never_ending, store=store, policy=SUSPECT) as runtime:
        task = await queued(runtime, lost=1)
        await runtime.engine.submit(task.id)
        await time_passes(15)
        assert "goes on: the disk is full" in caplog.text
        assert (await as_of_now(runtime, task)).trial is not None
        assert runtime.has(task.id)
        store.recover()


# At the limit


async def test_a_task_beyond_a_limit_is_not_tried_again_before_a_run_has_ended() -> None:
    store, gate = MeddledStore(), anyio.Event()
    async with running(opened_by(gate), store=store, policy=ToolPolicy(max_at_work=1)) as runtime:
        first, second = await started(runtime), await launch(runtime)
        await settle()
        looks = store.calls["get"]
        await settle(500)
        assert store.calls["get"] == looks
        gate.set()
        for task in (first, second):
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_of_two_runtimes_that_are_handed_a_task_exactly_one_runs_it(caplog: pytest.LogCaptureFixture) -> None:
    store, runs = PausingStore(), Counter[str]()

    async def counted(run: Run) -> Ending:
        runs[run.record.id] += 1
        await anyio.lowlevel.checkpoint()
        return ok()

    async with running(counted, store=store) as one, running(counted, store=store) as other:
        tasks = [await create(one) for _ in range(50)]
        async with anyio.create_task_group() as group:
            for task, runtime in product(tasks, (one, other)):
                group.start_soon(runtime.engine.submit, task.id)
        for task in tasks:
            record = await until_final(one, task)
            assert (record.status, record.attempt) == (TaskStatus.COMPLETED, 1)
    assert (set(runs.values()), len(runs)) == ({1}, 50)
    assert not caplog.records, "coming second is nothing to speak of"


@pytest.mark.parametrize("verb", ["save", "journal"])
async def test_a_store_that_fails_while_a_task_is_taken_leaves_it_to_the_next_sweep(verb: str) -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await queued(runtime, lost=1)
        store.refuse(StoreUnavailable("the disk is full"), verb, times=1)
        await runtime.engine.submit(task.id)
        await settle()
        assert (await as_of_now(runtime, task)).worker is None
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Claims that got no answer


T = TypeVar("T")


class AnswerlessStore(MemoryStore):
    """Loses the answer to the next claim, and is away after that for as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.loses_claim = False
        self.keeps_claim = True
        self.is_away = False

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        if record.worker is None or not self.loses_claim:
            return await super().create(record, request, **options)
        return await self._lose(super().create(record, request, **options))

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if record.worker is None or not self.loses_claim:
            return await super().save(record, **options)
        return await self._lose(super().save(record, **options))

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().get(task_id)

    async def _lose(self, write: Coroutine[Any, Any, T]) -> T:
        self.loses_claim, self.is_away = False, True
        if self.keeps_claim:
            await write
        else:
            write.close()
        raise StoreUnavailable("no answer", may_have_happened=True)


async def lose_claim(runtime: TaskRuntime, store: AnswerlessStore, *, at_creation: bool) -> TaskRecord:
    """A task that the runtime would have claimed, and of which it does not know whether it did."""
    request = REQUEST
    task = None if at_creation else await create(runtime)
    store.loses_claim = True
    if task is None:
        with pytest.raises(StoreUnavailable):
            await runtime.launch(LaunchSpec(request=request))
        return (await runtime.list(EVERYBODY)).records[0]
    await runtime.engine.submit(task.id)
    await settle()
    return task


@pytest.mark.parametrize("at_creation", [True, False], ids=["at its creation", "later"])
@pytest.mark.parametrize("lease_lost", [True, False])
async def test_a_task_whose_claim_got_no_answer_is_run_once_when_the_store_is_back(
    at_creation: bool, lease_lost: bool
) -> None:
    store, begun = AnswerlessStore(), list[str]()

    async def noted(run: Run) -> Ending:
        begun.append(run.record.id)
        return ok()

    async with running(noted, store=store, policy=ONCE) as runtime:
        task = await lose_claim(runtime, store, at_creation=at_creation)
        await settle()
        assert begun == []
        store.is_away = False
        await (runtime.janitor.take_up() if lease_lost else runtime.janitor.sweep())
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
    assert begun == [task.id]


@simulated
async def test_a_task_whose_claim_came_to_nothing_is_left_to_the_process_that_claimed_it() -> None:
    store = AnswerlessStore()
    store.keeps_claim = False
    async with running(never_ending, store=store, policy=ONCE) as runtime:
        task = await lose_claim(runtime, store, at_creation=False)
        store.is_away = False
        elsewhere = await runtime.changes.change(task, RunStarted(worker="another"), actor=ANOTHER)
        await time_passes(10)
        assert await as_of_now(runtime, task) == elsewhere


# What is read of a task first


async def test_a_task_that_is_cancelled_while_its_request_is_read_never_begins() -> None:
    hold, begun = Held(), list[str]()

    async def noted(run: Run) -> Ending:
        begun.append(run.record.id)
        return ok()

    async with running(noted, store=MeddledStore(request=hold), policy=RERUN) as runtime:
        task = await launch(runtime)
        await hold.came.wait()
        # However long it takes, the task is nobody's: it is not found as claimed and not run.
        for _ in range(2):
            await runtime.janitor.recovery.release_orphans()
        await cancel(runtime, await as_of_now(runtime, task))
        hold.goes_on.set()
        await settle()
        assert ((await as_of_now(runtime, task)).status, begun) == (TaskStatus.CANCELLED, [])


@pytest.mark.parametrize("together", [True, False], ids=["with its record", "by itself"])
async def test_a_task_whose_request_cannot_be_read_ends_and_says_so(together: bool) -> None:
    store = TogetherStore() if together else MeddledStore()
    async with running(at_once, store=store) as runtime:
        bad = await create(runtime)
        if isinstance(store, TogetherStore):
            store.damaged = {"request"}
        else:
            store.refuse(TaskUnreadable(bad.id, "the request is damaged"), "request", times=1)
        await runtime.engine.submit(bad.id)
        ended = await until_final(runtime, bad)
        assert (ended.status, error_type(ended)) == (TaskStatus.FAILED, "RequestUnreadable")


async def test_a_task_whose_request_cannot_be_read_now_is_run_later_and_not_counted_as_lost() -> None:
    store, monotonic = MeddledStore(), Seconds()
    store.refuse(StoreUnavailable("the disk is full"), "request", times=1)
    async with running(at_once, store=store, monotonic=monotonic, policy=ONCE) as runtime:
        task = await launch(runtime)
        await settle()
        waiting = await as_of_now(runtime, task)
        assert (waiting.attempt, waiting.lost, waiting.worker) == (0, 0, None)
        await sweep_for(runtime, monotonic, SECOND)
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize(
    "entry",
    [
        None,
        JournalEntry(kind="step", key="s", value=7),
        JournalEntry(kind="step", key="s", value={}),
        JournalEntry(kind="step", key="s", value={"error": {}}),
        JournalEntry(kind="step", key="s", value={"error": {"type": 1, "arguments": None, "message": "no"}}),
        JournalEntry(kind="timer", key="t", value={}),
        JournalEntry(kind="timer", key="t", value={"until": "noon"}),
        JournalEntry(kind="timer", key="t", value={"until": 10**30}),
        JournalEntry(kind="ask", key="q", value=None),
        JournalEntry(kind="ask", key="q", value={"params": {}}),
        JournalEntry(kind="done", key="q", value=None),
        JournalEntry(kind="done", key="q", value={}),
    ],
    ids=str,
)
async def test_a_task_whose_journal_is_damaged_or_makes_no_sense_ends_and_says_so(entry: JournalEntry | None) -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await claimed_by(runtime, GONE)
        asked = InputRequested(attempt=1, requests={"q": question("Sure?")})
        await runtime.changes.change(task, asked, actor=ANOTHER, entries=[entry] if entry else [])
        if entry is None:
            store.refuse(TaskUnreadable(task.id, "the journal is damaged"), "journal")
        await runtime.janitor.sweep()
        ended = await until_final(runtime, task)
        assert (error_type(ended), ended.worker) == ("JournalUnreadable", None)
        store.before.clear()


async def test_a_task_that_cannot_be_started_and_has_ended_meanwhile_stays_as_it_ended() -> None:
    store = MeddledStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await queued(runtime, lost=1)

        async def cancelled(task_id: str, **options: Any) -> None:
            await cancel(runtime, await as_of_now(runtime, task))
            raise TaskUnreadable(task_id, "its journal is damaged")

        store.before["journal"] = cancelled
        await runtime.engine.submit(task.id)
        ended = await until_final(runtime, task)
        assert (ended.status, ended.status_message) == (TaskStatus.CANCELLED, "enough")
