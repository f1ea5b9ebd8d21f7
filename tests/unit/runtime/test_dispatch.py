"""Tasks in a fleet: what a remote engine is handed and what waits in the store; shares, limits, queues, priorities.

The engine carries ids to other processes, repeats them, and loses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import Engine, LocalEngine, RemoteEngine, Route, Serves
from mcp_tasks.errors import InvalidOption, StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.runtime import Body, Ending, Run, Settings, TaskRuntime, ToolPolicy, dispatch
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.sweeps import IDLE_FOR_LONG
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Handing, Ready
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.unit.carrying import Broker, BrokerCarrier, carrying_engine
from tests.unit.losing import sweep_for
from tests.unit.running import (
    PARKS,
    RERUN,
    SECOND,
    MeddledStore,
    Seconds,
    Tool,
    answer,
    asks,
    at_once,
    never_ending,
    ok,
    opened_by,
    real_clock,
    running,
    settle,
    until,
    until_asking,
    until_final,
    until_parked,
)

pytestmark = pytest.mark.anyio

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
        self.at_work = Counter[str]()
        self.most_at_work = Counter[str]()
        self.gate = anyio.Event()

    def worker(self, tools: Mapping[str, Tool], **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        engine = carrying_engine(self.broker, options.pop("concurrency", SLOTS))
        return running(tools, store=self.store, engine=engine, **options)

    def front(self, tools: Mapping[str, Tool], **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        return self.worker(tools, runs_tools=False, **options)

    async def body(self, run: Run) -> Ending:
        """Note what runs beside what, and end when the gate is open."""
        name = run.record.name
        self.started.append(run.record.id)
        self.at_work[name] += 1
        self.most_at_work[name] = max(self.most_at_work[name], self.at_work[name])
        try:
            await self.gate.wait()
            await settle(3)
            return ok()
        finally:
            self.at_work[name] -= 1

    async def handed_out(self) -> int:
        return len((await self.store.queued("", handed_out=True, limit=1_000)).ids)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def start(runtime: TaskRuntime, name: str = "tool", owner: str | None = None) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=TaskRequest(name=name, arguments={}), owner=owner))


async def all_end(runtime: TaskRuntime, *tasks: TaskRecord) -> None:
    for task in tasks:
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


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
    tools = {"tool": Tool(fleet.body), "gpu": Tool(fleet.body, ToolPolicy(max_at_work=1))}

    def process() -> AbstractAsyncContextManager[TaskRuntime]:
        if remote:
            return fleet.worker(tools, concurrency=10)
        return running(tools, store=fleet.store, engine=LocalEngine(10), sweep_interval=timedelta(milliseconds=20))

    async with process() as one, process() as other:
        tasks = [await start(runtime, "gpu") for _ in range(5) for runtime in (one, other)]
        others = [await start(one, "tool") for _ in range(3)]
        fleet.gate.set()
        await all_end(one, *tasks, *others)
    assert fleet.most_at_work["gpu"] == 1


async def test_no_more_tasks_of_one_owner_are_at_work_than_may_be(fleet: Fleet) -> None:
    async with fleet.worker({"tool": Tool(fleet.body)}, concurrency=10, max_at_work_per_owner=2) as runtime:
        ann = [await start(runtime, owner="ann") for _ in range(6)]
        bob = await start(runtime, owner="bob")
        await settle(200)
        assert len(fleet.started) == 3
        assert bob.id in fleet.started
        fleet.gate.set()
        await all_end(runtime, *ann, bob)
    assert len(fleet.started) == 7


async def test_a_suspended_run_that_goes_on_comes_before_tasks_that_have_not_begun(fleet: Fleet) -> None:
    async def asks_first(run: Run) -> Ending:
        await asks(run)
        return await fleet.body(run)

    tools = {"asks": Tool(asks_first, PARKS), "works": Tool(fleet.body, ToolPolicy(priority=9))}
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
    assert fleet.most_at_work["works"] == 1


# Queues and tools


async def test_a_queue_is_run_by_the_workers_that_serve_it(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body), "train": Tool(fleet.body, ToolPolicy(queue="gpu"))}
    fleet.gate.set()
    async with fleet.front(tools) as server, fleet.worker(tools, queues=["default"]) as plain:
        train, task = await start(server, "train"), await start(server)
        await all_end(server, task)
        await plain.janitor.sweep()
        await settle(50)
        assert fleet.started == [task.id]
        async with fleet.worker(tools, queues=["gpu"]):
            await all_end(server, train)


async def test_a_task_goes_to_a_worker_that_has_its_tool(fleet: Fleet) -> None:
    everything = {"tool": Tool(fleet.body), "new": Tool(fleet.body)}
    fleet.gate.set()
    async with fleet.front(everything) as server, fleet.worker({"tool": everything["tool"]}):
        tasks = [await start(server, "new") for _ in range(20)]
        await settle(100)
        assert fleet.started == []
        async with fleet.worker(everything):
            await all_end(server, *tasks)
    assert set(fleet.broker.submitted.values()) == {1}


async def test_higher_priorities_are_started_first(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body), "urgent": Tool(fleet.body, ToolPolicy(priority=5))}
    fleet.gate.set()
    async with fleet.front(tools, max_handed_out=3) as server:
        tasks = [await start(server) for _ in range(10)]
        urgent = [await start(server, "urgent", owner="bob") for _ in range(2)]
        async with fleet.worker(tools, concurrency=1, max_handed_out=3):
            await all_end(server, *tasks, *urgent)
    assert fleet.started[:2] == [task.id for task in urgent]


def task(number: int, **fields: Any) -> TaskRecord:
    made = real_clock() + timedelta(microseconds=number)
    return make_record(**{"name": "tool", "created_at": made, "retention": None, **fields})


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
        (RuntimeError("a defect"), "queued tasks could not be handed out"),
    ],
    ids=repr,
)
async def test_when_handing_out_fails_it_is_said_and_the_next_time_succeeds(
    failure: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, broker = MeddledStore(), Broker(copies=0)
    async with running(at_once, store=store, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await start(runtime)
        await store.hand_back(task.id)
        store.refuse(failure)
        runtime.dispatch.look()
        await eventually(lambda: said in caplog.text)
        store.before.clear()
        runtime.dispatch.look()
        await until_submitted(broker, task, 2)


async def test_tasks_of_a_hand_out_without_an_answer_wait_for_one_lease_at_most() -> None:
    store, broker, monotonic, lease = MeddledStore(), Broker(copies=0), Seconds(), 15 * SECOND
    options: dict[str, Any] = {"runs_tools": False, "monotonic": monotonic, "lease_duration": lease}
    async with running(at_once, store=store, engine=carrying_engine(broker), **options) as runtime:
        task = await start(runtime)
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
    store, broker = MeddledStore(), Broker(copies=0)
    async with running(at_once, store=store, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await start(runtime)
        store.refuse(StoreUnavailable("the disk is full"))
        await runtime.dispatch.resubmit(task.id)
        store.before.clear()
        assert broker.submitted == {task.id: 1}, "a sweep finds it"
        await runtime.dispatch.resubmit(task.id)
        await until_submitted(broker, task, 2)


# Other processes, with a file between them


@dataclass
class Site:
    """Processes that share tasks and a broker; each has a store and an engine of its own."""

    path: Path
    broker: Broker

    def worker(self, tools: Mapping[str, Tool] | Body, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        """A process that runs tools; ids reach it through the broker."""
        engine = carrying_engine(self.broker)
        return running(tools, store=SqliteStore(self.path), engine=engine, **{"policy": RERUN, **options})

    def front(self, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        """A process that serves, and runs nothing."""
        return self.worker(at_once, runs_tools=False, **options)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tasks.db", Broker())


@pytest.mark.parametrize("copies", [1, 3])
async def test_every_task_is_run_once_by_one_process_however_often_its_id_is_carried(site: Site, copies: int) -> None:
    runs: Counter[str] = Counter()

    async def counting(run: Run) -> Ending:
        runs[run.record.id] += 1
        await settle(5)
        return ok()

    site.broker.copies = copies
    async with site.front() as server, site.worker(counting), site.worker(counting):
        for task in [await start(server) for _ in range(20)]:
            ended = await until_final(server, task)
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)
    assert (set(runs.values()), len(runs)) == ({1}, 20)


async def test_an_id_that_was_lost_is_submitted_again_once_its_task_was_idle_for_long(site: Site) -> None:
    broker, monotonic = site.broker, Seconds()
    async with site.front(monotonic=monotonic) as server, site.worker(at_once):
        broker.copies = 0
        task = await start(server)
        broker.copies = 1
        forgotten_after = min(server.settings.lease_duration, IDLE_FOR_LONG)
        await sweep_for(server, monotonic, forgotten_after - SECOND)
        assert broker.submitted == {task.id: 1}
        await sweep_for(server, monotonic, SECOND)
        await all_end(server, task)
        assert broker.submitted == {task.id: 2}


async def test_a_process_that_starts_leaves_alone_what_the_broker_has(site: Site) -> None:
    gate = anyio.Event()
    async with site.front() as server:
        tasks = [await start(server) for _ in range(10)]
        async with site.worker(opened_by(gate)) as one:
            await until(server, tasks[0], lambda record: record.worker == one.worker)
            async with site.worker(opened_by(gate)):
                assert set(site.broker.submitted.values()) == {1}
                gate.set()
                await all_end(server, *tasks)


@pytest.mark.slow
async def test_tasks_of_a_process_that_died_are_carried_to_another_by_whoever_notices(site: Site) -> None:
    async with site.front() as server, site.worker(never_ending) as dying:
        tasks = [await start(server) for _ in range(3)]
        for each in tasks:
            await until(server, each, lambda record: record.worker == dying.worker)
        await dying.abandon()
        async with site.worker(at_once):
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


async def test_a_task_that_has_slept_and_finds_too_many_at_work_is_carried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TRY_AGAIN", timedelta(0))
    broker = Broker(copies=0)
    async with running(at_once, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await start(runtime)
        await runtime.dispatch.refused(replace(task, wake_at=runtime.now()))
        await until_submitted(broker, task, 2)
