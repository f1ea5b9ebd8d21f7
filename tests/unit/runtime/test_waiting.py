"""A run that only waits holds nothing: it leaves memory, its slot is free, its time does not count, and it does not
count against limits. It takes all of that again to go on. Sleeps are slept over restarts. Simulated time.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, cast

import anyio
import pytest

from mcp_tasks.errors import QuestionTimedOut, UsageError
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Body, Ending, Run, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    ONCE,
    PARKS,
    RERUN,
    SECOND,
    MeddledStore,
    Tool,
    answer,
    asks,
    at_once,
    cancel,
    create,
    error_type,
    launch,
    loop_time,
    never_ending,
    ok,
    question,
    running,
    settle,
    started,
    until,
    until_asking,
    until_final,
    until_parked,
)
from tests.unit.virtual_time import SIMULATED, time_passes

LONG = 120.0


ONE = TaskOptions(max_at_work=1)


def simulated_clock() -> datetime:
    return NOON + timedelta(seconds=asyncio.get_running_loop().time())


SWEEPS: dict[str, Any] = {"sweep_interval": SECOND, "clock": simulated_clock}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


# In memory, and out of it


async def _asks(run: Run) -> object:
    return await run.ask(question("Sure?"))


async def _gathers(run: Run) -> object:
    return await asyncio.gather(_asks(run), _asks(run))


async def _works_beside(run: Run) -> object:
    working = asyncio.create_task(time_passes(1_000))
    await _asks(run)
    return await working


async def _steps_beside(run: Run) -> object:
    return await asyncio.gather(_asks(run), run.step("step", partial(asyncio.sleep, 1_000)))


async def _has_a_limit(run: Run) -> object:
    return await asyncio.wait({asyncio.create_task(_asks(run))}, timeout=1_000)


@pytest.mark.parametrize(
    ("tool", "is_parked"),
    [(_asks, True), (_gathers, False), (_works_beside, False), (_steps_beside, False), (_has_a_limit, False)],
)
@pytest.mark.parametrize("after", [0, 30, 600])
async def test_a_run_leaves_memory_when_it_has_only_waited_for_as_long_as_its_tool_says(
    tool: Callable[[Run], Awaitable[object]], is_parked: bool, after: int
) -> None:
    async def body(run: Run) -> Ending:
        await tool(run)
        return ok()

    async with running(
        body, policy=TaskOptions(recover="rerun", park_after=timedelta(seconds=after)), clock=None
    ) as runtime:
        task = await started(runtime)
        await time_passes(max(0, after - 1))
        assert runtime.has(task.id) or not after
        await time_passes(10)
        assert runtime.has(task.id) is not is_parked


async def test_with_too_many_waiting_in_memory_a_run_leaves_it_at_once_or_keeps_its_slot() -> None:
    tools = {"asks": Tool(asks, RERUN), "stays": Tool(asks, ONCE), "work": Tool(at_once)}
    async with running(tools, concurrency=2, max_waiting_runs=0) as runtime:
        parks = await launch(runtime, "asks")
        await until_parked(runtime, parks)
        stays = [await until_asking(runtime, await launch(runtime, "stays")) for _ in range(2)]
        working = await launch(runtime, "work")
        await time_passes(60)
        assert (await as_of_now(runtime, working)).attempt == 0, "both slots are kept"
        await answer(runtime, stays[0], elicitation_1="yes")
        assert (await until_final(runtime, working)).status is TaskStatus.COMPLETED


async def test_a_process_that_stops_parks_what_only_waits_and_is_not_held_up_by_it() -> None:
    begun = loop_time()
    async with running({"asks": Tool(asks, RERUN), "both": Tool(_body_of(_gathers), RERUN)}) as runtime:
        tasks = [await until_asking(runtime, await launch(runtime, name)) for name in ("asks", "both") * 20]
        runtime.settings = replace(runtime.settings, drain_timeout=HOUR)
    assert loop_time() - begun < 60
    records = [await as_of_now(runtime, task) for task in tasks]
    assert {(record.worker, record.lost, record.status) for record in records} == {(None, 0, TaskStatus.INPUT_REQUIRED)}


def _body_of(tool: Callable[[Run], Awaitable[object]]) -> Body:
    async def body(run: Run) -> Ending:
        return ok(await tool(run))

    return body


# Slots


async def test_a_run_that_waits_has_no_slot_and_has_it_again_before_it_goes_on() -> None:
    order, gate = list[str](), anyio.Event()

    async def asking(run: Run) -> Ending:
        with anyio.move_on_after(cast("float", run.request.arguments["limit"])) as scope:
            await asks(run)
        order.append("gives up" if scope.cancelled_caught else "goes on")
        return ok()

    async def hog(run: Run) -> Ending:
        order.append("hog")
        await gate.wait()
        order.append("hog ends")
        return ok()

    async with running({"asks": Tool(asking), "hog": Tool(hog)}, concurrency=1) as runtime:
        answered, given_up = [
            await until_asking(runtime, await launch(runtime, "asks", limit=limit)) for limit in (1_000, 100)
        ]
        await launch(runtime, "hog")
        await settle()
        await answer(runtime, answered, elicitation_1="yes")
        await time_passes(200)
        assert order == ["hog"], "they stand in line"
        gate.set()
        for task in (answered, given_up):
            await until_final(runtime, task)
    assert sorted(order) == ["gives up", "goes on", "hog", "hog ends"]


async def test_a_step_keeps_the_slot_however_many_branches_wait_and_gives_it_back_at_its_end() -> None:
    gate = anyio.Event()

    async def body(run: Run) -> Ending:
        return ok(await asyncio.gather(_gathers(run), run.step("step", gate.wait)))

    async with running({"steps": Tool(body), "work": Tool(at_once)}, concurrency=1) as runtime:
        task = await until_asking(runtime, await launch(runtime, "steps"))
        working = await launch(runtime, "work")
        await time_passes(60)
        assert (await as_of_now(runtime, working)).attempt == 0
        gate.set()
        await until_final(runtime, working)
        await answer(runtime, task, elicitation_1="yes", elicitation_2="no")
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("rerun", [False, True])
async def test_a_step_does_not_begin_in_a_run_that_is_stopped_while_it_stands_in_line(rerun: bool) -> None:
    may_begin, begun = anyio.Event(), list[str]()

    async def body(run: Run) -> Ending:
        async def later() -> None:
            await may_begin.wait()
            await current_task().step("step", lambda: begun.append("step"))

        return ok(await asyncio.gather(asks(run), later()))

    tools = {"steps": Tool(body, TaskOptions(recover="rerun" if rerun else "fail")), "hog": Tool(never_ending)}
    async with running(tools, concurrency=1) as runtime:
        task = await until_asking(runtime, await launch(runtime, "steps"))
        hog = await started(runtime, "hog")
        may_begin.set()
        await time_passes(1)
        await cancel(runtime, task)
        await settle()
        assert not runtime.has(task.id)
        await cancel(runtime, hog)
        await time_passes(1)
    assert begun == []


# The limit on running time


@pytest.mark.parametrize(("seconds", "is_over"), [(4, False), (7, True)])
async def test_time_at_rest_does_not_count_for_the_limit_however_long_and_how_often(
    seconds: float, is_over: bool
) -> None:
    async def body(run: Run) -> Ending:
        for _ in range(5):
            await time_passes(11)
            await run.sleep(timedelta(minutes=10))
        await time_passes(seconds)
        return ok()

    policy = TaskOptions(max_runtime=timedelta(minutes=1))
    async with running(body, policy=policy, clock=simulated_clock) as runtime:
        ended = await until_final(runtime, await launch(runtime), limit=100_000)
        assert error_type(ended) == ("max_runtime" if is_over else None)
        assert not is_over or "60 s" in str(ended.status_message)


async def test_neither_a_person_nor_the_line_for_a_slot_or_a_place_counts_for_the_limit() -> None:
    line, policy = Line(), TaskOptions(max_runtime=timedelta(seconds=5))
    tools = {"asks": Tool(asks, policy), "sleeps": Tool(line.sleeps, policy), "works": Tool(line.works)}
    for limits in ({"concurrency": 1}, {"max_at_work_per_owner": 1}):
        line.gate = anyio.Event()
        async with running(tools, **limits, **SWEEPS) as runtime:
            asker, sleeper = await start(runtime, "asks"), await start(runtime, "sleeps")
            await time_passes(1)
            new = await start(runtime, "works")
            await time_passes(60)
            await answer(runtime, asker, elicitation_1="yes")
            await time_passes(60)
            line.gate.set()
            for task in (asker, sleeper, new):
                assert (await until_final(runtime, task, LONG)).status is TaskStatus.COMPLETED


# The limits of a tool and of an owner


class Counting(MeddledStore):
    """Counts how many are at work."""

    def __init__(self) -> None:
        super().__init__()
        self.most_at_work = 0
        self.after["save"] = self.after["create"] = self._count_at_work

    async def _count_at_work(self, *args: Any, **options: Any) -> None:
        records = (await MemoryStore.list(self, "", EVERYBODY, now=simulated_clock(), limit=1_000)).records
        at_work = [each for each in records if each.worker and not each.is_final and each.pause is None]
        self.most_at_work = max(self.most_at_work, len(at_work))


async def start(runtime: TaskRuntime, name: str = "tool", **arguments: Any) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=TaskRequest(name=name, arguments=arguments), owner="ann"))


async def child(run: Run, runtime: TaskRuntime, name: str, **arguments: Any) -> Callable[[], Awaitable[Any]]:
    async def start(key: str) -> str:
        request = TaskRequest(name=name, arguments=arguments)
        record = await runtime.launch(
            LaunchSpec(request=request, owner=run.record.owner, key=key, parent=run.record.id)
        )
        return record.id

    task_id = await run.waits.start_child(f"{name} {arguments}", start)

    async def end() -> dict[str, Any]:
        record = None
        while record is None:
            record = await runtime.follow(task_id, lambda task: task.is_final, timeout=timedelta(days=1))
        return {"status": record.status.value}

    return lambda: run.waits.wait_for_task(task_id, end)


class Family:
    """Tools whose runs start others and wait for them."""

    runtime: TaskRuntime

    async def child(self, run: Run) -> Ending:
        await run.sleep(SECOND)
        return ok()

    async def gathers(self, run: Run) -> Ending:
        waits = [await child(run, self.runtime, "child", number=number) for number in range(3)]
        await asyncio.gather(*(wait() for wait in waits), run.sleep(timedelta(seconds=30)))
        return ok()

    async def nested(self, run: Run) -> Ending:
        depth: int = run.request.arguments["depth"]  # type: ignore[assignment]
        if depth:
            wait = await child(run, self.runtime, "nested", depth=depth - 1)
            await wait()
        return ok()

    def tools(self, policy: TaskOptions) -> dict[str, Tool]:
        return {name: Tool(getattr(self, name), policy) for name in ("child", "gathers", "nested")}


@pytest.mark.parametrize("slots", [100, 1])
@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("tool", ["gathers", "nested"])
async def test_parents_of_one_owner_make_room_for_their_children(tool: str, rerun: bool, slots: int) -> None:
    family, store = Family(), Counting()
    policy = TaskOptions(recover="rerun" if rerun else "fail", max_at_work=2)
    options = {"store": store, "concurrency": slots, "max_at_work_per_owner": 2, **SWEEPS}
    async with running(family.tools(policy), **options) as runtime:
        family.runtime = runtime
        parents = [await start(runtime, tool, depth=3) for _ in range(4)]
        for parent in parents:
            assert (await until_final(runtime, parent, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 2


class Line:
    """Tools that say when they work: one that waits first, and one that does not."""

    def __init__(self) -> None:
        self.worked: list[str] = []
        self.gate = anyio.Event()

    async def sleeps(self, run: Run) -> Ending:
        await run.sleep(timedelta(seconds=10))
        self.worked.append("sleeper")
        return ok()

    async def works(self, run: Run) -> Ending:
        self.worked.append("new")
        await asyncio.sleep(1)  # sleep: the time is simulated
        await self.gate.wait()
        return ok()

    def tools(self, policy: TaskOptions) -> dict[str, Tool]:
        return {"sleeps": Tool(self.sleeps, policy), "works": Tool(self.works, policy)}


@pytest.mark.parametrize("policy", [ONCE, RERUN, PARKS], ids=["may not run again", "may run again", "suspended"])
async def test_a_run_that_goes_on_comes_before_runs_that_have_not_begun(policy: TaskOptions) -> None:
    line, store = Line(), Counting()
    async with running(line.tools(policy), store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await start(runtime, "sleeps")
        await time_passes(1)
        new = [await start(runtime, "works") for _ in range(5)]
        await time_passes(20)
        assert line.worked == ["new"], "the limit is reached"
        assert (await runtime.find(sleeper.id)).pause == "resuming"
        claims = store.calls["save"]
        await time_passes(60)
        assert store.calls["save"] - claims < 200, "what is refused is not tried again at once"
        line.gate.set()
        for task in (sleeper, *new):
            await until_final(runtime, task, LONG)
    assert line.worked == ["new", "sleeper", *["new"] * 4]
    assert store.most_at_work == 1


async def test_a_run_learns_of_a_place_that_another_process_gave_up() -> None:
    line, store = Line(), Counting()
    options = {"store": store, "max_at_work_per_owner": 1, **SWEEPS}
    async with running(line.tools(ONCE), **options) as one, running(line.tools(ONCE), **options) as two:
        sleeper = await start(one, "sleeps")
        await time_passes(1)
        new = await create(two, "works", owner="ann")
        await two.engine.submit(new.id)
        await time_passes(20)
        assert (await one.find(sleeper.id)).pause == "resuming"
        line.gate.set()
        await until_final(two, new, LONG)
        await time_passes(2)
        assert (await one.find(sleeper.id)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 1


@pytest.mark.parametrize(("limit", "seconds"), [(None, 10.0), (1, 0.01)])
async def test_a_short_wait_and_one_without_limits_cost_no_writes(limit: int | None, seconds: float) -> None:
    async def sleeps(run: Run) -> Ending:
        await run.sleep(timedelta(seconds=seconds))
        return ok()

    async with running(sleeps, max_at_work_per_owner=limit, **SWEEPS) as runtime:
        task = await until_final(runtime, await start(runtime), LONG)
    # Made, claimed, a timer set, the timer over, ended.
    assert task.version == 5


@asynccontextmanager
async def in_line(line: Line, store: MemoryStore, policy: TaskOptions) -> AsyncGenerator[tuple[Any, ...]]:
    """A process in which one run waits for its place, and another has it."""
    async with running(line.tools(policy), store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        sleeper = await start(runtime, "sleeps")
        await time_passes(1)
        new = await start(runtime, "works")
        await time_passes(5)
        assert (await as_of_now(runtime, sleeper)).pause == "waiting"
        yield runtime, sleeper, new


async def test_a_task_is_cancelled_while_its_run_waits_for_a_place() -> None:
    line = Line()
    async with in_line(line, MemoryStore(), ONCE) as (runtime, sleeper, new):
        await time_passes(20)
        await cancel(runtime, await runtime.find(sleeper.id))
        await time_passes(1)
        assert not runtime.has(sleeper.id)
        line.gate.set()
        await until_final(runtime, new, LONG)
    assert line.worked == ["new"]


@pytest.mark.parametrize("how", ["stops", "dies waiting", "dies resuming"])
@pytest.mark.parametrize("rerun", [False, True])
async def test_a_process_that_stops_or_dies_leaves_no_place_taken(rerun: bool, how: str) -> None:
    line, store, policy = Line(), Counting(), TaskOptions(recover="rerun" if rerun else "fail")
    async with in_line(line, store, policy) as (runtime, sleeper, works):
        if how != "dies waiting":
            await time_passes(20)
            assert (await as_of_now(runtime, sleeper)).pause == "resuming"
        if how != "stops":
            await runtime.abandon()
    if how == "stops":
        record = await as_of_now(runtime, sleeper)
        assert (record.worker, record.pause) == (None, None)
    line.gate.set()
    async with running(line.tools(policy), store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        after = await start(runtime, "works")
        for task in (sleeper, works, after):
            ended = await until_final(runtime, task, LONG)
            assert ended.status is (TaskStatus.COMPLETED if rerun or task is after else TaskStatus.FAILED)
    assert store.most_at_work == 1


async def test_a_branch_whose_time_is_over_has_its_place_before_it_goes_on() -> None:
    line, store = Line(), Counting()

    async def gives_up(run: Run) -> Ending:
        with anyio.move_on_after(5):
            await run.ask(question("Sure?"))
        line.worked.append("gave up")
        return ok()

    tools = {"gives_up": Tool(gives_up), **line.tools(ONCE)}
    async with running(tools, store=store, max_at_work_per_owner=1, **SWEEPS) as runtime:
        asker = await start(runtime, "gives_up")
        await time_passes(1)
        new = await start(runtime, "works")
        await time_passes(20)
        assert line.worked == ["new"]
        line.gate.set()
        for task in (asker, new):
            assert (await until_final(runtime, task, LONG)).status is TaskStatus.COMPLETED
    assert (line.worked, store.most_at_work) == (["new", "gave up"], 1)


@pytest.mark.parametrize("seats", [0, 100])
async def test_a_run_that_keeps_its_slot_while_it_waits_gives_up_its_place_all_the_same(seats: int) -> None:
    line, store = Line(), Counting()
    options = {"store": store, "concurrency": 2, "max_waiting_runs": seats, **SWEEPS}
    async with running(line.tools(ONE), **options) as runtime:
        sleepers = [await start(runtime, "sleeps") for _ in range(2)]
        for sleeper in sleepers:
            await until(runtime, sleeper, lambda record: record.pause == "waiting", LONG)
        store.most_at_work = 0
        for sleeper in sleepers:
            assert (await until_final(runtime, sleeper, LONG)).status is TaskStatus.COMPLETED
    assert store.most_at_work == 1


# Sleeps: set once in the life of a task, and slept over restarts

HELD = TaskOptions(recover="rerun", park_after=HOUR)


async def sleep_an_hour(run: Run) -> Ending:
    await current_task().sleep(HOUR)
    return ok("awake")


async def ring(runtime: TaskRuntime, clock: FakeClock, by: timedelta = HOUR) -> None:
    """Let time go by, for those in memory and for those that left it."""
    await settle()
    clock.advance(by)
    runtime.alarms.recheck()
    await runtime.janitor.sweep()


async def until_asleep(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    """The task once its first timer is set, which is the third version: created, taken, timer."""
    return await until(runtime, task, lambda record: record.version >= 3)


async def test_a_short_sleep_is_slept_in_memory_and_an_instant_that_has_passed_not_at_all() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta(milliseconds=10))
        await current_task().sleep(until=NOON)
        return ok(run.attempt)

    async with running(body, policy=HELD) as runtime:
        assert (await until_final(runtime, await launch(runtime))).result == {"value": 1}


@pytest.mark.parametrize("policy", [PARKS, HELD], ids=["parked", "held"])
@pytest.mark.parametrize("dies", [True, False], ids=["process dies", "process stops"])
async def test_a_sleep_goes_on_in_the_next_process_and_is_not_begun_again(policy: TaskOptions, dies: bool) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        assert [entry.kind for entry in await store.journal(task.id)] == ["timer"]
        if dies:
            await runtime.abandon()
    async with running(sleep_an_hour, policy=policy, clock=clock, store=store) as runtime:
        await ring(runtime, clock, HOUR / 2)
        await settle()
        assert not (await as_of_now(runtime, task)).is_final
        await ring(runtime, clock, HOUR / 2)
        assert (await until_final(runtime, task)).result == {"value": "awake"}
        assert [entry.kind for entry in await store.journal(task.id)] == ["timer", "done"]


async def test_the_timer_of_a_task_that_asks_too_is_not_lost_when_its_process_dies() -> None:
    clock, store = FakeClock(), MemoryStore()

    async def whichever_is_first(run: Run) -> Ending:
        branches = [asyncio.ensure_future(each) for each in (run.ask(question("Sure?")), current_task().sleep(HOUR))]
        done, rest = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
        for branch in rest:
            branch.cancel()
        return ok([branch.result() for branch in done])

    async with running(whichever_is_first, policy=HELD, clock=clock, store=store) as one:
        task = await until_asking(one, await launch(one))
        await settle()
        await one.abandon()
    async with running(whichever_is_first, policy=HELD, clock=clock, store=store) as other:
        await until(other, task, lambda record: record.attempt == 2)
        await ring(other, clock)
        assert (await until_final(other, task)).result == {"value": [None]}


@pytest.mark.parametrize("other", ["asks", "works"])
async def test_a_run_that_sleeps_in_one_branch_and_does_something_in_another_stays_in_memory(other: str) -> None:
    clock, begun, gate = FakeClock(), list[str](), anyio.Event()

    async def work() -> str:
        begun.append("work")
        await gate.wait()
        return "yes"

    async def body(run: Run) -> Ending:
        context = current_task()
        beside = run.ask(question("Sure?")) if other == "asks" else context.step("work", work)
        return ok(await asyncio.gather(beside, context.sleep(HOUR)))

    async with running(body, policy=PARKS, clock=clock) as runtime:
        task = await until_asleep(runtime, await launch(runtime))
        await settle()
        if other == "asks":
            await answer(runtime, task, elicitation_1="yes")
        gate.set()
        await settle()
        # Then there is only the sleep left, but what waits for a branch, and for how long, is not seen.
        assert (await as_of_now(runtime, task)).worker == runtime.worker
        await ring(runtime, clock)
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": ["yes", None]}, 1)
        assert begun == ([] if other == "asks" else ["work"])


@pytest.mark.parametrize("by_name", [True, False], ids=["with a name", "until an instant"])
async def test_a_long_sleep_leaves_memory_ends_on_time_and_is_the_same_one_in_the_next_run(by_name: bool) -> None:
    clock, there = FakeClock(), timezone(timedelta(hours=9))

    async def body(run: Run) -> Ending:
        if by_name:
            # However long it is then.
            await current_task().sleep(run.attempt * HOUR, name="review")
        else:
            await current_task().sleep(until=(NOON + HOUR).astimezone(there))
        return ok("awake")

    async with running(body, policy=PARKS, clock=clock) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        assert task.wake_at == NOON + HOUR
        await ring(runtime, clock, HOUR - SECOND)
        await settle()
        assert (await as_of_now(runtime, task)).attempt == 1
        await ring(runtime, clock, SECOND)
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": "awake"}, 2)


async def test_a_sleep_that_no_calendar_reaches_is_one_for_good() -> None:
    async def body(run: Run) -> Ending:
        await current_task().sleep(timedelta.max)
        return ok()

    async with running({"tool": Tool(body, PARKS)}, clock=FakeClock()) as runtime:
        await until_asleep(runtime, await launch(runtime))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "either a duration or until="),
        ({"duration": HOUR, "until": NOON}, "either a duration or until="),
        ({"duration": 60}, "duration must be a timedelta"),
        ({"until": NOON.replace(tzinfo=None)}, "takes an aware datetime"),
    ],
    ids=["nothing", "both", "number", "naive"],
)
async def test_a_sleep_that_says_nothing_sensible_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        await current_task().sleep(**arguments)


# Outside of a task


@pytest.mark.parametrize("key", [None, "sure"])
async def test_outside_a_task_a_sleep_is_a_sleep_and_a_question_is_asked_as_it_is(key: str | None) -> None:
    context = current_task()
    assert (context.id, context.owner, context.attempt, context.cancelled) == (None, None, 1, False)
    with anyio.fail_after(5):
        await context.sleep(timedelta(milliseconds=1))
        await context.sleep(until=NOON)
        for timeout in (None, HOUR):
            assert await context.ask(asyncio.sleep(0, "yes"), key=key, timeout=timeout) == "yes"
        with pytest.raises(QuestionTimedOut) as caught:
            await context.ask(anyio.sleep_forever(), timeout=timedelta(milliseconds=1))
    assert isinstance(caught.value, TimeoutError)


async def test_what_is_no_question_or_no_time_limit_is_refused() -> None:
    anything: Any = "Sure?"
    with pytest.raises(UsageError, match="ask takes what asks, not awaited yet"):
        await current_task().ask(anything)
    seconds: Any = 60
    with pytest.raises(UsageError, match="timeout must be a timedelta"):
        await current_task().ask(asyncio.sleep(0), timeout=seconds)
