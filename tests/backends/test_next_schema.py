"""What the next release will do to a store of this one, with a made-up script that only adds, or changes something."""

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest

from harness.databases import Postgres
from harness.stored import opened
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.postgres import database as postgres_schema
from mcp_tasks.stores.sqlite import schema as sqlite_schema
from mcp_tasks.testing import make_record, make_request
from tests.backends.places import Place, PostgresPlace, SqlitePlace

REQUEST = make_request()
ADDS = "-- compatible from: 1\n"


@contextmanager
def next_release(place: Place, script: str) -> Generator[None]:
    """While this is entered, the process is of a release with one more script; {tasks} is the table of tasks."""
    module: ModuleType = postgres_schema if isinstance(place, PostgresPlace) else sqlite_schema
    table = "mcp_tasks_tasks" if isinstance(place, PostgresPlace) else "tasks"
    scripts = (*module.migrations(), script.format(tasks=table))

    def scripts_of(package: str) -> tuple[str, ...]:
        return scripts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "scripts_of", scripts_of)
        module.migrations.cache_clear()
        yield
    module.migrations.cache_clear()


ADD_COLUMN = "ALTER TABLE {tasks} ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';"


@pytest.fixture(params=["sqlite", "postgres"])
def sql_place(request: pytest.FixtureRequest, sqlite: SqlitePlace) -> SqlitePlace | PostgresPlace:
    if request.param == "sqlite":
        return sqlite
    server: Postgres = request.getfixturevalue("shared_postgres")
    return PostgresPlace(server.new_database())


@pytest.fixture
async def record(sql_place: SqlitePlace | PostgresPlace) -> AsyncIterator[TaskRecord]:
    async with opened(sql_place.store()) as store:
        yield await store.create(make_record(id="old"), REQUEST)


async def test_a_release_that_only_adds_upgrades_the_store_and_this_one_goes_on_with_it(
    sql_place: SqlitePlace | PostgresPlace, record: TaskRecord
) -> None:
    table = f"{sql_place.prefix}tasks"
    with next_release(sql_place, ADDS + ADD_COLUMN):
        assert await sql_place.store().standing() == "older"
        async with opened(sql_place.store()) as store:
            assert await store.get("old") == record
            sql_place.run(f"UPDATE {table} SET colour = 'blue'")
    assert await sql_place.store().standing() == "current"
    async with opened(sql_place.store()) as store:
        await store.save(replace(record, version=2), expected=1)
        await store.create(make_record(id="new"), REQUEST)
    assert sql_place.run(f"SELECT id, colour FROM {table} ORDER BY id") == [("new", "red"), ("old", "blue")]


async def test_a_release_that_changes_something_upgrades_the_store_and_this_one_refuses_it(
    sql_place: SqlitePlace | PostgresPlace, record: TaskRecord
) -> None:
    with next_release(sql_place, ADD_COLUMN):
        async with opened(sql_place.store()) as store:
            assert await store.get("old") == record
    with pytest.raises(StoreCorrupt, match="has schema 2, and this release knows up to 1"):
        await sql_place.store().open()


async def test_an_upgrade_that_fails_leaves_the_store_as_it_was(
    sql_place: SqlitePlace | PostgresPlace, record: TaskRecord
) -> None:
    fails = f"{ADD_COLUMN} CREATE TABLE {{tasks}} (in_the_way integer);"
    with next_release(sql_place, ADDS + fails), pytest.raises(StoreUnavailable):
        await sql_place.store().open()
    with next_release(sql_place, ADDS + ADD_COLUMN):
        async with opened(sql_place.store()) as store:
            assert await store.get("old") == record


@pytest.fixture
async def older(sqlite: SqlitePlace) -> AsyncIterator[SqlitePlace]:
    """A file of the release before the one that runs."""
    async with opened(sqlite.store()):
        pass
    with next_release(sqlite, ADDS + ADD_COLUMN):
        yield sqlite
