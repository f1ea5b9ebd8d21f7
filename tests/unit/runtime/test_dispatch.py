"""What a remote engine is handed and what waits in the store: shares, limits, queues, priorities and tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import LocalEngine, RemoteEngine, Route, Serves
from mcp_tasks.errors import InvalidOption, StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.runtime import Ending, Run, Settings, TaskRuntime, ToolPolicy, dispatch
from mcp_tasks.server.options import TaskOptions
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Handing, Ready, Share
from tests.unit.carrying import Broker, BrokerCarrier, carrying_engine
from tests.unit.losing import sweep_for
from tests.unit.running import (
    LIMIT,
    RERUN,
    Seconds,
    Tool,
    UnreliableStore,
    answer,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

SLOTS = 2


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


async def launch(runtime: TaskRuntime, name: str = "tool", owner: str | None = None) -> TaskRecord:
    return await runtime.launch(TaskRequest(name=name, arguments={}), owner=owner, retention=None)


async def test_only_a_share_of_one_owners_tasks_is_handed_out_and_all_of_them_are_run(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body)}
    async with fleet.front(tools, max_handed_out=5) as server:
        tasks = [await launch(server, owner="ann") for _ in range(30)]
        assert await fleet.handed_out() == 5
        assert sum(fleet.broker.submitted.values()) == 5
        fleet.gate.set()
        async with fleet.worker(tools, max_handed_out=5):
            for task in tasks:
                assert (await until_final(server, task)).status is TaskStatus.COMPLETED
    assert set(fleet.broker.submitted.values()) == {1}


async def test_an_owner_with_one_task_does_not_wait_for_one_with_many(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body)}
    async with fleet.front(tools, max_handed_out=5) as server:
        many = [await launch(server, owner="ann") for _ in range(60)]
        one = await launch(server, owner="bob")
        fleet.gate.set()
        async with fleet.worker(tools, max_handed_out=5):
            for task in (*many, one):
                await until_final(server, task)
    assert fleet.started.index(one.id) <= 5 + SLOTS


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
async def test_no_more_runs_of_a_tool_are_at_work_than_its_limit_over_all_processes(fleet: Fleet, remote: bool) -> None:
    tools = {"tool": Tool(fleet.body), "gpu": Tool(fleet.body, ToolPolicy(max_at_work=1))}

    def process() -> AbstractAsyncContextManager[TaskRuntime]:
        if remote:
            return fleet.worker(tools, concurrency=10)
        return running(tools, store=fleet.store, engine=LocalEngine(10), sweep_interval=timedelta(milliseconds=20))

    async with process() as one, process() as other:
        tasks = [await launch(runtime, "gpu") for _ in range(5) for runtime in (one, other)]
        others = [await launch(one, "tool") for _ in range(3)]
        fleet.gate.set()
        for task in (*tasks, *others):
            assert (await until_final(one, task)).status is TaskStatus.COMPLETED
    assert fleet.most_at_work["gpu"] == 1


async def test_no_more_tasks_of_one_owner_are_at_work_than_may_be(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body)}
    async with fleet.worker(tools, concurrency=10, max_at_work_per_owner=2) as runtime:
        ann = [await launch(runtime, owner="ann") for _ in range(6)]
        bob = await launch(runtime, owner="bob")
        await settle(200)
        assert len(fleet.started) == 3
        assert bob.id in fleet.started
        fleet.gate.set()
        for task in (*ann, bob):
            await until_final(runtime, task)
    assert len(fleet.started) == 7


async def test_a_limited_tool_that_may_run_again_waits_without_counting_as_at_work(fleet: Fleet) -> None:
    async def asks(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    tools = {"asks": Tool(asks, ToolPolicy(max_at_work=1, rerun=True))}
    async with fleet.worker(tools) as runtime:
        first, second = [await launch(runtime, "asks") for _ in range(2)]
        for task in (first, second):
            await answer(runtime, await until_asking(runtime, task), elicitation_1="yes")
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_queue_is_run_by_the_workers_that_serve_it(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body), "train": Tool(fleet.body, ToolPolicy(queue="gpu"))}
    fleet.gate.set()
    async with fleet.front(tools) as server, fleet.worker(tools, queues=["default"]) as plain:
        train, task = await launch(server, "train"), await launch(server)
        assert (await until_final(server, task)).status is TaskStatus.COMPLETED
        await plain.janitor.sweep()
        await settle(50)
        assert fleet.started == [task.id]
        async with fleet.worker(tools, queues=["gpu"]):
            assert (await until_final(server, train)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("queues", [["gpu"], None])
async def test_a_local_engine_runs_the_queues_of_its_process_and_no_others(
    fleet: Fleet, queues: list[str] | None
) -> None:
    tools = {"tool": Tool(fleet.body), "train": Tool(fleet.body, ToolPolicy(queue="gpu"))}
    fleet.gate.set()
    async with running(tools, store=fleet.store, queues=queues) as runtime:
        train, task = await launch(runtime, "train"), await launch(runtime)
        await until_final(runtime, train)
        await runtime.janitor.sweep()
        await settle(50)
        assert set(fleet.started) == ({train.id, task.id} if queues is None else {train.id})


async def test_a_task_goes_to_a_worker_that_has_its_tool(fleet: Fleet) -> None:
    everything = {"tool": Tool(fleet.body), "new": Tool(fleet.body)}
    fleet.gate.set()
    async with fleet.front(everything) as server, fleet.worker({"tool": everything["tool"]}):
        tasks = [await launch(server, "new") for _ in range(20)]
        await settle(100)
        assert fleet.started == []
        async with fleet.worker(everything):
            for task in tasks:
                await until_final(server, task)
    assert set(fleet.broker.submitted.values()) == {1}


async def test_higher_priorities_are_started_first(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body), "urgent": Tool(fleet.body, ToolPolicy(priority=5))}
    fleet.gate.set()
    async with fleet.front(tools, max_handed_out=3) as server:
        tasks = [await launch(server) for _ in range(10)]
        urgent = [await launch(server, "urgent", owner="bob") for _ in range(2)]
        async with fleet.worker(tools, concurrency=1, max_handed_out=3):
            for task in (*tasks, *urgent):
                await until_final(server, task)
    assert fleet.started[:2] == [task.id for task in urgent]


async def test_what_is_queued_anew_is_handed_out_again(fleet: Fleet) -> None:
    async def asks(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    tools = {"asks": Tool(asks, ToolPolicy(rerun=True, park_after=timedelta(0)))}
    async with fleet.front(tools) as server:
        task = await launch(server, "asks")
        async with fleet.worker(tools):
            await until_asking(server, task)
        # Its worker has gone, and the question is answered while there is none.
        await answer(server, task, elicitation_1="yes")
        with anyio.fail_after(LIMIT):
            while fleet.broker.submitted[task.id] != 2:  # noqa: ASYNC110 - how it ends, not when
                await anyio.sleep(0.01)
        async with fleet.worker(tools):
            assert (await until_final(server, task)).status is TaskStatus.COMPLETED


async def test_a_timer_is_carried_when_its_time_comes_without_a_sweep(fleet: Fleet) -> None:
    async def sleeps(run: Run) -> Ending:
        await run.sleep(timedelta(milliseconds=200))
        return ok()

    tools = {"sleeps": Tool(sleeps, ToolPolicy(rerun=True, park_after=timedelta(0)))}
    async with fleet.worker(tools) as runtime:
        task = await launch(runtime, "sleeps")
        assert (await until_final(runtime, task)).attempt == 2


async def test_tasks_that_nobody_handed_out_are_found_by_a_process_that_starts(fleet: Fleet) -> None:
    tools = {"tool": Tool(fleet.body, RERUN)}
    fleet.gate.set()
    async with fleet.front(tools, max_handed_out=1) as server:
        tasks = [await launch(server) for _ in range(3)]
    # The one that was handed out is lost with the broker.
    fleet.broker = Broker()
    await fleet.store.hand_back(tasks[0].id)
    async with fleet.worker(tools) as runtime:
        for task in tasks:
            await until_final(runtime, task)


def test_shares_and_limits_are_checked_where_they_are_given() -> None:
    with pytest.raises(InvalidOption, match="max_handed_out"):
        Settings(max_handed_out=0)
    with pytest.raises(InvalidOption, match="max_at_work_per_owner"):
        Settings(max_at_work_per_owner=0)
    assert Share(owner=1).tools == {}


def test_sweeps_are_rarer_in_a_fleet_and_some_fit_into_every_lease() -> None:
    assert Settings().sweeps_every(remote=False) == timedelta(seconds=1)
    assert Settings().sweeps_every(remote=True) == timedelta(seconds=3)
    assert Settings(lease_duration=timedelta(seconds=5)).sweeps_every(remote=True) == timedelta(seconds=1)
    assert Settings(sweep_interval=timedelta(seconds=2)).sweeps_every(remote=True) == timedelta(seconds=2)


@pytest.mark.parametrize("priority", [-1_001, 1_001, 2**63, True, 1.5, "5"])
def test_a_priority_is_one_that_every_store_can_keep(priority: Any) -> None:
    with pytest.raises(InvalidOption, match=r"priority must be a whole number from -1000 to 1000"):
        TaskOptions(priority=priority)


async def test_a_death_in_a_fleet_is_found_within_the_lease_and_a_sweep(fleet: Fleet) -> None:
    async def never_ending(run: Run) -> Ending:
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    lease, sweep, clock = timedelta(seconds=15), timedelta(seconds=3), Seconds()
    tools = {"tool": Tool(never_ending, RERUN)}
    times = {"lease_duration": lease, "sweep_interval": sweep}
    async with fleet.front(tools, monotonic=clock, **times) as server, fleet.worker(tools, **times) as worker:
        task = await launch(server)
        await until(server, task, lambda record: record.worker == worker.worker)
        # As if on another machine, where nobody can see whether the process is there.
        await fleet.store.heartbeat("elsewhere", namespace="")
        record = await server.get(task.id, owner=None)
        await fleet.store.save(replace(record, worker="elsewhere", version=record.version + 1), expected=record.version)
        taken_after = timedelta(0)
        while (await server.get(task.id, owner=None)).worker == "elsewhere":
            assert taken_after <= lease + sweep
            await server.janitor.recovery.sweep()
            clock.advance(sweep)
            taken_after += sweep
        assert taken_after > lease * 2 / 3


async def test_a_tool_that_has_another_queue_now_still_runs_what_waits_in_the_old_one(fleet: Fleet) -> None:
    before = {"tool": Tool(fleet.body, ToolPolicy(queue="old"))}
    after = {"tool": Tool(fleet.body, ToolPolicy(queue="new"))}
    fleet.gate.set()
    async with fleet.front(before) as server:
        tasks = [await launch(server) for _ in range(3)]
        async with fleet.worker(after, queues=["old"]):
            await until_final(server, tasks[0])
        tasks += [await launch(server) for _ in range(3)]
        async with fleet.worker(after):
            for task in tasks:
                assert (await until_final(server, task)).status is TaskStatus.COMPLETED


def test_a_worker_takes_a_tool_from_its_own_queue_and_from_those_that_no_tool_has() -> None:
    homes = {"render": "gpu", "count": "default"}
    serves = Serves(queues=["default", "gpu", "old"], tools=["count", "render"], homes=homes)
    assert serves.routes() == [
        ("default", None),
        ("default", "count"),
        ("gpu", None),
        ("gpu", "render"),
        ("old", None),
        ("old", "count"),
        ("old", "render"),
    ]


# Handing out


async def at_once(run: Run) -> Ending:
    return ok()


class JobEngine(RemoteEngine):
    """One whose jobs are rows of a database."""

    def job(self, task_id: str, *, route: Route, namespace: str) -> Statement:
        return Statement(place="here", text="INSERT", values={"task": task_id})


class JobStore(MemoryStore):
    """One that keeps such rows beside its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Statement] = []

    async def create(
        self, record: TaskRecord, request: TaskRequest, *, handing: Handing | None = None, **options: Any
    ) -> TaskRecord:
        created = await super().create(record, request, handing=handing, **options)
        if handing is not None and handing.job is not None and handing.handed:
            self.jobs.append(handing.job)
            handing.carried = True
        return created


async def test_a_task_whose_job_is_written_with_it_is_not_submitted_as_well() -> None:
    store, broker = JobStore(), Broker()
    async with running(at_once, store=store, engine=JobEngine(BrokerCarrier(broker)), runs_tools=False) as runtime:
        task = await launch(runtime)
    assert [job.values for job in store.jobs] == [{"task": task.id}]
    assert broker.submitted == {}


async def until_submitted(broker: Broker, task: TaskRecord, times: int) -> None:
    with anyio.fail_after(LIMIT):
        while broker.submitted[task.id] < times:  # noqa: ASYNC110 - the broker tells nobody
            await anyio.sleep(0.001)


@pytest.mark.parametrize("failure", [StoreUnavailable("the disk is full"), RuntimeError("a defect")], ids=repr)
async def test_when_handing_out_fails_it_is_said_and_the_next_time_succeeds(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    said = "the disk is full" if isinstance(failure, StoreUnavailable) else "queued tasks could not be handed out"
    store, broker = UnreliableStore(), Broker(copies=0)
    async with running(at_once, store=store, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await launch(runtime)
        await store.hand_back(task.id)
        store.failure = failure
        runtime.dispatch.look()
        with anyio.fail_after(LIMIT):
            while said not in caplog.text:  # noqa: ASYNC110 - only said
                await anyio.sleep(0.001)
        store.failure = None
        runtime.dispatch.look()
        await until_submitted(broker, task, 2)


class LosingStore(MemoryStore):
    """Hands out tasks once without saying which."""

    loses = False

    async def hand_out(self, *args: Any, **options: Any) -> Sequence[Ready]:
        ready = await super().hand_out(*args, **options)
        if self.loses and ready:
            self.loses = False
            raise StoreUnavailable("the answer was lost", may_have_happened=True)
        return ready


async def test_tasks_of_a_hand_out_without_an_answer_wait_for_one_lease_at_most() -> None:
    store, broker, monotonic = LosingStore(), Broker(copies=0), Seconds()
    lease = timedelta(seconds=15)
    engine = carrying_engine(broker)
    options: dict[str, Any] = {"runs_tools": False, "monotonic": monotonic, "lease_duration": lease}
    async with running(at_once, store=store, engine=engine, **options) as runtime:
        task = await launch(runtime)
        await store.hand_back(task.id)
        store.loses = True
        runtime.dispatch.look()
        await eventually(lambda: not store.loses)
        await sweep_for(runtime, monotonic, lease - timedelta(seconds=1))
        assert broker.submitted == {task.id: 1}
        await sweep_for(runtime, monotonic, timedelta(seconds=1))
        assert broker.submitted == {task.id: 2}


async def test_a_task_that_was_turned_away_is_handed_out_again() -> None:
    store, broker = UnreliableStore(), Broker(copies=0)
    async with running(at_once, store=store, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await launch(runtime)
        store.failure = StoreUnavailable("the disk is full")
        await runtime.dispatch.resubmit(task.id)
        store.failure = None
        assert broker.submitted == {task.id: 1}, "a sweep finds it"
        await runtime.dispatch.resubmit(task.id)
        await until_submitted(broker, task, 2)


async def test_a_task_that_has_slept_and_finds_too_many_at_work_is_carried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TRY_AGAIN", timedelta(0))
    broker = Broker(copies=0)
    async with running(at_once, engine=carrying_engine(broker), runs_tools=False) as runtime:
        task = await launch(runtime)
        await runtime.dispatch.refused(replace(task, wake_at=runtime.now()))
        await until_submitted(broker, task, 2)


async def test_a_suspended_run_that_goes_on_comes_before_tasks_that_have_not_begun(fleet: Fleet) -> None:
    async def asks(run: Run) -> Ending:
        await run.ask(question("Sure?"))
        return await fleet.body(run)

    urgent = ToolPolicy(priority=9)
    tools = {"asks": Tool(asks, replace(RERUN, park_after=timedelta(0))), "works": Tool(fleet.body, urgent)}
    async with fleet.worker(tools, concurrency=10, max_at_work_per_owner=1) as runtime:
        first = await launch(runtime, "asks")
        await until(runtime, first, lambda task: task.worker is None and bool(task.inputs.outstanding))
        new = [await launch(runtime, "works") for _ in range(4)]
        await until(runtime, new[0], lambda task: task.worker is not None)
        await answer(runtime, first, elicitation_1="yes")
        await until(runtime, first, lambda task: task.pause == "resuming")
        assert len(fleet.started) == 1, "the limit is reached"
        fleet.gate.set()
        for task in (first, *new):
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
    assert fleet.started.index(first.id) == 1
    assert fleet.most_at_work["works"] == 1
