"""The Postgres store and its database: tables, processes, URLs, jobs, and what to do when something is wrong."""

import asyncio

import psycopg
import pytest

from harness.databases import Postgres
from harness.postgres_store import execute, new_store_url
from harness.stored import opened
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, ValueNotStorable
from mcp_tasks.model.values import Statement, database_place
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.postgres.database import migrations
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.testing import make_record, make_request
from tests.backends.places import PostgresPlace

REQUEST = make_request()


async def test_many_hints_are_told_in_few_round_trips(postgres_place: PostgresPlace) -> None:
    wanted = {Hint(f"task {number} \0 \ud800 ☃", number) for number in range(1, 500)} | {Hint("long" * 1_000, 3)}
    async with (
        opened(PostgresStore(postgres_place.url)) as store,
        opened(PostgresStore(postgres_place.url)) as other,
        other.notifier().listen() as hints,
        asyncio.timeout(20),
    ):
        before = store.round_trips
        for hint in wanted:
            await store.notifier().publish(hint)
        # Longer than any payload: lost, and nothing else with it.
        await store.notifier().publish(Hint("too long" * 2_000, 1))
        heard: set[Hint] = set()
        while heard != wanted:
            heard.add(await anext(hints))
        assert store.round_trips - before < 10
        # One listens for all of this process.
        listening = b"SELECT FROM pg_stat_activity WHERE application_name = 'mcp-tasks hints'"
        async with other.notifier().listen(), other.notifier().listen():
            assert execute(postgres_place.url, listening) == 1


async def test_tables_of_others_and_of_newer_releases_are_left_alone(shared_postgres: Postgres) -> None:
    for sql, says in (
        (b"CREATE TABLE mcp_tasks_tasks (id integer)", "another application"),
        (b"CREATE TABLE mcp_tasks_meta (id integer)", "another application"),
        (b"CREATE TABLE mcp_tasks_meta (schema integer, compatible_from integer, release text)", "0 rows"),
    ):
        url = shared_postgres.new_database()
        execute(url, sql)
        with pytest.raises(StoreCorrupt, match=says):
            await PostgresStore(url).open()
    url, next_schema = await asyncio.to_thread(new_store_url, shared_postgres), len(migrations()) + 1
    # No release that is out uses what the last migration changed.
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT schema, compatible_from FROM mcp_tasks_meta").fetchall()
    assert rows == [(len(migrations()), len(migrations()))]
    execute(url, b"UPDATE mcp_tasks_meta SET schema = %s, compatible_from = %s, release = '9.9'", next_schema, 1)
    async with opened(PostgresStore(url)) as store:
        await store.create(make_record(), REQUEST)
    execute(url, b"UPDATE mcp_tasks_meta SET compatible_from = %s", next_schema)
    with pytest.raises(StoreCorrupt, match=r"has schema \d+, and this release knows up to \d+. Use mcp-tasks 9.9"):
        await PostgresStore(url).open()


async def test_tables_that_are_gone_are_said_to_be(shared_postgres: Postgres) -> None:
    url = await asyncio.to_thread(new_store_url, shared_postgres)
    async with opened(PostgresStore(url)) as store:
        execute(url, b"DROP TABLE mcp_tasks_requests")
        with pytest.raises(StoreCorrupt, match="has lost tables"):
            await store.create(make_record(), REQUEST)


async def test_a_url_that_leads_nowhere_says_what_to_do(shared_postgres: Postgres) -> None:
    execute(shared_postgres.url, b"CREATE ROLE guest LOGIN PASSWORD 's3cret-2'")
    host = f"127.0.0.1:{shared_postgres.port}"
    hba = shared_postgres.folder / "data" / "pg_hba.conf"
    hba.write_text("host all guest 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    execute(shared_postgres.url, b"SELECT pg_reload_conf()")
    for url, says in (
        ("postgresql://guest:s3cret@127.0.0.1:1/tasks", "cannot be reached. Start the database, or correct host and p"),
        ("postgresql://guest:s3cret@no-such-host.invalid/tasks", "cannot be reached"),
        (f"postgresql://guest:s3cret@{host}/postgres", "refuses the user or the password. Correct them in the URL"),
        (f"postgresql://guest@{host}/postgres", "wants a password. Put it into the URL"),
        (f"postgresql://postgres:s3cret@{host}/missing", "is not there. Create the database"),
        (f"postgresql://nobody:s3cret@{host}/postgres", "does not know the user"),
        (f"postgresql://guest:s3cret-2@{host}/postgres", "does not let the user do this"),
    ):
        store = store_from_url(url)
        with pytest.raises(StoreUnavailable, match=says) as refused:
            await store.open()
        for said in (str(refused.value), repr(refused.value.__cause__), repr(store)):
            assert "s3cret" not in said
        assert "guest@" in repr(store) or "postgres@" in repr(store) or "nobody@" in repr(store)


async def test_what_no_index_can_hold_is_refused_and_nothing_is_kept(postgres_place: PostgresPlace) -> None:
    # What repeats itself would be packed.
    long = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(4_000))
    async with opened(postgres_place.store()) as store:
        with pytest.raises(ValueNotStorable):
            await store.create(make_record(id="refused", owner=long), REQUEST)
        assert await store.get("refused") is None
        record = make_record()
        assert await store.create(record, REQUEST, key=long) == record
        assert await store.create(make_record(), REQUEST, key=long) == record
        assert (await store.create(make_record(), REQUEST, key=long + "x")) != record


async def test_a_job_is_written_with_its_task_or_not_at_all(shared_postgres: Postgres) -> None:
    url = await asyncio.to_thread(new_store_url, shared_postgres)
    execute(url, b"CREATE TABLE jobs (task text PRIMARY KEY)")
    async with opened(PostgresStore(url)) as store:
        assert store.place == database_place(url)

        async def create(task_id: str, text: str = "INSERT INTO jobs VALUES (%(task)s)", *, share: int = 1) -> Handing:
            job = Statement(place=store.place, text=text, values={"task": task_id})
            handing = Handing(share=Share(owner=share), job=job)
            await store.create(make_record(id=task_id), REQUEST, handing=handing)
            return handing

        await store.get("")
        before = store.round_trips
        handing = await create("first")
        assert (handing.handed, handing.carried, store.round_trips - before) == (True, True, 2)
        # Beyond the share there is no job.
        handing = await create("second")
        assert (handing.handed, handing.carried) == (False, False)
        # A job that fails leaves the task, which is submitted by itself.
        for text in ("INSERT INTO no_jobs VALUES (%(task)s)", "INSERT INTO jobs VALUES ('first')"):
            handing = await create(text, text, share=9)
            assert (handing.handed, handing.carried) == (True, False)
            assert await store.request(text) == REQUEST
    assert execute(url, b"SELECT FROM jobs") == 1


async def test_the_verbs_on_the_path_of_a_call_take_one_round_trip(postgres_place: PostgresPlace) -> None:
    record = make_record()
    async with opened(postgres_place.store()) as store:
        await store.get("")
        for act in (
            lambda: store.create(record, REQUEST, handing=Handing(share=Share(owner=99, tools={"render": 99}))),
            lambda: store.create(make_record(), REQUEST, key="a key"),
            lambda: store.create(make_record(), REQUEST, key="a key"),
            lambda: store.get(record.id),
            lambda: store.hand_out("nothing waits here", Share(owner=9), limit=9),
            lambda: store.delete(record.id, expected=1),
        ):
            before = store.round_trips
            await act()
            assert store.round_trips - before == 1
