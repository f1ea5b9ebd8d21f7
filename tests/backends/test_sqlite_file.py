"""Which files the SQLite store takes for its own, and what it says of the others."""

# ruff: noqa: ASYNC240 - a test may wait for a local file
from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, UsageError
from mcp_tasks.stores.migrations import compatible_from
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.file import connect
from mcp_tasks.stores.sqlite.schema import APPLICATION_ID, migrations
from mcp_tasks.testing import make_record, make_request

pytestmark = pytest.mark.anyio


REQUEST = make_request()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def execute(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements with a connection of their own; returns the rows of the last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


async def open_and_close(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


async def test_a_new_file_is_made_with_its_folders_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "tasks.db"
    store = SqliteStore(path)
    await store.open()
    await store.create(make_record(), REQUEST)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["tasks.db"]


async def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    await open_and_close(Path("~/tasks.db"))
    assert (tmp_path / "tasks.db").exists()


async def test_the_file_is_marked_as_ours_and_durable(path: Path) -> None:
    await open_and_close(path)
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert execute(path, "PRAGMA user_version") == [(len(migrations()),)]
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]
    assert execute(path, "PRAGMA auto_vacuum") == [(2,)]


async def test_every_commit_is_synced_to_the_disk(path: Path) -> None:
    # No test can cut the power, so this looks at the setting: 2 is FULL.
    await open_and_close(path)
    with closing(connect(path, timeout=0)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    await open_and_close(path)
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


@pytest.mark.parametrize(
    "content", [b"hello", b"not a database, " * 1_000, b"\0" * 10_000], ids=["short", "long", "nul"]
)
async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="is not a SQLite database") as refused:
        await SqliteStore(path).open()
    assert str(path) in str(refused.value)
    assert isinstance(refused.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE tasks (id TEXT)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"],
)
async def test_a_database_of_another_application_is_refused_and_left_alone(path: Path, statement: str) -> None:
    execute(path, statement)
    content = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="is a SQLite database of another application"):
        await SqliteStore(path).open()
    assert path.read_bytes() == content


async def test_the_ledger_of_a_client_is_refused_by_name_and_left_alone(path: Path) -> None:
    execute(path, "PRAGMA application_id = 0x4D43504C", "CREATE TABLE tasks (task_id TEXT)")
    content = path.read_bytes()
    with pytest.raises(
        StoreCorrupt, match="is the ledger of a client; choose another path for the task store"
    ) as refused:
        await SqliteStore(path).open()
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_schema_of_a_newer_release_is_refused_with_its_name(path: Path) -> None:
    await open_and_close(path)
    execute(path, "PRAGMA user_version = 99", "UPDATE meta SET release = '42.7', compatible_from = 99")
    with pytest.raises(StoreCorrupt, match=r"has schema 99.*Use mcp-tasks 42\.7 or a newer one"):
        await SqliteStore(path).open()
    execute(path, "DROP TABLE meta")
    with pytest.raises(StoreCorrupt, match="Use the release of mcp-tasks that wrote it or a newer one"):
        await SqliteStore(path).open()


async def test_a_newer_schema_that_this_release_may_use_is_used_and_left_as_it_is(path: Path) -> None:
    await open_and_close(path)
    newer, known = len(migrations()) + 1, len(migrations())
    execute(
        path,
        "ALTER TABLE tasks ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",
        f"UPDATE meta SET release = '42.7', compatible_from = {known}",
        f"PRAGMA user_version = {newer}",
    )
    record = make_record()
    store = SqliteStore(path)
    await store.open()
    await store.create(record, REQUEST)
    await store.save(replace(record, version=2), expected=1)
    await store.close()
    assert execute(path, "SELECT colour FROM tasks") == [("red",)]
    assert execute(path, "SELECT release, compatible_from FROM meta") == [("42.7", known)]
    assert execute(path, "PRAGMA user_version") == [(newer,)]


@pytest.mark.parametrize("says", [f"{len(migrations()) + 1}", "0", "NULL", "'all'"])
async def test_a_newer_schema_that_does_not_say_so_is_not_used(path: Path, says: str) -> None:
    await open_and_close(path)
    execute(
        path,
        f"CREATE TABLE other AS SELECT seq, release, {says} AS compatible_from FROM meta",
        "DROP TABLE meta",
        "ALTER TABLE other RENAME TO meta",
        f"PRAGMA user_version = {len(migrations()) + 1}",
    )
    with pytest.raises(StoreCorrupt, match="or a newer one"):
        await SqliteStore(path).open()


def test_of_several_scripts_the_one_that_asks_for_most_decides() -> None:
    for_all, adds, breaks = "-- compatible from: 1\nCREATE", "-- compatible from: 2\nALTER", "-- drops a column\nALTER"
    assert compatible_from(["CREATE", for_all]) == 1
    assert compatible_from(["CREATE", for_all, adds]) == 2
    assert compatible_from(["CREATE", breaks, adds, adds]) == 2
    assert compatible_from(["CREATE", for_all, breaks, adds]) == 3


async def test_a_damaged_file_is_corrupt_and_not_merely_unavailable(path: Path) -> None:
    await open_and_close(path)
    # What is there before any task says what the file is; the rest is damaged.
    intact = path.stat().st_size
    store = SqliteStore(path)
    await store.open()
    records = [make_record(status_message="x" * 1_000) for _ in range(100)]
    for record in records:
        await store.create(record, REQUEST)
    await store.close()
    assert path.stat().st_size > 2 * intact
    path.write_bytes(path.read_bytes()[:intact] + b"\xff" * (path.stat().st_size - intact))
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await store.get(records[0].id)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await store.create(make_record(), REQUEST)
    await store.close()


async def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"is a directory.*tasks\.db"):
        await SqliteStore(tmp_path).open()


@pytest.mark.parametrize("name", ["file/tasks.db", "nul\0/tasks.db", "x" * 5_000])
async def test_a_path_that_cannot_be_made_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be created") as refused:
        await SqliteStore(tmp_path / name).open()
    assert str(tmp_path) in str(refused.value)
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="MemoryStore"):
        SqliteStore(path)


async def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    with pytest.raises(UsageError, match="is not open"):
        await store.get("x")
    with pytest.raises(UsageError, match="is not open"):
        await store.create(make_record(), REQUEST)
    with pytest.raises(UsageError, match="is not open"):
        async with store.notifier().listen():
            pass
    assert not path.exists()


async def test_an_open_that_failed_may_be_tried_again(path: Path) -> None:
    path.mkdir()
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable):
        await store.open()
    path.rmdir()
    await store.open()
    await store.close()


def test_a_store_may_be_opened_in_one_event_loop_after_another(path: Path) -> None:
    store = SqliteStore(path)
    record = make_record()

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

    for part in (first, second, third):
        asyncio.run(part())
