"""Databases that stop, restart, hang, lose answers, are locked or full: what the store says, that it goes on by itself,
and that tools at work wait for it and end as usual.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import anyio
import anyio.to_thread
import psycopg
import pytest
from mcp_types import CallToolResult
from psycopg_pool import PoolTimeout, TooManyRequests
from redis import exceptions as driver

from harness.backends import ALWAYS_SYNCED
from harness.databases import Postgres, Valkey, postgres, valkey
from harness.postgres_store import execute, new_store_url
from harness.proxy import ANY, Proxy, proxy_to
from harness.stored import changed, opened
from harness.waiting import eventually
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.model.values import Statement
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.postgres import database as postgres_driver
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.redis import connection as redis_driver
from mcp_tasks.testing import make_record, make_request

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
