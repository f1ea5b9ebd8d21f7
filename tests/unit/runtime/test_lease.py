"""Who is alive: what a process sees of the others, and what it does when it cannot say so itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime.lease import Lease, Watch, uptime
from tests.unit.processes import dead_worker, other_process
from tests.unit.running import Seconds
from tests.unit.virtual_time import SIMULATED, time_passes

LEASE = timedelta(seconds=15)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


# What is seen of the others


class Observer:
    """Looks at the heartbeats of one other process, on a clock that the test moves."""

    def __init__(self, worker: str = "elsewhere") -> None:
        self.clock = Seconds()
        self.worker = worker
        self._watch = Watch(LEASE, longest_step=timedelta(seconds=5), clock=self.clock)

    def finds_it_dead(self, beats: int, *, after: timedelta = timedelta(0)) -> bool:
        self.clock.advance(after)
        return self._watch.dead({self.worker: beats, "alive": int(self.clock())}) == [self.worker]

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


def test_a_process_is_dead_when_its_heartbeat_has_not_changed_for_the_lease() -> None:
    observer = Observer()
    assert not observer.finds_it_dead(7)
    assert observer.dies_after(7, every=SECOND) == LEASE


def test_every_change_of_a_heartbeat_begins_the_lease_anew() -> None:
    observer = Observer()
    for beats in (7, 8, 3):
        observer.finds_it_dead(beats)
        assert not any(observer.finds_it_dead(beats, after=SECOND) for _ in range(14))
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
    assert observer.dies_after(7, every=SECOND) == LEASE


def test_a_process_that_was_away_is_watched_from_its_return() -> None:
    watch_clock = Seconds()
    watch = Watch(LEASE, longest_step=LEASE, clock=watch_clock)
    watch.dead({"a": 7})
    watch_clock.advance(LEASE)
    assert watch.dead({}) == []
    watch_clock.advance(LEASE)
    assert watch.dead({"a": 7}) == []


def test_a_process_that_signed_off_or_never_signed_on_is_dead_at_once() -> None:
    assert Observer().finds_it_dead(0)


@pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")
def test_a_process_of_this_machine_that_is_gone_is_dead_at_once() -> None:
    assert Observer(dead_worker()).finds_it_dead(7)


def test_a_process_that_lives_and_is_silent_is_dead_after_the_lease() -> None:
    with other_process() as (alive, _):
        observer = Observer(alive)
        assert not observer.finds_it_dead(7)
        assert observer.dies_after(7, every=SECOND) == LEASE


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

    def __init__(self) -> None:
        self.log: list[str] = []
        self.beats: list[float] = []
        self.refuses: Exception | None = None
        self.hangs = False
        self.fails_after = 0.0
        self.clings = False
        self.cannot_take_up = 0
        self.takes_up_for = 0.0
        self.slept = 0.0
        self.sleeps_in_a_beat = 0.0
        self.stopped_at: float | None = None
        self.began = asyncio.get_running_loop().time()
        self.lease = Lease(
            LEASE, heartbeat=self._beat, look=self._look, stop_runs=self._stop, take_up=self._take_up, clock=self.uptime
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
                await time_passes(60)
            except asyncio.CancelledError:
                # As a driver that tells its server first, by a network that is cut.
                if not self.clings:
                    raise
        if self.refuses is not None:
            await time_passes(self.fails_after)  # sleep: a store that takes its time to fail
            raise self.refuses
        self.beats.append(self.uptime())
        self.log.append("beat")
        self.slept, self.sleeps_in_a_beat = self.slept + self.sleeps_in_a_beat, 0.0

    async def _look(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.log.append("look")

    def _stop(self) -> None:
        self.stopped_at = self.uptime()
        self.log.append("stop")

    async def _take_up(self) -> None:
        if self.cannot_take_up:
            self.cannot_take_up -= 1
            raise StoreUnavailable("the disk is full")
        await time_passes(self.takes_up_for)
        self.log.append("take up")


@asynccontextmanager
async def serving() -> AsyncGenerator[Process]:
    process = Process()
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
async def test_a_store_that_is_away_for_less_than_two_thirds_of_the_lease_stops_nothing() -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.refuses = StoreUnavailable("the disk is full")
        await time_passes(LEASE.total_seconds() / 2)
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
        assert 2 / 3 <= process.silent_for() / LEASE.total_seconds() < 0.9
        assert not process.lease.is_valid
        process.hangs = False


@pytest.mark.parametrize("fails_after", [0.0, 1.0, 2.4, 2.6, 4.9, 60.0])
@pytest.mark.anyio
async def test_however_slowly_a_store_fails_the_runs_stop_well_before_others_may_claim_them(fails_after: float) -> None:
    async with serving() as process:
        await time_passes(LEASE.total_seconds())
        process.fails_after, process.refuses = fails_after, StoreUnavailable("the network is cut")
        await until(lambda: process.stopped_at is not None)
        assert 2 / 3 <= process.silent_for() / LEASE.total_seconds() <= 5 / 6 + 0.01


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
        assert process.log == ["beat", "look", "beat", "look", "take up"]
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
