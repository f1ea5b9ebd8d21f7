"""How a process begins and ends, and what becomes of its tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from mcp_tasks.errors import StoreError, StoreUnavailable, UsageError
from mcp_tasks.model import TaskStatus
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.operator import Operator
from mcp_tasks.runtime.store_clock import EVERY, SAMPLES, StoreClock
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing.clock import NOON
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    ONCE,
    RERUN,
    SECOND,
    MeddledStore,
    PausingStore,
    Tool,
    at_once,
    create,
    error_type,
    finished,
    launch,
    loop_time,
    make_runtime,
    never_ending,
    ok,
    opened_by,
    running,
    settle,
    started,
    until,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio


async def test_a_quick_run_ends_by_itself_while_the_process_drains() -> None:
    gate = anyio.Event()
    async with running(opened_by(gate), drain_timeout=HOUR) as runtime:
        task = await started(runtime)
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.stop)
            await settle()
            gate.set()
    assert (await as_of_now(runtime, task)).status is TaskStatus.COMPLETED


async def test_what_does_not_end_in_time_is_released_or_ends_as_interrupted_and_the_next_process_goes_on() -> None:
    store = MemoryStore()
    tools = {"again": Tool(never_ending, RERUN), "once": Tool(never_ending, ONCE)}
    async with running(tools, store=store, concurrency=2) as runtime:
        tasks = [await launch(runtime, tool) for tool in ("again", "once", "once")]
        for task in tasks[:2]:
            await until(runtime, task, lambda record: record.attempt == 1)
    records = [await as_of_now(runtime, task) for task in tasks]
    assert [(record.status, record.worker, record.attempt) for record in records] == [
        (TaskStatus.WORKING, None, 1),
        (TaskStatus.FAILED, None, 1),
        (TaskStatus.WORKING, None, 0),
    ]
    assert error_type(await finished(runtime, records[1])) == "Interrupted"
    assert await store.workers("") == {}
    quick = {"again": Tool(at_once, RERUN), "once": Tool(at_once, ONCE)}
    async with running(quick, store=store) as other:
        assert [(await until_final(other, task)).attempt for task in tasks] == [2, 1, 1]


async def test_a_process_that_cannot_sign_off_stops_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    store = MeddledStore()
    async with running(never_ending, store=store, policy=RERUN) as runtime:
        task = await started(runtime)
        store.go_away("save", "retire")
    store.before.clear()
    record = await as_of_now(runtime, task)
    assert record.worker == runtime.worker, "its lease runs out, and the next process finds it"
    assert "could not sign off" in caplog.text


async def test_a_thread_that_does_not_listen_is_left_behind() -> None:
    release = threading.Event()

    async def deaf(run: Run) -> Ending:
        await anyio.to_thread.run_sync(release.wait)
        return ok()

    async with running(deaf, stop_timeout=timedelta(milliseconds=20)) as runtime:
        task = await started(runtime)
        with anyio.fail_after(5):
            await runtime.stop()
        assert (await as_of_now(runtime, task)).status is TaskStatus.FAILED
        release.set()
        await settle()


async def test_stopping_is_safe_before_the_start_and_twice_and_a_runtime_can_be_started_again(tmp_path: Path) -> None:
    runtime = make_runtime(at_once, store=SqliteStore(tmp_path / "tasks.db"))
    await runtime.stop()
    for _ in range(2):
        await runtime.start()
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.COMPLETED
        await runtime.stop()
        await runtime.stop()


@simulated
@pytest.mark.parametrize("how", ["cut short", "in a hurry", "begun before"])
async def test_a_drain_that_ends_early_still_hands_everything_over(how: str) -> None:
    runtime = make_runtime(never_ending, store=PausingStore(), policy=RERUN, drain_timeout=30 * SECOND)
    await runtime.start()
    task, hurry, begun = await started(runtime), asyncio.Event(), loop_time()
    if how == "begun before":
        await runtime.begin_drain()
        await time_passes(20)
    stopping = asyncio.create_task(runtime.stop(hurry))
    await time_passes(5)
    assert (await as_of_now(runtime, task)).worker == runtime.worker
    if how == "cut short":
        stopping.cancel()
    elif how == "in a hurry":
        hurry.set()
    await asyncio.wait({stopping})
    assert (await as_of_now(runtime, task)).worker is None
    assert loop_time() - begun < 35


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    store = MeddledStore()
    store.go_away("heartbeat", times=1)
    opened: list[str | None] = []

    async def noted(namespace: str | None = None) -> None:
        opened.append(namespace)

    store.before["open"], store.before["close"] = noted, noted
    runtime = make_runtime(at_once, store=store, namespace="ours")
    threads = anyio.to_thread.current_default_thread_limiter().total_tokens
    with pytest.raises(StoreError, match="the disk is full"):
        await runtime.start()
    assert opened == ["ours", None], "tasks from before there were namespaces go to this server"
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == threads
    await runtime.start()
    assert (await until_final(runtime, await launch(runtime))).is_final
    await runtime.stop()
    assert opened == ["ours", None] * 2


async def test_a_start_that_fails_while_sweeping_runs_nothing_more() -> None:
    store = MeddledStore()
    runtime = make_runtime(at_once, store=store)
    first = await create(runtime)
    store.refuse(RuntimeError("a defect"), "queued", "hand_out", "workers")
    with pytest.raises(RuntimeError, match="a defect"):
        await runtime.start()
    store.before.clear()
    second = await create(runtime)
    await runtime.engine.submit(second.id)
    await settle()
    assert [(await as_of_now(runtime, task)).attempt for task in (first, second)] == [0, 0]


# The store's time, by which tasks live


DAY = timedelta(days=1)


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


@pytest.fixture
def world() -> World:
    return World()


async def test_the_time_is_the_stores_and_goes_on_between_two_measurements(world: World) -> None:
    with pytest.raises(UsageError, match="has to be opened first"):
        world.clock.now()
    world.ahead = DAY
    await world.measure()
    for _ in range(3):
        assert world.error == timedelta(0)
        world.seconds += 2.5
    world.is_away = True
    with pytest.raises(StoreUnavailable):
        await world.measure()
    assert world.error == timedelta(0), "a measurement that fails changes nothing"


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
@pytest.mark.parametrize("runs_tools", [True, False], ids=["runs tools", "only serves"])
async def test_a_process_measures_when_it_opens_the_store_and_every_few_seconds_whatever_happens(
    runs_tools: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = World()
    store.ahead, store.is_away = DAY, True
    runtime = make_runtime(at_once, store=store, clock=None, runs_tools=runs_tools)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await runtime.start()
    store.is_away, store.reads = False, 0
    async with Operator(store, name="ops").opened() as operator:
        await runtime.start()
        assert store.reads == 2
        assert abs(runtime.now() - store.time - DAY) < 60 * SECOND
        assert abs(operator.now() - store.time - DAY) < 60 * SECOND
        for store.is_away in (True, False):
            await time_passes(EVERY + 0.1)
        assert store.reads == 6
    await runtime.stop()
    await time_passes(2 * EVERY + 1)
    assert store.reads == 6
    said = [record.levelname for record in caplog.records if "could not be read" in record.message]
    assert said == ["DEBUG"] * 2
