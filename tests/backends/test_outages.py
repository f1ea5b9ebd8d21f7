"""Databases that stop, restart, hang, lose answers, are locked or full: what the store says, that it goes on by itself,
and that tools at work wait for it and end as usual.
"""

import asyncio
import logging
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import anyio.to_thread
import psycopg
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult
from psycopg_pool import PoolTimeout, TooManyRequests
from redis import exceptions as driver
from redis.asyncio import Redis

from harness.backends import ALWAYS_SYNCED
from harness.databases import Postgres, Valkey, postgres, valkey
from harness.postgres_store import execute, new_store_url
from harness.proxy import ANY, Proxy, proxy_to
from harness.stored import changed, opened
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.server import LocalTask
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.postgres import database as postgres_driver
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.redis import connection as redis_driver
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.unit.running import ONCE, answer, create, ok, question, running, until_asking, until_final

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="s", value=1)
WAIT = 30
SECRET = "p4ssw0rd"
PATIENCE = timedelta(seconds=0.4)


class Place:
    def __init__(self, server: Postgres | Valkey) -> None:
        self.server = server
        self.is_redis = isinstance(server, Valkey)
        self.url = server.url if isinstance(server, Valkey) else new_store_url(server)
        self._prefix = uuid4().hex

    def store(self, url: str | None = None, *, connections: int = 8, patience: timedelta | None = None) -> Store:
        url = url or self.url
        if self.is_redis:
            waits = patience or timedelta(seconds=5)
            return RedisStore(url, prefix=self._prefix, max_connections=connections, timeout=waits)
        return PostgresStore(url, connections=connections, patience=patience or timedelta(seconds=10))

    def only(self, verb: str) -> str:
        """The pattern of what a verb sends, where it can be told."""
        return f"^{verb}$" if self.is_redis else r"\b(INSERT|UPDATE|DELETE)\b"


@pytest.fixture(scope="module", params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | Valkey]:
    """It keeps what it has acknowledged when it is killed."""
    with valkey(*ALWAYS_SYNCED) if request.param == "redis" else postgres(durable=False) as server:
        yield server


@pytest.fixture
async def place(server: Postgres | Valkey) -> Place:
    return await anyio.to_thread.run_sync(Place, server)


@pytest.fixture
async def proxy(place: Place) -> AsyncIterator[Proxy]:
    async with proxy_to(place.server.url) as proxy:
        yield proxy


def writes(store: Store, record: TaskRecord) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "create": lambda: store.create(changed(make_record()), REQUEST),
        "save": lambda: store.save(changed(record, version=2), expected=1),
        "delete": lambda: store.delete(record.id, expected=1),
        "set_note": lambda: store.set_note("", uuid4().hex, b"1", expected=None),
        "hand_out": lambda: store.hand_out("", Share(owner=1), limit=1),
        "hand_back": lambda: store.hand_back(record.id),
        "forget_expired": lambda: store.forget_expired(record.created_at, limit=1),
        "heartbeat": lambda: store.heartbeat("worker", namespace="", beats=1),
        "retire": lambda: store.retire("worker"),
    }


async def failure_of(act: Callable[[], Awaitable[object]]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as failed:
        await act()
    return failed.value


async def when_it_works(act: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of it once the store is there again."""
    with anyio.fail_after(WAIT):
        while True:
            try:
                return await act()
            except StoreUnavailable:
                await anyio.sleep(0.01)


@asynccontextmanager
async def reached(store: Store) -> AsyncGenerator[Store]:
    """The store, open while the block lasts. On a busy machine a first connection takes longer than its patience."""
    await when_it_works(store.open)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("verb", writes(cast(Any, None), changed(make_record())))
async def test_a_write_that_was_sent_and_not_answered_may_have_happened(place: Place, proxy: Proxy, verb: str) -> None:
    async with reached(place.store(proxy.before(place.url), patience=PATIENCE)) as store:
        record = changed(make_record())
        await when_it_works(lambda: store.create(record, REQUEST))
        await when_it_works(lambda: store.heartbeat("worker", namespace="", beats=1))
        act = writes(store, record)[verb]
        # The attempts after the first are refused, which says nothing of the first.
        proxy.lose(of=place.only(verb), then_cut=True)
        assert (await failure_of(act)).may_have_happened
        assert not (await failure_of(act)).may_have_happened


async def test_a_read_that_was_not_answered_changed_nothing(place: Place, proxy: Proxy) -> None:
    async with reached(place.store(proxy.before(place.url), patience=PATIENCE)) as store:
        await when_it_works(lambda: store.get("task"))
        for read in (lambda: store.get("task"), lambda: store.journal("task"), lambda: store.versions(["task"])):
            proxy.lose(of=ANY if place.is_redis else "mcp_tasks_", then_cut=True)
            assert not (await failure_of(read)).may_have_happened
            proxy.restore()
            await when_it_works(lambda: store.get("task"))


@pytest.mark.parametrize(
    ("exc", "may_have_happened"),
    [
        (psycopg.InterfaceError("the connection is lost"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CrashShutdown(), True),
        (psycopg.errors.IdleSessionTimeout(), False),
        (psycopg.errors.CannotConnectNow(), False),
        (psycopg.errors.SerializationFailure(), False),
        (psycopg.errors.DeadlockDetected(), False),
        (psycopg.errors.DiskFull(), False),
        (PoolTimeout(), False),
        (TooManyRequests(), False),
        (driver.InvalidResponse("no answer at all"), True),
        (driver.BusyLoadingError("LOADING"), False),
        (driver.AuthenticationError("WRONGPASS"), False),
        (driver.MovedError("1 127.0.0.1:1"), False),
    ],
    ids=repr,
)
def test_only_a_request_without_an_answer_may_have_happened(exc: Exception, may_have_happened: bool) -> None:
    of_postgres = isinstance(exc, (psycopg.Error, PoolTimeout))
    of = postgres_driver if of_postgres else redis_driver
    assert of.is_unanswered(exc) is may_have_happened


async def test_a_write_finds_itself_also_when_others_have_written_since(place: Place, proxy: Proxy) -> None:
    record = changed(make_record())
    async with opened(place.store(proxy.before(place.url))) as here, opened(place.store()) as there:
        await here.create(record, REQUEST)
        claimed = record.but(version=2).written(new_write_id(run=True))
        # All answers are lost until the other has gone on from what was written here.
        proxy.lose(1_000, of=ANY)
        saving = asyncio.ensure_future(here.save(claimed, expected=1, entries=[STEP]))
        with anyio.fail_after(WAIT):
            last = record
            for version in range(3, 8):
                while (before := await there.get(record.id)) is None or before.version != version - 1:
                    continue
                last = await there.save(changed(before, version=version), expected=version - 1)
            proxy.lose(0)
            assert await saving == last
        assert len(await there.journal(record.id)) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["in order", "killed"])
async def test_a_restart_in_the_middle_loses_nothing_and_repeats_nothing(place: Place, how: signal.Signals) -> None:
    acknowledged: dict[str, int] = {}
    over = anyio.Event()

    async def write(store: Store) -> None:
        while not over.is_set():
            record = changed(make_record())
            try:
                await store.create(record, REQUEST)
                acknowledged[record.id] = 1
                await store.save(changed(record, version=2), expected=1, entries=[STEP])
                acknowledged[record.id] = 2
            except StoreUnavailable:
                await anyio.sleep(0.01)

    async with opened(place.store()) as store:
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(write, store)
                await eventually(lambda: len(acknowledged) >= 20)
                await anyio.to_thread.run_sync(place.server.restart, how)
                there = len(acknowledged)
                await eventually(lambda: len(acknowledged) >= there + 20)
                over.set()
        found = await store.versions(list(acknowledged))
        # One that was refused may have been written all the same.
        assert {task_id for task_id, version in acknowledged.items() if found.get(task_id, 0) < version} == set()
        for task_id in acknowledged:
            assert len(await store.journal(task_id)) == found[task_id] - 1


async def test_while_the_server_is_away_every_verb_says_so_and_after_that_all_works_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    record = changed(make_record())
    url = place.url.replace("//", f"//default:{SECRET}@") if place.is_redis else place.url
    async with reached(place.store(url, patience=PATIENCE)) as store, store.notifier().listen() as hints:
        await when_it_works(lambda: store.create(record, REQUEST))
        await anyio.to_thread.run_sync(place.server.stop)
        try:
            verbs: list[Any] = [act() for act in writes(store, record).values()]
            verbs += [store.get(record.id), store.queued("", limit=1)]
            raised = await asyncio.gather(*verbs, return_exceptions=True)
            assert {type(exc) for exc in raised} == {StoreUnavailable}
            for exc in raised:
                assert isinstance(exc, StoreUnavailable)
                assert "cannot be reached" in str(exc)
                assert SECRET not in f"{exc!r} {exc.__cause__!r}"
            await store.notifier().publish(Hint("nobody hears", 1))
            refused = await failure_of(place.store(patience=PATIENCE).open)
            assert "Start the " in str(refused)
            # Pools of others are heard; those of a store say one line at most.
            logging.getLogger("psycopg.pool").warning("error connecting in %r", "theirs")
            pools = [each.getMessage() for each in caplog.records if each.name.startswith("psycopg")]
            assert pools == ["error connecting in 'theirs'"]
            assert caplog.text.count("is tried again until it can") <= 1
        finally:
            await anyio.to_thread.run_sync(place.server.start)
        assert await when_it_works(lambda: store.get(record.id)) == record
        await store.save(changed(record, version=2), expected=1)
        # Hints come again, too. What is published before this process listens again is lost.
        async with opened(place.store()) as other:

            async def heard() -> None:
                while (await anext(hints)).version != 7:
                    pass

            hearing = asyncio.ensure_future(heard())
            with anyio.fail_after(WAIT):
                while not hearing.done():
                    # In Redis it is the write that tells of itself.
                    told = await other.create(changed(make_record(version=7)), REQUEST)
                    await other.notifier().publish(Hint(told.id, 7))
                    await asyncio.wait([hearing], timeout=0.05)


async def test_a_heartbeat_waits_for_no_other_call(place: Place, proxy: Proxy) -> None:
    async with opened(place.store(proxy.before(place.url), connections=1)) as store:
        await store.heartbeat("worker", namespace="", beats=1)
        await store.get("task")
        proxy.delay = 0.5
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(store.journal, f"task {number}")
                group.start_soon(store.create, changed(make_record()), REQUEST)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(5):
                await store.heartbeat("worker", namespace="", beats=2)
            proxy.delay = 0
            group.cancel_scope.cancel()


async def test_calls_beyond_the_connections_wait_and_those_that_are_cancelled_cost_none(place: Place) -> None:
    async with opened(place.store(connections=2)) as store:
        for _ in range(10):
            reading = [asyncio.create_task(store.get("x")) for _ in range(5)]
            await asyncio.sleep(0.001)  # sleep: they are under way by then, some more than others
            for read in reading:
                read.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        assert await asyncio.gather(*(store.get("x") for _ in range(50))) == [None] * 50


# Postgres alone


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
async def test_a_statement_is_cancelled_by_the_server_or_given_up_and_then_may_be_carried_out_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await psycopg.AsyncConnection.connect(place.url) as other:
        async with opened(place.store(f"{place.url}?options=-cstatement_timeout%3D200")) as store:
            await other.execute("LOCK TABLE mcp_tasks_tasks")
            refused = await failure_of(lambda: store.create(changed(make_record()), REQUEST))
            assert (refused.may_have_happened, "cancelled the statement" in str(refused)) == (False, True)
            await other.rollback()
        monkeypatch.setattr(postgres_driver, "LONGEST_STATEMENT", 0.2)
        async with opened(place.store()) as store:
            await other.execute("LOCK TABLE mcp_tasks_tasks")
            assert (await failure_of(lambda: store.create(changed(make_record()), REQUEST))).may_have_happened


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
async def test_a_job_whose_commit_is_not_answered_is_written_once(place: Place, proxy: Proxy) -> None:
    record = changed(make_record())
    execute(place.url, b"CREATE TABLE jobs (task text NOT NULL)")
    store = PostgresStore(proxy.before(place.url))
    async with opened(store):
        text = "INSERT INTO jobs VALUES (%(task)s)"
        job = Statement(place=store.place, text=text, values={"task": record.id})
        proxy.lose()
        assert await store.create(record, REQUEST, handing=Handing(share=Share(owner=9), job=job)) == record
        assert proxy.lost == 1
    assert execute(place.url, b"SELECT FROM jobs WHERE task = %s", record.id) == 1


# Tools at work


def text(result: CallToolResult) -> str:
    assert not result.is_error, result
    assert result.structured_content is not None
    return str(result.structured_content["result"])


class Work:
    """A server whose tools start children, look at them, do steps, report, and wait."""

    def __init__(self, store: Store, *, lease: timedelta = timedelta(seconds=60)) -> None:
        settings = Settings(lease_duration=lease, drain_timeout=timedelta(0))
        self.tasks = tasks = Tasks(store, settings=settings)
        self.server = server = MCPServer[Any]("work", **tasks.wiring())
        self.until = asyncio.Event()
        """Set when the tools may end."""
        self.rounds: Counter[str] = Counter()
        """How often each tool that goes on and on has done what it does."""
        self.born: list[str] = []

        @server.tool()
        @tasks.task()
        async def child(name: str) -> str:
            self.born.append(name)
            return name

        @server.tool()
        @tasks.task()
        async def slow_child() -> str:
            await self.until.wait()
            return "slow"

        @server.tool()
        @tasks.task()
        async def waits() -> str:
            return text(await (await tasks.start("slow_child")).wait())

        @server.tool()
        @tasks.task()
        async def works(ctx: Context) -> int:
            task, own_id = current_task(), str(current_task().id)

            async def start(number: int) -> str:
                return text(await (await tasks.start("child", {"name": f"{own_id} {number}"})).wait())

            slow = await tasks.start("slow_child")
            while not self.until.is_set():
                await task.step(f"step {self.rounds[own_id]}", start, self.rounds[own_id])
                await slow.fetch()
                await tasks.list(parent=own_id)
                await ctx.report_progress(self.rounds[own_id])
                self.rounds[own_id] += 1
                await anyio.sleep(0.05)  # sleep: the store has other things to do
            await slow.cancel()
            return self.rounds[own_id]

    async def start_all(self) -> list[LocalTask[Any]]:
        running: list[LocalTask[Any]] = [await self.tasks.start(name) for name in ("waits", *["works"] * 4)]
        await self.goes_on()
        return running

    async def goes_on(self) -> None:
        """See that all tools do something from now on."""
        before = self.rounds.copy()

        def has_gone_on() -> bool:
            return len(self.rounds) == 4 and all(count > before[name] for name, count in self.rounds.items())

        await eventually(has_gone_on, WAIT)

    async def end_all(self, running: list[LocalTask[Any]]) -> None:
        """See that the tools go on and end well, and that each child was started once."""
        await self.goes_on()
        self.until.set()
        with anyio.fail_after(WAIT):
            slow, *ended = [text(await task.wait()) for task in running]
        assert slow == "slow"
        assert all(int(count) > 0 for count in ended), ended
        assert len(set(self.born)) == len(self.born)


@asynccontextmanager
async def at_work(store: Store, **options: timedelta) -> AsyncGenerator[Work]:
    work = Work(store, **options)
    async with work.tasks.running(work.server):
        yield work


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "dropped", "late", "read-only"])
async def test_an_outage_of_the_store_does_not_fail_a_tool(place: Place, proxy: Proxy, how: str) -> None:
    async with at_work(place.store(proxy.before(place.url), patience=PATIENCE)) as work:
        running = await work.start_all()
        if how == "refused":
            proxy.cut()
        elif how == "dropped":
            proxy.is_silent = True
        elif how == "late":
            proxy.delay = 2 * PATIENCE.total_seconds()
        else:
            await set_read_only(place, True)
        try:
            if how == "read-only":
                refused = await failure_of(lambda: work.tasks.start("child", {"name": "outside"}))
                assert not refused.may_have_happened
            await anyio.sleep(2)  # sleep: an outage lasts
        finally:
            proxy.restore()
            proxy.is_silent = False
            proxy.delay = 0
            await set_read_only(place, False)
        await work.end_all(running)


async def set_read_only(place: Place, on: bool) -> None:
    if place.is_redis:
        async with Redis.from_url(place.url) as redis:
            await redis.replicaof(*(("127.0.0.1", "1") if on else ("NO", "ONE")))
        return
    async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as database:
        await database.execute(f"ALTER SYSTEM SET default_transaction_read_only = {on}".encode())
        await database.execute("SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.parametrize("outage", ["IMMEDIATE", "EXCLUSIVE", "read-only"])
async def test_tools_wait_for_a_sqlite_file_that_is_locked_or_read_only(
    outage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_keep(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        made.append(connect(*args, **kwargs))
        return made[-1]

    def set_all(state: str) -> None:
        for connection in made:
            connection.execute(f"PRAGMA query_only = {state}")

    store = SqliteStore(tmp_path / "tasks.db", busy_timeout=timedelta(seconds=0.3))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_and_keep)
        await store.open()
    # The connections that made the file are closed.
    made[:] = made[-3:]
    async with at_work(store) as work:
        running = await work.start_all()
        with closing(connect(store.path, isolation_level=None)) as other:
            if outage == "read-only":
                set_all("ON")
            else:
                other.execute(f"BEGIN {outage}")
            said = "read-only" if outage == "read-only" else "locked by another process"
            with pytest.raises(StoreUnavailable, match=said) as refused:
                await work.tasks.start("child", {"name": "outside"})
            assert not refused.value.may_have_happened
            await anyio.sleep(1)  # sleep: an outage lasts
        set_all("OFF")
        await work.end_all(running)


@pytest.mark.slow
async def test_tools_wait_for_a_postgres_table_that_is_locked(
    shared_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks.stores.postgres.database.LONGEST_STATEMENT", 0.5)
    url = shared_postgres.new_database()
    async with at_work(PostgresStore(url, patience=PATIENCE)) as work:
        running = await work.start_all()
        async with await psycopg.AsyncConnection.connect(url) as other:
            for table in ("tasks", "journal", "outcomes", "heartbeats"):
                await other.execute(f"LOCK TABLE mcp_tasks_{table} IN ACCESS EXCLUSIVE MODE".encode())
            with pytest.raises(StoreUnavailable):
                await work.tasks.start("child", {"name": "outside"})
            await anyio.sleep(1)  # sleep: an outage lasts
            await other.rollback()
        await work.end_all(running)


@pytest.mark.slow
async def test_a_redis_that_is_full_of_expired_results_is_emptied(caplog: pytest.LogCaptureFixture) -> None:
    past = datetime.now(UTC) - timedelta(hours=2)
    over = {"status": TaskStatus.COMPLETED, "finished_at": past, "retention": timedelta(hours=1)}
    with valkey("--maxmemory-policy", "noeviction") as server:
        async with opened(RedisStore(server.url)) as store, Redis.from_url(server.url) as redis:
            left = [make_record(created_at=past, **over) for _ in range(500)]
            for record in left:
                await store.create(record, make_request(arguments={"text": "x" * 20_000}))
            used: int = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", used - 1_000_000)
            async with at_work(RedisStore(server.url), lease=timedelta(seconds=3)) as work:
                for _ in range(3):
                    with pytest.raises(StoreUnavailable, match="has no memory left"):
                        await work.tasks.start("waits")

                async def is_swept() -> bool:
                    return not await store.versions([record.id for record in left])

                await eventually(is_swept, WAIT)
                work.until.set()
                assert text(await (await work.tasks.start("waits")).wait()) == "slow"
    assert caplog.text.count("the task store does not take requests") == 1
    assert "lease" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["question", "claim"])
async def test_a_question_that_a_replica_had_not_received_is_open_after_the_failover(lost: str) -> None:
    begin = anyio.Event()
    entered: list[int] = []

    async def body(run: Run) -> Ending:
        entered.append(run.attempt)
        await begin.wait()
        return ok(await run.ask(question("Sure?")))

    with valkey() as primary, valkey("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        async with proxy_to(primary.url) as proxy, Redis.from_url(replica.url) as behind:
            store = RedisStore(proxy.url, timeout=timedelta(seconds=0.5))
            look = timedelta(seconds=0.2)
            async with running(body, store=store, policy=ONCE, look_interval=look) as runtime:
                task = await create(runtime)
                if lost == "claim":
                    await leave(behind, task)
                await runtime.engine.submit(task.id)
                await eventually(runtime.runs)
                if lost == "question":
                    await leave(behind, task, version=2)
                begin.set()
                asked = await until_asking(runtime, task)
                primary.stop()
                proxy.turn_to(replica.url)

                async def is_open() -> bool:
                    return (await runtime.find(task.id)).inputs.outstanding == asked.inputs.outstanding

                await eventually(is_open)
                await answer(runtime, task, elicitation_1="yes")
                assert (await until_final(runtime, task, WAIT)).result == {"value": "yes"}
                assert entered == [1]


async def leave(replica: Redis, task: TaskRecord, *, version: int = 1) -> None:
    """Have the replica receive nothing more, once it has this version of the task."""

    async def has_it() -> bool:
        return await replica.hget(f"{{mcp-tasks}}:t:{task.id}", "v") == b"%d" % version

    await eventually(has_it)
    await replica.replicaof("NO", "ONE")
