"""The SQLite store: how it writes, reads and listens, and which files it takes for its own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from harness.stored import opened
from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable, ValueNotStorable
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.stores import Hint
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.child import printed_by
from tests.backends.places import SqlitePlace

REQUEST = make_request()
LARGE = 1_000_000_000
"""Bytes that SQLite takes in one value."""


class Disk(sqlite3.Connection):
    """A connection on which a statement can fail, as if the disk did."""

    made: list[Disk]
    fails: tuple[str, str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Disk.made.append(self)

    def cursor(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
        return DiskCursor(self)

    @classmethod
    def limit(cls, length: int) -> None:
        """Have it take no value of more bytes. A gigabyte would do without this, and take a while."""
        for connection in cls.made[-3:]:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)


class DiskCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        statement, name = Disk.fails
        if name and sql.startswith(statement):
            failure = sqlite3.OperationalError("the disk fails")
            failure.sqlite_errorname = name
            raise failure
        return super().execute(sql, parameters)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    """The disk of all stores that are opened from now on."""
    Disk.made, Disk.fails = [], ("", "")
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Disk))
    return Disk


@pytest.fixture
async def store(sqlite: SqlitePlace, disk: type[Disk]) -> AsyncIterator[SqliteStore]:
    async with opened(SqliteStore(sqlite.path, busy_timeout=timedelta(seconds=0.2))) as store:
        yield store


# Writing


async def test_writes_of_one_turn_of_the_loop_share_a_commit(store: SqliteStore, sqlite: SqlitePlace) -> None:
    await asyncio.gather(*(store.create(make_record(), REQUEST) for _ in range(50)))
    # Each commit has a number of its own, and syncs the disk once.
    assert sqlite.run("SELECT count(*), count(DISTINCT seq) FROM tasks") == [(50, 1)]
    async with anyio.create_task_group() as group:
        for _ in range(2_450):
            group.start_soon(store.create, make_record(), REQUEST)
    [(tasks, commits)] = sqlite.run("SELECT count(*), count(DISTINCT seq) FROM tasks")
    assert tasks == 2_500, "more than a batch holds are all written"
    assert commits <= 50


async def test_closing_writes_all_that_waits(store: SqliteStore, sqlite: SqlitePlace) -> None:
    records = [make_record() for _ in range(20)]
    with sqlite.locked("BEGIN IMMEDIATE") as other:
        async with anyio.create_task_group() as group:
            for record in records[1:]:
                group.start_soon(store.create, record, REQUEST)
                # One at a time into the queue: the first batch is smaller than what waits behind it.
                await anyio.lowlevel.checkpoint()
            # This one has been brought, and the turn of the loop is not over.
            group.start_soon(store.create, records[0], REQUEST)
            await anyio.lowlevel.checkpoint()
            group.start_soon(store.close)
            await anyio.lowlevel.checkpoint()
            other.execute("ROLLBACK")
    await store.open()
    assert [await store.get(record.id) for record in records] == records


@pytest.mark.parametrize(
    ("fields", "cause"),
    [({"version": 2**70}, OverflowError), ({"status_message": "x" * 20_000}, sqlite3.DataError)],
    ids=["no integer of SQLite", "too large"],
)
async def test_a_value_that_cannot_be_written_fails_alone(
    store: SqliteStore, disk: type[Disk], fields: dict[str, Any], cause: type[Exception]
) -> None:
    disk.limit(10_000)
    impossible, good = make_record(**fields), [make_record() for _ in range(20)]
    refused: list[StoreError] = []

    async def create(record: TaskRecord) -> None:
        try:
            await store.create(record, REQUEST)
        except StoreError as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        for record in (*good[:10], impossible, *good[10:]):
            group.start_soon(create, record)
    (said,) = refused
    assert isinstance(said, ValueNotStorable)
    assert str(store.path) in str(said)
    assert isinstance(said.__cause__, cause)
    entry = JournalEntry(kind="step", key="large", value="x" * 20_000)
    with pytest.raises(ValueNotStorable):
        await store.save(replace(good[0], version=2), expected=1, entries=[entry])
    # The save of the record went with its entry.
    assert [await store.get(record.id) for record in good] == good
    assert await store.get(impossible.id) is None


async def test_a_string_that_no_row_can_hold_is_not_there(store: SqliteStore, disk: type[Disk]) -> None:
    await store.create(make_record(), REQUEST)
    disk.limit(1_000)
    assert await store.get("x" * 2_000) is None
    assert await store.get("\N{SNOWMAN}" * 400) is None
    assert list((await store.claimed("x" * 2_000, limit=1)).ids) == []
    disk.limit(LARGE)


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
async def test_only_a_commit_that_failed_may_have_happened(
    store: SqliteStore, disk: type[Disk], statement: str, name: str, may_have_happened: bool
) -> None:
    record = make_record()

    async def failure(*fails: str) -> StoreUnavailable:
        disk.fails = fails[0], fails[1]
        with pytest.raises(StoreUnavailable) as failed:
            await store.create(record, REQUEST)
        return failed.value

    assert (await failure(statement, name)).may_have_happened is may_have_happened
    disk.fails = "", ""
    assert await store.get(record.id) is None
    # The writer goes on, and what came before says nothing of what comes after.
    assert not (await failure("BEGIN", "SQLITE_IOERR")).may_have_happened
    disk.fails = "", ""
    await store.create(record, REQUEST)
    assert await store.get(record.id) == record


async def test_a_statement_that_fails_writes_nothing_of_its_batch(store: SqliteStore, sqlite: SqlitePlace) -> None:
    records = [make_record() for _ in range(10)]
    sqlite.run("CREATE TRIGGER broken AFTER INSERT ON requests BEGIN SELECT RAISE(ROLLBACK, 'broken'); END")
    for record in records:
        with pytest.raises(StoreUnavailable, match="broken") as refused:
            await store.create(record, REQUEST)
        assert isinstance(refused.value.__cause__, sqlite3.Error)
    sqlite.run("DROP TRIGGER broken")
    assert sqlite.run("SELECT count(*) FROM tasks") == [(0,)]
    await store.create(records[0], REQUEST)
    assert await store.get(records[0].id) == records[0]


async def test_a_large_request_is_written_once(store: SqliteStore, sqlite: SqlitePlace) -> None:
    record = make_record()
    await store.create(record, make_request(arguments={"image": "x" * 1_000_000}))
    sqlite.run("PRAGMA wal_checkpoint(TRUNCATE)")
    for version in range(2, 22):
        await store.save(replace(record, version=version), expected=version - 1)
    assert sqlite.path.with_name("tasks.db-wal").stat().st_size < 1_000_000


async def test_space_of_deleted_tasks_is_given_back(store: SqliteStore, sqlite: SqlitePlace) -> None:
    records = [make_record(status_message="x" * 4_000) for _ in range(4_000)]
    await asyncio.gather(*(store.create(record, REQUEST) for record in records))
    await asyncio.gather(*(store.delete(record.id, expected=1) for record in records))
    sqlite.run("PRAGMA wal_checkpoint(TRUNCATE)")
    before = sqlite.path.stat().st_size
    await store.close()
    assert sqlite.path.stat().st_size < before - 1_000_000
    for table in ("requests", "outcomes", "journal"):
        assert sqlite.run(f"SELECT count(*) FROM {table}") == [(0,)]
    await store.open()


# Reading and listening


async def test_reading_leaves_no_transaction_open(store: SqliteStore, sqlite: SqlitePlace) -> None:
    for _ in range(3):
        await store.create(make_record(worker="worker"), REQUEST)
    page = await store.list("", EVERYBODY, now=NOON, limit=1)
    await store.get(page.records[0].id)
    await store.claimed("worker", limit=1)
    await store.queued("", limit=1)
    await store.due("", NOON, limit=1)
    await store.workers("")
    await store.versions([page.records[0].id])
    async with store.notifier().listen() as hints:
        with anyio.move_on_after(0.1):
            await anext(hints)
    # An open read would keep the WAL from being folded into the file, and this would say busy (1).
    assert sqlite.run("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


async def test_a_hint_of_this_process_comes_once_also_when_the_store_is_closed(store: SqliteStore) -> None:
    notifier, record = store.notifier(), make_record()
    async with notifier.listen() as hints:
        await store.create(record, REQUEST)
        await notifier.publish(Hint(record.id, 1))
        assert await anext(hints) == Hint(record.id, 1)
        # The file shows the change as well, and that is not told again.
        with anyio.move_on_after(0.3) as limit:
            await anext(hints)
        assert limit.cancelled_caught
        # A listener outlives the store.
        await store.close()
        with anyio.move_on_after(0.2) as limit:
            await anext(hints)
        assert limit.cancelled_caught
        await notifier.publish(Hint("still heard", 1))
        assert await anext(hints) == Hint("still heard", 1)


async def test_a_look_that_fails_loses_no_hint(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier, record, failed = store.notifier(), make_record(), list[str]()
    read: Callable[..., Any] = notifier._read  # pyright: ignore[reportPrivateUsage]

    def fail_once(sql: str, values: Any) -> Any:
        if sql.startswith("SELECT id") and not failed:
            failed.append(sql)
            raise StoreUnavailable("busy")
        return read(sql, values)

    async with notifier.listen() as hints, opened(SqliteStore(store.path)) as another:
        monkeypatch.setattr(notifier, "_read", fail_once)
        await another.create(record, REQUEST)
        with anyio.fail_after(5):
            assert await anext(hints) == Hint(record.id, 1)
    assert failed


async def test_many_changes_of_another_process_are_all_told(store: SqliteStore, sqlite: SqlitePlace) -> None:
    records = [make_record() for _ in range(6_000)]
    async with opened(sqlite.store()) as peer, store.notifier().listen() as hints:
        await asyncio.gather(*(peer.create(record, REQUEST) for record in records))
        heard: set[str] = set()
        with anyio.fail_after(30):
            while len(heard) < len(records):
                heard.add((await anext(hints)).task_id)
    assert heard == {record.id for record in records}


def run_each(*parts: Callable[[], Any]) -> None:
    for part in parts:
        asyncio.run(part())


def test_a_store_may_be_opened_in_one_event_loop_after_another(sqlite: SqlitePlace) -> None:
    store, record = sqlite.store(), make_record()

    async def first() -> None:
        await store.open()
        await store.create(record, REQUEST)
        await store.close()

    async def second() -> None:
        await store.open()
        assert await store.get(record.id) == record
        # And left open: the next loop finds it usable.

    async def third() -> None:
        await store.delete(record.id, expected=1)
        assert await store.get(record.id) is None
        await store.close()

    run_each(first, second, third)


def test_an_event_loop_that_is_gone_stops_no_other(sqlite: SqlitePlace) -> None:
    store = sqlite.store()
    abandoned, after = make_record(), make_record()

    async def leave_while_waiting() -> None:
        await store.open()
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.create(abandoned, REQUEST))
        await asyncio.sleep(0)
        assert not waiting.done()

    async def go_on() -> None:
        other.execute("ROLLBACK")
        await store.create(after, REQUEST)
        assert await store.get(after.id) == after
        assert await store.get(abandoned.id) in (None, abandoned)
        await store.close()

    sqlite.path.touch(0o600)
    with closing(sqlite3.connect(sqlite.path, isolation_level=None, check_same_thread=False)) as other:
        run_each(leave_while_waiting, go_on)


# Files


async def open_and_close(place: SqlitePlace) -> None:
    async with opened(place.store()):
        pass


async def refusal(place: SqlitePlace, says: str) -> None:
    """See that opening the file is refused, and leaves it as it is."""
    content = place.path.read_bytes() if place.path.is_file() else b""
    with pytest.raises(StoreCorrupt, match=says) as refused:
        await place.store().open()
    assert str(place.path) in str(refused.value)
    assert not content or place.path.read_bytes() == content


async def test_a_new_file_is_made_with_its_folders_private_marked_and_durable(tmp_path: Path, disk: type[Disk]) -> None:
    place = SqlitePlace(tmp_path / "not" / "there" / "tasks.db")
    async with opened(place.store()) as store:
        await store.create(make_record(), REQUEST)
        assert {stat.S_IMODE(file.stat().st_mode) for file in place.path.parent.iterdir()} == {0o600}
        # No test can cut the power, so this looks at the setting: 2 is FULL.
        assert {connection.execute("PRAGMA synchronous").fetchone() for connection in disk.made[-3:]} == {(2,)}
    assert [file.name for file in place.path.parent.iterdir()] == ["tasks.db"]
    for pragma, value in (("application_id", 0x4D435054), ("journal_mode", "wal"), ("auto_vacuum", 2)):
        assert place.run(f"PRAGMA {pragma}") == [(value,)], pragma


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello", "is not a SQLite database"),
        (b"not a database, " * 1_000, "is not a SQLite database"),
        (b"\0" * 10_000, "is not a SQLite database"),
        ("CREATE TABLE tasks (id TEXT)", "is a SQLite database of another application"),
        ("PRAGMA application_id = 7", "is a SQLite database of another application"),
        ("PRAGMA user_version = 1", "is a SQLite database of another application"),
        ("PRAGMA application_id = 0x4D43504C", "is the ledger of a client; choose another path for the task store"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_file_of_something_else_is_refused_and_left_alone(
    sqlite: SqlitePlace, content: bytes | str, says: str
) -> None:
    if isinstance(content, str):
        sqlite.run(content)
    else:
        sqlite.path.write_bytes(content)
    await refusal(sqlite, says)
    assert [file.name for file in sqlite.path.parent.iterdir()] == [sqlite.path.name]


async def test_a_schema_of_a_newer_release_is_refused_with_its_name(sqlite: SqlitePlace) -> None:
    await open_and_close(sqlite)
    sqlite.run("PRAGMA user_version = 99")
    sqlite.run("UPDATE meta SET release = '42.7', compatible_from = 99")
    await refusal(sqlite, r"has schema 99.*Use mcp-tasks 42\.7 or a newer one")
    sqlite.run("DROP TABLE meta")
    await refusal(sqlite, "Use the release of mcp-tasks that wrote it or a newer one")


@pytest.mark.parametrize("says", ["known", "known + 1", "0", "NULL", "'all'"])
async def test_a_newer_schema_is_used_if_it_says_that_it_may_be_and_left_as_it_is(
    sqlite: SqlitePlace, says: str
) -> None:
    await open_and_close(sqlite)
    [(known,)] = sqlite.run("PRAGMA user_version")
    compatible = says.replace("known", str(known))
    for statement in (
        "ALTER TABLE tasks ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",
        f"CREATE TABLE other AS SELECT seq, '42.7' AS release, {compatible} AS compatible_from FROM meta",
        "DROP TABLE meta",
        "ALTER TABLE other RENAME TO meta",
        f"PRAGMA user_version = {known + 1}",
    ):
        sqlite.run(statement)
    if says != "known":
        await refusal(sqlite, "or a newer one")
        return
    async with opened(sqlite.store()) as store:
        record = make_record()
        await store.create(record, REQUEST)
        await store.save(replace(record, version=2), expected=1)
    assert sqlite.run("SELECT colour FROM tasks") == [("red",)]
    assert sqlite.run("SELECT release, compatible_from FROM meta") == [("42.7", known)]
    assert sqlite.run("PRAGMA user_version") == [(known + 1,)]


async def test_a_path_that_cannot_be_made_is_named_and_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/tasks.db", "nul\0/tasks.db", "x" * 5_000):
        with pytest.raises(StoreUnavailable, match="cannot be created") as refused:
            await SqliteStore(tmp_path / name).open()
        assert str(tmp_path) in str(refused.value)
        assert refused.value.__cause__ is not None
    (tmp_path / "folder").mkdir()
    place = SqlitePlace(tmp_path / "folder")
    store = place.store()
    with pytest.raises(StoreUnavailable, match=r"is a directory.*tasks\.db"):
        await store.open()
    place.path.rmdir()
    async with opened(store):
        pass


@pytest.mark.parametrize("exists", [True, False])
async def test_a_place_that_may_not_be_written_is_named(exists: bool) -> None:
    with TemporaryDirectory() as folder:
        place = SqlitePlace(Path(folder) / "tasks.db")
        if exists:
            await open_and_close(place)
            place.path.chmod(0o444)
        os.chmod(folder, 0o555)
        (said,) = await asyncio.to_thread(printed_by, "open_as_nobody", place.at)
        os.chmod(folder, 0o755)
    assert said.startswith("StoreUnavailable: ")
    assert place.shown in said
    assert ("read-only" if exists else "cannot be created") in said


async def test_a_full_disk_refuses_writes_until_there_is_room(sqlite: SqlitePlace) -> None:
    said = [line.split() for line in await asyncio.to_thread(printed_by, "fill_disk", sqlite.at)]
    kept = [task_id for word, task_id, *_ in said if word == "kept"]
    assert kept[-1] == "after"
    # What was refused had a driver's error as its cause, and was not there.
    assert {tuple(rest) for word, _, *rest in said if word == "refused"} == {("OperationalError", "None")}
    async with opened(sqlite.store()) as store:
        assert set(await store.versions([task_id for _, task_id, *_ in said])) == set(kept)
    assert sqlite.run("PRAGMA integrity_check") == [("ok",)]


# Locks


async def test_a_write_waits_for_another_program_and_then_gives_up(store: SqliteStore, sqlite: SqlitePlace) -> None:
    before, during, after = make_record(), make_record(), make_record()
    await store.create(before, REQUEST)
    async with opened(SqliteStore(sqlite.path, busy_timeout=timedelta(seconds=60))) as patient:
        with sqlite.locked("BEGIN IMMEDIATE") as other:
            with pytest.raises(StoreUnavailable, match="locked by another process") as refused:
                await store.create(during, REQUEST)
            assert str(sqlite.path) in str(refused.value)
            assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
            # Readers do not wait for writers.
            assert await store.get(before.id) == before
            assert await store.get(during.id) is None
            async with anyio.create_task_group() as group:
                group.start_soon(patient.create, after, REQUEST)
                await anyio.lowlevel.checkpoint()
                assert await store.get(after.id) is None
                other.execute("ROLLBACK")
        assert await store.get(after.id) == after


async def test_a_file_that_another_program_keeps_to_itself_cannot_be_opened(sqlite: SqlitePlace) -> None:
    store = SqliteStore(sqlite.path, busy_timeout=timedelta(milliseconds=100))
    with sqlite.locked("BEGIN EXCLUSIVE"), pytest.raises(StoreUnavailable, match="locked by another process"):
        await store.open()
    async with opened(store):
        pass
