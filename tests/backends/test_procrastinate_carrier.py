"""What is particular to jobs in Postgres: their schema, their transaction, a database that goes away, what is left."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from procrastinate.schema import SchemaManager

from harness.databases import Postgres, postgres
from mcp_tasks.engines import Route, Serves
from mcp_tasks.engines.base import WritesJobs
from mcp_tasks.engines.procrastinate import TRIES, Pace, ProcrastinateCarrier, ProcrastinateEngine, prepare, queue_of
from mcp_tasks.engines.remote import SETTLED
from mcp_tasks.errors import InvalidOption, StoreUnavailable, UsageError
from mcp_tasks.model.values import Statement, database_place
from mcp_tasks.testing._engine_work import LONG, WAIT, Work, at_work, serving
from tests.backends.procrastinate_child import QUICK

pytestmark = pytest.mark.anyio

TOLD = Pace(poll=timedelta(minutes=10))
"""Of a worker that learns of jobs by notifications alone."""

MIGRATIONS = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
JOBS = "mcp_tasks_jobs.procrastinate_jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    return server.new_database()


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


async def until_rows(url: str, query: str, wanted: list[tuple[Any, ...]]) -> None:
    with anyio.fail_after(WAIT):
        while rows(url, query) != wanted:  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def until_ended(work: Work, task_id: str, seconds: float) -> None:
    with anyio.fail_after(seconds):
        while f"end {task_id}" not in work.log:  # noqa: ASYNC110 - `until` has less patience
            await anyio.sleep(0.01)


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
            with psycopg.connect(url) as connection:
                connection.execute(job.text.encode(), job.values)
                if task_id == "undone":
                    connection.rollback()
        await work.until("end kept")
        assert work.started == ["kept"]


async def test_a_job_is_for_the_database_of_its_engine(url: str) -> None:
    job = ProcrastinateEngine(url).job("a", route=Route(), namespace="")
    assert job.place == database_place(url)


# A database that goes away


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_a_restart_of_the_database_needs_nobody(server: Postgres, url: str, how: signal.Signals) -> None:
    front = ProcrastinateEngine(url, pace=TOLD)
    async with serving(front), at_work(ProcrastinateEngine(url, pace=TOLD)) as work:
        work.end("before", "after", "told")
        await front.submit("before")
        await work.until("end before")
        await asyncio.to_thread(server.restart, how)
        await front.submit("after")
        await until_ended(work, "after", 20)
        # It listens again, too: nothing is looked for in ten minutes.
        await front.submit("told")
        await until_ended(work, "told", WAIT)


async def test_a_worker_whose_listening_connection_is_lost_listens_again(url: str) -> None:
    front = ProcrastinateEngine(url, pace=TOLD)
    async with serving(front), at_work(ProcrastinateEngine(url, pace=TOLD)) as work:
        work.end("after")
        listening = await until_listening(url)
        rows(url, f"SELECT pg_terminate_backend({listening})")
        assert await until_listening(url, other_than=listening) != listening
        await front.submit("after")
        await until_ended(work, "after", WAIT)


async def until_listening(url: str, other_than: int = 0) -> int:
    """The process of the server that a worker listens to."""
    query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle' AND datname = "
    with anyio.fail_after(2 * WAIT):
        while not (found := rows(url, f"{query} current_database() AND pid <> {other_than}")):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    pid: int = found[0][0]
    return pid


async def test_without_the_database_a_worker_stops_and_an_id_is_given_up_in_time(server: Postgres, url: str) -> None:
    engine = ProcrastinateEngine(url, pace=QUICK)
    await engine.start(Work().execute)
    await asyncio.to_thread(server.stop)
    try:
        with anyio.fail_after(30):
            await engine.submit("a")
            await engine.drain(LONG)
            await engine.stop(LONG)
    finally:
        await asyncio.to_thread(server.start)


async def test_without_the_database_a_worker_never_says_that_it_takes(server: Postgres, url: str) -> None:
    engine = ProcrastinateEngine(url, pace=QUICK)
    async with at_work(engine):
        await until_listening(url)
        await asyncio.to_thread(server.stop)
        try:
            with anyio.fail_after(WAIT):
                while engine.is_taking:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            # It tries again meanwhile, and what is tried for longer than this would count as working.
            with anyio.move_on_after(3 * SETTLED):
                while True:
                    assert not engine.is_taking
                    await anyio.sleep(0.02)
        finally:
            await asyncio.to_thread(server.start)
        with anyio.fail_after(WAIT):
            while not engine.is_taking:  # noqa: ASYNC110
                await anyio.sleep(0.02)


# Who has room


async def test_a_worker_without_room_leaves_ids_where_others_find_them(url: str) -> None:
    busy = ProcrastinateEngine(url, concurrency=1, pace=QUICK)
    async with at_work(busy) as work:
        await busy.submit("a")
        await work.until("start a")
        await busy.submit("b")
        await anyio.sleep(5 * QUICK.poll.total_seconds())  # sleep: polls, none of which may take it
        assert rows(url, f"SELECT status, attempts FROM {JOBS} WHERE args->>'task_id' = 'b'") == [("todo", 0)]
        async with at_work(ProcrastinateEngine(url, pace=QUICK)) as other:
            other.end("b")
            await other.until("end b")


# What is left


async def test_nothing_is_left_of_what_was_carried(url: str) -> None:
    engine = ProcrastinateEngine(url, pace=QUICK)
    async with at_work(engine) as work:
        ids = [f"task-{number}" for number in range(20)]
        work.end(*ids)
        for task_id in ids:
            await engine.submit(task_id)
        await work.until(*(f"end {task_id}" for task_id in ids))
        await until_rows(url, f"SELECT count(*) FROM {JOBS} WHERE task_name = 'mcp_tasks.run'", [(0,)])
    assert rows(url, "SELECT count(*) FROM mcp_tasks_jobs.procrastinate_workers") == [(0,)]
    assert rows(url, "SELECT count(*) FROM mcp_tasks_jobs.procrastinate_periodic_defers") <= [(1,)]


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
    await until_rows(url, f"SELECT count(*) FROM {JOBS} WHERE task_name = 'mcp_tasks.run'", [(0,)])
    await engine.stop(LONG)
    assert runs == 1


async def test_jobs_of_workers_that_died_often_are_given_up(url: str) -> None:
    async with serving(ProcrastinateEngine(url)):
        pass
    write(url, ProcrastinateEngine(url).job("a", route=Route(queue="nobody's"), namespace=""))
    change(url, f"UPDATE {JOBS} SET status = 'doing', attempts = {TRIES}")
    async with at_work(ProcrastinateEngine(url, pace=QUICK)):
        await until_rows(url, f"SELECT count(*) FROM {JOBS} WHERE task_name = 'mcp_tasks.run'", [(0,)])


# Names, words and mistakes


def test_a_queue_is_named_so_that_it_can_be_listened_to() -> None:
    name = queue_of("n" * 100, "the GPU queue ☃", "render")
    assert len(f"procrastinate_queue_v1#{name}".encode()) < 64
    assert name.startswith("the-GPU-queue-render.")
    routes = [
        ("a", "b", None),
        ("a", "b", "None"),
        ("ab", "", None),
        ("", "ab", None),
        ("a", "b-c", None),
        ("a", "b", "c"),
    ]
    assert len({queue_of(*route) for route in routes}) == len(routes)


async def test_our_jobs_are_no_news_in_the_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = ProcrastinateEngine(url, pace=QUICK)
    async with at_work(engine) as work:
        work.end("a")
        await engine.submit("a")
        await work.until("end a")
    assert "mcp_tasks.run" not in caplog.text


async def test_a_database_that_cannot_be_reached_is_named_without_the_password() -> None:
    carrier = ProcrastinateCarrier("postgresql://me:secret@127.0.0.1:1/tasks")
    with pytest.raises(
        StoreUnavailable, match=r"the jobs in postgresql://127\.0\.0\.1:1/tasks cannot be reached"
    ) as raised:
        await carrier.open("")
    assert "secret" not in f"{raised.value}{carrier!r}{ProcrastinateEngine('postgresql://me:secret@host/x')!r}"


async def test_an_engine_that_is_not_started_says_so(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="the engine is not started"):
        await ProcrastinateCarrier(url).send("a", route=Route(), lane="new", delay=None)


def test_a_url_that_is_none_is_refused_without_being_repeated() -> None:
    with pytest.raises(UsageError, match="not one of Postgres") as raised:
        ProcrastinateEngine("postgresql://me:secret%zz@host/x")
    assert "secret" not in str(raised.value)


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


async def test_a_database_that_is_away_is_told_of_in_few_lines(
    server: Postgres, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = ProcrastinateEngine(url, pace=QUICK)
    async with at_work(engine):
        await until_listening(url)
        assert not caplog.records
        await asyncio.to_thread(server.stop)
        try:
            with anyio.fail_after(WAIT):
                while engine.is_taking:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            await anyio.sleep(1)  # sleep: pools and workers try again and again
        finally:
            await asyncio.to_thread(server.start)
    told = [(record.name, record.getMessage()) for record in caplog.records]
    assert [name for name, _ in told] == ["mcp_tasks.engines.remote"], told
