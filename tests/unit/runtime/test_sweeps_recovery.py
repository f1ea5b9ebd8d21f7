"""Taking over from dead processes: once, not for ever, and never what is not there for this process to take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model import (
    InputRequested,
    JournalEntry,
    RunReleased,
    RunStarted,
    StepRecorded,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.claims import TRIES_TO_LOOK_UP
from mcp_tasks.runtime.sweeps import BATCH, LONGEST_PAUSE, PER_SWEEP, TROUBLES_BEFORE_THE_END
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, IdPage
from mcp_tasks.testing import FakeClock
from tests.unit.losing import ANOTHER, HOUR, SECOND, as_of_now, claimed_by, queued, sweep_for
from tests.unit.running import (
    ONCE,
    RERUN,
    FailingStore,
    Finished,
    PausingStore,
    Seconds,
    Tool,
    cancel,
    create,
    launch,
    make_runtime,
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

T = TypeVar("T")


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def error_type(record: Finished) -> str | None:
    return None if record.error is None else record.error["data"]["type"]


def lines_about(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# Losing runs


async def test_a_tool_that_takes_its_process_down_is_given_up_after_so_many_runs() -> None:
    store = MemoryStore()
    policy = ToolPolicy(rerun=True, max_lost_runs=3)
    made = make_runtime(never_ending, store=store, policy=policy)
    task = await create(made)
    for attempt in (1, 2, 3):
        runtime = make_runtime(never_ending, store=store, policy=policy)
        await runtime.start()
        await until(runtime, task, lambda record, n=attempt: record.attempt == n and record.worker is not None)
        await runtime.abandon()
    async with running(never_ending, store=store, policy=policy) as runtime:
        ended = await until_final(runtime, task)
        assert (ended.status, ended.attempt, error_type(ended)) == (TaskStatus.FAILED, 3, "LostTooOften")


async def test_a_run_that_gets_further_begins_the_count_anew() -> None:
    async def stepping(run: Run) -> Ending:
        await current_task().step(f"step {run.attempt}", _nothing)
        return await never_ending(run)

    async with running(stepping, policy=ToolPolicy(rerun=True, max_lost_runs=3)) as runtime:
        task = await queued(runtime, lost=2)
        await runtime.janitor.sweep()
        further = await until(runtime, task, lambda record: record.attempt == 3 and record.lost == 0)
        assert further.worker == runtime.worker


async def _nothing() -> None:
    pass


async def test_parking_draining_and_releasing_are_no_losses() -> None:
    store = MemoryStore()

    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    parked = ToolPolicy(rerun=True, park_after=timedelta(0), max_lost_runs=2)
    held = ToolPolicy(rerun=True, max_lost_runs=2)
    tools = {"parked": Tool(asking, parked), "waiting": Tool(asking, held), "busy": Tool(never_ending, held)}
    async with running(tools, store=store) as runtime:
        tasks = [await launch(runtime, name) for name in tools]
        await until(runtime, tasks[0], lambda record: record.attempt == 1 and record.worker is None)
        await until_asking(runtime, tasks[1])
    records = [await as_of_now(runtime, task) for task in tasks]
    assert [(record.worker, record.lost, record.is_final) for record in records] == [(None, 0, False)] * 3


async def test_a_task_that_cannot_be_lost_once_more_runs_apart_from_others_like_it() -> None:
    started: list[str] = []
    ended: dict[str, anyio.Event] = {}

    async def suspect(run: Run) -> Ending:
        started.append(run.record.id)
        await ended.setdefault(run.record.id, anyio.Event()).wait()
        return ok()

    tools = {"suspect": Tool(suspect, ToolPolicy(rerun=True, max_lost_runs=3)), "fine": Tool(at_once, RERUN)}
    async with running(tools) as runtime:
        suspects = [await queued(runtime, "suspect", lost=2) for _ in range(3)]
        lost_once = await queued(runtime, "suspect", lost=1)
        fine = await launch(runtime, "fine")
        await runtime.janitor.sweep()
        await settle()
        assert started == [suspects[0].id, lost_once.id]
        assert (await until_final(runtime, fine)).status is TaskStatus.COMPLETED
        for now, following in pairwise(suspects):
            ended[now.id].set()
            await until_final(runtime, now)
            await runtime.janitor.sweep()
            await until(runtime, following, lambda record: record.worker is not None)
            await settle()
            assert started[-1] == following.id


class UnreadableJournals(MemoryStore):
    """Cannot read the journals of some tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        if task_id in self.unreadable:
            raise TaskUnreadable(task_id, "the journal is damaged")
        return await super().journal(task_id, after=after)


@pytest.mark.parametrize("what", ["journal", "store", "cancelled"])
async def test_a_suspect_that_could_not_be_started_does_not_keep_the_others_back(what: str) -> None:
    store = UnreadableJournals() if what == "journal" else FailingStore()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        bad, good = await queued(runtime, lost=2), await queued(runtime, lost=2)
        if isinstance(store, UnreadableJournals):
            store.unreadable.add(bad.id)
        else:
            store.refuse_journal()
        await runtime.dispatch.resubmit(bad.id)
        await settle()
        if what == "cancelled":
            await cancel(runtime, await as_of_now(runtime, bad))
        await runtime.dispatch.resubmit(good.id)
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED


async def test_a_suspect_that_got_further_does_not_keep_the_others_back() -> None:
    async def stepping(run: Run) -> Ending:
        await current_task().step("further", _nothing)
        return await never_ending(run)

    async with running({"stepping": Tool(stepping, RERUN), "quick": Tool(at_once, RERUN)}) as runtime:
        one, other = await queued(runtime, "stepping", lost=2), await queued(runtime, "quick", lost=2)
        await runtime.dispatch.resubmit(one.id)
        await until(runtime, one, lambda record: record.attempt == 3 and record.lost == 0)
        await runtime.dispatch.resubmit(other.id)
        assert (await until_final(runtime, other)).status is TaskStatus.COMPLETED


# Coming second


class RacingStore(MemoryStore):
    """Lets somebody else act between the listing of a dead process's tasks and the reading of one."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().get(task_id)


async def test_a_task_that_another_process_recovered_and_runs_is_not_taken_from_it() -> None:
    store = RacingStore()
    async with (
        running(never_ending, store=store, policy=RERUN) as one,
        running(never_ending, store=store, policy=RERUN) as other,
    ):
        task = await claimed_by(one, "gone")

        async def other_is_first() -> None:
            await other.janitor.sweep()
            await until(other, task, lambda record: record.worker == other.worker)

        store.meanwhile = other_is_first
        await one.janitor.recovery.sweep()
        await settle()
        record = await as_of_now(one, task)
        assert (record.worker, record.attempt) == (other.worker, 2)


# Rolling on


class ReturningStore(MemoryStore):
    """A silent worker comes back while its tasks are looked up, and claims one of them again."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: Callable[[], Awaitable[None]] | None = None

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        page = await super().claimed(worker, cursor=cursor, limit=limit)
        if self.returns is not None and page.ids:
            returns, self.returns = self.returns, None
            await returns()
        return page


async def test_what_a_worker_claims_when_it_is_back_is_not_taken_from_it() -> None:
    monotonic, store = Seconds(), ReturningStore()
    async with running(never_ending, store=store, policy=RERUN, monotonic=monotonic) as runtime:
        await store.heartbeat("elsewhere", namespace="")
        task = await claimed_by(runtime, "elsewhere")

        async def return_and_claim() -> None:
            await store.heartbeat("elsewhere", namespace="")
            record = await as_of_now(runtime, task)
            again = RunReleased(attempt=record.attempt), RunStarted(worker="elsewhere")
            await runtime.changes.change(record, *again, actor=ANOTHER)

        store.returns = return_and_claim
        await sweep_for(runtime, monotonic, HOUR)
        record = await as_of_now(runtime, task)
        assert (record.worker, record.attempt, record.lost) == ("elsewhere", 2, 0)


async def test_a_worker_that_was_forgotten_and_is_back_does_not_look_silent_to_who_missed_that() -> None:
    monotonic, store = Seconds(), MemoryStore()
    async with (
        running(never_ending, store=store, policy=RERUN, monotonic=monotonic, runs_tools=False) as observer,
        running(never_ending, store=store, policy=RERUN) as worker,
    ):
        lease = observer.settings.lease_duration
        await sweep_for(observer, monotonic, lease * 2 / 3)
        # Another process finds it dead and forgets it. It is back before the observer looks again.
        await store.retire(worker.worker)
        await worker.lease.renew()
        task = await launch(worker)
        await until(worker, task, lambda record: record.worker == worker.worker)
        monotonic.advance(lease / 3)
        await observer.janitor.sweep()
        record = await as_of_now(observer, task)
        assert (record.worker, record.attempt, record.lost) == (worker.worker, 1, 0)


class WakingStore(MemoryStore):
    """A worker that was paused wakes up and writes, just when its task is being taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes: Callable[[], Awaitable[None]] | None = None

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if self.wakes is not None:
            wakes, self.wakes = self.wakes, None
            await wakes()
        return await super().save(record, **options)


async def test_a_worker_that_wakes_up_and_writes_first_keeps_its_run() -> None:
    monotonic, store = Seconds(), WakingStore()
    async with running(never_ending, store=store, policy=RERUN, monotonic=monotonic) as runtime:
        await store.heartbeat("elsewhere", namespace="")
        task = await claimed_by(runtime, "elsewhere")

        async def wake() -> None:
            await store.heartbeat("elsewhere", namespace="")
            await runtime.changes.change(task, StepRecorded(attempt=task.attempt), actor=ANOTHER)

        store.wakes = wake
        await sweep_for(runtime, monotonic, HOUR)
        assert store.wakes is None
        record = await as_of_now(runtime, task)
        assert (record.worker, record.attempt, record.lost) == ("elsewhere", 1, 0)


async def test_tasks_that_cannot_be_recovered_here_do_not_hide_those_behind_them() -> None:
    async with running({"ours": Tool(at_once, RERUN)}) as runtime:
        for _ in range(PER_SWEEP + 1):
            await claimed_by(runtime, "gone", "theirs")
        ours = await claimed_by(runtime, "gone", "ours")
        await runtime.janitor.sweep()
        assert (await as_of_now(runtime, ours)).worker == "gone", "one sweep does only so much"
        await runtime.janitor.sweep()
        assert (await until_final(runtime, ours)).status is TaskStatus.COMPLETED


async def test_queued_tasks_that_cannot_be_started_here_do_not_hide_those_behind_them() -> None:
    async with running({"ours": Tool(at_once)}) as runtime:
        for _ in range(2 * BATCH):
            await create(runtime, "theirs")
        ours = await create(runtime, "ours")
        for _ in range(3):
            await runtime.janitor.sweep()
        assert (await until_final(runtime, ours)).status is TaskStatus.COMPLETED


async def test_many_queued_tasks_do_not_keep_a_timer_from_ringing() -> None:
    clock, order = FakeClock(), list[str]()

    async def sleeping(run: Run) -> Ending:
        await current_task().sleep(HOUR)
        order.append("awake")
        return ok()

    async def noted(run: Run) -> Ending:
        order.append("noted")
        return ok()

    tools = {"sleeping": Tool(sleeping, ToolPolicy(rerun=True, park_after=timedelta(0))), "noted": Tool(noted)}
    async with running(tools, clock=clock, concurrency=1) as runtime:
        asleep = await launch(runtime, "sleeping")
        await until(runtime, asleep, lambda record: record.attempt == 1 and record.worker is None)
        for _ in range(10 * BATCH):
            await create(runtime, "noted")
        clock.advance(HOUR)
        while len(order) < 10 * BATCH + 1:
            await runtime.janitor.sweep()
            await settle()
        assert order.index("awake") <= 2 * BATCH


# Left alone


async def test_tasks_of_another_server_in_the_same_store_are_left_alone() -> None:
    store, clock = MemoryStore(), FakeClock()
    theirs = make_runtime(at_once, store=store, namespace="theirs", clock=clock)
    waiting = await create(theirs)
    lost = await claimed_by(theirs, "gone")
    async with running(at_once, store=store, namespace="ours", clock=clock, policy=RERUN) as ours:
        await ours.janitor.sweep()
        # Also one that is carried here by mistake.
        await ours.dispatch.resubmit(waiting.id)
        await settle()
        assert [await as_of_now(ours, task) for task in (waiting, lost)] == [waiting, lost]
    async with running(at_once, store=store, namespace="theirs", clock=clock, policy=RERUN) as theirs:
        for task in (waiting, lost):
            assert (await until_final(theirs, task)).status is TaskStatus.COMPLETED


async def test_a_process_of_another_server_that_looks_is_no_sign_of_life_or_death_for_us() -> None:
    store = MemoryStore()
    async with running(at_once, store=store, namespace="theirs") as theirs:
        async with running(at_once, store=store, namespace="ours"):
            pass
        assert list(await store.workers("theirs")) == [theirs.worker]
        assert await store.workers("ours") == {}


async def test_tasks_of_a_tool_that_this_process_lacks_wait_for_one_that_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    async with running({"here": Tool(at_once)}, store=store) as one:
        waiting = [await create(one, "there") for _ in range(3)]
        lost = [await claimed_by(one, "gone", "there") for _ in range(3)]
        for _ in range(3):
            await one.janitor.sweep()
            await settle()
        assert [await as_of_now(one, task) for task in (*waiting, *lost)] == [*waiting, *lost]
        assert lines_about(caplog, "this server has no tool 'there'") == 1
        async with running({"there": Tool(at_once, RERUN)}, store=store) as other:
            for task in (*waiting, *lost):
                assert (await until_final(other, task)).status is TaskStatus.COMPLETED


# Trouble with one of many


async def test_a_look_up_that_raises_is_tried_with_each_sweep_and_then_the_task_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running({"good": Tool(at_once, RERUN), "bad": Tool(at_once, RERUN)}) as runtime:
        policy = runtime.policy

        async def broken(method: str, name: str) -> ToolPolicy | None:
            if name == "bad":
                raise RuntimeError("the tool cannot be looked up")
            return await policy(method, name)

        runtime.policy = broken
        bad, good = await claimed_by(runtime, "gone", "bad"), await claimed_by(runtime, "gone", "good")
        for _ in range(TROUBLES_BEFORE_THE_END - 1):
            await runtime.janitor.sweep()
            assert (await as_of_now(runtime, bad)).worker == "gone"
        assert (await until_final(runtime, good)).status is TaskStatus.COMPLETED
        await runtime.janitor.sweep()
        assert error_type(await until_final(runtime, bad)) == "Interrupted"
        assert lines_about(caplog, "is left as it is, and the others go on: RuntimeError") == 1


async def test_a_look_up_that_works_again_in_time_saves_the_task() -> None:
    async with running(at_once, policy=RERUN) as runtime:
        policy, failures = runtime.policy, 2

        async def broken(method: str, name: str) -> ToolPolicy | None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise RuntimeError("not now")
            return await policy(method, name)

        runtime.policy = broken
        task = await claimed_by(runtime, "gone")
        for _ in range(3):
            await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_task_whose_tool_could_not_be_looked_up_when_it_was_made_is_run_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(at_once, policy=ONCE) as runtime:
        policy = runtime.policy

        async def broken(method: str, name: str) -> ToolPolicy | None:
            raise RuntimeError("not now")

        runtime.policy = broken
        task = await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)
        await settle()
        # It never began, so there is nothing that it could have done in part.
        assert (await as_of_now(runtime, task)).worker is None
        runtime.policy = policy
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
    assert lines_about(caplog, "is left as it is, and the others go on: RuntimeError") == 1


async def test_a_task_whose_tool_can_never_be_looked_up_ends_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    monotonic = Seconds()
    async with running(at_once, policy=ONCE, monotonic=monotonic) as runtime:

        async def broken(method: str, name: str) -> ToolPolicy | None:
            raise RuntimeError("not now")

        runtime.policy = broken
        task = await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)
        # The first try comes with the launch.
        for _ in range(TRIES_TO_LOOK_UP - 1):
            assert not (await as_of_now(runtime, task)).is_final
            await runtime.janitor.sweep()
            await settle(10)
            monotonic.advance(LONGEST_PAUSE)
        ended = await until_final(runtime, task)
        assert (ended.status, error_type(ended)) == (TaskStatus.FAILED, "CannotStart")
    assert lines_about(caplog, "is left as it is, and the others go on: RuntimeError") == 1


class DamagedStore(MemoryStore):
    """Cannot read some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    async def get(self, task_id: str) -> TaskRecord | None:
        if task_id in self.damaged:
            raise TaskUnreadable(task_id, "the row is damaged")
        return await super().get(task_id)


async def test_a_row_that_cannot_be_read_is_one_bad_task_and_is_spoken_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, monotonic = DamagedStore(), Seconds()
    async with running(at_once, store=store, policy=RERUN, monotonic=monotonic) as runtime:
        lost, waiting = (
            await claimed_by(runtime, "gone"),
            await create(runtime),
        )
        store.damaged = {lost.id, waiting.id}
        fine = [await claimed_by(runtime, "gone"), await claimed_by(runtime, "gone too")]
        for _ in range(3):
            await runtime.janitor.sweep()
            await settle()
        for task in fine:
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
        assert [lines_about(caplog, task.id[:12]) for task in (lost, waiting)] == [1, 1]
        # Nothing of it is lost: with the damage undone it goes on.
        store.damaged = set()
        monotonic.advance(LONGEST_PAUSE)
        await runtime.janitor.sweep()
        for task in (lost, waiting):
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_task_whose_journal_cannot_be_read_ends_and_says_so() -> None:
    store = UnreadableJournals()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        task = await queued(runtime, lost=1)
        store.unreadable.add(task.id)
        await runtime.janitor.sweep()
        ended = await until_final(runtime, task)
        assert (ended.status, error_type(ended), ended.worker) == (TaskStatus.FAILED, "JournalUnreadable", None)


@pytest.mark.parametrize(
    "entry",
    [
        JournalEntry(kind="step", key="s", value=7),
        JournalEntry(kind="timer", key="t", value={"until": 10**30}),
        JournalEntry(kind="ask", key="q", value={}),
        JournalEntry(kind="done", key="q", value=None),
    ],
    ids=lambda entry: entry.kind,
)
async def test_a_task_whose_journal_makes_no_sense_ends_and_says_so(entry: JournalEntry) -> None:
    async with running(at_once, policy=RERUN) as runtime:
        task = await claimed_by(runtime, "earlier")
        asked = InputRequested(attempt=1, requests={"q": question("Sure?")})
        await runtime.changes.change(task, asked, actor=ANOTHER, entries=[entry])
        await runtime.janitor.sweep()
        assert error_type(await until_final(runtime, task)) == "JournalUnreadable"


async def test_a_task_of_ours_whose_run_was_forgotten_is_not_counted_as_lost() -> None:
    async with running(at_once, policy=ToolPolicy(rerun=True, max_lost_runs=1)) as runtime:
        task = await claimed_by(runtime, runtime.worker)
        await runtime.janitor.take_up()
        assert ((await as_of_now(runtime, task)).worker, (await as_of_now(runtime, task)).lost) == (None, 0)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Claims that got no answer


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
    request = TaskRequest(name="tool", arguments={})
    task = None if at_creation else await create(runtime)
    store.loses_claim = True
    if task is None:
        with pytest.raises(StoreUnavailable):
            await runtime.launch(request, owner=None, retention=None)
        return (await runtime.list(EVERYBODY)).records[0]
    await runtime.engine.submit(task.id)
    await settle()
    return task


@pytest.mark.parametrize("at_creation", [True, False], ids=["at its creation", "later"])
async def test_a_task_whose_claim_got_no_answer_is_run_once_when_the_store_is_back(at_creation: bool) -> None:
    store, begun = AnswerlessStore(), list[str]()

    async def noted(run: Run) -> Ending:
        begun.append(run.record.id)
        return await at_once(run)

    async with running(noted, store=store, policy=ONCE) as runtime:
        task = await lose_claim(runtime, store, at_creation=at_creation)
        await settle()
        assert begun == []
        store.is_away = False
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
    assert begun == [task.id]


async def test_a_task_whose_claim_got_no_answer_is_not_interrupted_when_the_lease_was_lost() -> None:
    store = AnswerlessStore()
    async with running(at_once, store=store, policy=ONCE) as runtime:
        task = await lose_claim(runtime, store, at_creation=True)
        store.is_away = False
        await runtime.janitor.take_up()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


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


# Before anybody was told


async def test_a_lost_run_of_a_task_that_is_not_announced_yet_is_run_again() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store, policy=RERUN) as dying:
        request = TaskRequest(name="tool", arguments={})
        task = await dying.launch(request, owner=None, retention=None, announced=False)
        await settle()
        await dying.abandon()
    async with running(at_once, store=store, policy=RERUN) as runtime:
        # Where engines carry ids to other processes, the one that has the call is not the one that died.
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_task_of_our_own_that_was_not_announced_yet_is_only_released() -> None:
    async with running(at_once, policy=RERUN) as runtime:
        task = await claimed_by(runtime, runtime.worker, announced=False)
        await runtime.janitor.take_up()
        # Whoever called may still be there: the process is.
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# What the tool was called with


class RequestStore(PausingStore):
    """Counts the requests that are read, and fails to read some."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.failures: list[Exception] = []

    async def request(self, task_id: str) -> TaskRequest | None:
        self.read.append(task_id)
        if self.failures:
            raise self.failures.pop()
        return await super().request(task_id)


async def test_a_request_is_read_only_to_run_its_task() -> None:
    store = RequestStore()
    async with running(at_once, store=store) as runtime:
        elsewhere = await create(runtime, "missing")
        waiting = [await create(runtime) for _ in range(10)]
        await runtime.janitor.sweep()
        for task in waiting:
            await until_final(runtime, task)
            await cancel(runtime, await as_of_now(runtime, task))
            await runtime.dispatch.resubmit(task.id)
        await settle()
        assert sorted(store.read) == sorted(task.id for task in waiting)
        assert (await as_of_now(runtime, elsewhere)).attempt == 0


async def test_a_task_that_is_cancelled_while_its_request_is_read_never_begins() -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryStore):
        async def request(self, task_id: str) -> TaskRequest | None:
            reading.set()
            await go_on.wait()
            return await super().request(task_id)

    begun: list[str] = []

    async def noted(run: Run) -> Ending:
        begun.append(run.record.id)
        return await at_once(run)

    async with running(noted, store=SlowStore(), policy=RERUN) as runtime:
        task = await create(runtime)
        await runtime.dispatch.resubmit(task.id)
        await reading.wait()
        # However long it takes, the task is nobody's: it is not found as claimed and not run.
        for _ in range(2):
            await runtime.janitor.recovery.release_orphans()
        await cancel(runtime, await as_of_now(runtime, task))
        go_on.set()
        await settle()
        assert ((await as_of_now(runtime, task)).status, begun) == (TaskStatus.CANCELLED, [])


async def test_a_task_whose_request_cannot_be_read_ends_and_says_so() -> None:
    store = RequestStore()
    store.failures = [TaskUnreadable("", "the request is damaged")]
    async with running(at_once, store=store) as runtime:
        bad, good = await launch(runtime), await launch(runtime)
        ended = [await until_final(runtime, task) for task in (bad, good)]
        assert sorted((task.status, error_type(task)) for task in ended) == [
            (TaskStatus.COMPLETED, None),
            (TaskStatus.FAILED, "RequestUnreadable"),
        ]


async def test_a_task_whose_request_cannot_be_read_now_is_run_later_and_not_counted_as_lost() -> None:
    store, monotonic = RequestStore(), Seconds()
    store.failures = [StoreUnavailable("the disk is full")]
    async with running(at_once, store=store, monotonic=monotonic, policy=ONCE) as runtime:
        task = await launch(runtime)
        await settle()
        waiting = await as_of_now(runtime, task)
        assert (waiting.attempt, waiting.lost, waiting.worker) == (0, 0, None)
        await sweep_for(runtime, monotonic, SECOND)
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
