"""The SQLite store passes the suite, and does what only it promises."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from mcp_tasks.errors import StoreError, StoreUnavailable, ValueNotStorable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskRequest
from mcp_tasks.stores import Hint, Store
from mcp_tasks.stores.base import EVERYBODY, OwnedBy
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore, operations, queries
from mcp_tasks.stores.sqlite.file import Writer, connect, fetch
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.store_suite import StoreSuite

REQUEST = make_request()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STRANGE = ["", "nul\0inside", "lone \ud800 surrogate", "\udfff", "𝄞", "x" * 1_000_000, "ü" * 500_000]


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "tasks.db"

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = SqliteStore(self.path)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


def query(store: SqliteStore, sql: str) -> list[tuple[object, ...]]:
    """Rows as another process would read them."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.anyio
@pytest.mark.parametrize("text", STRANGE, ids=lambda text: ascii(text)[:20])
async def test_any_string_can_be_an_id_an_owner_a_worker_and_a_key(store: SqliteStore, text: str) -> None:
    request = TaskRequest(name=text, arguments={text: text})
    record = make_record(id=text, owner=text, namespace=text, worker=text, status_message=text, name=text)
    step = JournalEntry(kind="step", key=text, value={text: [text]})
    await store.create(record, request, key=text)
    await store.save(record, expected=1, entries=[step])
    await store.heartbeat(text, namespace=text)
    assert await store.get(text) == record
    assert await store.request(text) == request
    assert [replace(entry, number=0) for entry in await store.journal(text)] == [step]
    assert list((await store.list(text, OwnedBy(text), now=NOW)).records) == [record]
    assert list((await store.claimed(text, limit=1)).ids) == [text]
    assert await store.versions([text]) == {text: 1}
    assert await store.workers(text) == {text: 1}
    assert await store.create(make_record(owner=text, namespace=text), REQUEST, key=text) == record
    free = make_record(id=text + "1", namespace=text)
    await store.create(free, REQUEST)
    assert list((await store.queued(text, limit=1)).ids) == [free.id]
    first = await store.list(text, EVERYBODY, now=NOW, limit=1)
    assert list((await store.list(text, EVERYBODY, now=NOW, cursor=first.cursor)).records) == [free]
    await store.retire(text)
    await store.delete(text, expected=1)
    assert await store.get(text) is None


async def create_at_once(
    create: Callable[[TaskRecord], Awaitable[object]], records: Sequence[TaskRecord]
) -> list[StoreError]:
    """Create all in one batch, and return what was raised."""
    refused: list[StoreError] = []

    async def attempt(record: TaskRecord) -> None:
        try:
            await create(record)
        except StoreError as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        for record in records:
            group.start_soon(attempt, record)
    return refused


@pytest.mark.anyio
async def test_writes_at_the_same_time_share_a_commit(store: SqliteStore) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(500):
            group.start_soon(store.create, make_record(), REQUEST)
    assert query(store, "SELECT count(*) FROM tasks") == [(500,)]
    # The number of batches. Each batch syncs the disk once.
    ((batches,),) = query(store, "SELECT seq FROM meta")
    assert isinstance(batches, int)
    assert batches <= 50


@pytest.mark.anyio
async def test_more_writes_than_a_batch_holds_are_all_written(store: SqliteStore) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(2_500):
            group.start_soon(store.create, make_record(), REQUEST)
    assert query(store, "SELECT count(*) FROM tasks") == [(2_500,)]


@pytest.mark.anyio
async def test_what_is_brought_in_one_turn_of_the_loop_is_one_commit(store: SqliteStore) -> None:
    await asyncio.gather(*(store.create(make_record(), REQUEST) for _ in range(50)))
    # Each commit has a number of its own.
    assert query(store, "SELECT count(*), count(DISTINCT seq) FROM tasks") == [(50, 1)]


@pytest.mark.anyio
async def test_what_was_brought_before_the_end_is_written(store: SqliteStore) -> None:
    record = make_record()
    creating = asyncio.create_task(store.create(record, REQUEST))
    # It has been brought, and the turn is not over.
    await asyncio.sleep(0)
    await store.close()
    await creating
    assert query(store, "SELECT count(*) FROM tasks") == [(1,)]


@pytest.mark.anyio
async def test_a_value_that_cannot_be_written_fails_alone(store: SqliteStore) -> None:
    # No integer of SQLite holds this version.
    impossible, good = make_record(version=2**70), [make_record() for _ in range(20)]
    (refused,) = await create_at_once(partial(store.create, request=REQUEST), [*good[:10], impossible, *good[10:]])
    assert isinstance(refused, ValueNotStorable)
    assert str(store.path) in str(refused)
    assert isinstance(refused.__cause__, OverflowError)
    assert [await store.get(record.id) for record in good] == good


@pytest.mark.anyio
async def test_a_value_that_is_too_large_fails_alone(store: SqliteStore) -> None:
    large, good = make_record(status_message="x" * 20_000), [make_record() for _ in range(20)]
    connection = connect(store.path, timeout=1)
    # A gigabyte would do without this, and take a while.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    writer = Writer(connection, store.path, patience=1)

    async def write(record: TaskRecord) -> None:
        await writer.run(operations.create(record, state=Codec().encode_state(record), request=b"{}"))

    (refused,) = await create_at_once(write, [*good[:10], large, *good[10:]])
    line = ("step", "large", b"x" * 20_000)
    with pytest.raises(ValueNotStorable):
        await writer.run(operations.save(replace(good[0], version=2), expected=1, state=b"{}", lines=[line]))
    await writer.close()
    assert isinstance(refused, ValueNotStorable)
    assert isinstance(refused.__cause__, sqlite3.DataError)
    assert await store.get(large.id) is None
    # The save of the record went with its entry.
    assert [await store.get(record.id) for record in good] == good


class _Disk(sqlite3.Connection):
    """A connection on which one statement fails, as if the disk did."""

    fails: tuple[str, str] = ("", "")

    def cursor(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
        return _DiskCursor(self)


class _DiskCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        statement, name = cast(_Disk, self.connection).fails
        if name and sql.startswith(statement):
            failure = sqlite3.OperationalError("the disk fails")
            failure.sqlite_errorname = name
            raise failure
        return super().execute(sql, parameters)


@pytest.mark.parametrize(
    ("statement", "name", "may_have_happened"),
    [
        ("BEGIN", "SQLITE_BUSY", False),
        ("UPDATE meta", "SQLITE_IOERR_WRITE", False),
        ("COMMIT", "SQLITE_FULL", False),
        ("COMMIT", "SQLITE_IOERR_FSYNC", True),
        ("COMMIT", "SQLITE_IOERR_WRITE", True),
    ],
)
@pytest.mark.anyio
async def test_only_a_commit_that_failed_may_have_happened(
    store: SqliteStore, statement: str, name: str, may_have_happened: bool
) -> None:
    connection = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False, factory=_Disk)
    writer = Writer(connection, store.path, patience=0)
    connection.fails = (statement, name)
    record = make_record()
    operation = operations.create(record, state=Codec().encode_state(record), request=b"{}")
    with pytest.raises(StoreUnavailable) as failed:
        await writer.run(operation)
    assert failed.value.may_have_happened is may_have_happened
    assert await store.get(record.id) is None
    # The writer goes on, and what came before says nothing of what comes after.
    connection.fails = ("BEGIN", "SQLITE_BUSY")
    with pytest.raises(StoreUnavailable) as failed:
        await writer.run(operation)
    assert not failed.value.may_have_happened
    connection.fails = ("", "")
    await writer.run(operation)
    await writer.close()
    assert await store.get(record.id) == record


@pytest.mark.anyio
async def test_a_string_that_no_row_can_hold_is_not_there(store: SqliteStore) -> None:
    await store.create(make_record(), REQUEST)
    with closing(connect(store.path, timeout=1)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
        for sql, values in (
            (queries.GET, ("x" * 2_000,)),
            (queries.GET, ("\N{SNOWMAN}" * 400,)),
            queries.claimed("x" * 2_000, cursor=None, limit=1),
        ):
            assert fetch(connection, sql, values) == []


@pytest.mark.anyio
async def test_a_statement_that_fails_writes_nothing_of_its_batch(store: SqliteStore) -> None:
    records = [make_record() for _ in range(10)]
    query(store, "CREATE TRIGGER broken AFTER INSERT ON requests BEGIN SELECT RAISE(ROLLBACK, 'broken'); END")
    for record in records:
        with pytest.raises(StoreUnavailable, match="broken") as refused:
            await store.create(record, REQUEST)
        assert isinstance(refused.value.__cause__, sqlite3.Error)
    query(store, "DROP TRIGGER broken")
    assert query(store, "SELECT count(*) FROM tasks") == [(0,)]
    await store.create(records[0], REQUEST)
    assert await store.get(records[0].id) == records[0]


@pytest.mark.anyio
async def test_reading_leaves_no_transaction_open(store: SqliteStore) -> None:
    for _ in range(3):
        await store.create(make_record(worker="worker"), REQUEST)
    page = await store.list("", EVERYBODY, now=NOW, limit=1)
    await store.get(page.records[0].id)
    await store.claimed("worker", limit=1)
    await store.queued("", limit=1)
    await store.due("", NOW, limit=1)
    await store.workers("")
    await store.versions([page.records[0].id])
    async with store.notifier().listen() as hints:
        with anyio.move_on_after(0.1):
            await anext(hints)
    # An open read would keep the WAL from being folded into the file, and this would say busy (1).
    assert query(store, "PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


@pytest.mark.anyio
async def test_a_large_request_is_written_once(store: SqliteStore) -> None:
    request = TaskRequest(name="render", arguments={"image": "x" * 1_000_000})
    record = make_record()
    await store.create(record, request)
    query(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    for version in range(2, 22):
        await store.save(replace(record, version=version), expected=version - 1)
    assert await store.get(record.id) == replace(record, version=21)
    wal = store.path.with_name("tasks.db-wal")
    assert wal.stat().st_size < 1_000_000


@pytest.mark.anyio
async def test_space_of_deleted_tasks_is_given_back(store: SqliteStore) -> None:
    records = [make_record(status_message="x" * 4_000) for _ in range(4_000)]
    async with anyio.create_task_group() as group:
        for record in records:
            group.start_soon(store.create, record, REQUEST)
    async with anyio.create_task_group() as group:
        for record in records:
            group.start_soon(partial(store.delete, record.id, expected=1))
    query(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = store.path.stat().st_size
    await store.close()
    assert store.path.stat().st_size < before - 1_000_000
    for table in ("requests", "outcomes", "journal"):
        assert query(store, f"SELECT count(*) FROM {table}") == [(0,)]
    await store.open()


@pytest.mark.anyio
async def test_a_hint_of_this_process_comes_once(store: SqliteStore) -> None:
    notifier, record = store.notifier(), make_record()
    async with notifier.listen() as hints:
        await store.create(record, REQUEST)
        await notifier.publish(Hint(record.id, 1))
        assert await anext(hints) == Hint(record.id, 1)
        # The file shows the change as well, and that is not told again.
        with anyio.move_on_after(0.3) as limit:
            await anext(hints)
        assert limit.cancelled_caught


@pytest.mark.anyio
async def test_many_changes_of_another_process_are_all_told(store: SqliteStore, tmp_path: Path) -> None:
    peer = SqliteStore(tmp_path / "tasks.db")
    await peer.open()
    records = [make_record() for _ in range(6_000)]
    async with store.notifier().listen() as hints:
        async with anyio.create_task_group() as group:
            for record in records:
                group.start_soon(peer.create, record, REQUEST)
        heard: set[str] = set()
        with anyio.fail_after(30):
            while len(heard) < len(records):
                heard.add((await anext(hints)).task_id)
    assert heard == {record.id for record in records}
    await peer.close()


@pytest.mark.anyio
async def test_a_listener_outlives_the_store(store: SqliteStore) -> None:
    async with store.notifier().listen() as hints:
        await store.close()
        with anyio.move_on_after(0.2) as limit:
            await anext(hints)
        assert limit.cancelled_caught
        await store.notifier().publish(Hint("still heard", 1))
        assert await anext(hints) == Hint("still heard", 1)


@pytest.mark.anyio
async def test_a_write_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db", busy_timeout=timedelta(0))
    await store.open()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.create(make_record(), REQUEST)
        other.execute("ROLLBACK")
    await store.create(make_record(), REQUEST)
    await store.close()


@pytest.mark.anyio
async def test_closing_writes_all_that_waits(store: SqliteStore) -> None:
    records = [make_record() for _ in range(20)]
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:
            for record in records:
                group.start_soon(store.create, record, REQUEST)
                # One at a time into the queue: the first batch is smaller than what waits behind it.
                await anyio.lowlevel.checkpoint()
            group.start_soon(store.close)
            await anyio.lowlevel.checkpoint()
            other.execute("ROLLBACK")
    await store.open()
    assert [await store.get(record.id) for record in records] == records


def test_an_event_loop_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    abandoned, after = make_record(), make_record()

    async def leave_while_waiting() -> None:
        await store.open()
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.create(abandoned, REQUEST))
        await asyncio.sleep(0)
        assert not waiting.done()

    async def go_on() -> None:
        await store.create(after, REQUEST)
        assert await store.get(after.id) == after
        assert await store.get(abandoned.id) in (None, abandoned)
        await store.close()

    store.path.touch()
    with closing(sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)) as other:
        asyncio.run(leave_while_waiting())
        other.execute("ROLLBACK")
        asyncio.run(go_on())
