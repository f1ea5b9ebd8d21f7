"""Large requests, outcomes and journals in the SQLite store: off the event loop's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.stored import opened
from mcp_tasks.model import JournalEntry, Outcome
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.backends.large import WatchedCipher, check_threads

REQUEST = make_request()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("large", [True, False])
async def test_what_is_large_is_encoded_and_decoded_in_a_thread(tmp_path: Path, large: bool) -> None:
    cipher = WatchedCipher()
    async with opened(SqliteStore(tmp_path / "tasks.db", codec=Codec(cipher))) as store:
        await check_threads(store, cipher, large=large)


@pytest.mark.anyio
async def test_a_journal_of_many_small_entries_is_read_in_a_thread_when_it_is_large(tmp_path: Path) -> None:
    cipher, record = WatchedCipher(), make_record()
    store = SqliteStore(tmp_path / "tasks.db", codec=Codec(cipher))
    await store.open()
    await store.create(record, REQUEST)
    entries = [JournalEntry(kind="step", key=f"{number}", value="x" * 1_000) for number in range(100)]
    await store.save(replace(record, version=2), expected=1, entries=entries)
    cipher.threads.clear()
    journal = await store.journal(record.id)
    assert [entry.key for entry in journal] == [entry.key for entry in entries]
    assert threading.get_ident() not in cipher.threads
    # What is left of it is small again.
    cipher.threads.clear()
    assert len(await store.journal(record.id, after=journal[89].number)) == 10
    assert set(cipher.threads) == {threading.get_ident()}
    await store.close()


@pytest.mark.anyio
async def test_polls_go_on_while_something_large_is_read(store: SqliteStore) -> None:
    record, outcome = make_record(), Outcome(body=b"x" * 20_000_000)
    await store.create(record, REQUEST)
    await store.save(replace(record, version=2), expected=1, outcome=outcome)
    polls = 0
    read = asyncio.ensure_future(store.outcome(record.id))
    while not read.done():
        assert await store.get(record.id) == replace(record, version=2)
        polls += 1
        await asyncio.sleep(0)
    assert await read == outcome
    assert polls > 1


@pytest.mark.anyio
async def test_closing_waits_for_what_is_being_read(store: SqliteStore) -> None:
    record, outcome = make_record(), Outcome(body=b"x" * 5_000_000)
    await store.create(record, REQUEST)
    await store.save(replace(record, version=2), expected=1, outcome=outcome)
    reads = [asyncio.ensure_future(store.outcome(record.id)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    for read in reads:
        assert await read == outcome
    await store.open()
