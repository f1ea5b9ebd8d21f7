"""Connections to Postgres that break: in the middle of a commit, and by a restart of the database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import cast

import psycopg
import pytest
from psycopg_pool import PoolTimeout, TooManyRequests

from harness.databases import Postgres, postgres
from harness.postgres_store import execute, new_store_url
from harness.proxy import Proxy, proxy_to
from harness.stored import changed
from harness.waiting import eventually
from mcp_tasks.errors import LimitReached, StoreUnavailable, TaskExists, VersionConflict
from mcp_tasks.model import JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.stores.base import Handing, Hint, Share, WorkLimits
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.postgres.database import is_unanswered
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="s", value=1)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Postgres) -> str:
    url = new_store_url(server)
    execute(url, b"CREATE TABLE jobs (task text NOT NULL)")
    return url


class Cable:
    """Stands between a store and its database, and can be cut when a statement was sent and before it is answered.

    Attributes:
        cuts: How many answers are to be lost, each with its connection,
        spared: after so many that are not.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.cuts = 0
        self.spared = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, there}
        with suppress(OSError):
            await asyncio.gather(self._carry(reader, there, is_answer=False), self._carry(there_reader, writer))

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_answer: bool = True) -> None:
        while data := await source.read(65536):
            if is_answer and self.cuts and self.spared:
                self.spared -= 1
            elif is_answer and self.cuts:
                # The database has done what it was told; nobody hears of it.
                self.cuts -= 1
                self.cut()
                return
            to.write(data)
        to.close()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


@asynccontextmanager
async def through_cable(server: Postgres, url: str) -> AsyncGenerator[tuple[PostgresStore, Cable]]:
    cable = Cable(server.port)
    listening = await asyncio.start_server(cable.connect, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    # One connection, so that what is cut is what is used.
    store = PostgresStore(url.replace(f":{server.port}/", f":{port}/"), connections=1)
    await store.open()
    # The pool connects by and by; what is cut is to be what the test does.
    await store.get("")
    try:
        yield store, cable
    finally:
        await store.close()
        cable.cut()
        listening.close()


def writes(store: PostgresStore, record: TaskRecord) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every verb that writes."""
    return {
        "create": lambda: store.create(changed(make_record()), REQUEST),
        "save": lambda: store.save(changed(record, version=2), expected=1),
        "delete": lambda: store.delete(record.id, expected=1),
        "set_note": lambda: store.set_note("", "note", b"1", expected=None),
        "hand_out": lambda: store.hand_out("", Share(owner=1), limit=1),
        "hand_back": lambda: store.hand_back(record.id),
        "forget_expired": lambda: store.forget_expired(record.created_at, limit=1),
        "heartbeat": lambda: store.heartbeat("worker", namespace=""),
        "retire": lambda: store.retire("worker"),
    }


@asynccontextmanager
async def impatient(proxy: Proxy, database: str) -> AsyncGenerator[PostgresStore]:
    store = PostgresStore(proxy.before(database), patience=timedelta(seconds=1))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def failure_of(act: Callable[[], Awaitable[object]]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as failed:
        await act()
    return failed.value


@pytest.mark.parametrize("verb", writes(cast(PostgresStore, None), changed(make_record())))
async def test_a_write_that_was_sent_and_not_answered_may_have_happened(
    server: Postgres, database: str, verb: str
) -> None:
    async with proxy_to(server.url) as proxy, impatient(proxy, database) as store:
        record = changed(make_record())
        await store.create(record, REQUEST)
        act = writes(store, record)[verb]
        # The connections after the first are refused, which says nothing of the first.
        proxy.lose(then_cut=True)
        assert (await failure_of(act)).may_have_happened
        assert not (await failure_of(act)).may_have_happened


async def test_a_read_that_was_not_answered_changed_nothing(server: Postgres, database: str) -> None:
    async with proxy_to(server.url) as proxy, impatient(proxy, database) as store:
        proxy.lose(of=r"SELECT", then_cut=True)
        assert not (await failure_of(lambda: store.get("task"))).may_have_happened


async def test_a_statement_that_the_server_cancels_has_not_written(database: str) -> None:
    store = PostgresStore(f"{database}?options=-cstatement_timeout%3D200")
    await store.open()
    async with await psycopg.AsyncConnection.connect(database) as other:
        await other.execute("LOCK TABLE mcp_tasks_tasks")
        refused = await failure_of(lambda: store.create(changed(make_record()), REQUEST))
    assert (refused.may_have_happened, "cancelled the statement" in str(refused)) == (False, True)
    await store.close()


async def test_a_statement_that_is_given_up_may_be_carried_out_later(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks.stores.postgres.database.LONGEST_STATEMENT", 0.2)
    store = PostgresStore(database)
    await store.open()
    async with await psycopg.AsyncConnection.connect(database) as other:
        await other.execute("LOCK TABLE mcp_tasks_tasks")
        assert (await failure_of(lambda: store.create(changed(make_record()), REQUEST))).may_have_happened
    await store.close()


@pytest.mark.parametrize(
    ("exc", "may_have_happened"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.InterfaceError("the connection is lost"), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CrashShutdown(), True),
        (TimeoutError(), True),
        (psycopg.errors.IdleSessionTimeout(), False),
        (psycopg.errors.CannotConnectNow(), False),
        (psycopg.errors.SerializationFailure(), False),
        (psycopg.errors.DeadlockDetected(), False),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.ReadOnlySqlTransaction(), False),
        (PoolTimeout(), False),
        (TooManyRequests(), False),
    ],
    ids=repr,
)
def test_only_a_statement_without_an_answer_may_have_happened(exc: Exception, may_have_happened: bool) -> None:
    assert is_unanswered(exc) is may_have_happened


async def test_a_save_whose_answer_is_lost_has_happened_once(server: Postgres, database: str) -> None:
    record = changed(make_record())
    async with through_cable(server, database) as (store, cable):
        await store.create(record, REQUEST)
        second = changed(record, version=2, worker="me")
        cable.cuts = 1
        await store.save(second, expected=1, entries=[STEP])
        third = changed(record, version=3, status=TaskStatus.COMPLETED, finished_at=NOON)
        cable.cuts = 1
        await store.save(third, expected=2, outcome=Outcome(body=b"{}"))
        assert cable.cuts == 0
        assert await store.get(record.id) == third
        assert len(await store.journal(record.id)) == 1
        # One that somebody else was before is still refused.
        cable.cuts = 1
        with pytest.raises(VersionConflict):
            await store.save(changed(third, version=3), expected=2)


async def test_a_claim_within_limits_whose_answer_is_lost_has_happened_once(server: Postgres, database: str) -> None:
    first, second = changed(make_record(namespace="limits")), changed(make_record(namespace="limits"))
    async with through_cable(server, database) as (store, cable):
        for record in (first, second):
            await store.create(record, REQUEST)
        cable.cuts = 1
        claimed = changed(first, version=2, worker="me")
        await store.save(claimed, expected=1, limits=WorkLimits(tool=1))
        assert (await store.get(first.id)) == claimed
        cable.cuts = 1
        with pytest.raises(LimitReached):
            await store.save(changed(second, version=2, worker="me"), expected=1, limits=WorkLimits(tool=1))


async def test_a_save_that_others_followed_is_known_to_have_happened(server: Postgres, database: str) -> None:
    record = changed(make_record())
    other = PostgresStore(database)
    await other.open()
    async with through_cable(server, database) as (store, cable):
        await store.create(record, REQUEST)
        cable.cuts = 1
        claimed = record.but(version=2).written(new_write_id(run=True))
        saving = asyncio.create_task(store.save(claimed, expected=1))
        # Before the store is connected again somebody saves on top of it.
        last = record
        for version in range(3, 8):
            last = await saved(other, version, record.id)
        assert (await saving).has(claimed.writes[0])
        assert await store.get(record.id) == last
    await other.close()


async def saved(store: PostgresStore, version: int, task_id: str) -> TaskRecord:
    """Save a version as soon as the one before is there."""

    async def is_next() -> bool:
        return (await store.versions([task_id]))[task_id] == version - 1

    await eventually(is_next)
    before = await store.get(task_id)
    assert before is not None
    return await store.save(changed(before, version=version), expected=version - 1)


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_task_whose_creation_is_not_answered_is_made_once(
    server: Postgres, database: str, key: str | None
) -> None:
    record, handing = changed(make_record(namespace=f"key {key}")), Handing(share=Share(owner=9))
    async with through_cable(server, database) as (store, cable):
        cable.cuts = 1
        assert await store.create(record, REQUEST, key=key, handing=handing) == record
        assert cable.cuts == 0
        assert await store.request(record.id) == REQUEST
        another = changed(make_record(id=record.id, namespace=record.namespace))
        with pytest.raises(TaskExists):
            await store.create(another, REQUEST)
        cable.cuts = 1
        with pytest.raises(TaskExists):
            await store.create(another, REQUEST)


async def test_a_job_whose_commit_is_not_answered_is_written_once(server: Postgres, database: str) -> None:
    record = changed(make_record())
    async with through_cable(server, database) as (store, cable):
        job = Statement(place=store.place, text="INSERT INTO jobs VALUES (%(task)s)", values={"task": record.id})
        handing = Handing(share=Share(owner=9), job=job)
        # The first answer is that of the creation, the second that of the commit.
        cable.cuts, cable.spared = 1, 1
        assert await store.create(record, REQUEST, handing=handing) == record
        assert (cable.cuts, cable.spared) == (0, 0)
        assert execute(database, b"SELECT FROM jobs WHERE task = %s", record.id) == 1


async def test_a_deletion_whose_answer_is_lost_is_one(server: Postgres, database: str) -> None:
    record = changed(make_record())
    async with through_cable(server, database) as (store, cable):
        await store.create(record, REQUEST)
        cable.cuts = 1
        with pytest.raises(VersionConflict):
            await store.delete(record.id, expected=9)
        cable.cuts = 1
        await store.delete(record.id, expected=1)
        assert await store.get(record.id) is None
        with pytest.raises(VersionConflict):
            await store.delete(record.id, expected=1)


async def test_a_note_whose_answer_is_lost_is_kept(server: Postgres, database: str) -> None:
    async with through_cable(server, database) as (store, cable):
        for expected, value in ((None, b"1"), (b"1", b"2")):
            await store.note("demo", "n")
            cable.cuts = 1
            assert await store.set_note("demo", "n", value, expected=expected)
            assert await store.note("demo", "n") == value


async def test_work_that_is_cancelled_costs_no_connection(database: str) -> None:
    store = PostgresStore(database, connections=2)
    await store.open()
    for _ in range(10):
        reading = [asyncio.create_task(store.get("x")) for _ in range(5)]
        await asyncio.sleep(0.001)  # sleep: they are under way by then, some more than others
        for read in reading:
            read.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    assert await asyncio.gather(*(store.get("x") for _ in range(5))) == [None] * 5
    await store.close()


async def test_a_database_that_is_away_is_said_to_be_and_is_used_again_when_it_is_back(server: Postgres) -> None:
    store = PostgresStore(server.new_database(), patience=timedelta(seconds=0.5))
    await store.open()
    record = changed(make_record())
    await store.create(record, REQUEST)
    async with store.notifier().listen() as hints:
        server.stop()
        try:
            for verb in (store.get(record.id), store.heartbeat("w", namespace=""), store.queued("", limit=1)):
                with pytest.raises(StoreUnavailable, match="cannot be reached"):
                    await verb
            with pytest.raises(StoreUnavailable):
                await store.save(changed(record, version=2), expected=1)
            await store.notifier().publish(Hint("nobody hears", 1))
            with pytest.raises(StoreUnavailable, match="Start the database"):
                await PostgresStore(server.url).open()
        finally:
            server.start()
        assert await until_it_works(store, record.id) == record
        # Hints come again, too.
        other = PostgresStore(store_url(store, server))
        await other.open()
        async with asyncio.timeout(10):
            heard = asyncio.ensure_future(heard_of(hints, record.id))
            while not heard.done():
                await other.notifier().publish(Hint(record.id, 7))
                await asyncio.sleep(0.05)
        await other.close()
    await store.close()


async def heard_of(hints: AsyncIterator[Hint], task_id: str) -> None:
    while (await anext(hints)).task_id != task_id:
        pass


def store_url(store: PostgresStore, server: Postgres) -> str:
    return server.url.removesuffix("/postgres") + "/" + store.place.rpartition("/")[2]


async def until_it_works(store: PostgresStore, task_id: str) -> TaskRecord | None:
    async with asyncio.timeout(10):
        while True:
            with suppress(StoreUnavailable):
                return await store.get(task_id)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_a_restart_in_the_middle_loses_nothing_and_repeats_nothing(server: Postgres, how: signal.Signals) -> None:
    store = PostgresStore(server.new_database())
    await store.open()
    records = [changed(make_record()) for _ in range(6)]
    versions = dict.fromkeys((record.id for record in records), 0)
    restarted = asyncio.Event()

    async def work(record: TaskRecord) -> None:
        await store.create(record, REQUEST)
        # On for a while after the restart, so that it is in the middle.
        more = 5
        while more:
            more -= restarted.is_set()
            record = changed(record, version=record.version + 1)
            entry = replace(STEP, key=str(record.version))
            await store.save(record, expected=record.version - 1, entries=[entry])
            versions[record.id] = record.version

    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(work(record))
        await eventually(lambda: min(versions.values()) > 2)
        await asyncio.to_thread(server.restart, how)
        restarted.set()
    for record in records:
        found = await store.get(record.id)
        assert found is not None
        assert found.version == versions[record.id]
        steps = [entry.key for entry in await store.journal(record.id)]
        assert steps == [str(version) for version in range(2, versions[record.id] + 1)]
    await store.close()


async def test_a_heartbeat_waits_for_no_other_call(database: str) -> None:
    store = PostgresStore(database, connections=1)
    await store.open()
    async with await psycopg.AsyncConnection.connect(database) as somebody:
        # Until its end, whoever looks at a task waits: the one connection for that is in use.
        await somebody.execute("LOCK TABLE mcp_tasks_tasks")
        looking = asyncio.create_task(store.get("any"))

        async def waits() -> bool:
            found = await somebody.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return (await found.fetchall()) != [(0,)]

        await eventually(waits)
        async with asyncio.timeout(20):
            await store.heartbeat("worker", namespace="")
        assert not looking.done()
        await somebody.rollback()
    assert await looking is None
    await store.close()
