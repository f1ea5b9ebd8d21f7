"""The engine seam, proven by a second kind of engine: ids go to other processes, are repeated, and get lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from mcp_tasks.engines import Engine
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Body, Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.sweeps import IDLE_FOR_LONG
from mcp_tasks.stores import Store
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.unit.carrying import Broker, carrying_engine
from tests.unit.losing import SECOND, sweep_for
from tests.unit.running import (
    RERUN,
    PausingStore,
    Seconds,
    Tool,
    answer,
    ok,
    question,
    running,
    settle,
    until,
    until_final,
)

pytestmark = pytest.mark.anyio

Tools: TypeAlias = Mapping[str, Tool] | Body


class TestRemoteEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def a_broker_for_each_test(self) -> None:
        self.broker = Broker()

    def make_engine(self) -> Engine:
        return carrying_engine(self.broker)


@dataclass
class Site:
    """Processes that share tasks and a broker; each has a store and an engine of its own."""

    new_store: Callable[[], Store]
    broker: Broker

    def worker(self, tools: Tools, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        """A process that runs tools; ids reach it through the broker."""
        return running(tools, store=self.new_store(), engine=carrying_engine(self.broker), policy=RERUN, **options)

    def front(self, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        """A process that serves, and runs nothing."""
        return self.worker(not_here, runs_tools=False, **options)


@pytest.fixture(params=["memory", "sqlite"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    shared = PausingStore()
    return Site(lambda: shared if request.param == "memory" else SqliteStore(tmp_path / "tasks.db"), Broker())


async def not_here(run: Run) -> Ending:
    raise AssertionError("a process that only serves has run a tool")


async def launch(runtime: TaskRuntime) -> TaskRecord:
    return await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)


@pytest.mark.parametrize("copies", [1, 3])
async def test_every_task_is_run_once_by_one_process_however_often_its_id_is_carried(site: Site, copies: int) -> None:
    runs: Counter[str] = Counter()

    async def counting(run: Run) -> Ending:
        runs[run.record.id] += 1
        await settle(5)
        return ok()

    site.broker.copies = copies
    async with site.front() as server, site.worker(counting), site.worker(counting):
        tasks = [await launch(server) for _ in range(30)]
        for task in tasks:
            ended = await until_final(server, task)
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)
    assert set(runs.values()) == {1}
    assert len(runs) == 30


async def test_an_id_that_was_lost_is_submitted_again_once_its_task_was_idle_for_long(site: Site) -> None:
    async def at_once(run: Run) -> Ending:
        return ok()

    broker, monotonic = site.broker, Seconds()
    async with site.front(monotonic=monotonic) as server, site.worker(at_once):
        broker.copies = 0
        task = await launch(server)
        broker.copies = 1
        forgotten_after = min(server.settings.lease_duration, IDLE_FOR_LONG)
        await sweep_for(server, monotonic, forgotten_after - SECOND)
        assert broker.submitted == {task.id: 1}
        await sweep_for(server, monotonic, SECOND)
        assert (await until_final(server, task)).status is TaskStatus.COMPLETED
        assert broker.submitted == {task.id: 2}


async def test_a_process_that_starts_leaves_alone_what_the_broker_has(site: Site) -> None:
    waits = anyio.Event()

    async def waiting(run: Run) -> Ending:
        await waits.wait()
        return ok()

    async with site.front() as server:
        tasks = [await launch(server) for _ in range(20)]
        async with site.worker(waiting) as one:
            await until(server, tasks[0], lambda record: record.worker == one.worker)
            async with site.worker(waiting):
                assert set(site.broker.submitted.values()) == {1}
                waits.set()
                for task in tasks:
                    await until_final(server, task)


@pytest.mark.slow
async def test_tasks_of_a_process_that_died_are_carried_to_another_by_whoever_notices(site: Site) -> None:
    async def never_ending(run: Run) -> Ending:
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async def at_once(run: Run) -> Ending:
        return ok()

    async with site.front() as server, site.worker(never_ending) as dying:
        tasks = [await launch(server) for _ in range(3)]
        for task in tasks:
            await until(server, task, lambda record: record.worker == dying.worker)
        await dying.abandon()
        async with site.worker(at_once):
            await server.janitor.sweep()
            for task in tasks:
                ended = await until_final(server, task)
                assert (ended.status, ended.attempt, ended.lost) == (TaskStatus.COMPLETED, 2, 1)


async def test_what_a_tool_asks_in_one_process_is_answered_through_another_after_it_left_memory(site: Site) -> None:
    async def asking(run: Run) -> Ending:
        return ok(await run.ask(question("Sure?")))

    tool = {"tool": Tool(asking, ToolPolicy(rerun=True, park_after=timedelta(0)))}
    async with site.front() as server:
        task = await launch(server)
        async with site.worker(tool):
            await until(server, task, lambda record: record.attempt == 1 and record.worker is None)
        async with site.worker(tool):
            await answer(server, task, elicitation_1="yes")
            ended = await until_final(server, task)
            assert (ended.result, ended.attempt) == ({"value": "yes"}, 2)


async def test_a_process_that_only_serves_needs_no_lease(site: Site) -> None:
    async with site.front() as server:
        assert await server.store.workers("") == {}
