"""A process that had lost its lease and is back: what becomes of tasks whose runs end, or are made, while it takes up
its tasks again, and how others see it. Simulated time, the usual settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, Settings, TaskRuntime
from mcp_tasks.runtime.lease import LeaseTimes, Watch
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import IdPage
from tests.unit.running import RERUN, Seconds, Tool, launch, ok, running, settle, until, until_final
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

USUAL = Settings()

LONG = 1_000.0
"""Seconds of simulated time after which a test that waits has failed."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Held:
    """One write that waits on its way to the store."""

    def __init__(self, is_it: Callable[[TaskRecord, bool], bool]) -> None:
        self.is_it = is_it
        self.came = anyio.Event()
        self.goes_on = anyio.Event()


class Slow(MemoryStore):
    """Refuses heartbeats for as long as it is told to, and holds single writes back."""

    def __init__(self) -> None:
        super().__init__()
        self.takes_heartbeats = True
        self._held: list[Held] = []

    def hold(self, is_it: Callable[[TaskRecord, bool], bool]) -> Held:
        """Hold back the next write of which this is true, given its record and whether it is of a journal's entries."""
        held = Held(is_it)
        self._held.append(held)
        return held

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        if not self.takes_heartbeats:
            raise StoreUnavailable("the network is down")
        await super().heartbeat(worker, namespace=namespace, beats=beats)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        held = next((each for each in self._held if each.is_it(record, bool(options.get("entries")))), None)
        if held is not None:
            self._held.remove(held)
            held.came.set()
            await held.goes_on.wait()
        return await super().save(record, **options)


async def work_until_stopped(run: Run) -> Ending:
    """Works on and on in its first run."""
    if run.attempt == 1:
        await anyio.sleep_forever()
    return ok()


async def pay(run: Run) -> Ending:
    async def work() -> None:
        pass

    await run.step("pay", work)
    return ok()


def process(store: Slow) -> AbstractAsyncContextManager[TaskRuntime]:
    return running(
        {"stopped": Tool(work_until_stopped, RERUN), "pays": Tool(pay, RERUN)},
        store=store,
        monotonic=lambda: asyncio.get_running_loop().time(),
        uptime=lambda: asyncio.get_running_loop().time(),
        lease_duration=USUAL.lease_duration,
        sweep_interval=USUAL.sweep_interval,
    )


async def lose_the_lease(runtime: TaskRuntime, store: Slow) -> None:
    store.takes_heartbeats = False
    with anyio.fail_after(LONG):
        while runtime.lease.is_valid:
            await time_passes(0.1)


async def ends_soon(runtime: TaskRuntime, task: TaskRecord) -> None:
    """Not only when a sweep finds for the second time that nothing runs it."""
    ended = await until_final(runtime, task, runtime.sweep_interval.total_seconds() * 2 + 1)
    assert ended.status is TaskStatus.COMPLETED


async def test_a_run_that_ends_while_other_tasks_are_taken_up_again_leaves_its_task_to_the_next_run() -> None:
    store = Slow()
    async with process(store) as runtime:
        step = store.hold(lambda record, has_entries: record.name == "pays" and has_entries)
        # In this order they are taken up.
        slow = await launch(runtime, "pays")
        other = await launch(runtime, "stopped")
        await until(runtime, other, lambda record: record.worker is not None)
        await step.came.wait()
        await lose_the_lease(runtime, store)
        release = store.hold(lambda record, _: record.id == other.id and record.worker is None)
        store.takes_heartbeats = True
        await release.came.wait()
        step.goes_on.set()
        await settle()
        assert (runtime.has(slow.id), runtime.lease.is_valid) == (False, False)
        release.goes_on.set()
        await ends_soon(runtime, slow)
        await ends_soon(runtime, other)


async def test_a_task_whose_claim_is_made_while_others_are_taken_up_again_is_run() -> None:
    store = Slow()
    async with process(store) as runtime:
        other = await launch(runtime, "stopped")
        await until(runtime, other, lambda record: record.worker is not None)
        claim = store.hold(lambda record, _: record.name == "pays" and record.worker is not None)
        slow = await launch(runtime, "pays")
        await claim.came.wait()
        await lose_the_lease(runtime, store)
        release = store.hold(lambda record, _: record.id == other.id and record.worker is None)
        store.takes_heartbeats = True
        await release.came.wait()
        claim.goes_on.set()
        await settle()
        assert (runtime.has(slow.id), runtime.lease.is_valid) == (False, False)
        release.goes_on.set()
        await ends_soon(runtime, slow)
        await ends_soon(runtime, other)


# Those that are back, as others see them

TIMES = LeaseTimes.of(USUAL.lease_duration, USUAL.sweeps_every(remote=False))
SECOND = timedelta(seconds=1)


class Seen:
    """How one process sees another, given its heartbeats; None where it has neither a heartbeat nor a task."""

    def __init__(self) -> None:
        self._clock = Seconds()
        self._watch = Watch(TIMES, clock=self._clock)

    def is_dead(self, beats: int | None) -> bool:
        """Whether it counts as dead a second after the last look."""
        self._clock.advance(SECOND)
        heartbeats = {} if beats is None else {"elsewhere": beats}
        return bool(self._watch.dead(heartbeats, asked=self._clock()))


def test_a_process_whose_heartbeat_was_lost_while_it_had_no_task_is_waited_for() -> None:
    other = Seen()
    for beats in (7, None, None):
        assert not other.is_dead(beats)
    # It claims a task before it sends the next one.
    for beats in (0, 0, 8):
        assert not other.is_dead(beats)


def test_a_process_whose_heartbeat_was_lost_and_that_sends_none_is_dead_after_two_heartbeats() -> None:
    other = Seen()
    for beats in (7, None, 0):
        assert not other.is_dead(beats)
    seconds = next(seconds for seconds in range(1, 100) if other.is_dead(0))
    assert seconds == 2 * TIMES.heartbeat


def test_a_process_that_was_not_there_for_a_lease_is_dead_at_once() -> None:
    other = Seen()
    other.is_dead(7)
    for _ in range(int(USUAL.lease_duration.total_seconds())):
        other.is_dead(None)
    assert other.is_dead(0)


class Back(MemoryStore):
    """The tasks of a worker are looked up, or it is forgotten, just when it is back."""

    def __init__(self) -> None:
        super().__init__()
        self.before_claimed: Callable[[], Awaitable[None]] | None = None
        self.before_retire: Callable[[], Awaitable[None]] | None = None

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        if self.before_claimed is not None and worker == "elsewhere":
            before, self.before_claimed = self.before_claimed, None
            await before()
        return await super().claimed(worker, cursor=cursor, limit=limit)

    async def retire(self, worker: str) -> None:
        before, self.before_retire = self.before_retire, None
        if before is not None:
            await before()
        await super().retire(worker)


def observing(store: MemoryStore) -> AbstractAsyncContextManager[TaskRuntime]:
    """A process that runs nothing, and sees who is alive."""
    return running(
        work_until_stopped,
        store=store,
        policy=RERUN,
        runs_tools=False,
        monotonic=lambda: asyncio.get_running_loop().time(),
        uptime=lambda: asyncio.get_running_loop().time(),
        lease_duration=USUAL.lease_duration,
        sweep_interval=USUAL.sweep_interval,
    )


async def test_a_worker_that_is_back_before_it_is_forgotten_keeps_its_heartbeat() -> None:
    store = Back()

    async def is_back() -> None:
        await store.heartbeat("elsewhere", namespace="")

    async with observing(store) as observer:
        await store.heartbeat("elsewhere", namespace="")
        store.before_claimed = is_back
        with anyio.fail_after(LONG):
            while store.before_claimed is not None:
                await time_passes(observer.sweep_interval.total_seconds())
        assert await store.workers("") == {"elsewhere": 2}


async def test_what_a_worker_claims_that_is_back_just_as_it_is_forgotten_is_not_taken_from_it() -> None:
    store = Back()
    async with (
        observing(store) as observer,
        running(
            work_until_stopped,
            store=store,
            policy=RERUN,
            uptime=lambda: asyncio.get_running_loop().time(),
            lease_duration=USUAL.lease_duration,
        ) as worker,
    ):
        worker.stop_keeping_lease()
        store.before_retire = worker.lease.renew
        with anyio.fail_after(LONG):
            while store.before_retire is not None:
                await time_passes(0.1)
        # It may claim tasks: its lease is good, and its next heartbeat is not due yet.
        await time_passes(observer.sweep_interval.total_seconds() * 1.5)
        task = await until(worker, await launch(worker), lambda record: record.worker is not None)
        assert await store.workers("") == {worker.worker: 0}
        await time_passes(TIMES.heartbeat - observer.sweep_interval.total_seconds() * 1.5)
        await worker.lease.renew()
        await time_passes(TIMES.heartbeat)
        record = await observer.find(task.id)
        assert (record.worker, record.attempt, record.lost) == (worker.worker, 1, 0)
