"""A file of the first release becomes one of this release, with all that is in it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from mcp_tasks.core import JournalEntry
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.schema import migrations
from mcp_tasks.testing.clock import NOON
from tests.backends.first_release import FILE, JOURNALS, TASKS

pytestmark = pytest.mark.anyio

TOMORROW = NOON + timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the file that the first release wrote."""
    return Path(shutil.copy(FILE, tmp_path / "tasks.db"))


@asynccontextmanager
async def opened(path: Path, namespace: str = "demo") -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path)
    await store.open(namespace)
    try:
        yield store
    finally:
        await store.close()


def schema(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            *connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name"),
            *connection.execute("PRAGMA user_version"),
        ]


def outcome(entry: JournalEntry) -> JournalEntry:
    """A step as this release records it: its value is one of its outcomes."""
    return replace(entry, value={"value": entry.value}) if entry.kind == "step" else entry


async def test_every_task_and_journal_of_the_first_release_is_there(path: Path) -> None:
    async with opened(path) as store:
        assert [await store.get(task.id) for task in TASKS] == [replace(task, namespace="demo") for task in TASKS]
        for task in TASKS:
            expected = [outcome(entry) for entry in JOURNALS.get(task.id, ())]
            assert list(await store.journal(task.id)) == expected


async def test_tasks_of_the_first_release_are_found_by_the_server_that_opens_the_file(path: Path) -> None:
    async with opened(path) as store:
        assert list((await store.queued("demo", limit=9)).ids) == ["queued", "lone \ud800 surrogate"]
        assert list((await store.due("demo", TOMORROW, limit=9)).ids) == ["asleep"]
        assert list((await store.claimed("a process of yesterday", limit=9)).ids) == ["held"]
        assert [hint.task_id for hint in await store.expired(TOMORROW, limit=9)] == ["ended"]
        # When it was last alive by a clock of then says nothing now.
        assert await store.workers("demo") == {"a process of yesterday": 0}


async def test_tasks_of_the_first_release_are_given_away_once(path: Path) -> None:
    async with opened(path, "demo"):
        pass
    async with opened(path, "another") as store:
        record = await store.get("queued")
        assert record is not None
        assert record.namespace == "demo"
        assert list((await store.queued("another", limit=9)).ids) == []
        assert list(await store.journal("parked")) == [outcome(entry) for entry in JOURNALS["parked"]]


async def test_of_servers_that_open_the_file_at_the_same_time_one_gets_the_tasks(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(store.open, f"server {number}")
    found = [(await store.queued(f"server {number}", limit=9)).ids for number, store in enumerate(stores)]
    assert sorted(len(ids) for ids in found) == [0, 0, 0, 2]
    for store in stores:
        await store.close()


async def test_an_upgraded_file_goes_on_like_a_new_one(path: Path, tmp_path: Path) -> None:
    async with opened(path) as store, opened(tmp_path / "new.db"):
        record = await store.get("held")
        assert record is not None
        await store.save(replace(record, version=3, worker=None), expected=2)
        await store.heartbeat("a process of today", namespace="demo")
        assert list((await store.queued("demo", limit=9)).ids) == ["held", "queued", "lone \ud800 surrogate"]
        assert await store.workers("demo") == {"a process of today": 1}
    assert schema(path) == schema(tmp_path / "new.db")
    assert schema(path)[-1] == (len(migrations()),)


async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE heartbeats (in_the_way)")
    before = schema(path)
    with pytest.raises(StoreUnavailable, match="heartbeats"):
        await SqliteStore(path).open("demo")
    assert schema(path) == before
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE heartbeats")
    async with opened(path) as store:
        assert list(await store.journal("parked")) == [outcome(entry) for entry in JOURNALS["parked"]]
