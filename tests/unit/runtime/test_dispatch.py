"""Tasks in a fleet: what a remote engine is handed; shares, limits, queues, priorities; hints of others.

The engine carries ids to other processes, repeats them, and loses them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import Engine, RemoteEngine, Route, Serves
from mcp_tasks.errors import InvalidOption, StoreUnavailable, TaskUnreadable
from mcp_tasks.model import Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.runtime import Body, Ending, Run, Settings, TaskOptions, TaskRuntime, changes, dispatch
from mcp_tasks.runtime.sweeps import IDLE_FOR_LONG
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Handing, Hint, Notifier, Ready
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.unit.carrying import Broker, BrokerCarrier, carrying_engine
from tests.unit.losing import as_of_now, sweep_for
from tests.unit.running import (
    CLIENT,
    HOUR,
    ONCE,
    PARKS,
    RERUN,
    SECOND,
    DeafStore,
    Held,
    MeddledStore,
    Seconds,
    Tool,
    all_end,
    answer,
    asks,
    at_once,
    cancel,
    create,
    happens,
    launch,
    never_ending,
    ok,
    opened_by,
    running,
    settle,
    start,
    telling,
    until,
    until_asking,
    until_final,
    until_parked,
)

SLOTS = 2


class TestRemoteEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def a_broker_for_each_test(self) -> None:
        self.broker = Broker()

    def make_engine(self) -> Engine:
        return carrying_engine(self.broker)


class Fleet:
    """Processes that share a store and a broker."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.broker = Broker()
        self.started: list[str] = []
        self.at_work = self.most_at_work = 0
        self.gate = anyio.Event()

    def worker(self, tools: Mapping[str, Tool] | Body, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        engine = carrying_engine(self.broker, options.pop("concurrency", SLOTS))
        return running(tools, store=self.store, engine=engine, **{"policy": RERUN, **options})

    def front(
        self, tools: Mapping[str, Tool] | Body = at_once, **options: Any
    ) -> AbstractAsyncContextManager[TaskRuntime]:
        return self.worker(tools, runs_tools=False, **options)

    async def body(self, run: Run) -> Ending:
        """Note what runs, and end when the gate is open."""
        self.started.append(run.record.id)
        await self.gate.wait()
        return ok()

    async def limited(self, run: Run) -> Ending:
        """Note how many of these run at the same time."""
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await self.gate.wait()
        await settle(3)
        self.at_work -= 1
        return ok()

    async def handed_out(self) -> int:
        return len((await self.store.queued("", handed_out=True, limit=1_000)).ids)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def test_only_a_share_of_one_owners_tasks_is_handed_out_and_one_of_another_does_not_wait(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body)}
    async with fleet.front(tools, max_handed_out=5) as server:
        many = [await start(server, owner="ann") for _ in range(30)]
        assert await fleet.handed_out() == sum(fleet.broker.submitted.values()) == 5
        one = await start(server, owner="bob")
        fleet.gate.set()
        async with fleet.worker(tools, max_handed_out=5):
            await all_end(server, *many, one)
    assert set(fleet.broker.submitted.values()) == {1}
    assert fleet.started.index(one.id) <= 5 + SLOTS


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
async def test_no_more_runs_of_a_tool_are_at_work_than_its_limit_over_all_processes(fleet: Fleet, remote: bool) -> None:
    tools = {"tool": Tool(fleet.body), "gpu": Tool(fleet.limited, TaskOptions(max_at_work=1))}

    def process() -> AbstractAsyncContextManager[TaskRuntime]:
        if remote:
            return fleet.worker(tools, concurrency=10)
        return running(tools, store=fleet.store, sweep_interval=timedelta(milliseconds=20))

    async with process() as one, process() as other:
        tasks = [await start(runtime, "gpu") for _ in range(5) for runtime in (one, other)]
        others = [await start(one, "tool") for _ in range(3)]
        fleet.gate.set()
        await all_end(one, *tasks, *others)
    assert fleet.most_at_work == 1


async def test_a_suspended_run_that_goes_on_comes_before_tasks_that_have_not_begun(fleet: Fleet) -> None:
    async def asks_first(run: Run) -> Ending:
        await asks(run)
        return await fleet.body(run)

    tools = {"asks": Tool(asks_first, PARKS), "works": Tool(fleet.body, TaskOptions(priority=9))}
    async with fleet.worker(tools, concurrency=10, max_at_work_per_owner=1) as runtime:
        first = await start(runtime, "asks")
        await until_parked(runtime, first, "elicitation-1")
        new = [await start(runtime, "works") for _ in range(4)]
        await until(runtime, new[0], lambda task: task.worker is not None)
        await answer(runtime, first, elicitation_1="yes")
        await until(runtime, first, lambda task: task.pause == "resuming")
        assert len(fleet.started) == 1, "the limit is reached"
        fleet.gate.set()
        await all_end(runtime, first, *new)
    assert fleet.started.index(first.id) == 1


# Queues and tools
@pytest.mark.parametrize("by", ["queue", "tool"])
async def test_a_task_goes_to_a_worker_that_serves_its_queue_and_has_its_tool(fleet: Fleet, by: str) -> None:
    tools = {"tool": Tool(fleet.body), "other": Tool(fleet.body, TaskOptions(queue="gpu") if by == "queue" else ONCE)}
    lacks = fleet.worker(tools, queues=["default"]) if by == "queue" else fleet.worker({"tool": tools["tool"]})
    has = fleet.worker(tools, queues=["gpu"]) if by == "queue" else fleet.worker(tools)
    fleet.gate.set()
    async with fleet.front(tools) as server, lacks as plain:
        others, task = [await start(server, "other") for _ in range(20)], await start(server)
        await all_end(server, task)
        await plain.janitor.sweep()
        await settle(100)
        assert fleet.started == [task.id]
        async with has:
            await all_end(server, *others)
    assert set(fleet.broker.submitted.values()) == {1}


async def test_higher_priorities_are_started_first(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body), "urgent": Tool(fleet.body, TaskOptions(priority=5))}
    fleet.gate.set()
    async with fleet.front(tools, max_handed_out=3) as server:
        tasks = [await start(server) for _ in range(10)]
        urgent = [await start(server, "urgent", owner="bob") for _ in range(2)]
        async with fleet.worker(tools, concurrency=1, max_handed_out=3):
            await all_end(server, *tasks, *urgent)
    assert fleet.started[:2] == [task.id for task in urgent]


def test_a_worker_takes_a_tool_from_its_own_queue_and_from_those_that_no_tool_has() -> None:
    homes = {"render": "gpu", "count": "default"}
    serves = Serves(queues=["default", "gpu", "old"], tools=["count", "render"], homes=homes)
    own = [("default", None), ("default", "count"), ("gpu", None), ("gpu", "render")]
    assert serves.routes() == [*own, ("old", None), ("old", "count"), ("old", "render")]


def test_shares_and_sweeps_are_checked_where_they_are_given() -> None:
    with pytest.raises(InvalidOption, match="max_handed_out"):
        Settings(max_handed_out=0)
    with pytest.raises(InvalidOption, match="max_at_work_per_owner"):
        Settings(max_at_work_per_owner=0)
    assert Settings().sweeps_every(remote=False) == SECOND
    assert Settings().sweeps_every(remote=True) == 3 * SECOND
    assert Settings(lease_duration=5 * SECOND).sweeps_every(remote=True) == SECOND
    assert Settings(sweep_interval=2 * SECOND).sweeps_every(remote=True) == 2 * SECOND


# Handing out


async def until_submitted(broker: Broker, task: TaskRecord, times: int) -> None:
    await eventually(lambda: broker.submitted[task.id] >= times)


@asynccontextmanager
async def submitted(**options: Any) -> AsyncGenerator[tuple[MeddledStore, Broker, TaskRuntime, TaskRecord]]:
    """A process that serves, and a task that it has submitted once and that was lost on its way."""
    store, broker = MeddledStore(), Broker(copies=0)
    async with running(at_once, store=store, engine=carrying_engine(broker), runs_tools=False, **options) as runtime:
        yield store, broker, runtime, await start(runtime)


async def test_what_is_queued_anew_is_handed_out_again(fleet: Fleet) -> None:
    tools = {"asks": Tool(asks, PARKS)}
    async with fleet.front(tools) as server:
        task = await start(server, "asks")
        async with fleet.worker(tools):
            await until_asking(server, task)
        # Its worker has gone, and the question is answered while there is none.
        await answer(server, task, elicitation_1="yes")
        await until_submitted(fleet.broker, task, 2)
        async with fleet.worker(tools):
            await all_end(server, task)


async def test_a_timer_is_carried_when_its_time_comes_without_a_sweep(fleet: Fleet) -> None:
    async def sleeps(run: Run) -> Ending:
        await run.sleep(timedelta(milliseconds=200))
        return ok()

    async with fleet.worker({"sleeps": Tool(sleeps, PARKS)}) as runtime:
        assert (await until_final(runtime, await start(runtime, "sleeps"))).attempt == 2


async def test_tasks_that_nobody_handed_out_are_found_by_a_process_that_starts(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body, RERUN)}
    fleet.gate.set()
    async with fleet.front(tools, max_handed_out=1) as server:
        tasks = [await start(server) for _ in range(3)]
    # The one that was handed out is lost with the broker.
    fleet.broker = Broker()
    await fleet.store.hand_back(tasks[0].id)
    async with fleet.worker(tools) as runtime:
        await all_end(runtime, *tasks)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (StoreUnavailable("the disk is full"), "the disk is full"),
        (RuntimeError("a defect"), "queued tasks could not be dispatched"),
    ],
    ids=repr,
)
async def test_when_handing_out_fails_it_is_said_and_the_next_time_succeeds(
    failure: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with submitted() as (store, broker, runtime, task):
        await store.hand_back(task.id)
        store.refuse(failure)
        runtime.dispatch.look()
        await eventually(lambda: said in caplog.text)
        store.before.clear()
        runtime.dispatch.look()
        await until_submitted(broker, task, 2)


async def test_tasks_of_a_hand_out_without_an_answer_wait_for_one_lease_at_most() -> None:
    monotonic, lease = Seconds(), 15 * SECOND
    async with submitted(monotonic=monotonic, lease_duration=lease) as (store, broker, runtime, task):
        await store.hand_back(task.id)

        async def lose(ready: Sequence[Ready], *args: Any, **given: Any) -> None:
            if ready:
                del store.after["hand_out"]
                raise StoreUnavailable("the answer was lost", may_have_happened=True)

        store.after["hand_out"] = lose
        runtime.dispatch.look()
        await eventually(lambda: "hand_out" not in store.after)
        await sweep_for(runtime, monotonic, lease - SECOND)
        assert broker.submitted == {task.id: 1}
        await sweep_for(runtime, monotonic, SECOND)
        assert broker.submitted == {task.id: 2}


async def test_a_task_that_was_turned_away_is_handed_out_again() -> None:
    async with submitted() as (store, broker, runtime, task):
        store.go_away()
        await runtime.dispatch.resubmit(task.id)
        store.before.clear()
        assert broker.submitted == {task.id: 1}, "a sweep finds it"
        await runtime.dispatch.resubmit(task.id)
        await until_submitted(broker, task, 2)


async def test_a_task_that_has_slept_and_finds_too_many_at_work_is_carried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TRY_AGAIN", timedelta(0))
    async with submitted() as (_, broker, runtime, task):
        await runtime.dispatch.refused(replace(task, wake_at=runtime.now()))
        await until_submitted(broker, task, 2)


# Other processes
@pytest.mark.parametrize("copies", [1, 3])
async def test_every_task_is_run_once_by_one_process_however_often_its_id_is_carried(fleet: Fleet, copies: int) -> None:
    fleet.broker.copies = copies
    fleet.gate.set()
    async with fleet.front() as server, fleet.worker(fleet.body), fleet.worker(fleet.body):
        tasks = [await start(server) for _ in range(20)]
        assert {(await until_final(server, task)).attempt for task in tasks} == {1}
    assert sorted(fleet.started) == sorted(task.id for task in tasks)


async def test_an_id_that_was_lost_is_submitted_again_once_its_task_was_idle_for_long(fleet: Fleet) -> None:
    broker, monotonic = fleet.broker, Seconds()
    async with fleet.front(monotonic=monotonic) as server, fleet.worker(at_once):
        broker.copies = 0
        task = await start(server)
        broker.copies = 1
        forgotten_after = min(server.settings.lease_duration, IDLE_FOR_LONG)
        await sweep_for(server, monotonic, forgotten_after - SECOND)
        assert broker.submitted == {task.id: 1}
        await sweep_for(server, monotonic, SECOND)
        await all_end(server, task)
        assert broker.submitted == {task.id: 2}


async def test_a_process_that_starts_leaves_alone_what_the_broker_has(fleet: Fleet) -> None:
    gate = anyio.Event()
    async with fleet.front() as server:
        tasks = [await start(server) for _ in range(10)]
        async with fleet.worker(opened_by(gate)) as one:
            await until(server, tasks[0], lambda record: record.worker == one.worker)
            async with fleet.worker(opened_by(gate)):
                assert set(fleet.broker.submitted.values()) == {1}
                gate.set()
                await all_end(server, *tasks)


@pytest.mark.slow
async def test_tasks_of_a_process_that_died_are_carried_to_another_by_whoever_notices(fleet: Fleet) -> None:
    async with fleet.front() as server, fleet.worker(never_ending, concurrency=3) as dying:
        tasks = [await start(server) for _ in range(3)]
        for each in tasks:
            await until(server, each, lambda record: record.worker == dying.worker)
        await dying.abandon()
        async with fleet.worker(at_once):
            await server.janitor.sweep()
            for each in tasks:
                ended = await until_final(server, each)
                assert (ended.status, ended.attempt, ended.lost) == (TaskStatus.COMPLETED, 2, 1)


class JobEngine(RemoteEngine):
    """One whose jobs are rows of a database."""

    def job(self, task_id: str, *, route: Route, namespace: str) -> Statement:
        return Statement(place="here", text="INSERT", values={"task": task_id})


async def test_a_task_whose_job_is_written_with_it_is_not_submitted_as_well() -> None:
    jobs, broker = list[Statement](), Broker()

    async def keep(record: TaskRecord, *args: Any, handing: Handing | None = None, **options: Any) -> None:
        if handing is not None and handing.job is not None and handing.handed:
            jobs.append(handing.job)
            handing.carried = True

    store, engine = MeddledStore(), JobEngine(BrokerCarrier(broker))
    store.after["create"] = keep
    async with running(at_once, store=store, engine=engine, runs_tools=False) as runtime:
        task = await start(runtime)
    assert [job.values for job in jobs] == [{"task": task.id}]
    assert broker.submitted == {}


# Hints of others, where a sweep comes once an hour


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def test_a_task_that_does_not_find_room_where_it_is_made_is_started_by_another(path: Path) -> None:
    async with (
        running(never_ending, store=SqliteStore(path), concurrency=1) as busy,
        running(at_once, store=SqliteStore(path)) as idle,
    ):
        await settle()
        await start(busy)
        for _ in range(5):
            ended = await until_final(idle, await start(busy))
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)


async def test_what_a_process_is_writing_it_does_not_look_at_either(path: Path) -> None:
    class LateFile(SqliteStore):
        """Says that something is written when others have seen it for long, and notes which records are read."""

        reads = 0

        async def _read(self, task_id: str, *part: Any, **options: Any) -> Any:
            self.reads += 1
            return await super()._read(task_id, *part, **options)

        async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
            return await self._late(await super().create(record, request, **options))

        async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
            return await self._late(await super().save(record, **options))

        async def _late(self, written: TaskRecord) -> TaskRecord:
            await anyio.sleep(0.4)  # sleep: the time in which others see it
            return written

    store = LateFile(path)
    async with running(at_once, store=store) as runtime:
        await settle()
        before = store.reads
        await start(runtime)
        await eventually(lambda: not runtime.runs())
        assert store.reads == before


async def test_listeners_hear_of_a_change_that_came_before_one_of_their_own_process() -> None:
    hold, may_end = Held(lambda record, _: record.status is TaskStatus.COMPLETED), anyio.Event()
    store = MeddledStore(save=hold)
    async with (
        running(opened_by(may_end), store=store, look_interval=HOUR) as runtime,
        running(at_once, store=store, runs_tools=False) as other,
    ):
        task = await start(runtime)
        await settle()
        with runtime.hints.listen([task.id]) as hints, anyio.fail_after(5):
            may_end.set()
            await hold.came.wait()
            cancelled = await cancel(other, task)
            await settle()
            hold.goes_on.set()
            assert await anext(hints) == Hint(task.id, cancelled.version)
        assert (await until_final(runtime, task)).status is TaskStatus.CANCELLED


async def test_a_run_hears_of_a_change_that_came_before_one_that_failed() -> None:
    hold, store = Held(), MeddledStore()

    async def fails_late(record: TaskRecord, **options: Any) -> None:
        if record.status is TaskStatus.CANCELLED and not hold.came.is_set():
            await hold(record)
            raise StoreUnavailable("the disk is full")

    store.before["save"] = fails_late
    async with one_run(store) as (runtime, task), running(never_ending, store=store, runs_tools=False) as other:
        cancelling = asyncio.create_task(cancel(runtime, task))
        await hold.came.wait()
        await cancel(other, task)
        await settle()
        assert runtime.runs()
        hold.goes_on.set()
        await eventually(lambda: not runtime.runs())
        await asyncio.gather(cancelling, return_exceptions=True)


async def test_a_run_hears_of_a_change_that_came_after_one_of_its_own_that_it_has_not_been_told_of() -> None:
    hold, store, stopped = Held(lambda saved, _: saved.progress is not None), MeddledStore(), anyio.Event()

    async def reporting(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        return await telling(stopped)(run)

    store.after["save"] = hold
    async with one_run(store, reporting) as (_, task), running(at_once, store=store, runs_tools=False) as other:
        await happens(hold.came)
        await cancel(other, await as_of_now(other, task))
        await settle()
        hold.goes_on.set()
        await happens(stopped)


# What goes wrong


@asynccontextmanager
async def one_run(store: MemoryStore, body: Body = never_ending, **options: Any) -> AsyncGenerator[tuple[Any, ...]]:
    async with running(body, store=store, **{"look_interval": HOUR, **options}) as runtime:
        task = await start(runtime)
        await eventually(lambda: runtime.has(task.id))
        await settle()
        yield runtime, task


async def test_a_hint_of_what_a_run_knows_already_costs_no_look() -> None:
    store = MeddledStore()
    async with one_run(store, asks) as (runtime, task), running(asks, store=store, runs_tools=False) as other:
        held = await other.host(await until_asking(runtime, task), "elicitation-1", "theirs", actor=CLIENT)
        await eventually(lambda: runtime.run_of(task.id).record.version == held.version)
        store.calls.clear()
        await store.notifier().publish(Hint(held.id, held.version))
        await settle()
        assert store.calls["get"] == 0


@pytest.mark.parametrize("damaged", [False, True], ids=["gone", "cannot be read"])
async def test_the_run_of_a_task_that_is_not_there_any_more_is_stopped(damaged: bool) -> None:
    store = MeddledStore()
    async with one_run(store) as (runtime, task):
        if damaged:
            store.refuse(TaskUnreadable(task.id, "its row is damaged"), "get")
        else:
            await store.delete(task.id, expected=task.version, now=runtime.now())
        await store.notifier().publish(Hint(task.id, task.version + 1))
        await eventually(lambda: not runtime.runs())
        store.before.clear()


DEFECT, AWAY = RuntimeError("a defect"), StoreUnavailable("the disk is full")


@pytest.mark.parametrize(
    ("how", "failure"),
    [("by a hint", AWAY), ("by a look", AWAY), ("by a look", DEFECT), ("as it was passed over", DEFECT)],
)
async def test_a_change_that_cannot_be_looked_at_now_is_found_by_a_later_look(
    how: str, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = MeddledStore()
    look_interval = timedelta(milliseconds=5) if how == "by a look" else HOUR
    async with one_run(store, look_interval=look_interval) as (runtime, task):
        store.refuse(failure, "versions", "get")
        change = Hint(task.id, task.version + 1)
        if how == "by a hint":
            await store.notifier().publish(change)
        elif how == "as it was passed over":
            runtime.changes.unheard.put(change)
        said = ("could not be compared with the store", "was missed", "could not look at task")
        await eventually(lambda: any(line in caplog.text for line in said))
        store.before.clear()
        await store.delete(task.id, expected=task.version, now=runtime.now())
        if how != "by a look":
            await runtime.listener.look()
        await eventually(lambda: not runtime.runs())


@pytest.mark.parametrize("failure", [DEFECT, AWAY])
async def test_a_task_that_another_queued_and_that_cannot_be_looked_at_is_found_by_a_sweep(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = MeddledStore()
    async with running(at_once, store=store, runs_tools=False) as front, running(at_once, store=store) as runtime:
        await settle()
        store.refuse(failure, "get", "hand_out")
        task = await launch(front)
        await eventually(lambda: "could not look at task" in caplog.text or "was missed" in caplog.text)
        store.before.clear()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_hints_that_end_are_listened_to_again(caplog: pytest.LogCaptureFixture) -> None:
    class HangingUp(Notifier):
        """Ends the first time that somebody listens, without a word."""

        listeners = 0

        @asynccontextmanager
        async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
            self.listeners += 1
            async with super().listen(origin=origin) as hints:
                yield hints if self.listeners > 1 else _no_hints()

    notifier, store = HangingUp(), MemoryStore()
    store.notifier = lambda: notifier
    async with running(at_once, store=store):
        await eventually(lambda: notifier.listeners == 2)
    assert "change notifications are unavailable" not in caplog.text, "that was no failure"


async def _no_hints() -> AsyncGenerator[Hint]:
    for hint in ():
        yield hint


async def test_what_a_run_writes_while_the_store_is_being_asked_is_no_news() -> None:
    hold, reports, reported = Held(), anyio.Event(), anyio.Event()

    async def reporting(run: Run) -> Ending:
        await reports.wait()
        await run.step("one", partial(asyncio.sleep, 0))
        reported.set()
        return await never_ending(run)

    store = MeddledStore()
    async with one_run(store, reporting) as (runtime, _):
        store.after["versions"] = hold
        looking = asyncio.create_task(runtime.listener.look())
        await hold.came.wait()
        reports.set()
        await reported.wait()
        store.calls.clear()
        hold.goes_on.set()
        await looking
        assert store.calls["get"] == 0


# Hints that were lost


async def test_a_run_and_whoever_listens_learn_of_a_change_although_every_hint_is_lost() -> None:
    store, stopped = DeafStore(), anyio.Event()
    async with running(telling(stopped), store=store) as one, running(at_once, store=store, runs_tools=False) as other:
        task = await launch(one)
        await settle()
        with one.hints.listen([task.id]) as hints:
            await one.listener.look()
            seen = await anext(hints)
            await one.listener.look()
            assert hints.pop() is None, "what did not change is no news"
            cancelled = await cancel(other, await as_of_now(other, task))
            await one.listener.look()
            assert (await anext(hints)).version == cancelled.version > seen.version
        await happens(stopped)


async def test_of_its_own_changes_a_process_remembers_only_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_REMEMBERED", 2)
    async with running(at_once, runs_tools=False) as runtime:
        written = [Hint(task.id, task.version) for task in [await create(runtime) for _ in range(3)]]
        assert [runtime.changes.wrote(hint) for hint in written] == [False, True, True]
