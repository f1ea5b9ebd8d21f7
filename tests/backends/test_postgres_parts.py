"""What is in the rows of the Postgres store: damaged, encrypted, and large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from harness.cipher import AesCipher
from harness.databases import Postgres
from harness.postgres_store import empty, execute, new_store_url
from harness.stored import opened
from mcp_tasks.errors import StoreCorrupt, TaskUnreadable
from mcp_tasks.model import JournalEntry, Outcome, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, Share
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.large import WatchedCipher, check_threads

pytestmark = pytest.mark.anyio

SECRET = "the secret of the task"
REQUEST = make_request(arguments={"a": SECRET})
STEP = JournalEntry(kind="step", key="s", value=SECRET)
OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=f'{{"text":"{SECRET}"}}'.encode())
IDS = ("before", "bad", "behind")


@pytest.fixture(scope="module")
def database(shared_postgres: Postgres) -> str:
    return new_store_url(shared_postgres)


@pytest.fixture
def url(database: str) -> str:
    empty(database)
    return database


async def filled(url: str, codec: Codec | None = None) -> PostgresStore:
    store = PostgresStore(url, codec=codec)
    await store.open()
    for task_id in IDS:
        record = make_record(id=task_id, namespace="demo", owner="alice", status_message=SECRET)
        await store.create(record, REQUEST, key=task_id)
        await store.save(replace(record, version=2), expected=1, entries=[STEP], outcome=OUTCOME)
    await store.set_note("demo", "mine", SECRET.encode(), expected=None)
    return store


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await filled(url)
    yield store
    await store.close()


ROW = b" WHERE task = (SELECT key FROM mcp_tasks_tasks WHERE id = 'bad')"

DAMAGES = {
    "cut short": b"UPDATE mcp_tasks_tasks SET state = substring(state FROM 1 FOR 40) WHERE id = 'bad'",
    "empty": b"UPDATE mcp_tasks_tasks SET state = '' WHERE id = 'bad'",
    "not UTF-8": b"UPDATE mcp_tasks_tasks SET state = '\\x7b22ff227d' WHERE id = 'bad'",
    "a list": b"UPDATE mcp_tasks_tasks SET state = '[]' WHERE id = 'bad'",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_row_is_one_unreadable_task(
    store: PostgresStore, url: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert execute(url, DAMAGES[damage]) == 1
    again = make_record(namespace="demo", owner="alice")
    for read in (lambda: store.get("bad"), lambda: store.create(again, REQUEST, key="bad")):
        with pytest.raises(TaskUnreadable, match="task bad cannot be read: its row is damaged") as unreadable:
            await read()
        assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    page = await store.list("demo", EVERYBODY, now=NOON)
    assert [record.id for record in page.records] == ["before", "behind"]
    assert "DELETE FROM mcp_tasks_tasks WHERE id = 'bad'" in caplog.text
    # What needs nothing of the damaged part goes on.
    assert await store.request("bad") == REQUEST
    assert await store.outcome("bad") == OUTCOME
    assert sorted((await store.queued("demo", limit=9)).ids) == sorted(IDS)
    assert sorted(ready.id for ready in await store.hand_out("demo", Share(owner=9), limit=9)) == sorted(IDS)
    assert await store.versions(["bad"]) == {"bad": 2}
    await store.delete("bad", expected=2)
    assert await store.get("bad") is None


async def test_what_cannot_be_read_expires_like_any_other(store: PostgresStore, url: str) -> None:
    over = {"status": TaskStatus.FAILED, "finished_at": NOON, "retention": timedelta(0)}
    for task_id in ("before", "bad"):
        record = make_record(id=task_id, namespace="demo", owner="alice", version=3, **over)
        await store.save(record, expected=2)
    readable = await store.get("before")
    assert execute(url, DAMAGES["not UTF-8"]) == 1
    forgotten = await store.forget_expired(NOON, limit=9, records=True)
    assert {task.task_id: task.record for task in forgotten} == {"before": readable, "bad": None}
    assert await store.versions(IDS) == {"behind": 2}


async def test_a_damaged_part_is_told_by_the_verb_that_reads_it(store: PostgresStore, url: str) -> None:
    for sql, read, part in (
        (b"UPDATE mcp_tasks_requests SET request = '{'" + ROW, store.request, "its request is damaged"),
        (b"DELETE FROM mcp_tasks_requests" + ROW, store.request, "its request is damaged"),
        (b"UPDATE mcp_tasks_journal SET value = '{'" + ROW, store.journal, "its journal entry 's' is damaged"),
        (
            b"UPDATE mcp_tasks_journal SET kind = 'new'" + ROW,
            store.journal,
            "a journal entry of the unknown kind 'new'",
        ),
    ):
        assert execute(url, sql) == 1
        with pytest.raises(TaskUnreadable, match=part):
            await read("bad")
        assert (await store.get("bad")) is not None
    execute(url, b"UPDATE mcp_tasks_notes SET value = ''")
    with pytest.raises(StoreCorrupt, match="the note 'mine'"):
        await store.note("demo", "mine")


async def test_a_task_that_somebody_deletes_leaves_nothing_behind(store: PostgresStore, url: str) -> None:
    assert execute(url, b"DELETE FROM mcp_tasks_tasks WHERE id = 'bad'") == 1
    for table in (b"requests", b"outcomes", b"journal"):
        assert execute(url, b"SELECT FROM mcp_tasks_" + table) == 2


async def test_what_is_encrypted_is_in_no_table_and_is_bound_to_its_task(url: str) -> None:
    store = await filled(url, Codec(AesCipher()))
    with psycopg.connect(url) as connection:
        for table in ("tasks", "requests", "outcomes", "journal", "notes"):
            for row in connection.execute(f"SELECT * FROM mcp_tasks_{table}".encode()).fetchall():
                assert not any(isinstance(part, bytes) and SECRET.encode() in part for part in row)
    assert await store.outcome("bad") == OUTCOME
    assert (await store.journal("bad"))[0].value == SECRET
    other = b" WHERE task = (SELECT key FROM mcp_tasks_tasks WHERE id = 'before')"
    execute(url, b"UPDATE mcp_tasks_outcomes SET body = (SELECT body FROM mcp_tasks_outcomes" + other + b")" + ROW)
    with pytest.raises(TaskUnreadable, match="cannot be decrypted"):
        await store.outcome("bad")
    await store.close()


@pytest.mark.parametrize("large", [True, False])
async def test_what_is_large_is_encoded_and_decoded_in_a_thread(url: str, large: bool) -> None:
    cipher = WatchedCipher()
    async with opened(PostgresStore(url, codec=Codec(cipher))) as store:
        await check_threads(store, cipher, large=large)


async def test_polls_go_on_while_something_large_is_written_and_read(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    record, outcome = make_record(), Outcome(body=b"x" * 20_000_000)
    await store.create(record, REQUEST)
    for act in (
        lambda: store.save(replace(record, version=2), expected=1, outcome=outcome),
        lambda: store.outcome(record.id),
    ):
        polls, large = 0, asyncio.ensure_future(act())
        while not large.done():
            assert await store.get(record.id) is not None
            polls += 1
        assert polls > 1
        await large
    assert await store.outcome(record.id) == outcome
    await store.close()


async def test_closing_waits_for_what_is_being_read(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    record, outcome = make_record(), Outcome(body=b"x" * 5_000_000)
    await store.create(record, REQUEST)
    await store.save(replace(record, version=2), expected=1, outcome=outcome)
    reads = [asyncio.ensure_future(store.outcome(record.id)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    for read in reads:
        assert await read == outcome
