"""What is particular to jobs in Postgres: their schema, their transaction with the task, and what is left of them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from procrastinate.schema import SchemaManager

from harness.databases import Postgres
from harness.waiting import eventually
from mcp_tasks.engines import Route, Serves
from mcp_tasks.engines.base import WritesJobs
from mcp_tasks.engines.procrastinate import TRIES, ProcrastinateCarrier, ProcrastinateEngine, prepare
from mcp_tasks.errors import InvalidOption, StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement, database_place
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing._engine_work import LONG, WAIT, at_work, serving
from tests.backends.carriers import QUICK, TOLD
from tests.unit.running import RERUN, Tool, cancel, ok, running, until, until_final

pytestmark = pytest.mark.anyio

MIGRATIONS = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
JOBS = "mcp_tasks_jobs.procrastinate_jobs"


@pytest.fixture
def url(shared_postgres: Postgres) -> str:
    return shared_postgres.new_database()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def change(url: str, *queries: str) -> None:
    """As a connection of procrastinate's own does it."""
    with psycopg.connect(url, options="-c search_path=mcp_tasks_jobs") as connection:
        for query in queries:
            connection.execute(query.encode())


def write(url: str, job: Statement) -> None:
    """As one does it that keeps tasks in this database."""
    with psycopg.connect(url) as connection:
        connection.execute(job.text.encode(), job.values)


async def until_no_job(url: str) -> None:
    left = f"SELECT FROM {JOBS} WHERE task_name = 'mcp_tasks.run'"
    await eventually(lambda: not rows(url, left), WAIT)


# The schema


async def test_replicas_that_start_at_once_make_one_schema(url: str) -> None:
    carriers = [ProcrastinateCarrier(url) for _ in range(8)]
    try:
        await asyncio.gather(*(carrier.open("") for carrier in carriers))
    finally:
        for carrier in carriers:
            await carrier.close()
    assert rows(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert rows(url, f"SELECT count(*) FROM {JOBS}") == [(0,)]


async def test_tables_of_an_older_release_are_brought_up_to_date(url: str) -> None:
    files = MIGRATIONS
    older = [file for file in files if file.name < "03.03"]
    assert len(older) < len(files)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA mcp_tasks_jobs")
        connection.execute("SET LOCAL search_path TO mcp_tasks_jobs")
        connection.execute("CREATE TABLE mcp_tasks_migrations (name text PRIMARY KEY)")
        for file in older:
            connection.execute(file.read_bytes())
            connection.execute("INSERT INTO mcp_tasks_migrations (name) VALUES (%s)", [file.name])
    async with at_work(ProcrastinateEngine(url, pace=QUICK)) as work:
        work.end("a")
        write(url, ProcrastinateEngine(url).job("a", route=Route(), namespace=""))
        await work.until("end a")
    applied = {name for (name,) in rows(url, "SELECT name FROM mcp_tasks_jobs.mcp_tasks_migrations")}
    missing = {file.name for file in files} - applied
    assert missing == {file.name for file in files if file.name[:8] == files[-1].name[:8] and "_post_" in file.name}


async def test_a_schema_that_is_up_to_date_is_only_looked_at(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await prepare(connection)
        # Whoever would change something waits for this one.
        async with await psycopg.AsyncConnection.connect(url) as other:
            await other.execute(f"LOCK TABLE {JOBS} IN ACCESS SHARE MODE".encode())
            with anyio.fail_after(WAIT):
                await prepare(connection)


async def test_a_database_with_jobs_of_somebody_else_is_shared_with_them(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(SchemaManager.get_schema())
    async with at_work(ProcrastinateEngine(url, pace=QUICK)) as work:
        work.end("a")
        write(url, ProcrastinateEngine(url).job("a", route=Route(), namespace=""))
        await work.until("end a")
    assert rows(url, "SELECT count(*) FROM public.procrastinate_events") == [(0,)]


# A job in somebody else's transaction


async def test_a_job_is_written_with_the_task_or_not_at_all(url: str) -> None:
    engine = ProcrastinateEngine(url, pace=TOLD)
    assert isinstance(engine, WritesJobs)
    serves = Serves(namespace="farm", queues=("gpu",), tools=("render",))
    async with at_work(engine, serves) as work:
        work.end("kept", "undone")
        for task_id in "undone", "kept":
            job = engine.job(task_id, route=Route(queue="gpu", tool="render", priority=7), namespace="farm")
            assert job.place == database_place(url)
            with psycopg.connect(url) as connection:
                connection.execute(job.text.encode(), job.values)
                if task_id == "undone":
                    connection.rollback()
        await work.until("end kept")
        assert work.started == ["kept"]


async def test_a_worker_whose_listening_connection_is_lost_listens_again(url: str) -> None:
    front = ProcrastinateEngine(url, pace=TOLD)
    async with serving(front), at_work(ProcrastinateEngine(url, pace=TOLD)) as work:
        work.end("after")
        listening = await until_listening(url)
        rows(url, f"SELECT pg_terminate_backend({listening})")
        assert await until_listening(url, other_than=listening) != listening
        await front.submit("after")
        await work.until("end after")


async def until_listening(url: str, other_than: int = 0) -> int:
    """The process of the server that a worker listens to."""
    query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle' AND datname = "
    found = await eventually(lambda: rows(url, f"{query} current_database() AND pid <> {other_than}"), 2 * WAIT)
    pid: int = found[0][0]
    return pid


# What is left


async def test_nothing_is_left_of_what_was_carried_and_none_of_it_is_news(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = ProcrastinateEngine(url, pace=QUICK)
    async with at_work(engine) as work:
        ids = [f"task-{number}" for number in range(20)]
        work.end(*ids)
        for task_id in ids:
            await engine.submit(task_id)
        await work.until(*(f"end {task_id}" for task_id in ids))
        await until_no_job(url)
    assert rows(url, "SELECT count(*) FROM mcp_tasks_jobs.procrastinate_workers") == [(0,)]
    assert rows(url, "SELECT count(*) FROM mcp_tasks_jobs.procrastinate_periodic_defers") <= [(1,)]
    assert "mcp_tasks.run" not in caplog.text


async def test_an_id_that_nobody_ever_takes_is_not_carried_for_ever(url: str) -> None:
    async with serving(ProcrastinateEngine(url)):
        pass
    write(url, ProcrastinateEngine(url).job("a", route=Route(), namespace=""))
    change(url, f"UPDATE {JOBS} SET args = args || '{{\"tries\": {TRIES}}}'")
    runs = 0

    async def store_is_away(task_id: str, slot: object) -> None:
        nonlocal runs
        runs += 1

    engine = ProcrastinateEngine(url, pace=QUICK)
    await engine.start(store_is_away)
    await until_no_job(url)
    await engine.stop(LONG)
    assert runs == 1


async def test_jobs_of_workers_that_died_often_are_given_up(url: str) -> None:
    async with serving(ProcrastinateEngine(url)):
        pass
    write(url, ProcrastinateEngine(url).job("a", route=Route(queue="nobody's"), namespace=""))
    change(url, f"UPDATE {JOBS} SET status = 'doing', attempts = {TRIES}")
    async with at_work(ProcrastinateEngine(url, pace=QUICK)):
        await until_no_job(url)


# Names, words and mistakes


def test_an_engine_has_a_connection() -> None:
    with pytest.raises(InvalidOption, match="connections"):
        ProcrastinateEngine("postgresql://host/x", connections=0)


async def test_a_connection_asks_for_nothing_that_poolers_refuse() -> None:
    asked = bytearray()

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend(await reader.read(4096))
        writer.close()

    async with await asyncio.start_server(look, "127.0.0.1", 0) as pooler:
        port = pooler.sockets[0].getsockname()[1]
        carrier = ProcrastinateCarrier(
            f"postgresql://somebody@127.0.0.1:{port}/tasks?sslmode=disable&gssencmode=disable"
        )
        with pytest.raises(StoreUnavailable):
            await carrier.open("here")
    assert b"somebody\0" in asked
    assert b"options\0" not in asked


# Tasks and their jobs in one database


Start = Callable[..., AbstractAsyncContextManager[TaskRuntime]]


@pytest.fixture
def process(url: str) -> Start:
    """Starts a process of the fleet, as far as stores and engines can tell."""

    def start(tool: Any, **options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        engine = ProcrastinateEngine(url, concurrency=10)
        return running(tool, store=PostgresStore(url), engine=engine, policy=RERUN, **options)

    return start


async def not_here(run: Run) -> Ending:
    raise AssertionError("a process that only serves has run a tool")


async def launch(runtime: TaskRuntime) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=TaskRequest(name="tool", arguments={})))


def jobs(url: str) -> list[str]:
    """The ids that wait to be carried."""
    return [
        task_id for (task_id,) in rows(url, f"SELECT args->>'task_id' FROM {JOBS} WHERE task_name = 'mcp_tasks.run'")
    ]


async def test_a_task_is_written_with_its_job_and_run_once_by_one_of_the_workers(process: Start, url: str) -> None:
    runs: Counter[str] = Counter()

    async def counting(run: Run) -> Ending:
        runs[run.record.id] += 1
        return ok()

    async with process(not_here, runs_tools=False) as server:
        tasks = [await launch(server) for _ in range(20)]
        assert sorted(jobs(url)) == sorted(task.id for task in tasks), "one each: none was submitted besides"
        async with process(counting), process(counting):
            for task in tasks:
                ended = await until_final(server, task)
                assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)
    assert runs == {task.id: 1 for task in tasks}


async def test_a_task_that_is_cancelled_before_it_arrives_starts_nothing(process: Start, url: str) -> None:
    runs: list[str] = []

    async def noting(run: Run) -> Ending:
        runs.append(run.record.id)
        return ok()

    async with process(not_here, runs_tools=False) as server:
        task = await launch(server)
        await cancel(server, task)
        assert jobs(url) == [task.id], "it is still on its way"
        async with process(noting):
            other = await launch(server)
            await until_final(server, other)
            assert runs == [other.id]
    assert jobs(url) == []


async def test_a_timer_is_carried_when_its_time_has_come_and_needs_no_sweep(process: Start) -> None:
    async def sleeping(run: Run) -> Ending:
        await run.sleep(timedelta(seconds=0.5))
        return ok()

    tool = {"tool": Tool(sleeping, ToolPolicy(rerun=True, park_after=timedelta(0)))}
    async with process(not_here, runs_tools=False) as server, process(tool):
        task = await launch(server)
        await until(server, task, lambda record: record.worker is None and record.attempt == 1)
        assert (await until_final(server, task)).attempt == 2
