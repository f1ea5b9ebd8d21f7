"""A file that is encrypted: the suite, what can be read in the file, and parts that were moved."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cipher import AesCipher
from mcp_tasks.errors import StoreCorrupt, TaskUnreadable
from mcp_tasks.model import InputBook, InputRequest, JournalEntry, Outcome, Progress, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.store_suite import StoreSuite

SECRET = "the secret of the task"
REQUEST = make_request(arguments={"a": SECRET}, input_responses={"q": SECRET}, request_state=SECRET)
ENTRIES = [
    JournalEntry(kind="answer", key="q", value={"content": SECRET}),
    JournalEntry(kind="step", key="s", value=SECRET),
]
OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=f'{{"text":"{SECRET}"}}'.encode())


class TestEncryptedSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "tasks.db"
        self.cipher = AesCipher()

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = SqliteStore(self.path, codec=Codec(self.cipher))
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An encrypted store with two tasks that have ended, and one that asks."""
    store = SqliteStore(tmp_path / "tasks.db", codec=Codec(AesCipher()))
    await store.open()
    asked = InputBook(outstanding={"q": InputRequest(method="m", params={"message": SECRET})}, used=frozenset({"q"}))
    for task_id in ("mine", "other"):
        record = make_record(id=task_id, status_message=SECRET, progress=Progress(progress=1, message=SECRET))
        await store.create(record, REQUEST)
        ended = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=NOON)
        await store.save(ended, expected=1, entries=ENTRIES, outcome=OUTCOME)
    await store.create(make_record(id="asks", inputs=asked, name=SECRET), REQUEST)
    await store.set_note("demo", "mine", SECRET.encode(), expected=None)
    await store.set_note("demo", "other", b"something else", expected=None)
    yield store
    await store.close()


def execute(store: SqliteStore, sql: str) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        assert connection.execute(sql).rowcount == 1


@pytest.mark.anyio
async def test_nothing_of_arguments_results_questions_and_answers_is_in_the_file(store: SqliteStore) -> None:
    wal = store.path.with_name("tasks.db-wal")
    assert SECRET.encode() not in store.path.read_bytes() + wal.read_bytes()
    await store.close()
    content = store.path.read_bytes()
    assert SECRET.encode() not in content
    # What tasks are found by is plain: the price of an index.
    assert b"mine" in content
    assert b"alice" in content
    await store.open()
    outcome = await store.outcome("mine")
    assert outcome == OUTCOME


KEY = "(SELECT key FROM tasks WHERE id = '{}')"
MINE, OTHER = KEY.format("mine"), KEY.format("other")


@pytest.mark.anyio
async def test_a_state_of_another_task_is_refused(store: SqliteStore) -> None:
    execute(store, "UPDATE tasks SET state = (SELECT state FROM tasks WHERE id = 'other') WHERE id = 'mine'")
    with pytest.raises(TaskUnreadable, match="task mine cannot be read: its row cannot be decrypted"):
        await store.get("mine")
    listed = await store.list("", EVERYBODY, now=NOON)
    assert {record.id for record in listed.records} == {"other", "asks"}


@pytest.mark.anyio
async def test_a_request_of_another_task_is_refused(store: SqliteStore) -> None:
    execute(
        store, f"UPDATE requests SET request = (SELECT request FROM requests WHERE task = {OTHER}) WHERE task = {MINE}"
    )
    with pytest.raises(TaskUnreadable, match="task mine cannot be read: its request cannot be decrypted"):
        await store.request("mine")
    assert await store.request("other") == REQUEST


@pytest.mark.anyio
@pytest.mark.parametrize("column", ["body", "meta"])
async def test_an_outcome_of_another_task_is_refused(store: SqliteStore, column: str) -> None:
    execute(
        store,
        f"UPDATE outcomes SET {column} = (SELECT {column} FROM outcomes WHERE task = {OTHER}) WHERE task = {MINE}",
    )
    with pytest.raises(TaskUnreadable, match="task mine cannot be read: its outcome cannot be decrypted"):
        await store.outcome("mine")
    assert await store.outcome("other") == OUTCOME


@pytest.mark.anyio
async def test_an_answer_of_another_task_is_refused(store: SqliteStore) -> None:
    answer = f"(SELECT value FROM journal WHERE kind = 'answer' AND task = {OTHER})"
    execute(store, f"UPDATE journal SET value = {answer} WHERE kind = 'answer' AND task = {MINE}")
    with pytest.raises(
        TaskUnreadable, match="task mine cannot be read: its journal entry number 1 cannot be decrypted"
    ):
        await store.journal("mine")
    assert [entry.value for entry in await store.journal("other")] == [entry.value for entry in ENTRIES]


@pytest.mark.anyio
@pytest.mark.parametrize("column", ["namespace", "name"])
async def test_a_note_under_another_name_is_refused(store: SqliteStore, column: str) -> None:
    execute(store, f"UPDATE notes SET {column} = 'moved' WHERE name = 'mine'")
    place = {"namespace": "demo", "name": "mine"} | {column: "moved"}
    with pytest.raises(StoreCorrupt, match=r"it cannot be decrypted .* or was changed or moved") as refused:
        await store.note(**place)
    assert f"the note {place['name']!r} of the server {place['namespace']!r}" in str(refused.value)
    with pytest.raises(StoreCorrupt, match="cannot be decrypted"):
        await store.set_note(**place, value=b"new", expected=None)
    # Nobody else's write failed with it.
    assert await store.set_note("demo", "other", b"changed", expected=b"something else")


@pytest.mark.anyio
async def test_a_note_is_not_read_with_a_cipher_that_it_was_not_written_with(store: SqliteStore) -> None:
    execute(store, "INSERT INTO notes VALUES ('demo', 'plain', x'3d')")
    with pytest.raises(StoreCorrupt, match="it is not encrypted, and this store has a cipher"):
        await store.note("demo", "plain")


@pytest.mark.anyio
@pytest.mark.parametrize("value", ["x''", "x'7b7d'", "'text'", "7"])
async def test_a_damaged_note_is_said_to_be_one(tmp_path: Path, value: str) -> None:
    store = SqliteStore(tmp_path / "plain.db")
    await store.open()
    await store.set_note("demo", "note", b"value", expected=None)
    execute(store, f"UPDATE notes SET value = {value}")
    with pytest.raises(
        StoreCorrupt, match=r"the note 'note' of the server 'demo' cannot be read: it is .*delete the note"
    ):
        await store.note("demo", "note")
    await store.close()
