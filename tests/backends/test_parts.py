"""What is kept of tasks, as it lies on the disk: encrypted, large, read together, and gone with its task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from harness.cipher import AesCipher
from harness.stored import opened
from mcp_tasks.errors import KeySpent, StoreCorrupt, TaskUnreadable
from mcp_tasks.model import (
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskStatus,
)
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import LARGEST, ReadsTogether
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.places import Place, SqlitePlace

pytestmark = pytest.mark.anyio

SECRET = "the secret of the task"
REQUEST = make_request(arguments={"a": SECRET}, input_responses={"q": SECRET}, request_state=SECRET)
STEP = JournalEntry(kind="step", key="s", value=SECRET)
OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=f'{{"text":"{SECRET}"}}'.encode())
ENDED = {"status": TaskStatus.COMPLETED, "finished_at": NOON}


async def fill(store: Store, *, name: str = "render") -> None:
    """Two tasks that have ended, one that asks, and two notes."""
    asked = InputBook(outstanding={"q": InputRequest(method="m", params={"message": SECRET})}, used=frozenset({"q"}))
    for task_id in ("mine", "other"):
        record = make_record(id=task_id, status_message=SECRET, progress=Progress(progress=1, message=SECRET))
        await store.create(record, REQUEST)
        await store.save(replace(record, version=2, **ENDED), expected=1, entries=[STEP], outcome=OUTCOME)
    await store.create(make_record(id="asks", inputs=asked, name=name), REQUEST)
    for name in ("mine", "other"):
        await store.set_note("demo", name, f"{SECRET} {name}".encode(), expected=None)


async def test_nothing_of_what_is_encrypted_is_in_the_store_and_all_of_it_comes_back(place: Place) -> None:
    async with opened(place.store(Codec(AesCipher()))) as store:
        # Of its tool's name a file has a hash.
        await fill(store, name=SECRET if place.name == "sqlite" else "render")
        kept = place.everything()
        assert SECRET.encode() not in kept
        # What tasks are found by is plain: the price of an index.
        assert b"mine" in kept
        assert b"alice" in kept
        assert await store.request("mine") == REQUEST
        assert await store.outcome("mine") == OUTCOME
        assert [replace(entry, number=0) for entry in await store.journal("mine")] == [STEP]
        value = f"{SECRET} mine".encode()
        assert await store.note("demo", "mine") == value
        assert await store.set_note("demo", "mine", b"new", expected=value) is True
        assert await store.set_note("demo", "mine", b"newer", expected=value) is False


PARTS = {
    "row": ("get", "its row"),
    "request": ("request", "its request"),
    "body": ("outcome", "its outcome"),
    "meta": ("outcome", "its outcome"),
    "entry": ("journal", r"its journal entry number \d+"),
}


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_is_readable_with_its_key_and_in_its_place_alone(place: Place, part: str) -> None:
    verb, called = PARTS[part]
    async with opened(place.store(Codec(AesCipher()))) as store:
        await fill(store)
        own: bytes = place.take("mine", part)
        of_others = [place.take("mine", other) for other in PARTS if other != part]
        for wrong in (place.take("other", part), *of_others, own[:-1] + bytes([own[-1] ^ 1]), own[:1]):
            place.put("mine", part, wrong)
            with pytest.raises(TaskUnreadable, match=f"task mine cannot be read: {called} cannot be decrypted"):
                await getattr(store, verb)("mine")
        await getattr(store, verb)("other")


async def test_a_note_that_was_moved_is_refused(place: Place) -> None:
    async with opened(place.store(Codec(AesCipher()))) as store:
        await fill(store)
        place.put("mine", "note", place.take("other", "note"))
        with pytest.raises(StoreCorrupt, match="the note 'mine' of the server 'demo' cannot be read: it cannot be dec"):
            await store.note("demo", "mine")
        with pytest.raises(StoreCorrupt, match="cannot be decrypted"):
            await store.set_note("demo", "mine", value=b"new", expected=None)
        # No other write failed with it.
        assert await store.set_note("demo", "other", b"changed", expected=f"{SECRET} other".encode())


async def test_a_note_of_another_server_or_a_plain_one_is_refused(sqlite: SqlitePlace) -> None:
    async with opened(sqlite.store(Codec(AesCipher()))) as store:
        await fill(store)
        sqlite.run("UPDATE notes SET namespace = 'moved' WHERE name = 'mine'")
        with pytest.raises(StoreCorrupt, match="of the server 'moved' cannot be read: it cannot be decrypted"):
            await store.note("moved", "mine")
        sqlite.put("other", "note", b"=")
        with pytest.raises(StoreCorrupt, match="it is not encrypted, and this store has a cipher"):
            await store.note("demo", "other")


# Large values are encoded and decoded in a thread, small ones are not


class WatchedCipher:
    """Encrypts nothing, and notes on which thread it was to."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def encrypt(self, bound_to: str, data: bytes) -> bytes:
        return self.decrypt(bound_to, data)

    def decrypt(self, bound_to: str, data: bytes) -> bytes:
        self.threads.append(threading.get_ident())
        return data

    async def threads_of(self, act: Awaitable[object]) -> set[int]:
        self.threads.clear()
        await act
        return set(self.threads)


@pytest.mark.parametrize("large", [True, False])
async def test_what_is_large_is_encoded_and_decoded_in_a_thread(place: Place, large: bool) -> None:
    cipher, here = WatchedCipher(), threading.get_ident()
    record, text = make_record(), "x" * (1_000_000 if large else 1_000)
    entry = JournalEntry(kind="step", key="step", value=text)
    async with opened(place.store(Codec(cipher))) as store:
        # The record itself is small, whatever is beside it.
        assert await cipher.threads_of(store.create(make_record(), make_request())) == {here}
        for act in (
            lambda: store.create(record, make_request(arguments={"text": text})),
            lambda: store.save(replace(record, version=2), expected=1, entries=[entry]),
            lambda: store.save(replace(record, version=3), expected=2, outcome=Outcome(body=text.encode(), meta=b"{}")),
        ):
            assert (await cipher.threads_of(act()) != {here}) == large
        assert await cipher.threads_of(store.get(record.id)) == {here}
        for read in (store.request, store.outcome, store.journal):
            threads = await cipher.threads_of(read(record.id))
            assert ((here not in threads), len(threads)) == (large, 1)


async def test_a_journal_of_many_small_entries_is_read_in_a_thread_when_it_is_large(sqlite: SqlitePlace) -> None:
    cipher, record = WatchedCipher(), make_record()
    entries = [JournalEntry(kind="step", key=f"{number}", value="x" * 1_000) for number in range(100)]
    async with opened(sqlite.store(Codec(cipher))) as store:
        await store.create(record, make_request())
        await store.save(replace(record, version=2), expected=1, entries=entries)
        assert threading.get_ident() not in await cipher.threads_of(store.journal(record.id))
        # What is left of it is small again.
        last = (await store.journal(record.id))[89].number
        assert await cipher.threads_of(store.journal(record.id, after=last)) == {threading.get_ident()}


async def test_polls_go_on_while_something_large_is_written_and_read(place: Place) -> None:
    record, outcome = make_record(), Outcome(body=b"x" * 20_000_000)
    async with opened(place.store()) as store:
        await store.create(record, make_request())
        for act in (
            lambda: store.save(replace(record, version=2), expected=1, outcome=outcome),
            lambda: store.outcome(record.id),
        ):
            polls, large = 0, asyncio.ensure_future(act())
            while not large.done():
                assert await store.get(record.id) is not None
                polls += 1
                await asyncio.sleep(0)
            assert polls > 1
        assert await large == outcome


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
async def test_closing_waits_for_what_is_being_read(place: Place) -> None:
    record, outcome = make_record(), Outcome(body=b"x" * 5_000_000)
    store = place.store()
    await store.open()
    await store.create(record, make_request(), outcome=outcome)
    reads = [asyncio.ensure_future(store.outcome(record.id)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    assert [await read for read in reads] == [outcome] * 3


# A task and what is beside it in one look, where a look is a round trip

network = pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)


def round_trips(store: Store) -> int:
    assert not isinstance(store, SqliteStore)
    trips: int = getattr(store, "round_trips")  # noqa: B009 - not of every store
    return trips


@network
async def test_a_task_and_its_request_or_its_outcome_are_one_round_trip(place: Place) -> None:
    record, request, outcome = make_record(), make_request(arguments={"text": "ä\0"}), Outcome(body=b"1", meta=b"{}")
    ended = replace(record, version=2, **ENDED)
    async with opened(place.store()) as store:
        assert isinstance(store, ReadsTogether)
        await store.create(record, request)
        assert await store.get_with_outcome(record.id, record.owner) == (record, None)
        await store.save(ended, expected=1, outcome=outcome)
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get_with_request(record.id),
            lambda: store.get_with_outcome(record.id, record.owner),
        ]
        for read, beside in zip(reads, (request, outcome), strict=True):
            await read()
            before = round_trips(store)
            assert await read() == (ended, beside)
            assert round_trips(store) == before + 1


@network
async def test_a_large_request_is_left_out_and_an_unreadable_task_is_said(place: Place) -> None:
    record, request = make_record(), make_request(arguments={"text": "x" * LARGEST})
    odd = make_record(owner=None, unknown={"format": 99, "readable": 99})
    async with opened(place.store()) as store:
        assert isinstance(store, ReadsTogether)
        await store.create(record, request)
        assert await store.get_with_request(record.id) == (record, None)
        assert await store.request(record.id) == request
        assert await store.get_with_request("task_of_nobody \0") is None
        assert await store.get_with_outcome("task_of_nobody \0", None) is None
        await store.create(odd, make_request())
        with pytest.raises(TaskUnreadable):
            await store.get_with_request(odd.id)
        with pytest.raises(TaskUnreadable):
            await store.get_with_outcome(odd.id, None)


# The keys of children


@pytest.mark.parametrize("end", ["ended", "deleted"])
async def test_nothing_is_left_of_the_keys_of_children(place: Place, end: str) -> None:
    async with opened(place.store()) as store:
        parent = await store.create(make_record(), make_request())
        child = await store.create(make_record(parent=parent.id), make_request(), key="key")
        await store.delete(child.id, expected=child.version, now=NOON)
        assert place.child_keys() == 1
        if end == "deleted":
            await store.delete(parent.id, expected=parent.version, now=NOON)
        else:
            await store.save(replace(parent, version=2, **ENDED), expected=parent.version)
        assert place.child_keys() == 0
        # Nor does a run that does not know it yet have any kept.
        with pytest.raises(KeySpent):
            await store.create(make_record(parent=parent.id), make_request(), key="key")
        assert place.child_keys() == 0
