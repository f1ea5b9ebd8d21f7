"""Engines that carry ids through Redis and Postgres: the shipped suite, servers that fail, what each does besides."""

import asyncio
import gc
import logging
import os
import pickle
import re
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from procrastinate.schema import SchemaManager
from redis.exceptions import ConnectionError as RedisConnectionError

from harness.databases import Postgres, Valkey, postgres, valkey
from harness.proxy import Proxy, proxy_to
from harness.waiting import eventually
from mcp_tasks.engines import ANYWHERE, Engine, RemoteEngine, Route, Serves
from mcp_tasks.engines.base import WritesJobs
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.engines.procrastinate import TRIES, ProcrastinateCarrier, ProcrastinateEngine
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement, database_place
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing._engine_work import LONG, WAIT, Work, at_work, serving, settle
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.backends import carriers
from tests.backends.carriers import QUICK, SOON, TOLD, docket
from tests.backends.places import RedisPlace
from tests.unit.running import RERUN, ok, running, until_final


class _OnADatabase(EngineSuite):
    make: Callable[[str], Engine]

    def make_engine(self) -> Engine:
        return type(self).make(self.url)

    def elsewhere(self) -> Sequence[str]:
        return [f"tests.backends.carriers:{type(self).make.__name__}", self.url]

    url: str


class TestDocketEngine(_OnADatabase):
    make = carriers.docket
    grace = 0.2
    outlasts = 1.6 * SOON.total_seconds()
    rescues = 3 * SOON.total_seconds()

    @pytest.fixture(autouse=True)
    def a_database_of_its_own(self, shared_valkey: Valkey) -> None:
        self.url = shared_valkey.new_database()


class TestProcrastinateEngine(_OnADatabase):
    make = carriers.procrastinate
    outlasts = 2 * QUICK.dead.total_seconds()
    rescues = 3 * QUICK.dead.total_seconds()

    @pytest.fixture(autouse=True)
    def a_database_without_jobs(self, jobs_url: str) -> None:
        self.url = jobs_url


class TestCeleryEngine(_OnADatabase):
    """The engine of docs/engines.md."""

    make = carriers.celery
    grace = 0.3

    @pytest.fixture(autouse=True)
    def a_broker_of_its_own(self, shared_valkey: Valkey) -> None:
        self.url = shared_valkey.new_database()


# Servers that fail


@dataclass(frozen=True)
class Carried:
    server: Valkey | Postgres
    make: Callable[..., RemoteEngine]


@pytest.fixture(scope="module", params=["docket", "procrastinate", "celery"])
def carried(request: pytest.FixtureRequest) -> Iterator[Carried]:
    with postgres(durable=False) if request.param == "procrastinate" else valkey() as server:
        yield Carried(server, getattr(carriers, request.param))


ours = pytest.mark.parametrize("carried", ["docket", "procrastinate"], indirect=True)


@asynccontextmanager
async def by_proxy(carried: Carried) -> AsyncGenerator[tuple[Proxy, str]]:
    url = carried.server.new_database()
    async with proxy_to(url) as proxy:
        yield proxy, proxy.before(url)


@ours
async def test_a_worker_without_room_leaves_to_others_what_it_cannot_run(carried: Carried) -> None:
    ids, url = [f"task-{number}" for number in range(40)], carried.server.new_database()
    full = carried.make(url, 1)
    async with at_work(full) as stuck:
        await full.submit("long")
        await stuck.until("start long")
        async with at_work(carried.make(url)) as work:
            work.end(*ids)
            for task_id in ids:
                await full.submit(task_id)
            await work.until(*(f"end {task_id}" for task_id in ids))
        assert stuck.log == ["start long"]


@ours
async def test_a_worker_stops_and_an_id_is_given_up_in_time_though_its_server_is_away(carried: Carried) -> None:
    async with by_proxy(carried) as (proxy, url):
        engine, work = carried.make(url), Work()
        await engine.start(work.execute)
        work.end("a")
        await engine.submit("a")
        await work.until("end a")
        proxy.is_silent = True
        with anyio.fail_after(40):
            await engine.submit("b")
            await engine.drain(LONG)
            await engine.stop(LONG)


# What an engine says


@pytest.mark.parametrize(
    "carrier",
    [DocketCarrier("redis://me:secret@127.0.0.1:1/0"), ProcrastinateCarrier("postgresql://me:secret@127.0.0.1:1/x")],
    ids=lambda carrier: type(carrier).__name__,
)
async def test_a_server_that_is_not_there_is_told_of_at_the_start_without_the_password(
    carrier: DocketCarrier | ProcrastinateCarrier,
) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as refused:
        await carrier.open("")
    assert "secret" not in f"{refused.value}{carrier!r}"
    with pytest.raises((StoreUnavailable, ConnectionError), match=r"not (open|started)"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    await carrier.close()


# Docket: what is left on the server, who may write to it, clusters, and its errors


async def test_nothing_piles_up_on_the_server(redis_place: RedisPlace) -> None:
    client, url = redis_place.client, redis_place.url

    async def a_life(number: int) -> set[str]:
        ids = [f"{number}-{each}" for each in range(30)]
        async with at_work(docket(url)) as work, at_work(docket(url)) as other, serving(docket(url)) as engine:
            work.end(*ids)
            other.end(*ids)
            for each, task_id in enumerate(ids):
                await engine.submit(task_id, delay=timedelta(milliseconds=1) if each % 5 == 0 else None)
            await eventually(lambda: len(work.started) + len(other.started) >= len(ids))
        return {key for key in redis_place.names() if client.ttl(key) == -1}

    first, last = await a_life(1), await a_life(2)
    # What is left of several lives for longer is what was left of one: an empty stream.
    assert last == first
    [stream] = last
    assert client.xlen(stream) == 0
    (group,) = client.xinfo_groups(stream)
    assert (group["consumers"], group["pending"]) == (1, 0)


async def test_what_is_sent_by_a_request_leaves_nothing_of_it_behind(redis_place: RedisPlace) -> None:
    class Request:
        pass

    current: ContextVar[Request] = ContextVar("current")
    async with serving(docket(redis_place.url)) as engine:

        async def request() -> weakref.ref[Request]:
            current.set(Request())
            await engine.submit("a")
            return weakref.ref(current.get())

        left = await asyncio.create_task(request())
        await settle()
        gc.collect()
        # What a docket does in the background would have kept it, and a run would seem to be at work for ever.
        assert left() is None


async def test_what_is_sent_after_the_stop_or_to_a_server_that_does_not_answer_fails_in_time(
    redis_place: RedisPlace,
) -> None:
    carrier = DocketCarrier(redis_place.url, timeout=timedelta(seconds=1))
    await carrier.open("")
    await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    redis_place.client.client_pause(10_000, all=False)
    with pytest.raises(RedisConnectionError, match="does not answer"):
        await carrier.send("b", route=ANYWHERE, lane="new", delay=None)
    redis_place.client.client_unpause()
    await carrier.close()
    await carrier.close()
    with pytest.raises(ConnectionError, match="is not open"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)


async def test_a_carrier_that_could_not_be_opened_can_be_later(redis_place: RedisPlace) -> None:
    nobody = DocketCarrier(redis_place.url.replace("//", "//nobody:secret@"))
    with pytest.raises(StoreUnavailable, match="password") as refused:
        await nobody.open("")
    assert "secret" not in str(refused.value)
    async with proxy_to(redis_place.url) as proxy:
        carrier = DocketCarrier(proxy.url, timeout=timedelta(seconds=0.5))
        proxy.is_silent = True
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await carrier.open("")
        proxy.is_silent = False
        await carrier.open("")
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
        await carrier.close()


async def test_in_a_cluster_ids_are_carried_from_any_of_its_servers(cluster: tuple[Valkey, Valkey]) -> None:
    first, second = cluster
    # The second has nothing, and says where to go.
    async with (
        at_work(docket(second.url)) as work,
        at_work(docket(first.url)) as other,
        serving(docket(second.url)) as engine,
    ):
        for each in (work, other):
            each.end("a", "b")
        await engine.submit("a")
        await engine.submit("b", delay=timedelta(milliseconds=10))
        await eventually(lambda: {*work.started, *other.started} == {"a", "b"})


async def test_a_user_needs_no_more_than_the_page_says(shared_valkey: Valkey, redis_place: RedisPlace) -> None:
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    (command,) = re.findall(r"^(ACL SETUSER tasks .*)$", page, flags=re.MULTILINE)
    redis_place.client.execute_command(*command.split())
    url = shared_valkey.url.replace("//", "//tasks:PASSWORD@")
    async with at_work(docket(url)) as work, serving(docket(url)) as engine:
        work.end("a", "b")
        await engine.submit("a")
        await engine.submit("b", delay=timedelta(milliseconds=10))
        await work.until("end a", "end b")


class Planted:
    """What runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("part", ["args", "kwargs", "strike"])
async def test_what_others_write_to_the_server_runs_no_code_here(
    redis_place: RedisPlace, tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    planted, nothing = pickle.dumps(Planted(tmp_path / "ran")), pickle.dumps(())
    client, url = redis_place.client, redis_place.url
    async with serving(docket(url)) as sender:
        await sender.submit("first")
        [stream] = [name for name in redis_place.names() if name.endswith(":stream")]
        message: dict[Any, Any] = {
            "key": "no key of ours",
            "when": datetime.now(UTC).isoformat(),
            "function": "run",
            "args": planted if part == "args" else nothing,
            "kwargs": planted if part == "kwargs" else pickle.dumps({}),
            "attempt": "1",
            "generation": "0",
        }
        if part == "strike":
            strike = {"direction": "strike", "function": "another", "operator": "==", "value": planted}
            client.xadd(stream.removesuffix(":stream") + ":strikes", strike)
        else:
            client.xadd(stream, message)
        async with at_work(docket(url)) as work:
            work.end("first", "second")
            await work.until("end first")
            await sender.submit("second")
            await work.until("end second")
            if part != "strike":
                await eventually(lambda: "ignored a message" in caplog.text, WAIT)
                # It is not read again and again.
                await eventually(lambda: client.xlen(stream) == 0, WAIT)
        assert sorted(work.started) == ["first", "second"]
        assert not (tmp_path / "ran").exists()


# Jobs in Postgres: their schema, their transaction with the task, and what is left of them


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


def write(url: str, job: Statement, *, keep: bool = True) -> None:
    """As one does it that keeps tasks in this database."""
    with psycopg.connect(url) as connection:
        connection.execute(job.text.encode(), job.values)
        if not keep:
            connection.rollback()


async def assert_carries(url: str) -> None:
    async with at_work(ProcrastinateEngine(url, pace=QUICK)) as work:
        work.end("a")
        write(url, ProcrastinateEngine(url).job("a", route=Route(), namespace=""))
        await work.until("end a")


async def until_no_job(url: str) -> None:
    left = f"SELECT FROM {JOBS} WHERE task_name = 'mcp_tasks.run'"
    await eventually(lambda: not rows(url, left), WAIT)


# The schema of the jobs


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
    await assert_carries(url)
    applied = {name for (name,) in rows(url, "SELECT name FROM mcp_tasks_jobs.mcp_tasks_migrations")}
    missing = {file.name for file in files} - applied
    assert missing == {file.name for file in files if file.name[:8] == files[-1].name[:8] and "_post_" in file.name}


async def test_a_schema_that_is_up_to_date_is_only_looked_at(url: str) -> None:
    async with serving(ProcrastinateEngine(url)):
        pass
    async with await psycopg.AsyncConnection.connect(url) as other:
        # Whoever would change something waits for this one.
        await other.execute(f"LOCK TABLE {JOBS} IN ACCESS SHARE MODE".encode())
        with anyio.fail_after(WAIT):
            async with serving(ProcrastinateEngine(url)):
                pass


async def test_a_database_with_jobs_of_somebody_else_is_shared_with_them(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(SchemaManager.get_schema())
    await assert_carries(url)
    assert rows(url, "SELECT count(*) FROM public.procrastinate_events") == [(0,)]


async def test_a_job_is_written_with_the_task_or_not_at_all(url: str) -> None:
    engine = ProcrastinateEngine(url, pace=TOLD)
    assert isinstance(engine, WritesJobs)
    serves = Serves(namespace="farm", queues=("gpu",), tools=("render",))
    async with at_work(engine, serves) as work:
        work.end("kept", "undone")
        for task_id in "undone", "kept":
            job = engine.job(task_id, route=Route(queue="gpu", tool="render", priority=7), namespace="farm")
            assert job.place == database_place(url)
            write(url, job, keep=task_id == "kept")
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


async def test_a_task_is_written_with_its_job_and_run_once_by_one_of_the_workers(url: str) -> None:
    runs: Counter[str] = Counter()

    async def counting(run: Run) -> Ending:
        runs[run.record.id] += 1
        return ok()

    def process(**options: Any) -> AbstractAsyncContextManager[TaskRuntime]:
        engine = ProcrastinateEngine(url, concurrency=10)
        return running(counting, store=PostgresStore(url), engine=engine, policy=RERUN, **options)

    async with process(runs_tools=False) as server:
        request = TaskRequest(name="tool", arguments={})
        tasks = [await server.launch(LaunchSpec(request=request)) for _ in range(20)]
        jobs = rows(url, f"SELECT args->>'task_id' FROM {JOBS} WHERE task_name = 'mcp_tasks.run'")
        assert sorted(jobs) == sorted((task.id,) for task in tasks), "one each: none was submitted besides"
        async with process(), process():
            for task in tasks:
                ended = await until_final(server, task)
                assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)
    assert runs == {task.id: 1 for task in tasks}
