"""A process that cannot say that it is alive, and what becomes of its runs: simulated time, the usual settings."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, RunLost, RunStarted, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import Body, Ending, Run, Settings, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.lease import HEARTBEATS_PER_LEASE, LeaseTimes
from mcp_tasks.runtime.steps import Retry
from mcp_tasks.runtime.suspend import State
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from tests.unit.running import CLIENT, ONCE, RERUN, launch, ok, question, running, settle, until, until_final
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

USUAL = Settings()
LEASE = USUAL.lease_duration.total_seconds()
TIMES = LeaseTimes.of(USUAL.lease_duration, timedelta(hours=1))
SHORT = TIMES.stop - TIMES.heartbeat * 1.25
"""An outage that begins just before a heartbeat, and ends before the runs are stopped."""

LONG = 1_000.0
"""Seconds of simulated time after which a test that waits has failed."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Net(MemoryStore):
    """A store from which a process can be cut off: its heartbeats do not arrive, nor anything if nothing should."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[str] = set()
        self.down = False
        self.hangs: anyio.Event | None = None
        """If there is one, the next write of a step hangs until it is set, and fails then if `fails`."""
        self.fails = True

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        self._pass()
        if worker in self.cut:
            raise StoreUnavailable("the network is down")
        await super().heartbeat(worker, namespace=namespace, beats=beats)

    async def get(self, task_id: str) -> TaskRecord | None:
        self._pass()
        return await super().get(task_id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        self._pass()
        if entries and self.hangs is not None:
            hangs, self.hangs = self.hangs, None
            await hangs.wait()
            if self.fails:
                raise StoreUnavailable("the network is down")
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)

    def _pass(self) -> None:
        if self.down:
            raise StoreUnavailable("the network is down")


class Machine:
    """Where a process runs: it may sleep, and its uptime goes on meanwhile."""

    def __init__(self) -> None:
        self.slept = 0.0

    def uptime(self) -> float:
        return asyncio.get_running_loop().time() + self.slept


def process(
    body: Body, store: MemoryStore, policy: ToolPolicy = RERUN, machine: Machine | None = None
) -> AbstractAsyncContextManager[TaskRuntime]:
    return running(
        body,
        store=store,
        policy=policy,
        monotonic=lambda: asyncio.get_running_loop().time(),
        uptime=(machine or Machine()).uptime,
        lease_duration=USUAL.lease_duration,
        sweep_interval=USUAL.sweep_interval,
    )


class Log:
    """What runs did, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def body(self, name: str) -> Body:
        """A tool that works until it is stopped."""

        async def work(run: Run) -> Ending:
            self.lines.append(f"{name} starts run {run.attempt}")
            try:
                await anyio.sleep_forever()
            finally:
                said = "told to stop" if current_task().cancelled and run.life.state is State.STOPPING else "not told"
                self.lines.append(f"{name} ends run {run.attempt}, {said}")
            raise AssertionError("unreachable")

        return work


async def at_work(runtime: TaskRuntime) -> TaskRecord:
    return await until(runtime, await launch(runtime), lambda record: record.worker is not None)


async def test_a_process_that_is_cut_off_stops_its_runs_before_another_one_claims_them() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one, process(log.body("other"), net) as other:
        task = await at_work(one)
        await time_passes(LEASE)
        net.cut.add(one.worker)
        taken = await until(other, task, lambda record: record.worker == other.worker, LONG)
        await settle()
        assert log.lines == ["one starts run 1", "one ends run 1, told to stop", "other starts run 2"]
        assert taken.lost == 1


async def test_a_process_that_is_back_in_time_releases_what_is_its_own_and_runs_it_again() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        task = await at_work(one)
        net.cut.add(one.worker)
        with anyio.fail_after(LONG):
            while one.lease.is_valid:
                await time_passes(0.1)
        net.cut.clear()
        again = await until(one, task, lambda record: record.attempt == 2, LONG)
        await settle()
        assert log.lines == ["one starts run 1", "one ends run 1, told to stop", "one starts run 2"]
        assert again.lost == 0, "nobody died"


async def test_a_process_that_is_back_in_time_ends_what_may_not_run_again() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net, ONCE) as one:
        task = await at_work(one)
        net.down = True
        await time_passes(LEASE)
        net.down = False
        ended = await until_final(one, task, LONG)
        assert ended.error is not None
        assert (ended.error["data"], ended.attempt) == ({"type": "Interrupted"}, 1)


async def test_a_process_without_a_lease_claims_nothing_until_it_has_one_again() -> None:
    net = Net()

    async def quick(run: Run) -> Ending:
        return ok()

    async with process(quick, net, ONCE) as one:
        net.cut.add(one.worker)
        await time_passes(LEASE)
        task = await one.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)
        await time_passes(LEASE)
        assert (await one.get(task.id, owner=None)).attempt == 0
        net.cut.clear()
        # It never began, so it is not interrupted, whatever its tool says about running again.
        assert (await until_final(one, task, LONG)).status is TaskStatus.COMPLETED


async def test_a_short_outage_stops_nothing() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        task = await at_work(one)
        for _ in range(10):
            net.down = True
            await time_passes(SHORT)
            net.down = False
            await time_passes(LEASE / 2)
        assert (await one.get(task.id, owner=None)).attempt == 1
        assert log.lines == ["one starts run 1"]


async def test_an_outcome_waits_for_the_store_longer_than_the_lease() -> None:
    net, worked = Net(), anyio.Event()

    async def work(run: Run) -> Ending:
        await worked.wait()
        return ok("done")

    async with process(work, net, ONCE) as one:
        task = await at_work(one)
        net.down = True
        worked.set()
        await time_passes(10 * LEASE)
        net.down = False
        ended = await until_final(one, task, LONG)
        assert (ended.result, ended.attempt) == ({"value": "done"}, 1)


async def test_a_step_whose_write_hangs_until_the_lease_is_renewed_is_done_once() -> None:
    net, paid = Net(), list[int]()

    async def work(run: Run) -> Ending:
        async def pay() -> None:
            paid.append(run.attempt)

        # When the run is stopped, the tool does not wait for its branch.
        paying = asyncio.ensure_future(run.step("pay", pay))
        await asyncio.wait({paying})
        return ok()

    async with process(work, net) as one:
        net.hangs = answers = anyio.Event()
        net.cut.add(one.worker)
        task = await launch(one)
        with anyio.fail_after(LONG):
            while one.lease.is_valid:
                await time_passes(0.1)
        net.cut.clear()
        with anyio.fail_after(LONG):
            while not one.lease.is_valid:
                await time_passes(0.1)
        answers.set()
        ended = await until_final(one, task, LONG)
        assert (ended.status, ended.attempt, paid) == (TaskStatus.COMPLETED, 2, [1])


async def test_steps_that_wait_to_be_recorded_one_after_the_other_when_the_lease_is_lost_are_done_once() -> None:
    net, done = Net(), list[str]()

    async def work(run: Run) -> Ending:
        async def pay(what: str) -> None:
            await asyncio.sleep(1)  # sleep: the time is simulated
            done.append(what)

        async with anyio.create_task_group() as group:
            for what in ("rent", "power", "water"):
                group.start_soon(run.step, what, partial(pay, what))
        return ok()

    async with process(work, net) as one:
        task = await at_work(one)
        net.down = True
        with anyio.fail_after(LONG):
            while one.lease.is_valid:
                await time_passes(0.1)
        net.down = False
        ended = await until_final(one, task, LONG)
        assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 2)
        assert sorted(done) == ["power", "rent", "water"]


@pytest.mark.parametrize("is_down", [False, True], ids=["store available", "store down for a moment"])
async def test_a_task_is_released_when_its_run_ends_in_a_write_that_outlasts_the_renewal_of_the_lease(
    *, is_down: bool
) -> None:
    net, paid = Net(), list[int]()
    net.fails = False

    async def work(run: Run) -> Ending:
        async def pay() -> None:
            paid.append(run.attempt)

        await run.step("pay", pay)
        await run.step("thank", pay)
        return ok()

    async with process(work, net) as one:
        net.hangs = answers = anyio.Event()
        net.cut.add(one.worker)
        task = await launch(one)
        with anyio.fail_after(LONG):
            while one.lease.is_valid:
                await time_passes(0.1)
        net.cut.clear()
        with anyio.fail_after(LONG):
            while not one.lease.is_valid:
                await time_passes(0.1)
        answers.set()
        if is_down:
            net.down = True
            await time_passes(1.0)
            net.down = False
        # At once or with the next sweep: not when one finds for the second time that nothing runs it.
        ended = await until_final(one, task, one.sweep_interval.total_seconds() * 2 + 1)
        assert (ended.status, ended.attempt, paid) == (TaskStatus.COMPLETED, 2, [1, 2])


async def test_a_machine_that_slept_keeps_what_is_still_its_own() -> None:
    net, log, machine = Net(), Log(), Machine()
    async with process(log.body("one"), net, ONCE, machine) as one:
        task = await at_work(one)
        machine.slept += 8 * 3_600
        await time_passes(LEASE)
        assert (await one.get(task.id, owner=None)).worker == one.worker
        assert log.lines == ["one starts run 1"]


async def test_a_machine_that_slept_stops_what_others_have_claimed_meanwhile() -> None:
    net, log, machine = Net(), Log(), Machine()
    async with process(log.body("one"), net, RERUN, machine) as one:
        lost, kept = await at_work(one), await at_work(one)
        machine.slept += 8 * 3_600
        await net.heartbeat("another", namespace="")
        await one.changes.change(lost, RunLost(attempt=lost.attempt), RunStarted(worker="another"), actor=CLIENT)
        await time_passes(LEASE / 2)
        assert [(await one.get(task.id, owner=None)).worker for task in (lost, kept)] == ["another", one.worker]
        assert log.lines[2:] == ["one ends run 1, told to stop"]


@pytest.mark.parametrize("gap", [timedelta(minutes=1), timedelta(days=3)], ids=["minute", "days"])
async def test_two_machines_that_slept_together_take_nothing_from_each_other(gap: timedelta) -> None:
    net, log = Net(), Log()
    machines = Machine(), Machine()
    async with (
        process(log.body("one"), net, ONCE, machines[0]) as one,
        process(log.body("other"), net, ONCE, machines[1]) as other,
    ):
        tasks = await at_work(one), await at_work(other)
        for machine in machines:
            machine.slept += gap.total_seconds()
        await time_passes(3 * LEASE)
        records = [await one.get(task.id, owner=None) for task in tasks]
        assert [record.worker for record in records] == [one.worker, other.worker]
        assert log.lines == ["one starts run 1", "other starts run 1"]


# Waking up


class Sleeper:
    """A tool that begins something when its machine has slept, and its task was taken over meanwhile."""

    def __init__(self, begins: Callable[[Sleeper, Run], Awaitable[object]], net: Net) -> None:
        self.net = net
        self.machine = Machine()
        self.begun: list[str] = []
        self._begins = begins

    async def body(self, run: Run) -> Ending:
        """The tool."""
        await self._begins(self, run)
        raise AssertionError("nothing is begun")

    async def sleep(self, run: Run) -> None:
        """The machine sleeps, and another process takes the task."""
        self.machine.slept += 8 * 3_600
        record = run.record
        taken = replace(record, worker="another", attempt=record.attempt + 1, version=record.version + 1)
        await self.net.save(taken, expected=record.version)

    async def step(self, run: Run) -> None:
        """Begin a step."""
        await self.sleep(run)
        await run.step("pay", self._pay)

    async def second_attempt(self, run: Run) -> None:
        """Begin a step, and sleep between its first attempt and the next."""

        async def pay() -> None:
            if self.machine.slept:
                self.begun.append("second attempt")
            await self.sleep(run)
            raise ValueError("not paid")

        await run.step("pay", pay, retry=Retry(attempts=2, wait=timedelta(0)))

    async def question(self, run: Run) -> None:
        """Ask."""
        await self.sleep(run)
        await run.ask(question("Pay?"))

    async def child(self, run: Run) -> None:
        """Start a child process."""
        await self.sleep(run)
        await current_task().run_process(["pay"])

    async def _pay(self) -> None:
        self.begun.append("step")


@pytest.mark.parametrize("begins", [Sleeper.step, Sleeper.second_attempt, Sleeper.question, Sleeper.child])
async def test_a_run_that_wakes_up_and_has_lost_its_task_begins_nothing(
    begins: Callable[[Sleeper, Run], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    sleeper = Sleeper(begins, net)

    def begin(*_: Any, **__: Any) -> None:
        sleeper.begun.append("child process")

    monkeypatch.setattr(subprocess, "Popen", begin)
    async with process(sleeper.body, net, RERUN, sleeper.machine) as one:
        task = await launch(one)
        lost = await until(one, task, lambda record: record.worker == "another")
        with anyio.fail_after(LONG):
            while one.run_of(task.id) is not None:
                await time_passes(0.1)
        assert sleeper.begun == []
        assert await one.get(task.id, owner=None) == lost, "nothing was written"


# Beginning and stopping


class SlowStore(Net):
    """Takes its time for some of what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.release_takes = 0.0
        self.workers_take = 0.0

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        if record.worker is None:
            await time_passes(self.release_takes)
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)

    async def workers(self, namespace: str) -> dict[str, int]:
        await time_passes(self.workers_take)
        return await super().workers(namespace)


async def test_a_process_that_needs_long_to_hand_its_tasks_over_keeps_its_lease_meanwhile() -> None:
    store, log = SlowStore(), Log()
    async with process(log.body("other"), store) as other:
        async with process(log.body("one"), store) as one:
            tasks = [await at_work(one) for _ in range(5)]
            store.release_takes = LEASE / 3
        for task in tasks:
            taken = await until(other, task, lambda record: record.worker == other.worker, LONG)
            assert taken.lost == 0, "it was alive"


async def test_a_process_that_needs_long_to_start_keeps_its_lease_meanwhile() -> None:
    store, log = SlowStore(), Log()
    store.workers_take = 5 * LEASE
    async with process(log.body("one"), store) as one:
        store.workers_take = 0.0
        beats = (await store.workers(""))[one.worker]
        assert beats > 5 * HEARTBEATS_PER_LEASE - 2
        assert one.lease.is_valid
