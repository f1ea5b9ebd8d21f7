"""Store suite: notes, the small named values that a server keeps beside its tasks."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks.errors import ValueNotStorable
from mcp_tasks.stores.base import EVERYBODY, LARGEST_NOTE, Store
from mcp_tasks.testing._store_tests import REQUEST, WAIT, StoreTests
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

VALUES = (b"", b"\0", b"\0\0plain", b"=", b'{"a":1}', b"\xff\xfe", bytes(range(256)), b"x" * LARGEST_NOTE)
STRANGE = ("", " ", "note", "Note", "note ", "né", "nul\0inside", "lone \ud800", "🦆", "'; --", "0", '["a","b"]')


async def set_at_once(stores: list[Store], values: list[bytes], *, expected: bytes | None) -> list[bytes]:
    """The values of those that won, of many that set one note at the same time."""
    won: list[bytes] = []

    async def swap(number: int, value: bytes) -> None:
        if await stores[number % len(stores)].set_note("", "note", value, expected=expected):
            won.append(value)

    with anyio.fail_after(WAIT * 4):
        async with anyio.create_task_group() as group:
            for number, value in enumerate(values):
                group.start_soon(swap, number, value)
    return won


class NoteTests(StoreTests):
    """Notes."""

    async def test_a_note_that_nobody_set_is_not_there(self, store: Store) -> None:
        assert await store.note("", "note") is None

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    async def test_a_note_comes_back_as_it_was_set(self, store: Store, value: bytes) -> None:
        assert await store.set_note("", "note", value, expected=None) is True
        assert await store.note("", "note") == value
        assert await store.set_note("", "note", b"next", expected=value) is True
        assert await store.note("", "note") == b"next"

    async def test_a_note_is_set_only_if_it_is_as_expected(self, store: Store) -> None:
        assert await store.set_note("", "note", b"1", expected=b"") is False
        assert await store.note("", "note") is None
        assert await store.set_note("", "note", b"1", expected=None) is True
        for expected in (None, b"", b"2", b"1 ", b"\0"):
            assert await store.set_note("", "note", b"2", expected=expected) is False
        assert await store.note("", "note") == b"1"
        # What is there may be set again.
        assert await store.set_note("", "note", b"1", expected=b"1") is True

    async def test_servers_have_notes_of_their_own_by_exact_names(self, store: Store) -> None:
        places = [(namespace, name) for namespace in STRANGE for name in STRANGE]
        for number, place in enumerate(places):
            assert await store.set_note(*place, b"%d" % number, expected=None) is True
        assert [await store.note(*place) for place in places] == [b"%d" % number for number in range(len(places))]

    async def test_a_note_that_is_too_large_is_refused_and_the_one_there_stays(self, store: Store) -> None:
        await store.set_note("", "note", b"small", expected=None)
        with pytest.raises(ValueNotStorable, match=f"{LARGEST_NOTE:,}"):
            await store.set_note("", "note", b"x" * (LARGEST_NOTE + 1), expected=b"small")
        assert await store.note("", "note") == b"small"

    async def test_of_many_that_set_a_note_at_once_exactly_one_does(self, store: Store) -> None:
        values = [b"%d" % number for number in range(30)]
        for expected in (None, b"again"):
            won = await set_at_once([store], values, expected=expected)
            assert [await store.note("", "note")] == won
            await store.set_note("", "note", b"again", expected=won[0])

    async def test_of_many_in_two_processes_exactly_one_sets_a_note(self, store: Store, peer: Store) -> None:
        expected: bytes | None = None
        for turn in range(5):
            values = [b"%d %d" % (turn, number) for number in range(10)]
            won = await set_at_once([store, peer], values, expected=expected)
            assert [await store.note("", "note"), await peer.note("", "note")] == won * 2
            expected = won[0]

    async def test_a_note_is_there_after_the_store_was_closed(self, store: Store) -> None:
        await store.set_note("demo", "note", b"kept", expected=None)
        await store.close()
        await store.open()
        assert await store.note("demo", "note") == b"kept"

    async def test_notes_and_tasks_do_not_meet(self, store: Store) -> None:
        record = make_record(id="note")
        await store.create(record, REQUEST, key="note")
        await store.set_note("", "note", b"1", expected=None)
        assert (await store.list("", EVERYBODY, now=NOON)).records == [record]
        await store.delete("note", expected=1)
        assert await store.note("", "note") == b"1"
        assert await store.get("note") is None
