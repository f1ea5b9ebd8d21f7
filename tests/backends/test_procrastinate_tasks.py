"""Tasks and their jobs in one Postgres: written together, run once, and found again when a worker dies."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from harness.databases import Postgres
from mcp_tasks.engines.procrastinate import ProcrastinateEngine
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.sweeps import IDLE_FOR_LONG
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing._engine_runs import other_process, said
from tests.backends.procrastinate_child import SLOW
from tests.unit.losing import sweep_for
from tests.unit.running import RERUN, Seconds, Tool, cancel, ok, running, until, until_final

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[TaskRuntime]]


@pytest.fixture(scope="module")
def database(shared_postgres: Postgres) -> str:
    return shared_postgres.new_database()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def process(database: str, namespace: str) -> Start:
    """Starts a process of the fleet, as far as stores and engines can tell."""

    def start(tool: Any, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        engine = ProcrastinateEngine(database, concurrency=10, pace=SLOW)
        return running(tool, store=PostgresStore(database), engine=engine, namespace=namespace, policy=RERUN, **options)

    return start


async def not_here(run: Run) -> Ending:
    raise AssertionError("a process that only serves has run a tool")


async def at_once(run: Run) -> Ending:
    return ok()


async def launch(runtime: TaskRuntime) -> TaskRecord:
    return await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)


def jobs(database: str) -> list[str]:
    """The ids that wait to be carried."""
    with psycopg.connect(database) as connection:
        query = "SELECT args->>'task_id' FROM mcp_tasks_jobs.procrastinate_jobs WHERE task_name = 'mcp_tasks.run'"
        return [task_id for (task_id,) in connection.execute(query)]


async def test_a_task_is_written_with_its_job_and_run_once_by_one_of_the_workers(process: Start, database: str) -> None:
    runs: Counter[str] = Counter()

    async def counting(run: Run) -> Ending:
        runs[run.record.id] += 1
        return ok()

    async with process(not_here, runs_tools=False) as server:
        tasks = [await launch(server) for _ in range(20)]
        assert sorted(jobs(database)) == sorted(task.id for task in tasks), "one each: none was submitted besides"
        async with process(counting), process(counting):
            for task in tasks:
                ended = await until_final(server, task)
                assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)
    assert runs == {task.id: 1 for task in tasks}


async def test_a_task_that_is_cancelled_before_it_arrives_starts_nothing(process: Start, database: str) -> None:
    runs: list[str] = []

    async def noting(run: Run) -> Ending:
        runs.append(run.record.id)
        return ok()

    async with process(not_here, runs_tools=False) as server:
        task = await launch(server)
        await cancel(server, task)
        assert jobs(database) == [task.id], "it is still on its way"
        async with process(noting):
            other = await launch(server)
            await until_final(server, other)
            assert runs == [other.id]
    assert jobs(database) == []


async def test_the_sweep_brings_what_a_killed_worker_had_taken_and_not_claimed(
    process: Start, database: str, namespace: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "mcp_tasks.testing.engine_process",
        "tests.backends.procrastinate_child:EngineOfOne",
        database,
        namespace,
    ]
    monotonic = Seconds()
    async with process(not_here, runs_tools=False, monotonic=monotonic) as server:
        async with other_process(*command, "--claim-nothing") as worker:
            task = await launch(server)
            await said(worker, f"start {task.id}")
            worker.kill()
            await worker.wait()
        async with process(at_once):
            await sweep_for(server, monotonic, IDLE_FOR_LONG)
            ended = await until_final(server, task)
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)


async def test_a_timer_is_carried_when_its_time_has_come_and_needs_no_sweep(process: Start) -> None:
    async def sleeping(run: Run) -> Ending:
        await run.sleep(timedelta(seconds=0.5))
        return ok()

    tool = {"tool": Tool(sleeping, ToolPolicy(rerun=True, park_after=timedelta(0)))}
    async with process(not_here, runs_tools=False) as server, process(tool):
        task = await launch(server)
        await until(server, task, lambda record: record.worker is None and record.attempt == 1)
        assert (await until_final(server, task)).attempt == 2
