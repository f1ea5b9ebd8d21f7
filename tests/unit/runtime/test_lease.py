"""Who is alive: a process that cannot say so stops its runs before another one takes them. Simulated time.

The settings are the usual ones: what is tested is their proportions.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.thoroughness import examples
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.machine import RunLost, RunStarted
from mcp_tasks.runtime import Body, Ending, Run, Settings, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.lease import HEARTBEATS_PER_LEASE, LeaseTimes, Watch, uptime
from mcp_tasks.runtime.steps import Retry
from mcp_tasks.stores import MemoryStore
from tests.unit.losing import ANOTHER, as_of_now
from tests.unit.running import (
    CLIENT,
    HOUR,
    ONCE,
    RERUN,
    DeafStore,
    Held,
    Meddle,
    MeddledStore,
    Seconds,
    at_once,
    cancel,
    finished,
    launch,
    loop_time,
    never_ending,
    ok,
    opened_by,
    question,
    running,
    settle,
    start,
    started,
    until,
    until_final,
)
from tests.unit.virtual_time import SIMULATED, block, time_passes

USUAL = Settings()
LEASE = USUAL.lease_duration.total_seconds()
TIMES = LeaseTimes.of(USUAL.lease_duration, HOUR)
SHORT = TIMES.stop - TIMES.heartbeat * 1.25
"""An outage that begins just before a heartbeat, and ends before the runs are stopped."""

LONG = 1_000.0
"""Seconds of simulated time after which a test that waits has failed."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


# The limits, for all leases

LENGTHS = st.floats(0.001, 1e6)
DRIFT = 0.001
"""By how much the clocks of two machines differ in rate, at most."""


@given(lease=LENGTHS, sweep=LENGTHS)
def test_the_limits_of_every_lease_are_in_order_with_a_margin_between_them(lease: float, sweep: float) -> None:
    times = LeaseTimes.of(timedelta(seconds=lease), timedelta(seconds=sweep))
    margin = lease / 20
    assert times.heartbeat * 3 < times.stop, "one may be late and some lost"
    assert times.stop + margin <= times.kill
    assert times.kill * (1 + DRIFT) + margin <= times.takeover * (1 - DRIFT)
    assert times.takeover <= lease + 1e-6
    assert times.longest_step < times.takeover, "one look alone proves nothing"
    if sweep <= lease / 5:
        assert times.takeover + 2 * sweep <= lease + sweep + 1e-6, "a death is found within the lease and a sweep"


@dataclass(frozen=True)
class Look:
    """One look of an observer: seconds since the one before, until the store read, and until its answer came."""

    after: float
    read_after: float
    answered_after: float


LOOKS = st.builds(Look, after=st.floats(0, 20), read_after=st.floats(0, 6), answered_after=st.floats(0, 6))


@settings(max_examples=examples(40))
@given(
    sweep=st.floats(0.01, 60),
    renewals=st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10)), min_size=1, max_size=8),
    looks=st.lists(LOOKS, min_size=1, max_size=60),
    rate=st.floats(1 - DRIFT, 1 + DRIFT),
)
def test_no_task_is_taken_over_before_the_last_child_of_its_worker_was_killed(
    sweep: float, renewals: Sequence[tuple[float, float]], looks: Sequence[Look], rate: float
) -> None:
    """Renewals are carried out some time after they were sent, and maybe never acknowledged. The observer looks
    rarely and slowly, and its clock runs at another rate."""
    times = LeaseTimes.of(USUAL.lease_duration, timedelta(seconds=sweep))
    sent = list(accumulate(after for after, _ in renewals))
    carried_out = list(accumulate((at + late for at, (_, late) in zip(sent, renewals, strict=True)), max))

    def count(at: float) -> int:
        """How many renewals the store has taken by then; the worker signed on before all of them."""
        return 1 + sum(done <= at for done in carried_out)

    now = 0.0
    watch = Watch(times, clock=lambda: now * rate)
    for look in looks:
        now += look.after
        asked = now
        now += look.read_after
        read = count(now)
        now += look.answered_after
        if watch.dead({"elsewhere": read}, asked=asked * rate):
            # The last of those that the store had taken when it was asked. A later one is refused to what it was.
            last = sent[read - 2] if read > 1 else 0.0
            assert now >= last + times.kill + LEASE / 20


@pytest.mark.parametrize("missing", [[], ["CLOCK_BOOTTIME"], ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC"]], ids=len)
def test_uptime_is_told_by_the_best_clock_that_a_machine_has(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock in missing:
        monkeypatch.delattr(time, clock, raising=False)
    assert 0 < uptime() <= uptime()
    if missing:
        before = time.monotonic()
        assert before <= uptime() <= time.monotonic()


# A process and its lease


class Net(MeddledStore):
    """A store from which a process can be cut off: its heartbeats do not arrive, nor anything if nothing should."""

    def __init__(self) -> None:
        super().__init__(heartbeat=self._beat, get=self._pass, save=self._saving, claimed=self._claiming)
        self.after["heartbeat"] = self._noted
        self.cut: set[str] = set()
        self.down = False
        self.beats: list[float] = []
        """When the heartbeats that arrived were sent."""
        self.answers_after = 0.0
        self.hangs: anyio.Event | None = None
        """If there is one, the next write of a step hangs until it is set, and fails then if `fails`."""
        self.fails = True
        self.claims_take = 0.0
        self.claims_fail = 0

    async def _beat(self, worker: str, **options: Any) -> None:
        await self._pass()
        if worker in self.cut:
            raise StoreUnavailable("the network is down")
        self.beats.append(loop_time())

    async def _noted(self, *args: Any, **options: Any) -> None:
        await time_passes(self.answers_after)

    async def _saving(self, record: TaskRecord, *, entries: Sequence[JournalEntry] = (), **options: Any) -> None:
        await self._pass()
        if entries and self.hangs is not None:
            hangs, self.hangs = self.hangs, None
            await hangs.wait()
            if self.fails:
                raise StoreUnavailable("the network is down")

    async def _claiming(self, *args: Any, **options: Any) -> None:
        await time_passes(self.claims_take)
        if self.claims_fail:
            self.claims_fail -= 1
            raise StoreUnavailable("the disk is full")

    async def _pass(self, *args: Any, **options: Any) -> None:
        if self.down:
            raise StoreUnavailable("the network is down")


class Machine:
    """Where a process runs: it may sleep, and its uptime goes on meanwhile."""

    def __init__(self) -> None:
        self.slept = 0.0

    def uptime(self) -> float:
        return loop_time() + self.slept


def process(
    body: Body, store: MemoryStore, policy: TaskOptions = RERUN, machine: Machine | None = None
) -> AbstractAsyncContextManager[TaskRuntime]:
    return running(
        body,
        store=store,
        policy=policy,
        monotonic=loop_time,
        uptime=(machine or Machine()).uptime,
        lease_duration=USUAL.lease_duration,
        sweep_interval=USUAL.sweep_interval,
    )


class Log:
    """What runs did, in order, and when the last one was stopped."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stopped_at = 0.0

    def body(self, name: str) -> Body:
        async def work(run: Run) -> Ending:
            self.lines.append(f"{name} starts run {run.attempt}")
            try:
                return await never_ending(run)
            finally:
                said = "told to stop" if current_task().cancelled else "not told"
                self.lines.append(f"{name} ends run {run.attempt}, {said}")
                self.stopped_at = loop_time()

        return work


async def until_so(condition: Callable[[], object]) -> None:
    """Return when that is so, on simulated time."""
    with anyio.fail_after(LONG):
        while not condition():
            await time_passes(0.1)


async def without_lease(runtime: TaskRuntime) -> None:
    await until_so(lambda: not runtime.lease.is_valid)


async def test_a_lease_is_renewed_several_times_in_its_length_and_a_short_outage_stops_nothing() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        task = await started(one)
        await time_passes(10 * LEASE)
        assert max(later - earlier for earlier, later in pairwise(net.beats)) <= LEASE / 3
        for _ in range(10):
            net.down = True
            await time_passes(SHORT)
            net.down = False
            await time_passes(LEASE / 2)
        assert (await as_of_now(one, task)).attempt == 1
        assert log.lines == ["one starts run 1"]


async def fails_after(seconds: float, *args: Any, **options: Any) -> None:
    await time_passes(seconds)
    raise StoreUnavailable("the network is cut")


async def breaks(*args: Any, **options: Any) -> None:
    raise RuntimeError("a defect")


async def clings(*args: Any, **options: Any) -> None:
    """As a driver that tells its server first when it is cancelled, by a network that is cut."""
    end = loop_time() + 4 * LEASE
    while loop_time() < end:
        with suppress(asyncio.CancelledError):
            await time_passes(end - loop_time())


@pytest.mark.parametrize(
    "outage",
    [breaks, clings, *(partial(fails_after, seconds) for seconds in (0.0, 1.0, 2.4, 2.6, 4.9, 60.0))],
    ids=lambda outage: getattr(outage, "__name__", None) or f"fails after {outage.args[0]} s",
)
async def test_however_a_store_fails_the_runs_stop_well_before_others_may_claim_them(outage: Meddle) -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        await started(one)
        await time_passes(LEASE)
        working, net.before["heartbeat"] = net.before["heartbeat"], outage
        await until_so(lambda: log.stopped_at)
        assert log.stopped_at - net.beats[-1] == pytest.approx(TIMES.stop, abs=0.01)
        assert not one.lease.is_valid
        net.before["heartbeat"] = working


async def test_a_renewal_that_is_answered_late_counts_from_when_it_was_sent_and_not_once_runs_are_stopped() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        await started(one)
        net.answers_after = TIMES.stop + 1
        await time_passes(TIMES.heartbeat)
        sent = net.beats[-1]
        await without_lease(one)
        assert log.stopped_at <= sent + TIMES.stop
        await time_passes(sent + TIMES.stop + 1 - loop_time())
        assert log.lines == ["one starts run 1", "one ends run 1, told to stop"]


def lose_heartbeats(net: Net, times: float = math.inf) -> None:
    """Have a failover after each of so many heartbeats: the store then has only those from before."""
    kept: dict[str, int] = {}

    async def fail_over(before: int, worker: str, *, beats: int, **options: Any) -> None:
        nonlocal times
        if times > 0:
            times -= 1
            await MemoryStore.retire(net, worker)
            await MemoryStore.heartbeat(net, worker, beats=kept.setdefault(worker, before), **options)

    net.after["heartbeat"] = fail_over


async def test_a_heartbeat_that_a_failover_lost_is_soon_followed_by_others_and_stops_nothing() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        await started(one)
        await time_passes(LEASE)
        before = len(net.beats)
        lose_heartbeats(net, times=1)
        await time_passes(3 * LEASE)
        assert net.beats[before + 2] - net.beats[before + 1] <= TIMES.heartbeat / 2
        assert net.beats[-1] - net.beats[-2] == pytest.approx(TIMES.heartbeat, abs=0.01)
        assert log.lines == ["one starts run 1"]


async def test_a_process_whose_heartbeats_are_all_lost_in_failovers_stops_its_runs_before_a_takeover() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one, process(log.body("other"), net) as other:
        task = await started(one)
        await time_passes(LEASE)
        kept = net.beats[-1]
        lose_heartbeats(net)
        await until_so(lambda: log.stopped_at)
        assert log.stopped_at - kept <= TIMES.stop + 0.01
        assert not one.lease.is_valid
        del net.after["heartbeat"]
        await until(other, task, lambda record: record.worker is not None and record.attempt == 2, LONG)
        assert log.lines.index("one ends run 1, told to stop") < next(
            place for place, line in enumerate(log.lines) if line.endswith("starts run 2")
        )


async def test_a_process_that_is_cut_off_stops_its_runs_before_another_one_claims_them() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one, process(log.body("other"), net) as other:
        task = await started(one)
        await time_passes(LEASE)
        net.cut.add(one.worker)
        taken = await until(other, task, lambda record: record.worker == other.worker, LONG)
        await settle()
        assert log.lines == ["one starts run 1", "one ends run 1, told to stop", "other starts run 2"]
        assert taken.lost == 1


@pytest.mark.parametrize("trouble", ["none", "a look fails", "looks take long"])
async def test_a_process_that_is_back_in_time_releases_what_is_its_own_and_runs_it_again(trouble: str) -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        task = await started(one)
        net.cut.add(one.worker)
        await without_lease(one)
        # A store that many ask at once is slow, and there is more to be asked of it than a heartbeat.
        net.claims_take = LEASE / 2 if trouble == "looks take long" else 0.0
        net.claims_fail = int(trouble == "a look fails")
        net.cut.clear()
        again = await until(one, task, lambda record: record.attempt == 2, LONG)
        net.claims_take = 0.0
        await time_passes(LEASE)
        assert log.lines == ["one starts run 1", "one ends run 1, told to stop", "one starts run 2"]
        assert again.lost == 0, "nobody died"


async def test_a_process_that_is_back_in_time_ends_what_may_not_run_again() -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net, ONCE) as one:
        task = await started(one)
        net.down = True
        await time_passes(LEASE)
        net.down = False
        ended = await until_final(one, task, LONG)
        assert ended.error is not None
        assert (ended.error["data"], ended.attempt) == ({"type": "interrupted"}, 1)


async def test_a_process_without_a_lease_claims_nothing_until_it_has_one_again() -> None:
    net = Net()
    async with process(at_once, net, ONCE) as one:
        net.cut.add(one.worker)
        await time_passes(LEASE)
        task = await start(one)
        await time_passes(LEASE)
        assert (await as_of_now(one, task)).attempt == 0
        net.cut.clear()
        # It never began, so it is not interrupted, whatever its tool says about running again.
        assert (await until_final(one, task, LONG)).status is TaskStatus.COMPLETED


async def test_an_outcome_waits_for_the_store_longer_than_the_lease() -> None:
    net, gate = Net(), anyio.Event()
    async with process(opened_by(gate), net, ONCE) as one:
        task = await started(one)
        net.down = True
        gate.set()
        await time_passes(10 * LEASE)
        net.down = False
        ended = await until_final(one, task, LONG)
        assert (ended.result, ended.attempt) == ({"value": "ok"}, 1)


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
        task, answers = await hanging(one, net)
        answers.set()
        ended = await until_final(one, task, LONG)
        assert (ended.status, ended.attempt, paid) == (TaskStatus.COMPLETED, 2, [1])


async def test_a_tool_does_not_wait_for_a_write_that_hangs_once_the_lease_is_lost_and_its_step_is_done_once() -> None:
    net, log, paid = Net(), Log(), list[int]()

    async def work(run: Run) -> Ending:
        async def pay() -> None:
            paid.append(run.attempt)

        await run.step("pay", pay)
        return ok()

    async def logged(run: Run) -> Ending:
        try:
            return await work(run)
        finally:
            log.stopped_at = log.stopped_at or loop_time()

    async with process(logged, net) as one:
        net.hangs = hangs = anyio.Event()
        net.cut.add(one.worker)
        task = await launch(one)
        await without_lease(one)
        lost_at = loop_time()
        await settle()
        stopped_at = log.stopped_at
        net.cut.clear()
        hangs.set()
        await until_so(lambda: one.lease.is_valid)
        ended = await until_final(one, task, LONG)
        assert (ended.status, ended.attempt, paid) == (TaskStatus.COMPLETED, 2, [1])
        assert stopped_at == lost_at


async def hanging(runtime: TaskRuntime, net: Net) -> tuple[TaskRecord, anyio.Event]:
    """A task whose first step is being written since before its process lost its lease, and had it again."""
    net.hangs = answers = anyio.Event()
    net.cut.add(runtime.worker)
    task = await launch(runtime)
    await without_lease(runtime)
    net.cut.clear()
    await until_so(lambda: runtime.lease.is_valid)
    return task, answers


async def test_steps_that_wait_to_be_recorded_one_after_the_other_when_the_lease_is_lost_are_done_once() -> None:
    net, done = Net(), list[str]()

    async def work(run: Run) -> Ending:
        async def pay(what: str) -> None:
            await time_passes(1)
            done.append(what)

        async with anyio.create_task_group() as group:
            for what in ("rent", "power", "water"):
                group.start_soon(run.step, what, partial(pay, what))
        return ok()

    async with process(work, net) as one:
        task = await started(one)
        net.down = True
        await without_lease(one)
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
        task, answers = await hanging(one, net)
        answers.set()
        if is_down:
            net.down = True
            await time_passes(1.0)
            net.down = False
        # At once or with the next sweep: not when one finds for the second time that nothing runs it.
        ended = await until_final(one, task, one.sweep_interval.total_seconds() * 2 + 1)
        assert (ended.status, ended.attempt, paid) == (TaskStatus.COMPLETED, 2, [1, 2])


@pytest.mark.parametrize("held", ["step", "claim"])
async def test_a_run_that_ends_or_begins_while_other_tasks_are_taken_up_again_is_given_up_with_them(held: str) -> None:
    net = Net()

    async def work(run: Run) -> Ending:
        if run.request.arguments["stays"] and run.attempt == 1:
            return await never_ending(run)
        await run.step("pay", partial(asyncio.sleep, 0))
        return ok()

    async with process(work, net) as one:
        others = [await started(one, stays=True)] if held == "claim" else []
        write = Held(lambda record, entries: entries if held == "step" else record.worker)
        net.before["save"] = write
        slow = await launch(one, stays=False)
        await write.came.wait()
        others += [] if others else [await started(one, stays=True)]
        net.cut.add(one.worker)
        await without_lease(one)
        net.before["save"] = release = Held(lambda record, _: record.id == others[0].id and record.worker is None)
        net.cut.clear()
        await release.came.wait()
        write.goes_on.set()
        await settle()
        assert (one.has(slow.id), one.lease.is_valid) == (False, False)
        release.goes_on.set()
        for task in (slow, *others):
            # Not only when a sweep finds for the second time that nothing runs it.
            ended = await until_final(one, task, one.sweep_interval.total_seconds() * 2 + 1)
            assert ended.status is TaskStatus.COMPLETED


@pytest.mark.parametrize("has_ended", [False, True], ids=["another runs it", "it has ended"])
async def test_nothing_that_a_run_says_counts_once_its_task_is_anothers_or_has_ended(has_ended: bool) -> None:
    """Nobody tells it anything, so it finds out by itself."""
    store, may_end, finish, given = DeafStore(), anyio.Event(), anyio.Event(), list[str]()

    async def work() -> str:
        await may_end.wait()
        return "done"

    async def slow(run: Run) -> Ending:
        given.append(await run.step("late", work))
        return ok("late")

    async with (
        running(slow, store=store, policy=RERUN, look_interval=HOUR) as one,
        running(opened_by(finish), store=store, policy=RERUN, monotonic=Seconds()) as other,
    ):
        task = await launch(one)
        await settle()
        if has_ended:
            await cancel(other, await as_of_now(other, task))
        else:
            await one.changes.change(await as_of_now(one, task), RunLost(attempt=1), actor=ANOTHER)
            await other.engine.submit(task.id)
            await settle()
        may_end.set()
        await settle()
        assert (one.has(task.id), given) == (False, [])
        finish.set()
        ended = await other.follow(task.id, lambda record: record.is_final, timeout=timedelta(seconds=5))
        assert ended is not None
        ended = await finished(other, ended)
    assert (ended.result, ended.attempt) == ((None, 1) if has_ended else ({"value": "ok"}, 2))
    assert not await store.journal(task.id)


# Standing still


@pytest.mark.parametrize("is_down", [False, True], ids=["store available", "store down"])
async def test_a_process_whose_event_loop_was_blocked_asks_the_store_before_it_stops_anything(is_down: bool) -> None:
    net, log = Net(), Log()
    async with process(log.body("one"), net) as one:
        await started(one)
        await time_passes(LEASE)
        net.down = is_down
        block(net.beats[-1] + TIMES.stop + 0.5 - loop_time())
        await time_passes(LEASE)
        if is_down:
            assert log.stopped_at - net.beats[-1] <= TIMES.kill + TIMES.late
        assert len(log.lines) == 1 + is_down
        net.down = False


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("gap", [timedelta(minutes=1), timedelta(days=3)], ids=["minute", "days"])
async def test_machines_that_slept_keep_what_is_still_their_own(gap: timedelta, machines: int) -> None:
    net, log = Net(), Log()
    asleep = [Machine() for _ in range(machines)]
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(process(log.body("one"), net, ONCE, machine)) for machine in asleep
        ]
        tasks = [await started(one) for one in processes]
        for machine in asleep:
            machine.slept += gap.total_seconds()
        await time_passes(3 * LEASE)
        records = [await as_of_now(processes[0], task) for task in tasks]
        assert [record.worker for record in records] == [one.worker for one in processes]
        assert log.lines == ["one starts run 1"] * machines


async def test_a_machine_that_sleeps_while_it_renews_renews_again_and_stops_nothing() -> None:
    net, log, machine = Net(), Log(), Machine()
    async with process(log.body("one"), net, ONCE, machine) as one:
        await started(one)

        async def sleep(*args: Any, **options: Any) -> None:
            del net.after["heartbeat"]
            machine.slept += 3_600

        net.after["heartbeat"] = sleep
        before = len(net.beats)
        await until_so(lambda: machine.slept)
        await settle()
        assert len(net.beats) == before + 2
        assert (one.lease.is_valid, len(log.lines)) == (True, 1)


async def test_a_machine_that_slept_and_finds_no_store_stops_its_runs_at_once() -> None:
    net, log, machine = Net(), Log(), Machine()
    async with process(log.body("one"), net, ONCE, machine) as one:
        await started(one)
        woken = loop_time()
        machine.slept += 3_600
        net.down = True
        await until_so(lambda: log.stopped_at)
        assert log.stopped_at - woken < LEASE / 2
        net.down = False


async def test_a_machine_that_slept_stops_what_others_have_claimed_meanwhile() -> None:
    net, log, machine = Net(), Log(), Machine()
    async with process(log.body("one"), net, RERUN, machine) as one:
        lost, kept = await started(one), await started(one)
        machine.slept += 8 * 3_600
        await net.heartbeat("another", namespace="", beats=1)
        await one.changes.change(lost, RunLost(attempt=lost.attempt), RunStarted(worker="another"), actor=CLIENT)
        await time_passes(LEASE / 2)
        assert [(await as_of_now(one, task)).worker for task in (lost, kept)] == ["another", one.worker]
        assert log.lines[2:] == ["one ends run 1, told to stop"]


class Sleeper:
    """A tool that begins something when its machine has slept, and its task was taken over meanwhile."""

    def __init__(self, begins: Callable[[Sleeper, Run], Awaitable[object]], net: Net) -> None:
        self.net = net
        self.machine = Machine()
        self.begun: list[str] = []
        self._begins = begins

    async def body(self, run: Run) -> Ending:

        await self._begins(self, run)
        raise AssertionError("nothing is begun")

    async def sleep(self, run: Run) -> None:
        """The machine sleeps, and another process takes the task."""
        self.machine.slept += 8 * 3_600
        record = run.record
        taken = replace(record, worker="another", attempt=record.attempt + 1, version=record.version + 1)
        await self.net.save(taken, expected=record.version)

    async def step(self, run: Run) -> None:
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

        await self.sleep(run)
        await run.ask(question("Pay?"))

    async def child(self, run: Run) -> None:

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


async def test_a_process_that_needs_long_to_hand_its_tasks_over_keeps_its_lease_meanwhile() -> None:
    store, log = MeddledStore(), Log()

    async def slowly(record: TaskRecord, **options: Any) -> None:
        await time_passes(LEASE / 3 if record.worker is None else 0)

    async with process(log.body("other"), store) as other:
        async with process(log.body("one"), store) as one:
            tasks = [await started(one) for _ in range(5)]
            store.before["save"] = slowly
        for task in tasks:
            taken = await until(other, task, lambda record: record.worker == other.worker, LONG)
            assert taken.lost == 0, "it was alive"


async def test_a_process_that_needs_long_to_start_keeps_its_lease_meanwhile() -> None:
    async def slowly(namespace: str) -> None:
        await time_passes(5 * LEASE)

    store = MeddledStore(workers=slowly)
    async with process(never_ending, store) as one:
        store.before.clear()
        assert (await store.workers(""))[one.worker] > 5 * HEARTBEATS_PER_LEASE - 2
        assert one.lease.is_valid
