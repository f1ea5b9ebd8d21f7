"""`TaskRuntime`: making tasks, whose they are and what is seen of them, and how a process begins and ends."""

import asyncio
import json
import logging
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import (
    OwnerRequired,
    StoreError,
    StoreUnavailable,
    TaskExists,
    TaskUnreadable,
    UnknownTask,
    UsageError,
)
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import AskedOnCall, Ending, Run
from mcp_tasks.runtime.operator import Operator
from mcp_tasks.runtime.store_clock import EVERY, SAMPLES, StoreClock
from mcp_tasks.runtime.waits import ANNOUNCED_WITHIN
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    ONCE,
    PARKS,
    RERUN,
    SECOND,
    Held,
    Meddle,
    MeddledStore,
    PausingStore,
    Seconds,
    TogetherStore,
    Tool,
    answer,
    asks,
    at_once,
    cancel,
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
    start,
    started,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes


def is_final(record: TaskRecord) -> bool:
    return record.is_final


async def test_a_created_task_is_there_before_anybody_runs_it_and_only_for_its_owner() -> None:
    async with running(at_once) as runtime:
        record = await create(runtime, owner="alice", retention=HOUR)
        assert await runtime.get(record.id, owner="alice") == record
        assert (record.status, record.attempt) == (TaskStatus.WORKING, 0)
        nobodys = await create(runtime)
        strangers = [(record, owner) for owner in (None, "bob", "", "Alice")] + [(nobodys, "alice")]
        for task, owner in strangers:
            with pytest.raises(UnknownTask):
                await runtime.get(task.id, owner=owner)


async def test_a_task_runs_to_its_result_and_is_kept_for_longer_than_any_calendar(tmp_path: Path) -> None:
    async with running(at_once, store=SqliteStore(tmp_path / "tasks.db")) as runtime:
        task = await until_final(runtime, await launch(runtime, retention=timedelta.max))
        assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, {"value": "ok"}, 1)
        assert await finished(runtime, await runtime.get(task.id, owner=None)) == task


async def test_a_task_and_how_it_ended_come_in_one_look_of_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        task = await create(runtime, owner="ann")
        await runtime.engine.submit(task.id)
        await until_final(runtime, task)
        look = partial(runtime.get_with_outcome, task.id)
        record, outcome = await look(owner="ann")
        assert (record.status, outcome) == (TaskStatus.COMPLETED, await runtime.store.outcome(task.id))
        for owner in ("bob", None):
            with pytest.raises(UnknownTask):
                await look(owner=owner)
        # It is there although its outcome cannot be read.
        store.damaged = {"outcome"}
        assert await look(owner="ann") == (record, None)
        with pytest.raises(TaskUnreadable, match="its outcome is damaged"):
            await runtime.store.outcome(task.id)
        store.damaged = {"row"}
        for _ in range(2):
            with pytest.raises(TaskUnreadable):
                await look(owner="ann")
    assert caplog.text.count("its row is damaged") == 1


async def test_waiting_for_a_task_ends_with_its_condition_or_its_time_or_if_it_is_not_there() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store) as one, running(at_once, store=store, runs_tools=False) as other:
        task = await launch(one)
        assert await one.follow(task.id, is_final, timeout=timedelta(milliseconds=10)) is None
        waiting = asyncio.create_task(one.follow(task.id, is_final, timeout=HOUR))
        await settle()
        await cancel(other, task)
        ended = await waiting
        assert ended is not None
        assert ended.status is TaskStatus.CANCELLED
        assert await one.follow(task.id, is_final, timeout=HOUR) == ended
        with pytest.raises(UnknownTask):
            await one.follow("nobody", is_final, timeout=HOUR)


async def test_a_discarded_task_is_gone_and_discarding_it_twice_is_no_error() -> None:
    async with running(at_once) as runtime:
        task = await until_final(runtime, await launch(runtime))
        await runtime.discard(task)
        await runtime.discard(task)
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


async def test_a_process_that_runs_no_tools_answers_cancels_and_waits_for_those_of_others() -> None:
    store = MemoryStore()
    async with (
        running(asks, store=store, runs_tools=False) as serving,
        running(asks, store=store, policy=RERUN) as worker,
    ):
        answered, cancelled = [await until_asking(worker, await launch(worker)) for _ in range(2)]
        await answer(serving, answered, elicitation_1="yes")
        assert (await cancel(serving, cancelled)).status is TaskStatus.CANCELLED
        ended = await serving.follow(answered.id, is_final, timeout=timedelta(seconds=5))
        assert ended is not None
        assert (await finished(serving, ended)).result == {"value": "yes"}


async def test_a_listing_says_whose_tasks_it_is_about() -> None:
    async with running(at_once) as runtime:
        for owner in ("ann", "bob", None):
            await create(runtime, owner=owner)
        listed = {
            whose: [record.owner for record in (await runtime.list(whose)).records]
            for whose in (OwnedBy("ann"), UNOWNED, EVERYBODY)
        }
        assert listed == {OwnedBy("ann"): ["ann"], UNOWNED: [None], EVERYBODY: ["ann", "bob", None]}


async def test_a_listing_shows_neither_what_has_expired_nor_what_is_of_another_server() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(at_once, clock=clock, store=store, namespace="here") as runtime:
        await until_final(runtime, await launch(runtime, retention=HOUR))
        async with running(at_once, clock=clock, store=store, namespace="there") as other:
            await create(other)
        clock.advance(2 * HOUR)
        kept = await create(runtime)
        assert (await runtime.list(EVERYBODY)).records == [kept]


# Making tasks: the call and the tool

QUESTION = {"inputRequests": {"name": {"method": "elicitation/create"}}}


async def asks_on_call(run: Run) -> Ending:
    if await run.ask_on_call(QUESTION):
        return AskedOnCall()
    return await asks(run)


async def test_a_tool_asks_on_the_call_while_its_task_is_not_announced() -> None:
    async with running(asks_on_call) as runtime:
        launched = await start(runtime, announced=False)
        task = await until_final(runtime, launched)
        assert (task.status, task.announced) == (TaskStatus.CANCELLED, False)
        outcome = await runtime.store.outcome(task.id)
        assert outcome is not None
        assert json.loads(outcome.body) == QUESTION
        late = await runtime.announce(launched)
        assert (late.is_final, late.announced) == (True, False)
        await runtime.discard(late)
        with pytest.raises(UnknownTask):
            await runtime.announce(launched)


async def test_an_announced_task_asks_in_the_task() -> None:
    async with running(asks_on_call) as runtime:
        assert (await until_asking(runtime, await start(runtime))).announced


async def test_of_the_call_and_the_tool_the_first_to_write_wins() -> None:
    store = MeddledStore()
    async with running(asks_on_call, store=store) as runtime, running(asks_on_call, store=store) as other:

        async def announce(record: TaskRecord, **options: Any) -> None:
            del store.before["save"]
            await other.announce(await as_of_now(other, record))

        store.before["save"] = announce
        task = await until_asking(runtime, await start(runtime, announced=False))
        assert task.announced
        assert await runtime.announce(task) == task, "once is enough"
        assert await runtime.store.outcome(task.id) is None


async def test_a_tool_whose_task_was_cancelled_does_not_go_on_after_asking_on_the_call() -> None:
    asking, went_on = anyio.Event(), False

    async def body(run: Run) -> Ending:
        nonlocal went_on
        with anyio.CancelScope(shield=True):
            await asking.wait()
        await run.ask_on_call(QUESTION)
        went_on = True
        return ok()

    async with running(body) as runtime:
        task = await until(runtime, await start(runtime, announced=False), lambda record: record.attempt == 1)
        await cancel(runtime, task)
        asking.set()
        await settle()
        assert await runtime.store.outcome(task.id) is None
        assert not went_on


@simulated
async def test_a_question_that_nobody_can_answer_ends_its_task() -> None:
    async with running(asks, policy=PARKS) as runtime:
        ended = await until_final(runtime, await start(runtime, announced=False), 2 * ANNOUNCED_WITHIN)
        assert ended.status is TaskStatus.FAILED
        assert "nobody can answer" in str(ended.status_message)


@simulated
@pytest.mark.parametrize("rerun", [True, False], ids=["parked", "in memory"])
async def test_a_task_that_is_announced_once_it_asks_waits_for_its_answer(rerun: bool) -> None:
    async with running(asks, policy=replace(PARKS, recover="rerun" if rerun else "fail")) as runtime:
        task = await start(runtime, announced=False)
        await until_asking(runtime, task)
        await settle()
        await runtime.announce(task)
        await until(runtime, task, lambda record: (record.worker is None) == rerun)
        await time_passes(2 * ANNOUNCED_WITHIN)
        assert (await as_of_now(runtime, task)).status is TaskStatus.INPUT_REQUIRED
        await answer(runtime, task, elicitation_1="Ada")
        assert (await until_final(runtime, task)).result == {"value": "Ada"}


# Keys and ids


async def test_a_task_under_an_idempotency_key_is_made_once() -> None:
    gate, runs = anyio.Event(), list[str]()

    async def body(run: Run) -> Ending:
        runs.append(run.record.id)
        return await opened_by(gate)(run)

    async with running(body, concurrency=1) as runtime:
        launched = [await start(runtime, owner="ann", key="k") for _ in range(3)]
        another = await start(runtime, owner="bob", key="k")
        await settle()
        assert len({task.id for task in launched}) == 1
        assert runs == [launched[0].id]
        assert (another.owner, another.attempt) == ("bob", 0), "the first has the only slot"
        gate.set()
        await until_final(runtime, another)
        assert (await start(runtime, owner="ann", key="k")).id == launched[0].id
        assert (await until_final(runtime, await start(runtime))).attempt == 1, "the slot that was kept is free again"


async def test_a_key_that_counts_until_the_end_gives_the_running_task_and_then_a_new_one() -> None:
    gate = anyio.Event()
    async with running(opened_by(gate), concurrency=1) as runtime:
        join = partial(start, runtime, owner="ann", key="k", key_until_end=True)
        first = await join(task_id="task_mine")
        assert first.id == "task_mine"
        assert (await join(task_id="task_never")).id == first.id
        with pytest.raises(TaskExists):
            await start(runtime, task_id="task_mine")
        gate.set()
        await until_final(runtime, first)
        second = await until_final(runtime, await join())
        assert second.id != first.id
        assert (await until_final(runtime, first)).result == second.result == {"value": "ok"}


@pytest.mark.parametrize("owner", [None, ""])
async def test_where_every_task_has_an_owner_none_is_made_without_one(owner: str | None) -> None:
    async with running(asks, requires_owner=True) as runtime:
        with pytest.raises(OwnerRequired, match="'tool' has to have an owner"):
            await start(runtime, owner=owner)
        assert (await start(runtime, owner="ann")).owner == "ann"


# Room


async def test_a_repeated_call_needs_no_room_for_another_task() -> None:
    async with running(asks, limits=Limits(open_tasks=1)) as runtime:
        task = await start(runtime, key="mine")
        assert (await start(runtime, key="mine")).id == task.id


@pytest.mark.parametrize("room", [100_000, 85_000], ids=["for both", "for one"])
async def test_results_that_are_being_written_take_room_but_never_twice(room: int) -> None:
    """The store has the first, and its process has not heard so yet: it seems to be there and on its way as well."""
    sizes = {"first": 40_000, "second": 50_000}

    async def body(run: Run) -> Ending:
        return ok("x" * sizes[run.request.name])

    store = MeddledStore()
    store.after["save"] = hold = Held(lambda saved, _: saved.is_final)
    tools = {name: Tool(body) for name in sizes}
    limits, monotonic = Limits(owner_stored_bytes=room), Seconds()
    async with running(tools, store=store, limits=limits, monotonic=monotonic) as runtime:
        first = await start(runtime, "first", owner="ann")
        await hold.came.wait()
        monotonic.advance(HOUR)
        second = await start(runtime, "second", owner="ann")
        await settle()
        is_early = (await as_of_now(runtime, second)).is_final
        hold.goes_on.set()
        assert is_early is (room == 85_000), "it waits where there is room as soon as the first is counted once"
        assert (await until_final(runtime, first)).status is TaskStatus.COMPLETED
        ended = await until_final(runtime, second)
        assert error_type(ended) == (None if room == 100_000 else "LimitExceeded")


async def test_a_task_for_which_there_is_room_is_written_as_taken_and_another_is_queued() -> None:
    store, gate = MeddledStore(), anyio.Event()
    async with running(opened_by(gate), store=store, concurrency=1) as runtime:
        tasks = [await start(runtime) for _ in range(3)]
        assert [(task.attempt, task.worker) for task in tasks] == [(1, runtime.worker), (0, None), (0, None)]
        gate.set()
        for task in tasks:
            assert (await until_final(runtime, task)).attempt == 1
    assert store.calls["save"] == 1 + 2 + 2


async def test_a_task_that_could_not_be_kept_takes_no_place() -> None:
    store = MeddledStore()
    store.go_away("create", times=3)
    async with running(at_once, store=store, concurrency=1) as runtime:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await start(runtime)
        task = await until_final(runtime, await start(runtime))
        assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 1)


@pytest.mark.parametrize("written", [False, True], ids=["before it is written", "while its answer is on its way"])
async def test_a_request_that_is_given_up_while_its_task_is_kept_leaves_a_task_that_runs(written: bool) -> None:
    store, hold = MeddledStore(), Held()
    (store.after if written else store.before)["create"] = hold
    async with running(at_once, store=store) as runtime:
        starting = asyncio.create_task(start(runtime, task_id="task"))
        await hold.came.wait()
        starting.cancel()
        await settle()
        hold.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await settle()
        assert (await until_final(runtime, await runtime.find("task"))).status is TaskStatus.COMPLETED


async def test_a_task_that_was_kept_while_its_process_stopped_is_run_by_the_next_one() -> None:
    hold = Held()
    store = MeddledStore(create=hold)
    async with running(at_once, store=store) as runtime:
        calling = asyncio.ensure_future(start(runtime))
        await hold.came.wait()
        await runtime.stop()
        hold.goes_on.set()
        task = await calling
    async with running(at_once, store=store) as other:
        # It never began, and nobody died: there is nothing that it could have done in part.
        assert (await until_final(other, task)).status is TaskStatus.COMPLETED


# How a process begins and ends, and what becomes of its tasks


async def test_what_does_not_end_in_time_is_released_or_ends_as_interrupted_and_the_next_process_goes_on() -> None:
    store = MemoryStore()
    tools = {"again": Tool(never_ending, RERUN), "once": Tool(never_ending, ONCE)}
    async with running(tools, store=store, concurrency=2) as runtime:
        tasks = [await launch(runtime, tool) for tool in ("again", "once", "once")]
        for task in tasks[:2]:
            await until(runtime, task, lambda record: record.attempt == 1)
    records = [await as_of_now(runtime, task) for task in tasks]
    assert [(record.status, record.worker, record.attempt, record.lost) for record in records] == [
        (TaskStatus.WORKING, None, 1, 0),
        (TaskStatus.FAILED, None, 1, 0),
        (TaskStatus.WORKING, None, 0, 0),
    ]
    assert error_type(await finished(runtime, records[1])) == "interrupted"
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
    opened: list[str] = []

    def noting(what: str) -> Meddle:
        async def note() -> None:
            opened.append(what)

        return note

    store.before["open"], store.before["close"] = noting("open"), noting("close")
    runtime = make_runtime(at_once, store=store, namespace="ours")
    threads = anyio.to_thread.current_default_thread_limiter().total_tokens
    with pytest.raises(StoreError, match="the disk is full"):
        await runtime.start()
    assert opened == ["open", "close"]
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == threads
    await runtime.start()
    assert (await until_final(runtime, await launch(runtime))).is_final
    await runtime.stop()
    assert opened == ["open", "close"] * 2


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


@pytest.mark.parametrize(
    ("ahead", "round_trip", "said"),
    [
        (DAY, 0.0, "1 day, 0:00:00 ahead of"),
        (-DAY, 0.0, "1 day, 0:00:00 behind"),
        (4.9 * SECOND, 0.0, None),
        (-4.9 * SECOND, 0.0, None),
        (6 * SECOND, 4.0, None),
    ],
    ids=["ahead", "behind", "a little ahead", "a little behind", "not known: the answer was slow"],
)
async def test_a_machine_whose_clock_is_wrong_says_so_once_and_its_clock_makes_no_difference(
    ahead: timedelta, round_trip: float, said: str | None, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for world.wall_ahead in (ahead, timedelta(0), ahead, -ahead if said else ahead):
        world.seconds += EVERY
        await world.measure(there=round_trip)
        assert abs(world.error) <= round_trip * SECOND / 2
    assert caplog.text.count("clock of this machine") == (said is not None)
    assert said is None or said in caplog.text


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
