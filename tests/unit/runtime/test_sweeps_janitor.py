"""Housekeeping: who is alive, what was lost, what has expired."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks.errors import StoreUnavailable, UnknownTask
from mcp_tasks.model import InputRequested, RunStarted, TaskStatus, apply
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.lease import LeaseTimes
from mcp_tasks.runtime.sweeps import BATCH, PER_SWEEP, SLICE
from mcp_tasks.stores import Forgotten, MemoryStore
from mcp_tasks.stores.base import EVERYBODY, Ready, Share
from mcp_tasks.testing import FakeClock
from tests.unit.losing import ANOTHER, HOUR, SECOND, claimed_by, sweep_for
from tests.unit.processes import dead_worker, other_process
from tests.unit.running import (
    LIMIT,
    ONCE,
    QUIET,
    RERUN,
    FailingStore,
    PausingStore,
    Seconds,
    Tool,
    answer,
    cancel,
    create,
    finished,
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

pytestmark = pytest.mark.anyio


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


SILENCE = timedelta(seconds=LeaseTimes.of(QUIET.lease_duration, HOUR).takeover)
"""For how long a heartbeat stays the same before tasks are taken over."""

TOOLS = {"again": Tool(at_once, RERUN), "once": Tool(at_once, ONCE)}


# What was lost


@pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")
async def test_tasks_of_a_dead_process_are_recovered_at_once_whatever_its_lease_says() -> None:
    runtime = make_runtime(TOOLS)
    dead = dead_worker()
    await runtime.store.heartbeat(dead, namespace="")
    again, once = await claimed_by(runtime, dead, "again"), await claimed_by(runtime, dead, "once")
    await runtime.start()
    try:
        assert (await until_final(runtime, again)).attempt == 2
        failed = await finished(runtime, await runtime.get(once.id, owner=None))
        assert (failed.status, failed.attempt) == (TaskStatus.FAILED, 1)
        assert failed.error is not None
        assert failed.error["data"] == {"type": "Interrupted"}
        assert dead not in await runtime.store.workers("")
    finally:
        await runtime.stop()


async def test_tasks_of_a_process_elsewhere_are_its_own_until_it_has_been_silent_for_the_lease() -> None:
    monotonic = Seconds()
    async with running(TOOLS, monotonic=monotonic) as runtime:
        await runtime.store.heartbeat("elsewhere", namespace="")
        again, once = await claimed_by(runtime, "elsewhere", "again"), await claimed_by(runtime, "elsewhere", "once")
        await sweep_for(runtime, monotonic, SILENCE - SECOND)
        assert (await runtime.get(again.id, owner=None)).worker == "elsewhere"
        await sweep_for(runtime, monotonic, SECOND)
        recovered = await until_final(runtime, again)
        assert (recovered.status, recovered.attempt) == (TaskStatus.COMPLETED, 2)
        assert (await runtime.get(once.id, owner=None)).status is TaskStatus.FAILED


async def test_a_process_that_beats_keeps_its_tasks_however_late_it_is() -> None:
    monotonic = Seconds()
    async with running(TOOLS, monotonic=monotonic) as runtime:
        task = await claimed_by(runtime, "elsewhere", "once")
        for _ in range(5):
            await runtime.store.heartbeat("elsewhere", namespace="")
            await sweep_for(runtime, monotonic, SILENCE - SECOND)
        assert await runtime.get(task.id, owner=None) == task


@pytest.mark.parametrize("jump", [500 * HOUR, -500 * HOUR], ids=["ahead", "back"])
async def test_a_clock_that_is_set_takes_nothing_from_anybody(jump: timedelta) -> None:
    clock, monotonic = FakeClock(), Seconds()
    async with running(TOOLS, clock=clock, monotonic=monotonic) as runtime:
        await runtime.store.heartbeat("elsewhere", namespace="")
        task = await claimed_by(runtime, "elsewhere", "once")
        await runtime.janitor.sweep()
        clock.advance(jump)
        await sweep_for(runtime, monotonic, HOUR / 2)
        assert await runtime.get(task.id, owner=None) == task


async def test_a_process_that_looks_for_the_first_time_after_long_takes_nothing_from_anybody() -> None:
    monotonic = Seconds()
    async with running(TOOLS, monotonic=monotonic) as runtime:
        await runtime.store.heartbeat("elsewhere", namespace="")
        task = await claimed_by(runtime, "elsewhere", "once")
        await runtime.janitor.sweep()
        # It was itself asleep: what the others did meanwhile it does not know.
        monotonic.advance(1_000 * HOUR)
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == task


async def test_a_living_process_of_this_machine_loses_its_tasks_when_it_is_silent_and_a_killed_one_at_once() -> None:
    monotonic = Seconds()
    with other_process() as (silent, _), other_process() as (killed, process):
        async with running(TOOLS, monotonic=monotonic) as runtime:
            for worker in (silent, killed):
                await runtime.store.heartbeat(worker, namespace="")
            of_silent, of_killed = await claimed_by(runtime, silent, "once"), await claimed_by(runtime, killed, "once")
            process.kill()
            process.wait()
            await runtime.janitor.sweep()
            assert (await runtime.get(of_silent.id, owner=None)).worker == silent
            if os.name != "nt":
                assert (await runtime.get(of_killed.id, owner=None)).status is TaskStatus.FAILED
            await sweep_for(runtime, monotonic, HOUR)
            assert (await runtime.get(of_silent.id, owner=None)).status is TaskStatus.FAILED


async def test_a_worker_that_never_said_it_was_alive_is_not_believed_to_be() -> None:
    async with running(TOOLS) as runtime:
        task = await claimed_by(runtime, "never heard of", "again")
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_task_that_waited_in_a_dead_process_is_started_again_at_once() -> None:
    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    store = MemoryStore()
    async with running(asking, store=store, policy=RERUN) as one:
        task = await until_asking(one, await launch(one))
        await one.abandon()
        async with running(asking, store=store, policy=RERUN) as other:
            # What else it was doing while it waited, nobody knows.
            waiting = await until(other, task, lambda record: record.worker == other.worker)
            assert (waiting.status, waiting.attempt, waiting.lost) == (TaskStatus.INPUT_REQUIRED, 2, 1)
            await answer(other, waiting, elicitation_1="yes")
            assert (await until_final(other, task)).result == {"value": "yes"}


async def test_a_question_of_a_task_that_may_not_run_again_is_withdrawn_when_it_is_lost() -> None:
    async with running(TOOLS) as runtime:
        task = await claimed_by(runtime, "never heard of", "once")
        await runtime.changes.change(task, InputRequested(attempt=1, requests={"a": question("Sure?")}), actor=ANOTHER)
        await runtime.janitor.sweep()
        failed = await runtime.get(task.id, owner=None)
        assert failed.status is TaskStatus.FAILED
        assert not failed.inputs.outstanding


async def test_a_sweep_leaves_the_runs_of_its_own_process_alone() -> None:
    clock = FakeClock()
    async with running(never_ending, clock=clock, policy=RERUN) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
        clock.advance(48 * HOUR)
        await runtime.janitor.sweep()
        await settle()
        assert await runtime.get(task.id, owner=None) == task


async def test_a_task_of_our_own_that_nothing_runs_is_given_up_at_the_second_look() -> None:
    async with running(at_once, policy=RERUN) as runtime:
        record = await create(runtime)
        taken = apply(record, RunStarted(worker=runtime.worker), runtime.now())
        await runtime.store.save(taken, expected=record.version)
        await runtime.janitor.recovery.release_orphans()
        assert (await runtime.get(record.id, owner=None)).worker == runtime.worker
        await runtime.janitor.recovery.release_orphans()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, record)).status is TaskStatus.COMPLETED


async def test_more_lost_tasks_than_one_look_takes_are_all_recovered() -> None:
    count = BATCH + 10
    async with running(TOOLS) as runtime:
        tasks = [await claimed_by(runtime, "gone", "again" if n % 2 else "once") for n in range(count)]
        await runtime.janitor.sweep()
        records = [await until_final(runtime, task) for task in tasks]
        assert [record.status for record in records] == [TaskStatus.FAILED, TaskStatus.COMPLETED] * (count // 2)


async def test_more_queued_tasks_than_one_look_takes_are_all_run_without_a_pause_in_between() -> None:
    store = MemoryStore()
    earlier = make_runtime(TOOLS, store=store)
    count = 3 * BATCH
    tasks = [await create(earlier, "once", retention=HOUR) for _ in range(count)]
    async with running(TOOLS, store=store, concurrency=4) as runtime:
        for task in tasks:
            assert (await until_final(runtime, task, limit=20)).status is TaskStatus.COMPLETED


async def test_two_processes_that_recover_the_same_tasks_do_so_once() -> None:
    store = PausingStore()
    async with running(TOOLS, store=store) as one, running(TOOLS, store=store) as other:
        tasks = [await claimed_by(one, "gone", "again" if n % 2 else "once") for n in range(20)]
        async with anyio.create_task_group() as group:
            group.start_soon(one.janitor.sweep)
            group.start_soon(other.janitor.sweep)
        for number, task in enumerate(tasks):
            record = await until_final(one, task)
            assert (record.status, record.attempt) == (
                (TaskStatus.COMPLETED, 2) if number % 2 else (TaskStatus.FAILED, 1)
            )


# Being alive


async def test_a_process_says_again_and_again_that_it_is_alive() -> None:
    store = MuteStore()
    async with running(at_once, store=store, lease_duration=timedelta(milliseconds=30)) as runtime:
        first = (await store.workers(""))[runtime.worker]
        await store.next_beat()
        assert (await store.workers(""))[runtime.worker] > first


class MuteStore(MemoryStore):
    """Tells of each heartbeat, and refuses to note it when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self._beaten = anyio.Event()

    async def next_beat(self) -> None:
        with anyio.fail_after(5):
            self._beaten = anyio.Event()
            await self._beaten.wait()

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the disk is full")
        await super().heartbeat(worker, namespace=namespace, beats=beats)
        self._beaten.set()


async def test_a_beat_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    store = MuteStore()
    async with running(at_once, store=store, lease_duration=timedelta(milliseconds=30)):
        store.refusals = 2
        await store.next_beat()
        assert store.refusals == 0
    assert "could not be renewed: the disk is full" in caplog.text


async def test_a_process_that_stopped_is_no_longer_among_the_living() -> None:
    async with running(at_once) as runtime:
        assert runtime.worker in await runtime.store.workers("")
    assert await runtime.store.workers("") == {}


# Sweeping


async def test_sweeps_come_by_themselves() -> None:
    async with running(TOOLS, sweep_interval=timedelta(milliseconds=10)) as runtime:
        task = await claimed_by(runtime, "gone", "again")
        assert (await until_final(runtime, task)).attempt == 2


async def test_a_sweep_that_fails_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    store = FailingStore()
    async with running(TOOLS, store=store, sweep_interval=timedelta(milliseconds=10)) as runtime:
        task = await claimed_by(runtime, "gone", "again")
        store.refuse_save(lambda record: record.worker is None, times=3)
        assert (await until_final(runtime, task)).attempt == 2
    assert caplog.text.count("the task store does not take requests") == 1


async def test_a_sweep_outlives_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    async with running(TOOLS, sweep_interval=timedelta(milliseconds=10)) as runtime:
        broken = anyio.Event()
        sweep = runtime.janitor.recovery.sweep

        async def fail_once() -> None:
            runtime.janitor.recovery.sweep = sweep
            broken.set()
            raise RuntimeError("a defect")

        runtime.janitor.recovery.sweep = fail_once
        with anyio.fail_after(5):
            await broken.wait()
        task = await claimed_by(runtime, "gone", "again")
        assert (await until_final(runtime, task)).attempt == 2
    assert "a sweep failed" in caplog.text


async def test_a_task_that_was_forgotten_on_its_way_to_the_engine_is_started() -> None:
    async with running(at_once) as runtime:
        task = await create(runtime, retention=HOUR)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


# Expiry


async def test_an_expired_task_is_removed_with_its_journal() -> None:
    clock = FakeClock()

    async def stepping(run: Run) -> Ending:
        return ok(await run.step("a", _one))

    async with running(stepping, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime, retention=HOUR), lambda record: record.is_final)
        clock.advance(HOUR - SECOND)
        await runtime.janitor.sweep()
        assert await runtime.store.get(task.id) == task
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        assert await runtime.store.get(task.id) is None
        assert not await runtime.store.journal(task.id)


async def _one() -> int:
    return 1


async def test_a_running_task_never_expires() -> None:
    clock, end = FakeClock(), anyio.Event()

    async def slow(run: Run) -> Ending:
        await end.wait()
        return ok()

    async with running(slow, clock=clock) as runtime:
        task = await until(
            runtime, await launch(runtime, retention=timedelta(seconds=1)), lambda record: record.attempt == 1
        )
        clock.advance(500 * HOUR)
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == task
        end.set()
        ended = await until(runtime, task, lambda record: record.is_final)
        clock.advance(timedelta(milliseconds=999))
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == ended
        clock.advance(timedelta(milliseconds=1))
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


async def test_a_queued_or_waiting_task_never_expires() -> None:
    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    clock = FakeClock()
    async with running({"ask": Tool(asking), "hog": Tool(never_ending)}, clock=clock, concurrency=1) as runtime:
        waiting = await until_asking(runtime, await launch(runtime, "ask", retention=timedelta(seconds=1)))
        await launch(runtime, "hog")
        queued = await launch(runtime, "hog", retention=timedelta(seconds=1))
        clock.advance(500 * HOUR)
        await runtime.janitor.sweep()
        for task in (waiting, queued):
            assert await runtime.get(task.id, owner=None) == task


async def test_a_task_that_is_kept_for_good_is_never_removed() -> None:
    clock = FakeClock()
    async with running(at_once, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime, retention=None), lambda record: record.is_final)
        clock.advance(100_000 * HOUR)
        await runtime.janitor.sweep()
        assert await runtime.get(task.id, owner=None) == task


async def test_more_expired_tasks_than_one_look_takes_are_all_removed_by_two_processes_at_once() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(at_once, clock=clock, store=store) as one, running(at_once, clock=clock, store=store) as other:
        tasks = [await launch(one, retention=HOUR) for _ in range(BATCH + 10)]
        for task in tasks:
            await until_final(one, task)
        clock.advance(HOUR)
        async with anyio.create_task_group() as group:
            group.start_soon(one.janitor.sweep)
            group.start_soon(other.janitor.sweep)
        assert not (await store.list("", EVERYBODY, now=clock())).records


class CountingStore(MemoryStore):
    """Counts the tasks that were removed."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = 0

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        forgotten = await super().forget_expired(now, limit=limit, records=records)
        self.removed += len(forgotten)
        return forgotten


@pytest.mark.slow
async def test_a_start_does_not_wait_for_expired_tasks_and_sweeps_remove_so_many_at_a_time() -> None:
    clock, store = FakeClock(), CountingStore()
    count = 2 * PER_SWEEP + BATCH
    async with running(at_once, clock=clock, store=store) as earlier:
        for _ in range(count):
            task = await create(earlier, retention=HOUR)
            await cancel(earlier, task, "no need")
    clock.advance(2 * HOUR)
    async with running(at_once, clock=clock, store=store) as runtime:
        assert store.removed == 0
        for removed in (PER_SWEEP, 2 * PER_SWEEP, count):
            await runtime.janitor.sweep()
            assert store.removed == removed


async def test_whoever_else_has_something_to_do_has_a_turn_between_slices() -> None:
    clock, store = FakeClock(), CountingStore()
    async with running(at_once, clock=clock, store=store) as runtime:
        for _ in range(PER_SWEEP):
            await cancel(runtime, await create(runtime, retention=HOUR))
        clock.advance(2 * HOUR)
        removed = [0]

        async def look_on() -> None:
            while removed[-1] < PER_SWEEP:
                await anyio.lowlevel.checkpoint()
                removed.append(store.removed)

        async with anyio.create_task_group() as group:
            group.start_soon(look_on)
            await runtime.janitor.sweep()
    assert max(after - before for before, after in pairwise(removed)) <= SLICE


# Serving without running


async def test_a_process_that_only_serves_keeps_house_and_claims_nothing() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(TOOLS, clock=clock, store=store, runs_tools=False) as server:
        waiting, over = await launch(server, "again"), await launch(server, "again", retention=SECOND)
        again, once = await claimed_by(server, "gone", "again"), await claimed_by(server, "gone", "once")
        await cancel(server, over)
        clock.advance(HOUR / 2)
        await server.janitor.sweep()
        await settle()
        assert server.worker not in await store.workers("")
        assert await store.get(over.id) is None
        assert (await finished(server, await server.get(once.id, owner=None))).status is TaskStatus.FAILED
        for task in (waiting, again):
            record = await server.get(task.id, owner=None)
            assert (record.worker, record.is_final) == (None, False)
        async with running(TOOLS, clock=clock, store=store) as worker:
            for task in (waiting, again):
                assert (await until_final(worker, task)).status is TaskStatus.COMPLETED


class HalfAStore(MemoryStore):
    """Cannot say which workers there are, nor hand out, nor count a heartbeat."""

    is_broken = False

    async def workers(self, namespace: str) -> dict[str, int]:
        self._fail()
        return await super().workers(namespace)

    async def hand_out(self, namespace: str, share: Share, **options: Any) -> Sequence[Ready]:
        self._fail()
        return await super().hand_out(namespace, share, **options)

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        self._fail()
        await super().heartbeat(worker, namespace=namespace, beats=beats)

    def _fail(self) -> None:
        if self.is_broken:
            raise StoreUnavailable("no memory left")


async def test_what_has_expired_is_forgotten_though_other_sweeps_fail_and_the_lease_is_lost() -> None:
    store, clock, uptime = HalfAStore(), FakeClock(), Seconds()
    async with running(
        TOOLS, store=store, clock=clock, uptime=uptime, sweep_interval=timedelta(seconds=0.01)
    ) as runtime:
        tasks = [await cancel(runtime, await create(runtime, "once", retention=SECOND)) for _ in range(2)]
        store.is_broken = True
        uptime.advance(HOUR)
        await runtime.lease.make_sure()
        assert not runtime.lease.is_valid
        clock.advance(HOUR)
        with anyio.fail_after(LIMIT):
            while await store.versions([task.id for task in tasks]):  # noqa: ASYNC110 - a sweep tells nobody
                await anyio.sleep(0.01)
        store.is_broken = False


class HangingStore(MemoryStore):
    """Does not answer which workers there are."""

    hangs = False

    async def workers(self, namespace: str) -> dict[str, int]:
        if self.hangs:
            await anyio.sleep_forever()
        return await super().workers(namespace)


async def test_what_has_expired_is_forgotten_before_anything_else_is_looked_for() -> None:
    store, clock = HangingStore(), FakeClock()
    async with running(TOOLS, store=store, clock=clock, sweep_interval=timedelta(seconds=0.5)) as runtime:
        task = await cancel(runtime, await create(runtime, "once", retention=SECOND))
        clock.advance(HOUR)
        store.hangs = True
        with anyio.fail_after(LIMIT):
            while await store.versions([task.id]):  # noqa: ASYNC110 - a sweep tells nobody
                await anyio.sleep(0.01)


async def test_a_process_starts_though_what_an_earlier_one_left_cannot_be_looked_at() -> None:
    store = HalfAStore()
    await store.heartbeat("gone", namespace="")
    runtime = make_runtime(TOOLS, store=store, runs_tools=False)
    store.is_broken = True
    await runtime.start()
    store.is_broken = False
    await runtime.stop()
