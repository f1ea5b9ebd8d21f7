"""What is kept of tasks, as it lies on the disk: encrypted, large, read together, gone with its task, and damaged."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.cipher import AesCipher
from harness.stored import opened
from mcp_tasks.errors import KeySpent, StoreCorrupt, TaskUnreadable
from mcp_tasks.model import InputBook, InputRequest, JournalEntry, Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY, LARGEST, Forgotten, OwnedBy, Share
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.places import Place, PostgresPlace, RedisPlace, SqlitePlace

SECRET = "the secret of the task"
SECRET_REQUEST = make_request(arguments={"a": SECRET}, input_responses={"q": SECRET}, request_state=SECRET)
SECRET_STEP = JournalEntry(kind="step", key="s", value=SECRET)
SECRET_OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=f'{{"text":"{SECRET}"}}'.encode())
ENDED = {"status": TaskStatus.COMPLETED, "finished_at": NOON}


async def fill_with_secrets(store: Store, *, name: str = "render") -> None:
    """Two tasks that have ended, one that asks, and two notes."""
    asked = InputBook(outstanding={"q": InputRequest(method="m", params={"message": SECRET})}, used=frozenset({"q"}))
    for task_id in ("mine", "other"):
        record = make_record(id=task_id, status_message=SECRET, progress=Progress(progress=1, message=SECRET))
        await store.create(record, SECRET_REQUEST)
        await store.save(replace(record, version=2, **ENDED), expected=1, entries=[SECRET_STEP], outcome=SECRET_OUTCOME)
    await store.create(make_record(id="asks", inputs=asked, name=name), SECRET_REQUEST)
    for name in ("mine", "other"):
        await store.set_note("demo", name, f"{SECRET} {name}".encode(), expected=None)


async def test_nothing_of_what_is_encrypted_is_in_the_store_and_all_of_it_comes_back(place: Place) -> None:
    async with opened(place.store(Codec(AesCipher()))) as store:
        # Of its tool's name a file has a hash.
        await fill_with_secrets(store, name=SECRET if place.name == "sqlite" else "render")
        kept = place.everything()
        assert SECRET.encode() not in kept
        # What tasks are found by is plain: the price of an index.
        assert b"mine" in kept
        assert b"alice" in kept
        assert await store.request("mine") == SECRET_REQUEST
        assert await store.outcome("mine") == SECRET_OUTCOME
        assert [replace(entry, number=0) for entry in await store.journal("mine")] == [SECRET_STEP]
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
        await fill_with_secrets(store)
        own: bytes = place.take("mine", part)
        of_others = [place.take("mine", other) for other in PARTS if other != part]
        for wrong in (place.take("other", part), *of_others, own[:-1] + bytes([own[-1] ^ 1]), own[:1]):
            place.put("mine", part, wrong)
            with pytest.raises(TaskUnreadable, match=f"task mine cannot be read: {called} cannot be decrypted"):
                await getattr(store, verb)("mine")
        await getattr(store, verb)("other")


async def test_a_note_that_was_moved_is_refused(place: Place) -> None:
    async with opened(place.store(Codec(AesCipher()))) as store:
        await fill_with_secrets(store)
        place.put("mine", "note", place.take("other", "note"))
        with pytest.raises(StoreCorrupt, match="the note 'mine' of the server 'demo' cannot be read: it cannot be dec"):
            await store.note("demo", "mine")
        with pytest.raises(StoreCorrupt, match="cannot be decrypted"):
            await store.set_note("demo", "mine", value=b"new", expected=None)
        # No other write failed with it.
        assert await store.set_note("demo", "other", b"changed", expected=f"{SECRET} other".encode())


async def test_a_note_of_another_server_or_a_plain_one_is_refused(sqlite: SqlitePlace) -> None:
    async with opened(sqlite.store(Codec(AesCipher()))) as store:
        await fill_with_secrets(store)
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
    await store.create(record, make_request())
    await store.save(replace(record, version=2), expected=1, outcome=outcome)
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


# One bad row is one bad task


BEFORE, BAD, AFTER = (
    make_record(id=name, namespace="demo", created_at=NOON + timedelta(seconds=number))
    for number, name in enumerate(("before", "bad", "after"))
)
REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")
OVER: dict[str, Any] = {"status": TaskStatus.FAILED, "finished_at": NOON, "retention": timedelta(0)}


async def fill(store: Store) -> None:
    for record in (BEFORE, BAD, AFTER):
        await store.create(record, REQUEST, key=record.id)
        await store.save(record, expected=1, entries=[STEP], outcome=OUTCOME)
    await store.set_note("demo", "note", b"value", expected=None)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    async with opened(place.store()) as store:
        await fill(store)
        yield store


async def listed(store: Store) -> list[TaskRecord]:
    return list((await store.list("demo", OwnedBy("alice"), now=NOON)).records)


async def steps_of(store: Store, task_id: str) -> list[JournalEntry]:
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


@pytest.mark.parametrize("row", [b"", b'{"secret":"\xff"}'], ids=repr)
async def test_a_damaged_row_is_one_unreadable_task(
    store: Store, place: Place, row: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    place.put("bad", "row", row)
    # What stands under a key and cannot be read is not made again.
    again = make_record(id="again", namespace="demo")
    for read in (lambda: store.get("bad"), lambda: store.create(again, REQUEST, key="bad")):
        with pytest.raises(TaskUnreadable, match="task bad cannot be read: its row is damaged") as unreadable:
            await read()
        assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
        assert unreadable.value.__cause__ is not None
        assert "secret" not in str(unreadable.value)
    assert await store.get("again") is None
    assert await store.get_owned("bad", "bob") is None, "another owner's row is not read"
    assert [await store.get(record.id) for record in (BEFORE, AFTER)] == [BEFORE, AFTER]
    # It is logged once, with what to do.
    with caplog.at_level(logging.ERROR, logger="mcp_tasks"):
        for _ in range(3):
            assert await listed(store) == [BEFORE, AFTER]
    (logged,) = caplog.messages
    for said in ("task bad cannot be read", place.shown.rpartition("@")[2], place.remedy):
        assert said in logged
    # What needs nothing of the damaged part goes on.
    assert await steps_of(store, "bad") == [STEP]
    assert await store.request("bad") == REQUEST
    assert await store.outcome("bad") == OUTCOME
    assert list((await store.queued("demo", limit=9)).ids) == ["before", "bad", "after"]
    assert await store.versions(["bad", "after"]) == {"bad": 1, "after": 1}
    await store.delete("bad", expected=1)
    assert await store.get("bad") is None


async def test_what_cannot_be_read_expires_like_any_other(store: Store, place: Place) -> None:
    for record in (BEFORE, BAD):
        await store.save(replace(record, version=2, **OVER), expected=1)
    readable = await store.get("before")
    place.put("bad", "row", b"{")
    forgotten = await store.forget_expired(NOON, limit=9, records=True)
    assert {task.task_id: task for task in forgotten} == {
        "before": Forgotten("before", 2, readable),
        "bad": Forgotten("bad", 2),
    }
    assert await store.versions(["before", "bad", "after"]) == {"after": 1}
    assert await store.journal("bad") == []


async def test_a_task_of_a_newer_release_says_so(store: Store, place: Place) -> None:
    newer = json.loads(place.take("bad", "row")) | {"format": 99, "readable": 99, "status": "a status of tomorrow"}
    place.put("bad", "row", json.dumps(newer).encode())
    with pytest.raises(TaskUnreadable, match=r"format 99.*use the release that wrote it, or a newer one") as unreadable:
        await store.get("bad")
    assert unreadable.value.owner == "alice"
    page = await store.list("demo", EVERYBODY, now=NOON, status=TaskStatus.WORKING)
    assert list(page.records) == [BEFORE, AFTER]


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("entry", b"{", "its journal entry 'done' is damaged"),
        ("kind", "dream", "unknown kind 'dream'.*use the release that wrote it"),
        ("request", b'{"name": 7}', "its request is damaged"),
        ("request", b"[" + b"x" * 1_000_000, "its request is damaged"),
        ("request", None, "its request is damaged"),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_a_damaged_part_is_told_by_the_verb_that_reads_it(
    store: Store, place: Place, part: str, value: Any, message: str
) -> None:
    place.put("bad", part, value)
    read = store.request if part == "request" else store.journal
    with pytest.raises(TaskUnreadable, match=message) as unreadable:
        await read("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    # The task itself can be read, and so can all others with what is beside them.
    assert await listed(store) == [BEFORE, BAD, AFTER]
    assert await steps_of(store, "after") == [STEP]
    assert await store.request("after") == REQUEST


@pytest.mark.parametrize("value", [b"", b"{}"])
async def test_a_damaged_note_is_said_to_be_one(store: Store, place: Place, value: bytes) -> None:
    place.put("note", "note", value)
    with pytest.raises(StoreCorrupt, match=r"the note 'note' of the server 'demo' cannot be read: it is .*delete the"):
        await store.note("demo", "note")


async def test_a_page_goes_on_after_tasks_that_cannot_be_read(store: Store, place: Place) -> None:
    for task_id in ("before", "bad"):
        place.put(task_id, "row", b"{")
    page = await store.list("demo", EVERYBODY, now=NOON, limit=1)
    seen = list(page.records)
    while page.cursor is not None:
        page = await store.list("demo", EVERYBODY, now=NOON, limit=1, cursor=page.cursor)
        seen += page.records
    assert seen == [AFTER]


async def test_a_readable_task_can_be_written_over_a_damaged_one(store: Store, place: Place) -> None:
    place.put("bad", "row", b"{")
    await store.save(replace(BAD, version=2), expected=1)
    assert await store.get("bad") == replace(BAD, version=2)


@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
async def test_what_cannot_be_read_is_not_handed_out_and_keeps_nothing_back(
    store: Store, place: Place, mark: bool
) -> None:
    place.put("before", "row", b"{")
    place.put("bad", "row", b"")
    # Two that stand before it in the line of their owner, who may have one task handed out.
    for _ in range(1 if mark else 2):
        chosen = await store.hand_out("demo", Share(owner=1), mark=mark, limit=1)
        assert [ready.id for ready in chosen] == ["after"]
    assert (await store.backlog("demo", NOON))["default"].ready == 3
    assert list((await store.queued("demo", handed_out=True, limit=9)).ids) == (["after"] if mark else [])


# In a file


TEXT = "CAST(x'7b22ff227d' AS TEXT)"
"""What is not UTF-8, in a column of the wrong type."""


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("UPDATE tasks SET state = 7 WHERE id = 'bad'", "get"),
        ("UPDATE tasks SET state = CAST(state AS TEXT) WHERE id = 'bad'", "get"),
        (f"UPDATE tasks SET state = {TEXT} WHERE id = 'bad'", "get"),
        (f"UPDATE journal SET value = {TEXT} WHERE task = 2", "journal"),
        ("UPDATE journal SET kind = x'ff' WHERE task = 2", "journal"),
        ("UPDATE requests SET request = '{}' WHERE task = 2", "request"),
        ("UPDATE outcomes SET body = 'text' WHERE task = 2", "outcome"),
    ],
)
async def test_a_value_of_another_type_is_damage(sqlite: SqlitePlace, statement: str, reads: str) -> None:
    async with opened(sqlite.store()) as store:
        await fill(store)
        sqlite.run(statement)
        with pytest.raises(TaskUnreadable):
            await getattr(store, reads)("bad")
        assert await store.outcome("after") == OUTCOME
        assert {"before", "after"} <= {record.id for record in await listed(store)}


async def test_an_id_that_is_not_text_stops_no_sweep(sqlite: SqlitePlace) -> None:
    async with opened(sqlite.store()) as store:
        await fill(store)
        sqlite.run("UPDATE tasks SET id = x'ff00' WHERE id = 'bad'")
        found = await store.queued("demo", limit=9)
        # What it is called names no task.
        (other,) = set(found.ids) - {"before", "after"}
        assert await store.get(other) is None
        assert len(await listed(store)) == 3
        assert [ready.id for ready in await store.hand_out("demo", Share(owner=9), limit=9)] == ["before", "after"]


async def test_memory_of_what_was_logged_is_bounded(sqlite: SqlitePlace, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(sqlite.store()) as store:
        async with anyio.create_task_group() as group:
            for _ in range(1_100):
                group.start_soon(store.create, make_record(namespace="demo"), REQUEST)
        sqlite.run("UPDATE tasks SET state = '{'")
        with caplog.at_level(logging.ERROR, logger="mcp_tasks"):
            await store.list("demo", EVERYBODY, now=NOON, limit=9_999)
            assert len(caplog.messages) == 1_100
            await store.list("demo", EVERYBODY, now=NOON, limit=9_999)
        # Some were forgotten, and are logged again.
        assert len(caplog.messages) > 1_100


@pytest.mark.parametrize("beside", [True, False])
async def test_a_damaged_page_is_a_damaged_store_and_keeps_no_other_task_from_expiring(
    sqlite: SqlitePlace, beside: bool
) -> None:
    ids = [f"t{number:02}" for number in range(50)]
    async with opened(sqlite.store()) as store:
        await fill(store)
        request = make_request(arguments={"text": "x" * 2_000}) if beside else REQUEST
        for task_id in ids:
            record = make_record(id=task_id, namespace="demo", status_message="" if beside else "x" * 2_000, **OVER)
            await store.create(record, request)
    content = sqlite.path.read_bytes()
    page = content.rindex(b"x" * 1_000) // 4096 * 4096
    sqlite.path.write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
    async with opened(sqlite.store()) as store:
        if not beside:
            with pytest.raises(StoreCorrupt, match=r"is damaged\. Restore a backup") as corrupt:
                await store.list("demo", EVERYBODY, now=NOON - timedelta(days=1), limit=99)
            assert not isinstance(corrupt.value, TaskUnreadable)
        gone = {task.task_id for task in await store.forget_expired(NOON, limit=100, records=not beside)}
        assert 40 <= len(gone) < 50
        # They are gone, and those that cannot be removed are told of, each time.
        with pytest.raises(StoreCorrupt, match="is damaged"):
            await store.forget_expired(NOON, limit=100, records=not beside)
        assert await store.versions(sorted(gone)) == {}
        assert len(await store.versions(["before", "bad", "after"])) == 3
    # Of what is left none is half removed.
    left = sqlite.run("SELECT id FROM tasks INDEXED BY tasks_expires WHERE expires IS NOT NULL")
    assert {row[0] for row in left} == set(ids) - gone


# In Redis


@pytest.fixture
async def redis_store(redis_place: RedisPlace) -> AsyncIterator[Store]:
    async with opened(redis_place.store()) as store:
        await fill(store)
        yield store


async def test_a_part_that_is_gone_is_damage(redis_store: Store, redis_place: RedisPlace) -> None:
    redis_place.put("bad", "row", None)
    with pytest.raises(TaskUnreadable, match="its row is damaged"):
        await redis_store.get("bad")
    redis_place.client.rpop(redis_place.key("j", "bad"))
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its journal is damaged"):
        await redis_store.journal("bad")


async def test_something_else_in_the_place_of_a_task_is_said_to_be_that(
    redis_store: Store, redis_place: RedisPlace
) -> None:
    redis_place.client.delete(redis_place.key("t", "bad"))
    redis_place.client.set(redis_place.key("t", "bad"), "a string")
    with pytest.raises(StoreCorrupt, match="has something else where tasks are kept"):
        await redis_store.get("bad")
    assert await redis_store.get("after") == AFTER


async def test_damaged_places_stop_neither_the_task_nor_others(redis_store: Store, redis_place: RedisPlace) -> None:
    bad = redis_place.key("t", "bad")
    redis_place.client.hset(bad, "ix", b"\xc1 no such thing")
    await redis_store.save(replace(BAD, version=2), expected=1)
    assert await redis_store.get("bad") == replace(BAD, version=2)
    redis_place.client.hdel(bad, "ix")
    await redis_store.delete("bad", expected=2)
    assert await redis_store.get("bad") is None
    assert await listed(redis_store) == [BEFORE, AFTER]


@pytest.mark.parametrize("field", ["ix", "n", "o"])
async def test_what_has_a_damaged_field_expires(redis_store: Store, redis_place: RedisPlace, field: str) -> None:
    await redis_store.save(replace(BAD, version=2, **OVER), expected=1)
    redis_place.client.hset(redis_place.key("t", "bad"), field, b"\xc1 no such thing")
    assert [task.task_id for task in await redis_store.forget_expired(NOON, limit=9, records=True)] == ["bad"]
    assert await redis_store.versions(["bad"]) == {}
    assert list(await redis_store.forget_expired(NOON, limit=9)) == []


async def test_anybody_may_publish_anything(redis_store: Store, redis_place: RedisPlace) -> None:
    messages: Sequence[bytes] = (b"", b"12345678", b"12345678x:y", b"12345678" + b"9" * 5_000 + b":long", b"\xff" * 20)
    async with opened(redis_place.store()) as peer, redis_store.notifier().listen() as hints:
        for message in messages:
            redis_place.client.publish(redis_place.key("hints"), message)
        await peer.save(replace(BAD, version=2), expected=1)
        with anyio.fail_after(5):
            heard = await anext(hints)
    assert (heard.task_id, heard.version) == ("bad", 2)


# In Postgres


async def test_a_task_that_somebody_deletes_leaves_nothing_behind(postgres_place: PostgresPlace) -> None:
    async with opened(postgres_place.store()) as store:
        await fill(store)
    postgres_place.run("DELETE FROM mcp_tasks_tasks WHERE id = 'bad'")
    for table in ("requests", "outcomes", "journal"):
        assert postgres_place.run(f"SELECT count(*) FROM mcp_tasks_{table}") == [(2,)]
