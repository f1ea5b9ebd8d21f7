"""The store's time as a process knows it: measured every few seconds, and counted on in between."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.operator import Operator
from mcp_tasks.runtime.store_clock import EVERY, SAMPLES, StoreClock
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing.clock import NOON
from tests.unit.running import make_runtime, ok
from tests.unit.virtual_time import simulated

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


class World(MemoryStore):
    """A store with a clock of its own, and the clocks of a machine that asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 100.0
        self.ahead = timedelta(0)
        self.wall_ahead = timedelta(0)
        self.way_there = self.way_back = 0.0
        self.is_away = False
        self.reads = 0
        self.clock = StoreClock(self, uptime=lambda: self.seconds, wall=lambda: self.time + self.wall_ahead)

    @property
    def time(self) -> datetime:
        """The right one."""
        return NOON + timedelta(seconds=self.seconds)

    async def now(self) -> datetime:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("the disk is full")
        self.seconds += self.way_there
        answer = self.time + self.ahead
        self.seconds += self.way_back
        return answer

    async def measure(self, *, there: float = 0.0, back: float = 0.0) -> None:
        self.way_there, self.way_back = there, back
        await self.clock.measure()

    @property
    def error(self) -> timedelta:
        """By how much the process is ahead of the store."""
        return timedelta(seconds=round((self.clock.now() - (self.time + self.ahead)).total_seconds(), 4))


async def at_once(run: Run) -> Ending:
    return ok()


@pytest.fixture
def world() -> World:
    return World()


async def test_the_time_is_the_stores_and_goes_on_between_two_measurements(world: World) -> None:
    world.ahead = DAY
    await world.measure()
    for _ in range(3):
        assert world.error == timedelta(0)
        world.seconds += 2.5


async def test_before_the_first_measurement_there_is_no_time(world: World) -> None:
    with pytest.raises(UsageError, match="has to be opened first"):
        world.clock.now()


async def test_an_answer_is_wrong_by_half_of_its_round_trip_at_most(world: World) -> None:
    await world.measure(there=0.4)
    assert world.error == timedelta(seconds=0.2)
    other = World()
    await other.measure(back=0.4)
    assert other.error == timedelta(seconds=-0.2)


async def test_the_shortest_round_trip_among_the_last_few_counts(world: World) -> None:
    await world.measure(back=0.9)
    await world.measure(there=0.01, back=0.01)
    assert abs(world.error) < SECOND / 1_000
    for _ in range(SAMPLES - 1):
        world.seconds += EVERY
        await world.measure(there=2.0)
        assert abs(world.error) < SECOND / 1_000
    # By now the good one is too old to be believed.
    await world.measure(back=2.0)
    assert world.error == -SECOND


async def test_the_time_does_not_go_back_for_a_small_difference(world: World) -> None:
    await world.measure(there=2.0)
    first = world.clock.now()
    await world.measure()
    assert world.clock.now() == first
    world.seconds += 0.5
    assert world.clock.now() == first
    world.seconds += 0.5
    assert world.error == timedelta(0)


async def test_two_clocks_that_drift_apart_are_followed(world: World) -> None:
    for _ in range(1_000):
        await world.measure()
        world.seconds += EVERY
        world.ahead += timedelta(milliseconds=2)
        assert abs(world.error) <= timedelta(milliseconds=2)


@pytest.mark.parametrize(("by", "way"), [(DAY, "forward"), (-DAY, "back")])
async def test_the_clock_of_the_store_is_followed_when_it_is_set(
    by: timedelta, way: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.measure()
    world.clock.now()
    world.ahead = by
    world.seconds += EVERY
    await world.measure(back=0.2)
    assert abs(world.error) <= SECOND / 10
    assert f"was set {way} by 1 day, 0:00:00" in caplog.text
    await world.measure(back=0.2)
    assert caplog.text.count("was set") == 1


async def test_a_measurement_that_fails_changes_nothing(world: World) -> None:
    world.ahead = DAY
    await world.measure()
    world.is_away = True
    world.seconds += 3_600
    with pytest.raises(StoreUnavailable):
        await world.measure()
    assert world.error == timedelta(0)


@pytest.mark.parametrize(("ahead", "said"), [(DAY, "1 day, 0:00:00 ahead of"), (-DAY, "1 day, 0:00:00 behind")])
async def test_a_machine_whose_clock_is_wrong_says_so_once_and_its_clock_makes_no_difference(
    ahead: timedelta, said: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.measure()
    for world.wall_ahead in (ahead, timedelta(0), ahead, -ahead):
        world.seconds += EVERY
        await world.measure()
        assert world.error == timedelta(0)
    assert caplog.text.count("clock of this machine") == 1
    assert said in caplog.text


async def test_a_machine_whose_clock_is_off_by_less_than_five_seconds_says_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for seconds in (4.9, -4.9):
        world.wall_ahead = timedelta(seconds=seconds)
        await world.measure()
    # Nor does one that cannot know: the answer was slow.
    world = World()
    world.wall_ahead = timedelta(seconds=6)
    await world.measure(there=4.0)
    assert not caplog.records


@simulated
async def test_it_is_measured_every_few_seconds_whatever_happens(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    measuring = asyncio.create_task(world.clock.keep_measuring())
    await anyio.sleep(3 * EVERY + 1)  # sleep: the time is simulated
    assert world.reads == 3
    world.is_away = True
    await anyio.sleep(2 * EVERY)  # sleep: the time is simulated
    world.is_away = False
    await anyio.sleep(EVERY)  # sleep: the time is simulated
    assert world.reads == 6
    assert world.error == timedelta(0)
    assert [record.levelname for record in caplog.records if "could not be read" in record.message] == ["DEBUG"] * 2
    measuring.cancel()
    with suppress(asyncio.CancelledError):
        await measuring


# Who uses it


@simulated
@pytest.mark.parametrize("runs_tools", [True, False], ids=["runs tools", "only serves"])
async def test_a_process_measures_when_it_opens_the_store_and_goes_on(runs_tools: bool) -> None:
    store = World()
    store.ahead = DAY
    runtime = make_runtime(at_once, store=store, clock=None, runs_tools=runs_tools)
    await runtime.start()
    assert store.reads == 1
    assert abs(runtime.now() - store.time - DAY) < 60 * SECOND
    await anyio.sleep(2 * EVERY + 1)  # sleep: the time is simulated
    assert store.reads == 3
    await runtime.stop()
    await anyio.sleep(2 * EVERY + 1)  # sleep: the time is simulated
    assert store.reads == 3


async def test_a_process_that_cannot_read_the_stores_time_does_not_start() -> None:
    store = World()
    store.is_away = True
    runtime = make_runtime(at_once, store=store, clock=None)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await runtime.start()
    store.is_away = False
    await runtime.start()
    await runtime.stop()


async def test_a_clock_that_is_given_is_used_in_place_of_the_stores() -> None:
    store = World()
    runtime = make_runtime(at_once, store=store, clock=lambda: NOON)
    await runtime.start()
    assert runtime.now() == NOON
    await runtime.stop()
    assert store.reads == 0


@simulated
async def test_an_operator_goes_by_the_stores_time(world: World) -> None:
    async with Operator(world, name="ops").opened() as operator:
        assert world.reads == 1
        await anyio.sleep(EVERY + 1)  # sleep: the time is simulated
        assert world.reads == 2
        assert abs(operator.now() - world.time) < DAY
    await anyio.sleep(EVERY + 1)  # sleep: the time is simulated
    assert world.reads == 2


def test_the_clock_of_a_machine_is_the_time_of_a_store_that_is_in_it() -> None:
    before = datetime.now(UTC)
    now = asyncio.run(MemoryStore().now())
    assert before <= now <= datetime.now(UTC)
