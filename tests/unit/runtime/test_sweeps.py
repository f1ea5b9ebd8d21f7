"""Sweeps: what has expired or is too old, what waits in the queue, and tasks that no worker takes."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from mcp_tasks.engines import Lane, LocalEngine
from mcp_tasks.errors import StoreUnavailable, TasksError, UnknownTask, ValueNotStorable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.machine import RunParked, RunStarted
from mcp_tasks.runtime import Body, Ending, Run, TaskRuntime, sweeps
from mcp_tasks.runtime.sweeps import BATCH, MESSAGE, PAGES, PATIENCE, SLICE, TURNS, UNATTENDED_BATCH, Idleness
from mcp_tasks.stores import Forgotten, MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.codec import queued_since
from mcp_tasks.testing import FakeClock, make_record
from tests.unit.losing import ANOTHER, GONE, as_of_now, claimed_by
from tests.unit.running import (
    HOUR,
    ONCE,
    PARKS,
    REQUEST,
    RERUN,
    SECOND,
    MeddledStore,
    Seconds,
    Tool,
    all_end,
    asks,
    at_once,
    cancel,
    create,
    launch,
    loop_time,
    never_ending,
    ok,
    opened_by,
    running,
    settle,
    start,
    until,
    until_asking,
    until_final,
    until_parked,
)
from tests.unit.virtual_time import SIMULATED, time_passes

MONTH = timedelta(days=30)
TOOLS = {"again": Tool(at_once, RERUN), "once": Tool(at_once, ONCE)}
PACE: dict[str, Any] = {"sweep_interval": SECOND, "lease_duration": timedelta(seconds=15)}
"""The usual pace, on the time of the event loop."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Minutes pass in an instant."""
    return SIMULATED


def process(body: Body, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
    return running(body, **{"monotonic": loop_time, "uptime": loop_time, **options})


async def cancelled(runtime: TaskRuntime, retention: timedelta = HOUR) -> TaskRecord:
    return await cancel(runtime, await create(runtime, retention=retention))


# By themselves


@pytest.mark.parametrize(
    ("failure", "times", "verb", "said"),
    [
        (StoreUnavailable("the disk is full"), 3, "save", "the task store does not take requests"),
        (RuntimeError("a defect"), 1, "workers", "a sweep failed"),
    ],
)
async def test_a_sweep_that_fails_comes_again_and_an_outage_is_spoken_of_once(
    failure: Exception, times: int, verb: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MeddledStore()
    async with process(at_once, store=store, policy=RERUN, **PACE) as runtime:
        task = await claimed_by(runtime, GONE)
        store.refuse(failure, verb, times=times, when=lambda record, _: verb != "save" or record.worker is None)
        assert (await until_final(runtime, task, 60)).attempt == 2
    assert caplog.text.count(said) == 1


# Expiry


async def test_a_task_expires_a_while_after_its_end_with_its_journal_and_not_while_it_runs() -> None:
    clock, gate = FakeClock(), anyio.Event()

    async def stepping(run: Run) -> Ending:
        await run.step("a", partial(asyncio.sleep, 0))
        return await opened_by(gate)(run)

    async with running(stepping, clock=clock) as runtime:
        task = await launch(runtime, retention=HOUR)
        await settle()
        clock.advance(500 * HOUR)
        await runtime.janitor.sweep()
        gate.set()
        ended = await until(runtime, task, lambda record: record.is_final)
        clock.advance(HOUR - timedelta(microseconds=1))
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == ended
        clock.advance(timedelta(microseconds=1))
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)
        assert await runtime.store.get(task.id) == ended, "it is unknown before anybody removed it"
        await runtime.janitor.sweep()
        assert await runtime.store.get(task.id) is None
        assert not await runtime.store.journal(task.id)


async def test_a_queued_or_waiting_task_and_one_that_is_kept_for_good_never_expire() -> None:
    clock = FakeClock()
    tools = {"ask": Tool(asks), "hog": Tool(never_ending), "quick": Tool(at_once)}
    async with running(tools, clock=clock, concurrency=1) as runtime:
        kept = await until(runtime, await launch(runtime, "quick"), lambda record: record.is_final)
        waiting = await until_asking(runtime, await launch(runtime, "ask", retention=SECOND))
        await launch(runtime, "hog")
        in_line = await launch(runtime, "hog", retention=SECOND)
        clock.advance(500 * HOUR)
        await runtime.janitor.sweep()
        for task in (kept, waiting, in_line):
            assert await as_of_now(runtime, task) == task


async def test_a_start_does_not_wait_for_expired_tasks_and_sweeps_remove_so_many_at_a_time_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per_sweep = 3 * SLICE
    monkeypatch.setattr(sweeps, "PER_SWEEP", per_sweep)
    clock, store, removed, seen = FakeClock(), MeddledStore(), [0], list[int]()
    count = 2 * per_sweep + SLICE
    async with running(at_once, clock=clock, store=store, runs_tools=False) as earlier:
        for _ in range(count):
            await cancelled(earlier)
    clock.advance(2 * HOUR)

    async def counted(forgotten: Sequence[Forgotten], *args: Any, **options: Any) -> None:
        removed.append(removed[-1] + len(forgotten))

    async def look_on() -> None:
        while removed[-1] < count:
            seen.append(removed[-1])
            await time_passes(0.0001)

    store.after["forget_expired"] = counted
    async with running(at_once, clock=clock, store=store) as runtime, anyio.create_task_group() as group:
        assert removed == [0]
        group.start_soon(look_on)
        for total in (per_sweep, 2 * per_sweep, count):
            await runtime.janitor.sweep()
            assert removed[-1] == total
    assert max(after - before for before, after in pairwise(seen)) <= SLICE, "others have a turn in between"


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_what_has_expired_is_forgotten_though_other_sweeps_do_not_work_and_the_lease_is_lost(
    trouble: str,
) -> None:
    store, clock = MeddledStore(), FakeClock()
    async with process(at_once, store=store, clock=clock, **PACE) as runtime:
        tasks = [await cancelled(runtime, SECOND) for _ in range(2)]
        if trouble == "fail":
            store.refuse(StoreUnavailable("no memory left"), "workers", "hand_out", "heartbeat", "queued", "claimed")
            await time_passes(30)
            assert not runtime.lease.is_valid
        else:
            store.before["workers"] = lambda *args: anyio.sleep_forever()
        clock.advance(HOUR)
        await time_passes(30)
        assert await store.versions([task.id for task in tasks]) == {}
        store.before.clear()


async def test_a_process_that_only_serves_keeps_house_and_claims_nothing() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(TOOLS, clock=clock, store=store, runs_tools=False) as server:
        waiting, over = await launch(server, "again"), await cancelled(server, SECOND)
        again, lost = await claimed_by(server, GONE, "again"), await claimed_by(server, GONE, "once")
        clock.advance(HOUR / 2)
        await server.janitor.sweep()
        await settle()
        assert await store.workers("") == {}, "it needs no lease"
        assert await store.get(over.id) is None
        assert (await as_of_now(server, lost)).status is TaskStatus.FAILED
        for task in (waiting, again):
            record = await as_of_now(server, task)
            assert (record.worker, record.is_final) == (None, False)
        async with running(TOOLS, clock=clock, store=store) as worker:
            await all_end(worker, waiting, again)


# Too old


@pytest.mark.parametrize(
    ("failure", "is_said"), [(ValueNotStorable("too odd"), True), (UnknownTask("it"), False)], ids=["odd", "gone"]
)
async def test_a_task_that_is_too_old_is_ended_whatever_goes_wrong_with_another(
    failure: TasksError, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MeddledStore(), FakeClock()
    async with running(at_once, store=store, runs_tools=False, clock=clock, limits=Limits(task_age=MONTH)) as runtime:
        bad, old = await create(runtime), await create(runtime)
        clock.advance(MONTH)
        store.go_away("save")
        with pytest.raises(StoreUnavailable):
            await runtime.janitor.end_old()
        store.refuse(failure, "save", when=lambda record, _: record.id == bad.id)
        await runtime.janitor.end_old()
        assert [(await as_of_now(runtime, task)).is_final for task in (bad, old)] == [False, True]
        store.before.clear()
        await runtime.janitor.end_old()
        assert [(await as_of_now(runtime, task)).status for task in (bad, old)] == [TaskStatus.FAILED] * 2
    assert ("too odd" in caplog.text) is is_said


# More to do than one sweep does: the rest is done before the next one


async def test_of_what_is_more_than_one_sweep_does_the_rest_is_done_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "PER_SWEEP", sweeps.SLICE)
    clock, store = FakeClock(), MemoryStore()
    count = 3 * BATCH
    async with process(at_once, store=store, clock=clock, policy=RERUN, sweep_interval=timedelta(minutes=1)) as runtime:
        for _ in range(count):
            await cancelled(runtime)
            await claimed_by(runtime, GONE)
            asleep = RunStarted(worker=GONE), RunParked(attempt=1, wake_at=clock() + SECOND)
            await runtime.changes.change(await create(runtime, retention=HOUR), *asleep, actor=ANOTHER)
        for _ in range(sweeps.SLICE + 5):
            await claimed_by(runtime, runtime.worker)
        await runtime.janitor.recovery.take_up()
        clock.advance(HOUR)
        await time_passes(90)
        records = (await runtime.list(EVERYBODY, limit=4 * count)).records
        assert (len(records), {record.status for record in records}) == (
            2 * count + sweeps.SLICE + 5,
            {TaskStatus.COMPLETED},
        )
        assert {record.attempt for record in records} == {2}
        assert (await store.claimed(GONE, limit=1)).ids == []
        assert await store.forget_expired(clock(), limit=1) == [], "they were forgotten"


# What waits in the queue


class CountingEngine(LocalEngine):
    """Counts what it is handed, by lane."""

    def __init__(self, concurrency: int) -> None:
        super().__init__(concurrency)
        self.submits: Counter[Lane] = Counter()

    async def submit(self, task_id: str, *, lane: Lane = "new", **options: Any) -> None:
        self.submits[lane] += 1
        await super().submit(task_id, lane=lane, **options)


@pytest.mark.slow
async def test_a_queue_behind_a_busy_fleet_is_not_submitted_again_and_again() -> None:
    store, engines = MeddledStore(), [CountingEngine(5), CountingEngine(5)]
    one, other = [process(never_ending, store=store, engine=engine, **PACE) for engine in engines]
    async with one as one, other as other:
        for runtime, count in ((one, 5), (other, 5), (one, 120)):
            for _ in range(count):
                await start(runtime)
        before = store.calls["queued"]
        await time_passes(5)
        assert [engine.submits for engine in engines] == [{"new": 120}, {}]
        assert store.calls["queued"] - before <= 2 * 5 + 2, "one look per sweep"
        await time_passes(100)
        # Idle for half a minute, then with pauses that double: at 30 and 60 seconds. The other process
        # has a page of them in line by then, and is not handed more.
        assert [engine.submits["again"] for engine in engines] == [120 * 2, BATCH]


async def test_catching_up_reads_nothing_while_nothing_could_be_started() -> None:
    store, may_end = MeddledStore(), anyio.Semaphore(0)

    async def gated(run: Run) -> Ending:
        await may_end.acquire()
        return ok()

    async with process(gated, store=store, runs_tools=False) as earlier:
        for _ in range(2 * BATCH):
            await create(earlier)
    store.calls.clear()
    # A sweep an hour: whatever is read before that is read to catch up.
    async with process(gated, store=store, concurrency=1) as runtime:
        await time_passes(60)
        assert (store.calls["queued"], len(runtime.runs())) == (1, 1)
        for looks in (1, 0):
            store.calls.clear()
            for _ in range(BATCH):
                may_end.release()
            await time_passes(60)
            assert store.calls["queued"] == looks
        assert all(record.is_final for record in (await runtime.list(EVERYBODY, limit=3 * BATCH)).records)


async def test_a_task_that_cannot_be_run_here_is_tried_less_and_less_often() -> None:
    engine = CountingEngine(5)
    async with process(never_ending, engine=engine, **PACE) as runtime:
        await create(runtime, "missing")
        await time_passes(1_000)
        assert 8 <= engine.submits["again"] <= 13


async def create_many(runtime: TaskRuntime, tool: str, count: int, *, timers: bool = False) -> list[TaskRecord]:
    """Tasks that nobody was told to run: queued ones, or ones whose timers have run out."""
    now = runtime.now()
    fields = {"name": tool, "created_at": now, "updated_at": now, "wake_at": now if timers else None, "retention": None}
    records = [make_record(id=f"{tool}-{number}", **fields) for number in range(count)]
    for record in records:
        await runtime.store.create(record, replace(REQUEST, name=tool))
    return records


async def test_a_sweep_looks_at_so_many_pages_and_the_next_goes_on_from_there() -> None:
    store, engine = MeddledStore(), CountingEngine(100)
    async with running(never_ending, store=store, engine=engine, monotonic=Seconds()) as runtime:
        stuck = await create_many(runtime, "missing", (2 * PAGES - 1) * BATCH + 1)
        with anyio.fail_after(1_000):
            while engine.submits["again"] < len(stuck):
                await runtime.janitor.sweep()
                await time_passes(1)
        await time_passes(60)
        for _ in range(4):
            store.calls.clear()
            await runtime.janitor.sweep()
            assert PAGES / 2 < store.calls["queued"] <= PAGES
        assert engine.submits["again"] == len(stuck)


@pytest.mark.parametrize("timers", [False, True])
async def test_tasks_that_cannot_be_run_here_do_not_keep_back_one_that_can(timers: bool) -> None:
    # On a clock that stands still, so what was submitted once is left alone from then on.
    async with running(at_once, monotonic=Seconds()) as runtime:
        await create_many(runtime, "missing", 5 * BATCH, timers=timers)
        (task,) = await create_many(runtime, "tool", 1, timers=timers)
        for _ in range(6):
            await runtime.janitor.sweep()
            await time_passes(1)
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_many_queued_tasks_do_not_keep_a_timer_from_ringing() -> None:
    clock, order = FakeClock(), list[str]()

    async def body(run: Run) -> Ending:
        if run.record.name == "sleeps":
            await run.sleep(HOUR)
        order.append(run.record.name)
        return ok()

    async with running({"sleeps": Tool(body, PARKS), "works": Tool(body)}, clock=clock, concurrency=1) as runtime:
        await until_parked(runtime, await launch(runtime, "sleeps"))
        await create_many(runtime, "works", 4 * BATCH)
        clock.advance(HOUR)
        while len(order) < 4 * BATCH + 1:
            await runtime.janitor.sweep()
            await settle()
        assert order.index("sleeps") <= 2 * BATCH


async def test_a_task_that_is_gone_by_the_time_it_would_be_submitted_is_not() -> None:
    store, engine = MeddledStore(), CountingEngine(4)
    async with running(never_ending, store=store, engine=engine) as runtime:
        gone, there = await create(runtime), await create(runtime)

        async def removed(task_id: str) -> None:
            if task_id == gone.id:
                del store.before["get"]
                await store.delete(gone.id, expected=gone.version, now=runtime.now())

        store.before["get"] = removed
        await runtime.janitor.sweep()
        await until(runtime, there, lambda record: record.worker == runtime.worker)
        assert engine.submits.total() == 1


# Nobody runs them


async def said_of(runtime: TaskRuntime, task: TaskRecord) -> str | None:
    return (await runtime.get(task.id, owner=None)).status_message


async def unattended_for(runtime: TaskRuntime, clock: Seconds, seconds: float) -> None:
    """What the sweeps of so many seconds do."""
    await runtime.janitor.sweep()
    clock.advance(timedelta(seconds=seconds))
    await runtime.janitor.sweep()


async def test_a_task_that_waits_without_a_worker_says_so_until_one_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), Seconds()
    async with running(at_once, store=store, monotonic=clock, runs_tools=False) as serving:
        first = await launch(serving)
        await unattended_for(serving, clock, PATIENCE - 0.1)
        assert await said_of(serving, first) is None, "a worker may just be replaced by a new one"
        clock.advance(timedelta(seconds=0.1))
        await serving.janitor.sweep()
        told = await serving.get(first.id, owner=None)
        assert told.status_message == MESSAGE
        assert told.updated_at > first.updated_at
        assert queued_since(told) == queued_since(first), "the age of the backlog goes on"
        second = await launch(serving)
        await serving.janitor.sweep()
        assert await said_of(serving, second) == MESSAGE
        await serving.janitor.sweep()
        assert (await serving.get(first.id, owner=None)).version == told.version, "once"
        assert caplog.text.count("no worker is running") == 1
        async with running(at_once, store=store):
            for task in (first, second):
                assert (await until_final(serving, task)).status_message is None


@pytest.mark.parametrize("runs_tools", [True, False], ids=["this process", "another"])
async def test_while_a_worker_is_there_nothing_is_said(runs_tools: bool, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), Seconds()
    async with (
        running(at_once, store=store, queues=["another"]),
        running(at_once, store=store, queues=["another"], monotonic=clock, runs_tools=runs_tools) as serving,
    ):
        task = await launch(serving)
        await unattended_for(serving, clock, 2 * PATIENCE)
        assert await said_of(serving, task) is None
    assert "no worker" not in caplog.text


async def test_many_tasks_are_told_of_in_turns() -> None:
    clock = Seconds()
    async with running(at_once, monotonic=clock, runs_tools=False) as serving:
        tasks = [await create(serving) for _ in range(UNATTENDED_BATCH + 1)]
        await unattended_for(serving, clock, PATIENCE)
        said = [await said_of(serving, task) for task in tasks]
        assert said == [MESSAGE] * UNATTENDED_BATCH + [None]
        await serving.janitor.sweep()
        assert await said_of(serving, tasks[-1]) == MESSAGE


@pytest.mark.parametrize("patience", [timedelta(0), timedelta(seconds=30)])
def test_of_more_idle_tasks_than_can_be_remembered_each_is_submitted_some_time(patience: timedelta) -> None:
    clock, submitted, rounds = Seconds(), Counter[int](), 100 * TURNS
    idleness = Idleness(clock, limit=10)
    for _ in range(rounds):
        submitted.update(number for number in range(35) if idleness.is_over(f"task {number}", 1, patience))
        assert len(idleness) <= 10
        idleness.end_round()
        clock.advance(SECOND)
    assert len(submitted) == 35
    assert max(submitted.values()) <= rounds / TURNS, "what cannot be remembered is not submitted all the time"
