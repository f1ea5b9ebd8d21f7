"""A store that is away, loses its answers, or goes back in time: each thing happens once, and none is forgotten.

Simulated time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable, UnknownTask
from mcp_tasks.model import JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.machine import InputAnswered, RunStarted, StepRecorded, apply
from mcp_tasks.runtime import Body, Ending, Run, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.changes import is_older
from mcp_tasks.runtime.context import Asking, current_run
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.patience import SETTLED
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.testing.clock import NOON
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    ONCE,
    PARKS,
    RERUN,
    SECOND,
    MeddledStore,
    Seconds,
    Tool,
    answer,
    asks,
    cancel,
    create,
    error_type,
    launch,
    loop_time,
    make_runtime,
    never_ending,
    ok,
    question,
    running,
    start,
    started,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = simulated

AWAY = 30.0


class World:
    """A runtime with a tool that does what it is told to, and one that it may start."""

    def __init__(self, *, wrap: Callable[[Store], Any] = lambda store: store, **options: Any) -> None:
        self.store = MeddledStore()
        self.act: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)
        self.entered = asyncio.Event()
        self.gave: list[Any] = []
        self.children = 0
        self.parent: str | None = None
        tools = {"parent": Tool(self._parent), "child": Tool(self._child)}
        options = {"lease_duration": timedelta(minutes=5), "monotonic": loop_time, "uptime": loop_time} | options
        self.runtime: TaskRuntime = make_runtime(tools, store=wrap(self.store), **options)

    async def _parent(self, run: Run) -> Ending:
        self.parent = run.record.id
        self.entered.set()
        self.gave.append(await self.act())
        return ok()

    async def _child(self, run: Run) -> Ending:
        self.children += 1
        return ok()

    async def start_child(self) -> TaskRecord:
        request = TaskRequest(name="child", arguments={})
        return await self.runtime.launch(LaunchSpec(request=request, owner="Ann", key="its key", parent=self.parent))

    async def run(self, act: Callable[[], Awaitable[Any]]) -> TaskRecord:
        """A task whose tool does this, and comes to it only while the store is away."""
        ready = asyncio.Event()

        async def when_ready() -> Any:
            await ready.wait()
            return await act()

        self.act = when_ready
        task = await launch(self.runtime, "parent")
        await self.entered.wait()
        self.store.go_away()
        ready.set()
        await time_passes(AWAY)
        return task


@asynccontextmanager
async def world(**options: Any) -> AsyncGenerator[World]:
    world = World(**options)
    await world.runtime.start()
    try:
        yield world
    finally:
        world.store.before.clear()
        await world.runtime.stop()


class Wrapper:
    """Hands everything on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


ACTS: dict[str, Callable[[World, TaskRecord], Awaitable[Any]]] = {
    "start": lambda here, other: here.start_child(),
    "get": lambda here, other: here.runtime.get(other.id, owner=None),
    "find": lambda here, other: here.runtime.find(other.id),
    "list": lambda here, other: here.runtime.list(EVERYBODY),
    "outcome": lambda here, other: here.runtime.store.outcome(other.id),
    "cancel": lambda here, other: cancel(here.runtime, other),
    "wait": lambda here, other: here.runtime.follow(other.id, lambda task: task.is_final, timeout=timedelta(minutes=1)),
}


@pytest.mark.parametrize(("what", "wraps"), [*((what, False) for what in ACTS), ("list", True)])
async def test_a_tool_waits_for_the_store(what: str, wraps: bool) -> None:
    options: dict[str, Any] = {"wrap": Wrapper} if wraps else {}
    async with world(limits=Limits(open_tasks=100), **options) as here:
        other = await launch(here.runtime, "child")
        await until_final(here.runtime, other)
        task = await here.run(lambda: ACTS[what](here, other))
        assert here.gave == []
        here.store.before.clear()
        assert (await until_final(here.runtime, task, limit=60)).result == {"value": "ok"}
        assert here.gave != [None]


async def test_code_outside_of_tools_is_told_at_once_also_if_a_tool_waits_for_the_same_look() -> None:
    async with world(limits=Limits(open_tasks=100)) as here:
        here.store.go_away()
        for act in (here.start_child, lambda: here.runtime.find("task"), lambda: here.runtime.list(EVERYBODY)):
            with anyio.fail_after(1), pytest.raises(StoreUnavailable):
                await act()
        here.store.before.clear()
        await here.run(here.start_child)
        with anyio.fail_after(1), pytest.raises(StoreUnavailable):
            await here.start_child()


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_child_whose_creation_was_not_acknowledged_is_one_task_and_runs_once(lost: int) -> None:
    async with world() as here:

        async def lose(*args: Any, **options: Any) -> None:
            if here.store.calls["create"] <= 1 + lost:
                raise StoreUnavailable("the answer is lost", may_have_happened=True)

        async def act() -> TaskRecord:
            here.store.after["create"] = lose
            return await here.start_child()

        here.act = act
        task = await launch(here.runtime, "parent")
        while here.store.calls["create"] <= 1:
            await time_passes(0.01)
        for _ in range(2):
            # It is not taken for one that nothing runs.
            await here.runtime.janitor.recovery.release_orphans()
        await until_final(here.runtime, task, limit=60)
        children = [record for record in (await here.runtime.list(EVERYBODY)).records if record.name == "child"]
        assert [child.id for child in children] == [here.gave[0].id]
        assert (await until_final(here.runtime, children[0])).result == {"value": "ok"}
        assert here.children == 1


@pytest.mark.parametrize("what", ["start", "find"])
async def test_a_tool_may_give_up_the_wait(what: str) -> None:
    async with world() as here:

        async def briefly() -> float:
            began = loop_time()
            with anyio.move_on_after(2):
                await (here.start_child() if what == "start" else here.runtime.find("task"))
            return loop_time() - began

        await here.run(briefly)
        assert here.gave == [2]


async def test_the_wait_ends_with_the_lease() -> None:
    lease = timedelta(seconds=15)
    async with world(lease_duration=lease) as here:
        ended: list[float] = []

        async def act() -> None:
            began = loop_time()
            try:
                await here.runtime.find("task")
            finally:
                ended.append(loop_time() - began)

        await here.run(act)
        assert ended == [pytest.approx(lease.total_seconds() * 2 / 3, abs=1)]
        assert here.gave == []


async def test_a_branch_that_its_tool_started_on_its_own_asks_for_nothing_once_the_run_is_over() -> None:
    lease = timedelta(seconds=15)
    async with world(lease_duration=lease) as here:
        branches: list[asyncio.Task[Any]] = []

        async def act() -> None:
            # Cancelling the tool does not reach it.
            branches.append(asyncio.create_task(here.runtime.find("task")))
            await anyio.sleep_forever()

        await here.run(act)
        asked = here.store.calls["get"]
        await time_passes(AWAY)
        assert (here.store.calls["get"], branches[0].cancelled()) == (asked, True)


@pytest.mark.parametrize("writes", ["step", "result"])
async def test_a_process_that_stops_does_not_wait_until_a_run_would_write_again(writes: str) -> None:
    # Less than what is left of the pause between two attempts when the store is back.
    async with world(stop_timeout=SECOND) as here:

        async def act() -> None:
            if writes == "step":
                await current_task().step("step", partial(asyncio.sleep, 0))

        task = await here.run(act)
        here.store.before.clear()
        began = loop_time()
        await here.runtime.stop()
        assert loop_time() - began < 0.5
        assert not here.runtime.runs()
        record = await as_of_now(here.runtime, task)
        assert record.status is (TaskStatus.FAILED if writes == "step" else TaskStatus.COMPLETED)


async def test_the_verdict_over_a_run_is_written_after_an_outage_though_the_run_is_over() -> None:
    policy = TaskOptions(max_runtime=timedelta(seconds=5))
    store, entered = MeddledStore(), asyncio.Event()

    async def too_long(run: Run) -> Ending:
        entered.set()
        return await never_ending(run)

    async with running(too_long, store=store, policy=policy, uptime=loop_time) as runtime:
        task = await launch(runtime)
        await entered.wait()
        store.refuse(StoreUnavailable("the store is away"), "save")
        await time_passes(AWAY)
        store.before.clear()
        assert error_type(await until_final(runtime, task, limit=10)) == "max_runtime"


async def test_a_run_that_was_stopped_is_not_told_of_an_outage_when_it_reads_its_journal() -> None:
    async with world(lease_duration=timedelta(seconds=15)) as here:
        raised: list[type[BaseException]] = []

        async def act() -> None:
            run = current_run.get()
            assert run is not None
            try:
                await asyncio.sleep(3600)  # sleep: virtual time, until the lease is lost
            finally:
                # As after a write that was under way when the run was stopped.
                try:
                    await run.writer.read(after=0)
                except BaseException as exc:
                    raised.append(type(exc))

        await here.run(act)
        assert raised == [asyncio.CancelledError]


async def test_an_outage_is_logged_once_and_again_when_it_had_been_over(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> int:
        return caplog.text.count("the task store does not take requests")

    async def look(error: type[Exception], times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(error):
                await here.runtime.find("task")

    async with world() as here:
        for seconds, said in ((0.0, 1), (1.0, 1), (SETTLED, 2)):
            # It works for a moment, as one does that is full, or overloaded.
            await look(UnknownTask)
            await time_passes(seconds)
            here.store.go_away()
            await look(StoreUnavailable, 100)
            assert logged() == said
            here.store.before.clear()


# Writes whose answer is lost

OUTAGE = 12.0


class LossyStore(MeddledStore):
    """Carries out one write, loses its answer, and cannot be reached for some seconds after that."""

    def __init__(self, is_met: Callable[[TaskRecord], bool]) -> None:
        super().__init__(create=self._check_up, save=self._check_up, get=self._check_up)
        self.after["create"] = self.after["save"] = self._lose
        self.is_met = is_met
        self.lost = 0
        self._back_at = 0.0

    async def _check_up(self, *args: Any, **options: Any) -> None:
        if loop_time() < self._back_at:
            raise StoreUnavailable("unreachable")

    async def _lose(self, record: TaskRecord, *args: Any, **options: Any) -> None:
        if not self.lost and self.is_met(record):
            self.lost += 1
            self._back_at = loop_time() + OUTAGE
            raise StoreUnavailable("the answer was lost", may_have_happened=True)


async def take_answer(store: MemoryStore, record: TaskRecord, key: str, value: Any) -> TaskRecord:
    """Write an answer, as another process does."""
    answered = apply(record, InputAnswered(keys={key}), record.updated_at).written(new_write_id())
    entry = JournalEntry(kind="answer", key=key, value=value)
    return await MemoryStore.save(store, answered, expected=record.version, entries=[entry])


async def journal(runtime: TaskRuntime, task: TaskRecord) -> Counter[tuple[str, str]]:
    return Counter((entry.kind, entry.key) for entry in await runtime.store.journal(task.id))


async def nothing() -> None:
    pass


async def test_a_question_is_open_once_although_many_others_write_before_the_run_asks_again() -> None:
    store = LossyStore(lambda record: len(record.inputs.outstanding) == 10)

    async def body(run: Run) -> Ending:
        first = asyncio.gather(*(run.ask(question(f"{number}?")) for number in range(9)))
        await time_passes(1)
        last = asyncio.ensure_future(run.ask(question("Last?")))
        return ok([*await first, await last])

    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE)
        # Answers reach the store through another process before the run does.
        for number in range(1, 10):
            record = await MemoryStore.get(store, task.id)
            assert record is not None
            await take_answer(store, record, f"elicitation-{number}", number)
        await time_passes(OUTAGE)
        assert store.lost == 1
        await answer(runtime, task, elicitation_10=10)
        assert (await until_final(runtime, task)).result == {"value": list(range(1, 11))}
        assert set((await journal(runtime, task)).values()) == {1}


async def test_a_step_that_is_given_up_is_recorded_once_and_every_run_sees_the_same() -> None:
    store, runs = LossyStore(lambda record: record.attempt == 1 and record.version == 3), list[int]()

    async def body(run: Run) -> Ending:
        runs.append(run.attempt)
        with anyio.move_on_after(1) as scope:
            await run.step("slow", partial(asyncio.sleep, 5))
        await run.step("after", nothing)
        await run.ask(question("Sure?"))
        return ok(scope.cancelled_caught)

    async with running(body, store=store, policy=PARKS) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE * 2)
        assert store.lost == 1
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": True}
        assert runs == [1, 2]
        assert set((await journal(runtime, task)).values()) == {1}


# Races are decided in the same way in every run


async def winners(*racers: Callable[[Run], Awaitable[object]]) -> list[int]:
    """Who wins the race of a tool that runs twice, with a store that takes a second to save, and three to read."""
    won: list[int] = []

    async def body(run: Run) -> Ending:
        running_ones = [asyncio.ensure_future(racer(run)) for racer in racers]
        await asyncio.wait(running_ones, return_when=asyncio.FIRST_COMPLETED)
        won.append(next(place for place, racer in enumerate(running_ones) if racer.done()))
        await asyncio.wait(running_ones)
        for each in running_ones:
            each.exception()
        # Long enough for the run to leave memory.
        await run.sleep(timedelta(minutes=1))
        return ok()

    def clock() -> datetime:
        return NOON + timedelta(seconds=loop_time())

    store = MeddledStore(save=partial(slowly, 1), journal=partial(slowly, 3))
    async with running(body, store=store, policy=PARKS, clock=clock) as runtime:
        task = await launch(runtime)
        await time_passes(40)
        assert not runtime.runs()
        await time_passes(60)
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task, limit=60)).result == {"value": "ok"}
    return won


async def slowly(seconds: float, *args: Any, **options: Any) -> None:
    await time_passes(seconds)


async def fails_in_a_group(run: Run) -> None:
    """Ends when its first branch has failed, which cancels the other one."""

    async def fails() -> None:
        await run.step("fails", nothing)
        raise ValueError

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        group.start_soon(run.step, "other", after_a_moment)


async def cancels_the_other(run: Run) -> None:
    other = asyncio.ensure_future(run.step("other", after_a_moment))
    await run.step("fails", nothing)
    other.cancel()
    await asyncio.wait({other})


async def after_a_moment() -> None:
    await time_passes(0.2)


@pytest.mark.parametrize("racer", [fails_in_a_group, cancels_the_other])
async def test_a_branch_that_is_cancelled_in_line_for_its_turn_ends_at_the_same_time_in_every_run(
    racer: Callable[[Run], Awaitable[object]],
) -> None:
    async def between(run: Run) -> None:
        await run.step("between", partial(time_passes, 0.1))

    assert await winners(racer, between) == [0, 0]


async def test_that_a_question_timed_out_is_learned_before_anything_that_is_recorded_after_it() -> None:
    async def times_out(run: Run) -> None:
        await run.ask(question("Sure?"), Asking(timeout=timedelta(seconds=5)))

    async def is_done_then(run: Run) -> None:
        await run.step("done then", partial(time_passes, 10.5))

    assert await winners(times_out, is_done_then) == [0, 0]


# Claims and creations


async def attempt(run: Run) -> Ending:
    return ok(run.attempt)


@pytest.mark.parametrize("policy", [ONCE, RERUN])
async def test_a_claim_whose_answer_was_lost_runs_the_tool_once(policy: TaskOptions) -> None:
    store = LossyStore(lambda record: record.worker is not None)
    async with running(attempt, store=store, policy=policy) as runtime:
        task = await launch(runtime)
        await time_passes(OUTAGE + 2)
        assert store.lost == 1
        assert (await until_final(runtime, task)).result == {"value": 1}


async def test_a_claim_that_is_not_confirmed_while_the_lease_lasts_is_released_as_not_started() -> None:
    store = LossyStore(lambda record: record.worker is not None)
    async with running(attempt, store=store, policy=ONCE) as runtime:
        task = await launch(runtime)
        await time_passes(1)
        runtime.lease.is_valid = False
        await time_passes(OUTAGE)
        runtime.lease.is_valid = True
        await runtime.janitor.sweep()
        done = await until_final(runtime, task)
        assert (done.result, done.attempt) == ({"value": 2}, 2)


async def test_a_claim_that_arrives_after_a_limit_refused_its_repeat_is_released_as_not_started() -> None:
    gate, late = anyio.Event(), list[partial[Awaitable[TaskRecord]]]()
    store = MeddledStore()

    async def body(run: Run) -> Ending:
        await gate.wait()
        return ok(run.attempt)

    async def delay(record: TaskRecord, **options: Any) -> None:
        if record.id == "second" and not late:
            late.append(partial(MemoryStore.save, store, record, **{**options, "limits": None}))
            raise StoreUnavailable("no answer", may_have_happened=True)

    store.before["save"] = delay
    async with running(body, store=store, policy=TaskOptions(max_at_work=1)) as runtime:
        for task_id in ("first", "second"):
            task = await start(runtime, task_id=task_id)
        await time_passes(2)
        assert (await late[0]()).worker == runtime.worker
        await runtime.janitor.sweep()
        assert (await as_of_now(runtime, task)).worker is None
        gate.set()
        assert (await until_final(runtime, task)).result == {"value": 2}


@pytest.mark.parametrize("lease_lost", [True, False])
async def test_a_task_whose_creation_was_not_answered_runs_once_the_store_is_back(lease_lost: bool) -> None:
    store = LossyStore(lambda record: record.version == 2)
    async with running(attempt, store=store, policy=ONCE) as runtime:
        with pytest.raises(StoreUnavailable) as lost:
            await start(runtime, task_id="task")
        assert lost.value.may_have_happened
        await time_passes(OUTAGE)
        await (runtime.janitor.recovery.take_up() if lease_lost else runtime.janitor.sweep())
        task = await until_final(runtime, await runtime.find("task"))
        assert (task.status, store.lost) == (TaskStatus.COMPLETED, 1)


async def test_a_task_whose_claim_came_to_nothing_is_left_to_the_process_that_claimed_it() -> None:
    store = MeddledStore()
    async with running(attempt, store=store, policy=ONCE) as runtime:
        task = await create(runtime)

        async def another_claims(record: TaskRecord, **options: Any) -> None:
            store.before.clear()
            elsewhere = apply(task, RunStarted(worker="another"), task.created_at).written(new_write_id(run=True))
            await store.save(elsewhere, expected=task.version)
            raise StoreUnavailable("no answer", may_have_happened=True)

        store.before["save"] = another_claims
        await runtime.engine.submit(task.id)
        await time_passes(10)
        record = await as_of_now(runtime, task)
        assert (record.worker, record.attempt, record.is_final) == ("another", 1, False)


async def test_a_claim_that_succeeds_while_the_process_hands_over_its_runs_does_not_begin_the_tool() -> None:
    store, entered = MeddledStore(), list[str]()

    async def body(run: Run) -> Ending:
        entered.append(run.record.id)
        return await never_ending(run)

    async def meddle(record: TaskRecord, **options: Any) -> None:
        if record.id != second and record.worker is None:
            await time_passes(2)
        if record.id == second and record.worker is not None and not stopping.is_set():
            raise StoreUnavailable("no answer", may_have_happened=True)

    stopping, second = asyncio.Event(), ""
    store.before["save"] = meddle
    async with running(body, store=store, policy=RERUN, drain_timeout=timedelta(0)) as runtime:
        first = await start(runtime)
        second = (await create(runtime)).id
        await runtime.engine.submit(second)
        await time_passes(1)
        stopping.set()
    await time_passes(5)
    assert entered == [first.id]
    record = await store.get(second)
    assert record is not None
    assert record.worker is None


# A failover to a replica that lags behind


class RewindingStore(MeddledStore):
    """Can go back to what it was."""

    def remember(self) -> dict[str, Any]:
        return _copied(
            {name: value for name, value in vars(self).items() if name not in ("_notifier", "_reported", "before")}
        )

    def go_back(self, to: dict[str, Any]) -> None:
        vars(self).update(_copied(to))


def _copied(kept: dict[str, Any]) -> dict[str, Any]:
    # Records are values, and hold mappings that cannot be copied.
    return deepcopy(kept, {id(task.record): task.record for task in kept["_tasks"].values()})


@asynccontextmanager
async def asked(
    body: Body, **options: Any
) -> AsyncGenerator[tuple[RewindingStore, TaskRuntime, TaskRecord, dict[str, Any]]]:
    """A task that asks, and its store as it was then."""
    store = RewindingStore()
    async with running(body, store=store, policy=ONCE, **options) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        yield store, runtime, task, store.remember()


@pytest.mark.parametrize("lost", ["question", "claim"])
async def test_a_run_writes_again_what_a_failover_lost(lost: str) -> None:
    store, may_ask, entered = RewindingStore(), anyio.Event(), list[int]()

    async def body(run: Run) -> Ending:
        entered.append(run.attempt)
        await run.step("first", nothing)
        await may_ask.wait()
        return await asks(run)

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await create(runtime)
        before_claim = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        before_question = store.remember()
        may_ask.set()
        asked = await until_asking(runtime, task)
        store.go_back(before_question if lost == "question" else before_claim)
        await runtime.listener.look()
        again = await until_asking(runtime, task)
        assert again.inputs.outstanding == asked.inputs.outstanding
        assert again.version > asked.version
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}
        assert entered == [1]
        kept = [("step", "first"), *((kind, "elicitation-1") for kind in ("ask", "answer", "done"))]
        assert await journal(runtime, task) == Counter(kept)


async def test_a_run_that_writes_before_it_hears_of_the_failover_loses_nothing() -> None:
    store, go_on = RewindingStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        await run.step("first", nothing)
        await go_on.wait()
        await run.step("second", nothing)
        return ok()

    async with running(body, store=store, policy=RERUN) as runtime:
        task = await create(runtime)
        start = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        store.go_back(start)
        go_on.set()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
        assert await journal(runtime, task) == {("step", "first"): 1, ("step", "second"): 1}


@pytest.mark.parametrize("is_read", [True, False], ids=["as it is read", "before it is read"])
async def test_an_answer_that_a_failover_lost_is_asked_for_again_and_does_not_time_out(is_read: bool) -> None:
    async def body(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?"), Asking(timeout=HOUR)))

    async with asked(body) as (store, runtime, task, before):
        if is_read:
            # Acknowledged, and lost before the run reads it.
            await answer(runtime, task, elicitation_1="no")
        else:
            (run,) = runtime.runs()
            run.reconcile(task.but(version=task.version + 1))
        store.go_back(before)
        await time_passes(1)
        await runtime.listener.look()
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_a_run_notices_a_lost_write_though_another_has_written_as_often() -> None:
    store, may_ask = RewindingStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        await may_ask.wait()
        return await asks(run)

    async with running(body, store=store, policy=ONCE) as runtime:
        record = await started(runtime)
        before = store.remember()
        may_ask.set()
        asked = await until_asking(runtime, record)
        store.go_back(before)
        await store.save(record.but(version=asked.version).written(new_write_id()), expected=record.version)
        await runtime.listener.look()
        await answer(runtime, await until_asking(runtime, record), elicitation_1="yes")
        assert (await until_final(runtime, record)).result == {"value": "yes"}


async def test_an_answer_that_came_after_the_failover_is_kept() -> None:
    async with asked(asks) as (store, runtime, task, before):
        (run,) = runtime.runs()
        await run.writer.record(StepRecorded(attempt=1))
        store.go_back(before)
        answered = await take_answer(store, task, "elicitation-1", "yes")
        assert answered.version == run.record.version
        await runtime.listener.look()
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_after_a_failover_two_runs_of_one_number_are_told_apart() -> None:
    store = RewindingStore()
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await go_on.wait()
        await run.step("late", partial(asyncio.sleep, 0))
        return ok()

    async with running(body, store=store, policy=RERUN) as runtime:
        task = await create(runtime)
        before = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        store.go_back(before)
        claimed = apply(task, RunStarted(worker="another"), task.created_at).written(new_write_id(run=True))
        await store.save(claimed, expected=task.version)
        reported = await store.save(claimed.but(version=3).written(new_write_id()), expected=2)
        go_on.set()
        await time_passes(1)
        assert await store.get(task.id) == reported
        assert await journal(runtime, task) == {}


@pytest.mark.parametrize("policy", [ONCE, RERUN])
async def test_a_store_that_goes_back_further_than_a_run_remembers_has_it_end_or_begin_again(
    policy: TaskOptions,
) -> None:
    store, clock, go_on = RewindingStore(), Seconds(), anyio.Event()

    async def body(run: Run) -> Ending:
        await run.step("first", nothing)
        if run.attempt == 1:
            await go_on.wait()
        return ok()

    async with running(body, store=store, policy=policy, monotonic=clock) as runtime:
        task = await create(runtime)
        start = store.remember()
        await runtime.engine.submit(task.id)
        await time_passes(1)
        clock.advance(timedelta(minutes=2))
        (run,) = runtime.runs()
        await run.writer.record()
        store.go_back(start)
        await runtime.listener.look()
        done = await until_final(runtime, task)
        assert error_type(done) == (None if policy is RERUN else "interrupted")
        assert (await journal(runtime, task))["step", "first"] == (policy is RERUN)


def ended(task: TaskRecord, version: int) -> TaskRecord:
    """The task as another process has cancelled it."""
    return task.but(version=version, status=TaskStatus.CANCELLED, worker=None).written(new_write_id())


async def test_a_run_whose_task_is_cancelled_while_it_writes_again_what_was_lost_is_stopped() -> None:
    """The cancelled task has as many versions as the run knows of."""
    store, may_begin, may_go_on = RewindingStore(), anyio.Event(), anyio.Event()

    async def body(run: Run) -> Ending:
        await may_begin.wait()
        await run.step("first", nothing)
        await run.step("second", may_go_on.wait)
        return ok()

    async with running(body, store=store, policy=ONCE) as runtime:
        task = await launch(runtime)
        await time_passes(1)
        before = store.remember()
        may_begin.set()
        await time_passes(1)
        (run,) = runtime.runs()
        version = run.record.version
        store.go_back(before)

        async def cancelled(task_id: str, **options: Any) -> None:
            store.before.clear()
            record = await as_of_now(runtime, task)
            await store.save(ended(record, version), expected=record.version)

        store.before["journal"] = cancelled
        may_go_on.set()
        await time_passes(1)
        assert run.stopped.is_set()
        assert (await until_final(runtime, task)).status is TaskStatus.CANCELLED


# Others write after the failover: the same versions, and the same numbers in the journal, are other things now


async def asks_two(run: Run) -> Ending:
    return ok(await run.ask_all({"first": question("First?"), "second": question("Second?")}))


@pytest.mark.parametrize(
    ("more", "is_seen"),
    [(0, True), (1, True), (6, False)],
    ids=["as often", "more often", "so often that ids of writes are gone"],
)
async def test_of_two_answers_one_is_lost_and_the_other_takes_its_place(more: int, is_seen: bool) -> None:
    clock = Seconds()
    async with asked(asks_two, monotonic=clock) as (store, runtime, task, before):
        await time_passes(1)
        # Only the answer is new to the run, and not what it wrote itself.
        clock.advance(HOUR)
        await answer(runtime, task, elicitation_1=1)
        await time_passes(1)
        store.go_back(before)
        record = await take_answer(store, task, "elicitation-2", 2)
        for _ in range(more):
            again = record.but(version=record.version + 1).written(new_write_id())
            record = await store.save(again, expected=record.version)
        await runtime.listener.look()
        assert (await until_final(runtime, task)).result == {"value": {"first": 1, "second": 2}}
        kept = await journal(runtime, task)
        assert (kept["answer", "elicitation-1"], kept["answer", "elicitation-2"]) == (is_seen, 1)


async def test_an_answer_takes_the_place_of_a_lost_one_while_the_run_writes_again_what_was_lost() -> None:
    async def body(run: Run) -> Ending:
        first, second = [asyncio.create_task(run.ask(question(what))) for what in ("First?", "Second?")]
        return ok([await first, await second])

    async with asked(body) as (store, runtime, task, before):

        async def fail_over(record: TaskRecord, **options: Any) -> None:
            # As the run records that its tool learns of the first answer.
            if record.version == task.version + 2:
                store.go_back(before)
                store.before = {"journal": answer_second}

        async def answer_second(task_id: str, **options: Any) -> None:
            store.before.clear()
            await take_answer(store, task, "elicitation-2", 2)

        store.before["save"] = fail_over
        await answer(runtime, task, elicitation_1=1)
        assert (await until_final(runtime, task)).result == {"value": [1, 2]}
        kept = [(kind, f"elicitation-{number}") for kind in ("ask", "answer", "done") for number in (1, 2)]
        assert await journal(runtime, task) == Counter(kept)


async def test_what_others_wrote_after_a_failover_is_kept_when_a_lost_answer_is_written_again() -> None:
    async with asked(asks_two) as (store, runtime, task, before):
        await answer(runtime, task, elicitation_1=1)
        await time_passes(1)
        store.go_back(before)
        # That the task was announced is lost as well.
        meanwhile = task.but(version=task.version + 1, announced=False, pause="resuming")
        await store.save(meanwhile.written(new_write_id()), expected=task.version)
        await runtime.listener.look()
        record = await as_of_now(runtime, task)
        assert (record.announced, record.pause) == (True, "resuming")
        assert record.inputs.outstanding.keys() == {"elicitation-2"}
        await answer(runtime, task, elicitation_2=2)
        assert (await until_final(runtime, task)).result == {"value": {"first": 1, "second": 2}}


async def test_a_task_that_others_change_is_not_one_that_the_store_lost() -> None:
    async with running(asks) as runtime:
        task = await create(runtime)
    known = apply(task, RunStarted(worker="one"), task.created_at).written(new_write_id(run=True))
    told = apply(known, StepRecorded(attempt=1), task.created_at).but(version=known.version + 1)
    again = apply(known.but(worker=None), RunStarted(worker="another"), task.created_at)
    assert not is_older(told.written(new_write_id()), known)
    assert not is_older(again.written(new_write_id(run=True)), known)
    assert not is_older(ended(known.but(writes=()), known.version + 1), known)
    # After a failover another run has the same number.
    assert not is_older(again.but(attempt=1, writes=()).written(new_write_id(run=True)), known)
    assert is_older(told.but(attempt=0, worker=None, writes=()).written(new_write_id()), known)
