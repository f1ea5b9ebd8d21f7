"""Who is alive: what a process sees of the others, and what it does when it cannot say so itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime.lease import Lease, LeaseTimes, Watch, uptime
from tests.unit.processes import dead_worker, other_process
from tests.unit.running import Seconds
from tests.unit.virtual_time import SIMULATED, VirtualTimeLoop, block, time_passes

LEASE = timedelta(seconds=15)
SECOND = timedelta(seconds=1)
TIMES = LeaseTimes.of(LEASE, SECOND)
SILENCE = timedelta(seconds=TIMES.takeover)


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
    times = LeaseTimes.of(LEASE, timedelta(seconds=sweep))
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
            assert now >= last + times.kill + LEASE.total_seconds() / 20


# What is seen of the others


class Observer:
    """Looks at the heartbeats of one other process, on a clock that the test moves."""

    def __init__(self, worker: str = "elsewhere") -> None:
        self.clock = Seconds()
        self.worker = worker
        self._watch = Watch(TIMES, clock=self.clock)

    def finds_it_dead(self, beats: int, *, after: timedelta = timedelta(0)) -> bool:
        self.clock.advance(after)
        heartbeats = {self.worker: beats, "alive": int(self.clock())}
        return self._watch.dead(heartbeats, asked=self.clock()) == [self.worker]

    def dies_after(self, beats: int, *, every: timedelta) -> timedelta:
        """How long the heartbeat stays the same until the process counts as dead."""
        silent = timedelta(0)
        while not self.finds_it_dead(beats, after=every):
            silent += every
            assert silent < 100 * LEASE, "it never counts as dead"
        return silent + every


def test_a_process_whose_heartbeat_changes_is_alive_however_long_it_lives() -> None:
    observer = Observer()
    assert not any(observer.finds_it_dead(beats, after=4 * SECOND) for beats in range(1, 1_000))


def test_a_process_is_dead_when_its_heartbeat_has_not_changed_for_as_long_as_its_runs_may_go_on() -> None:
    observer = Observer()
    assert not observer.finds_it_dead(7)
    assert observer.dies_after(7, every=SECOND) == SILENCE


def test_every_change_of_a_heartbeat_begins_the_lease_anew() -> None:
    observer = Observer()
    for beats in (7, 8, 3):
        observer.finds_it_dead(beats)
        assert not any(observer.finds_it_dead(beats, after=SECOND) for _ in range(13))
    assert observer.finds_it_dead(3, after=SECOND)


def test_a_process_that_is_seen_for_the_first_time_is_not_dead_however_late_that_is() -> None:
    observer = Observer()
    assert not observer.finds_it_dead(7, after=100 * LEASE)


def test_time_in_which_nobody_looked_proves_nothing() -> None:
    observer = Observer()
    observer.finds_it_dead(7)
    # A blocked event loop, a laptop that slept: however long it was, it counts for one step.
    assert not observer.finds_it_dead(7, after=1_000 * LEASE)
    assert not observer.finds_it_dead(7, after=timedelta(seconds=5))
    assert observer.finds_it_dead(7, after=timedelta(seconds=5))


def test_a_clock_that_goes_back_proves_nothing() -> None:
    observer = Observer()
    observer.finds_it_dead(7)
    assert not observer.finds_it_dead(7, after=-100 * LEASE)
    assert observer.dies_after(7, every=SECOND) == SILENCE


def test_time_in_which_an_answer_was_on_its_way_proves_nothing() -> None:
    clock = Seconds()
    watch = Watch(TIMES, clock=clock)
    watch.dead({"a": 7}, asked=clock())
    for _ in range(10):
        clock.advance(SECOND)
        asked = clock()
        # It may have been renewed since the store read it.
        clock.advance(10 * SECOND)
        assert watch.dead({"a": 7}, asked=asked) == []


def test_a_process_that_was_away_is_watched_from_its_return() -> None:
    watch_clock = Seconds()
    watch = Watch(TIMES, clock=watch_clock)
    for heartbeats in ({"a": 7}, {}, {"a": 7}):
        assert watch.dead(heartbeats, asked=watch_clock()) == []
        watch_clock.advance(LEASE)


def test_a_process_that_signed_off_or_never_signed_on_is_dead_at_once() -> None:
    assert Observer().finds_it_dead(0)


def test_a_process_whose_heartbeat_a_failover_lost_is_waited_for() -> None:
    observer = Observer()
    observer.finds_it_dead(7)
    assert not observer.finds_it_dead(0, after=SECOND)
    assert observer.dies_after(0, every=SECOND) == timedelta(seconds=5)


@pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")
def test_a_process_of_this_machine_that_is_gone_is_dead_at_once() -> None:
    assert Observer(dead_worker()).finds_it_dead(7)


def test_a_process_that_lives_and_is_silent_is_dead_after_the_lease() -> None:
    with other_process() as (alive, _):
        observer = Observer(alive)
        assert not observer.finds_it_dead(7)
        assert observer.dies_after(7, every=SECOND) == SILENCE


def test_uptime_does_not_go_back() -> None:
    assert 0 < uptime() <= uptime()


@pytest.mark.parametrize("missing", [["CLOCK_BOOTTIME"], ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC"]], ids=len)
def test_uptime_is_told_by_the_best_clock_that_a_machine_has(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock in missing:
        monkeypatch.delattr(time, clock, raising=False)
    before = time.monotonic()
    assert before <= uptime() <= time.monotonic()


# One's own


class Process:
    """A process with a lease, whose store does what the test says, and a log of what happens to it."""

    def __init__(self, times: LeaseTimes = TIMES) -> None:
        self.log: list[str] = []
        self.beats: list[float] = []
        self.refuses: Exception | None = None
        self.hangs = False
        self.hangs_for = max(60.0, times.takeover * 4)
        self.fails_after = 0.0
        self.answers_after = 0.0
        self.clings = False
        self.cannot_take_up = 0
        self.takes_up_for = 0.0
        self.slept = 0.0
        self.sleeps_in_a_beat = 0.0
        self.stopped_at: float | None = None
        self.killed_at: float | None = None
        self.began = asyncio.get_running_loop().time()
        self.lease = Lease(
            times,
            heartbeat=self._beat,
            look=self._look,
            stop_runs=self._stop,
            kill_children=self._kill,
            take_up=self._take_up,
            clock=self.uptime,
        )

    def uptime(self) -> float:
        return asyncio.get_running_loop().time() + self.slept

    def silent_for(self) -> float:
        """Seconds from the last heartbeat that the store took to the stop of the runs."""
        assert self.stopped_at is not None
        return self.stopped_at - (self.beats[-1] if self.beats else self.began)

    async def _beat(self) -> None:
        while self.hangs:
            try:
                await time_passes(self.hangs_for)
            except asyncio.CancelledError:
                # As a driver that tells its server first, by a network that is cut.
                if not self.clings:
                    raise
        if self.refuses is not None:
            await time_passes(self.fails_after)  # sleep: a store that takes its time to fail
            raise self.refuses
        self.beats.append(self.uptime())
        await time_passes(self.answers_after)  # sleep: a store that takes its time to answer
        self.log.append("beat")
        self.slept, self.sleeps_in_a_beat = self.slept + self.sleeps_in_a_beat, 0.0

    async def _look(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.log.append("look")

    def _stop(self) -> None:
        self.stopped_at = self.uptime()
        self.log.append("stop")

    def _kill(self) -> None:
        self.killed_at = self.uptime()
        self.log.append("kill")

    async def _take_up(self) -> None:
        if self.cannot_take_up:
            self.cannot_take_up -= 1
            raise StoreUnavailable("the disk is full")
        await time_passes(self.takes_up_for)
        self.log.append("take up")


@asynccontextmanager
async def serving(times: LeaseTimes = TIMES) -> AsyncGenerator[Process]:
    process = Process(times)
    keeping = asyncio.create_task(process.lease.keep())
    try:
        yield process
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def until(reached: Callable[[], bool]) -> None:
    """Return when that is so; looked at every tenth of a second of the time that is not waited for."""
    with anyio.fail_after(1_000):
        while not reached():
            await time_passes(0.1)


@pytest.mark.anyio
async def test_a_lease_is_renewed_several_times_in_its_length() -> None:
    async with serving() as process:
        await time_passes(10 * LEASE.total_seconds())
        gaps = [later - earlier for earlier, later in zip(process.beats, process.beats[1:], strict=False)]
        assert max(gaps) <= LEASE.total_seconds() / 3
        assert set(process.log) == {"beat"}


@pytest.mark.anyio
async def test_a_store_that_is_away_for_a_heartbeat_less_than_two_thirds_of_the_lease_stops_nothing() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.refuses = StoreUnavailable("the disk is full")
        await time_passes(TIMES.stop - TIMES.heartbeat * 1.25)
        process.refuses = None
        await time_passes(LEASE.total_seconds())
        assert (process.lease.is_valid, set(process.log)) == (True, {"beat"})


@pytest.mark.parametrize("how", ["refuses", "hangs", "clings", "breaks"])
@pytest.mark.anyio
async def test_a_process_that_cannot_renew_stops_its_runs_before_its_lease_is_over(how: str) -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.hangs, process.clings = how in ("hangs", "clings"), how == "clings"
        process.refuses = {"refuses": StoreUnavailable("full"), "breaks": RuntimeError("a defect")}.get(how)
        await until(lambda: process.stopped_at is not None)
        assert process.silent_for() == pytest.approx(TIMES.stop)
        assert not process.lease.is_valid
        process.hangs = False


@pytest.mark.parametrize("fails_after", [0.0, 1.0, 2.4, 2.6, 4.9, 60.0])
@pytest.mark.anyio
async def test_however_slowly_a_store_fails_the_runs_stop_well_before_others_may_claim_them(fails_after: float) -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.fails_after, process.refuses = fails_after, StoreUnavailable("the network is cut")
        await until(lambda: process.stopped_at is not None)
        assert process.silent_for() == pytest.approx(TIMES.stop)


@given(lease=LENGTHS, phase=st.floats(0, 1), how=st.sampled_from(["refuses", "hangs", "clings", "answers late"]))
def test_runs_stop_and_children_are_killed_in_time_for_every_lease_and_outage(
    lease: float, phase: float, how: str
) -> None:
    times = LeaseTimes.of(timedelta(seconds=lease), timedelta(seconds=lease))

    async def cut_off() -> None:
        async with serving(times) as process:
            await time_passes(times.heartbeat * (2 + phase))
            last = process.beats[-1]
            process.hangs, process.clings = how in ("hangs", "clings"), how == "clings"
            process.refuses = StoreUnavailable("full") if how == "refuses" else None
            process.answers_after = times.takeover if how == "answers late" else 0.0
            await time_passes(lease * 2)
            assert process.stopped_at is not None
            assert process.killed_at is not None
            assert process.stopped_at - last == pytest.approx(times.stop, rel=1e-3)
            assert process.killed_at - last == pytest.approx(times.kill, rel=1e-3)
            process.hangs = False

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(cut_off())


@pytest.mark.anyio
async def test_a_renewal_that_comes_back_after_the_runs_were_stopped_does_not_revive_them() -> None:
    async with serving() as process:
        process.refuses = StoreUnavailable("the disk is full")
        await time_passes(TIMES.stop - 0.8)
        process.refuses, process.answers_after = None, 2.0
        await until(lambda: process.stopped_at is not None)
        sent = process.beats[-1]
        assert process.uptime() < sent + 2.0, "a renewal is under way, and does not hold up the stop"
        assert not process.lease.is_valid
        await until(lambda: process.lease.is_valid)
        assert process.log == ["stop", "kill", "beat", "kill", "look", "take up"]


@pytest.mark.anyio
async def test_a_renewal_that_is_answered_late_counts_from_when_it_was_sent() -> None:
    async with serving() as process:
        process.answers_after = TIMES.heartbeat * 1.5
        await until(lambda: "beat" in process.log)
        process.hangs = True
        await until(lambda: process.stopped_at is not None)
        assert process.stopped_at == pytest.approx(process.beats[-1] + TIMES.stop)


@pytest.mark.anyio
async def test_a_process_whose_event_loop_was_blocked_asks_the_store_before_it_stops_anything() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        block(TIMES.stop + 0.5)
        await time_passes(LEASE.total_seconds())
        assert "stop" not in process.log
        assert process.lease.is_valid


@pytest.mark.anyio
async def test_a_process_whose_event_loop_was_blocked_and_finds_no_store_stops_before_others_begin() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.hangs = True
        block(process.beats[-1] + TIMES.stop + 0.5 - process.uptime())
        await until(lambda: process.killed_at is not None)
        assert process.silent_for() <= TIMES.kill + TIMES.late


@pytest.mark.anyio
async def test_a_process_that_can_renew_again_looks_and_takes_up_what_is_still_its_own() -> None:
    async with serving() as process:
        process.refuses = StoreUnavailable("the disk is full")
        await until(lambda: process.stopped_at is not None)
        process.log.clear()
        process.refuses = None
        process.cannot_take_up = 1
        await until(lambda: "take up" in process.log)
        # Refused once in the middle, so all of it came again.
        assert [act for act in process.log if act != "kill"] == ["beat", "look", "beat", "look", "take up"]
        assert process.log[:2] == ["beat", "kill"], "the next runs may begin at once"
        assert process.lease.is_valid


@pytest.mark.anyio
async def test_a_process_that_has_stopped_its_runs_is_in_no_hurry_to_take_them_up() -> None:
    async with serving() as process:
        process.refuses = StoreUnavailable("the disk is full")
        await until(lambda: process.stopped_at is not None)
        process.refuses = None
        # A store that many ask at once is slow, and there is more to be asked of it than a heartbeat.
        process.takes_up_for = LEASE.total_seconds() / 2
        await until(lambda: process.lease.is_valid)
        await time_passes(LEASE.total_seconds())
        assert process.log.count("stop") == 1


@pytest.mark.anyio
async def test_a_machine_that_slept_looks_before_it_renews_and_stops_nothing() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.log.clear()
        process.slept += 3_600
        await until(lambda: "beat" in process.log)
        await time_passes(LEASE.total_seconds())
        assert process.log[:2] == ["look", "beat"]
        assert "stop" not in process.log


@pytest.mark.anyio
async def test_a_machine_that_slept_and_finds_no_store_stops_its_runs_at_once() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        woken = asyncio.get_running_loop().time()
        process.slept += 3_600
        process.hangs = True
        await until(lambda: process.stopped_at is not None)
        assert asyncio.get_running_loop().time() - woken < LEASE.total_seconds() / 2


@pytest.mark.anyio
async def test_a_machine_that_sleeps_while_it_renews_renews_again_and_stops_nothing() -> None:
    async with serving() as process:
        process.sleeps_in_a_beat = 3_600
        await until(lambda: len(process.log) >= 2)
        assert process.log[:3] == ["beat", "look", "beat"]
        assert process.lease.is_valid


@pytest.mark.anyio
async def test_many_who_make_sure_at_once_have_the_store_looked_at_once() -> None:
    process = Process()
    process.slept += 3_600
    await asyncio.gather(*(process.lease.make_sure() for _ in range(3)))
    assert process.log.count("beat") == 1
    assert process.lease.is_valid
