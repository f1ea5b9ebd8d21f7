"""One bad row is one bad task: tasks that were damaged on the server, beside others; and tasks that are encrypted."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis

from harness.cipher import AesCipher
from harness.databases import Valkey, valkey
from mcp_tasks.errors import StoreCorrupt, TaskUnreadable
from mcp_tasks.model import JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, OwnedBy, Share, Whose
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON

pytestmark = pytest.mark.anyio

SECRET = "the secret of the task"
BEFORE, BAD, AFTER = (
    make_record(id=name, owner="alice", namespace="demo", created_at=NOON + timedelta(seconds=number))
    for number, name in enumerate(("before", "bad", "after"))
)
REQUEST = make_request(arguments={"a": SECRET})
STEP = JournalEntry(kind="step", key="done", value={"value": SECRET})
OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=b"{}")


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(server.url)
    yield client
    await client.aclose()


@asynccontextmanager
async def filled(server: Valkey, prefix: str, codec: Codec | None = None) -> AsyncGenerator[RedisStore]:
    """A store with three tasks, each with a journal and an outcome, and two notes."""
    store = RedisStore(server.url, prefix=prefix, codec=codec)
    await store.open()
    for record in (BEFORE, BAD, AFTER):
        await store.create(record, REQUEST)
        await store.save(record, expected=1, entries=[STEP], outcome=OUTCOME)
    for name in ("mine", "other"):
        await store.set_note("demo", name, f"{SECRET} {name}".encode(), expected=None)
    yield store
    await store.close()


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
async def store(server: Valkey, prefix: str) -> AsyncIterator[RedisStore]:
    async with filled(server, prefix) as store:
        yield store


@pytest.fixture
def bad(prefix: str) -> str:
    """The key of the task that is damaged."""
    return f"{{{prefix}}}:t:bad"


async def listed(store: RedisStore, whose: Whose = EVERYBODY) -> list[TaskRecord]:
    """The tasks that can be read."""
    return list((await store.list("demo", whose, now=NOON)).records)


async def steps_of(store: RedisStore, task_id: str) -> list[JournalEntry]:
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


@pytest.mark.parametrize("state", [b"", b"7", b"{", b'{"\xff"}', b"[]", b'{"format": 5}', None], ids=repr)
async def test_a_damaged_row_is_one_unreadable_task(
    store: RedisStore, redis: Any, bad: str, state: bytes | None
) -> None:
    await (redis.hdel(bad, "s") if state is None else redis.hset(bad, "s", state))
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its row is damaged") as unreadable:
        await store.get("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    assert [await store.get(record.id) for record in (BEFORE, AFTER)] == [BEFORE, AFTER]
    assert await listed(store, OwnedBy("alice")) == [BEFORE, AFTER]
    # What needs nothing of the damaged part goes on.
    assert await steps_of(store, "bad") == [STEP]
    assert await store.request("bad") == REQUEST
    assert await store.outcome("bad") == OUTCOME
    assert list((await store.queued("demo", limit=9)).ids) == ["before", "bad", "after"]
    assert await store.versions(["bad", "after"]) == {"bad": 1, "after": 1}
    found = await store.hand_out("demo", Share(owner=9), limit=9)
    assert [ready.id for ready in found] == ["before", "after"]
    await store.delete("bad", expected=1)
    assert await store.get("bad") is None


@pytest.mark.parametrize("mark", [True, False])
async def test_what_cannot_be_read_is_not_handed_out_and_keeps_nothing_back(
    store: RedisStore, redis: Any, prefix: str, mark: bool
) -> None:
    await redis.hset(f"{{{prefix}}}:t:before", "s", "{")
    await redis.hdel(f"{{{prefix}}}:t:bad", "s")
    # Two that stand before it in the line of their owner, who may have one task handed out.
    for _ in range(1 if mark else 2):
        chosen = await store.hand_out("demo", Share(owner=1), mark=mark, limit=1)
        assert [ready.id for ready in chosen] == ["after"]
    assert (await store.backlog("demo", NOON))["default"].ready == 3
    assert list((await store.queued("demo", handed_out=True, limit=9)).ids) == (["after"] if mark else [])


async def test_a_readable_task_can_be_written_over_a_damaged_one(store: RedisStore, redis: Any, bad: str) -> None:
    await redis.hset(bad, "s", "{")
    await store.save(replace(BAD, version=2), expected=1)
    assert await store.get("bad") == replace(BAD, version=2)


async def test_a_task_of_a_newer_release_says_so(store: RedisStore, redis: Any, bad: str) -> None:
    fields: dict[str, Any] = json.loads(await redis.hget(bad, "s") or b"")
    await redis.hset(bad, "s", json.dumps(fields | {"format": 99, "readable": 99, "status": "a status of tomorrow"}))
    with pytest.raises(TaskUnreadable, match=r"format 99.*use the release that wrote it, or a newer one"):
        await store.get("bad")
    page = await store.list("demo", EVERYBODY, now=NOON, status=TaskStatus.WORKING)
    assert list(page.records) == [BEFORE, AFTER]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (2, "{", "its journal entry 'done' is damaged"),
        (2, b'"\xff"', "its journal entry 'done' is damaged"),
        (0, "dream", "unknown kind 'dream'.*use the release that wrote it"),
        (0, b"\xff", "unknown kind"),
    ],
)
async def test_a_damaged_journal_is_one_unreadable_journal(
    store: RedisStore, redis: Any, prefix: str, place: int, value: Any, message: str
) -> None:
    await redis.lset(f"{{{prefix}}}:j:bad", place, value)
    with pytest.raises(TaskUnreadable, match=message) as unreadable:
        await store.journal("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    assert await store.get("bad") == BAD
    assert await steps_of(store, "after") == [STEP]


async def test_a_journal_that_is_cut_short_is_damaged(store: RedisStore, redis: Any, prefix: str) -> None:
    await redis.rpop(f"{{{prefix}}}:j:bad")
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its journal is damaged") as unreadable:
        await store.journal("bad")
    assert unreadable.value.owner == "alice"


@pytest.mark.parametrize(
    "request_", [b"", b"{", b'{"name": 7}', b"[" + b"x" * 1_000_000, None], ids=lambda r: repr(r)[:9]
)
async def test_a_damaged_request_costs_only_itself(
    store: RedisStore, redis: Any, bad: str, request_: bytes | None
) -> None:
    await (redis.hdel(bad, "r") if request_ is None else redis.hset(bad, "r", request_))
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its request is damaged") as unreadable:
        await store.request("bad")
    assert (unreadable.value.task_id, unreadable.value.owner) == ("bad", "alice")
    assert await store.get("bad") == BAD
    assert await listed(store) == [BEFORE, BAD, AFTER]
    assert await store.request("after") == REQUEST


async def test_what_stands_under_a_key_and_cannot_be_read_is_not_made_again(
    store: RedisStore, redis: Any, prefix: str
) -> None:
    await store.create(make_record(id="keyed"), REQUEST, key="key")
    await redis.hset(f"{{{prefix}}}:t:keyed", "s", "{")
    with pytest.raises(TaskUnreadable, match="task keyed cannot be read"):
        await store.create(make_record(id="second"), REQUEST, key="key")
    assert await store.get("second") is None


async def test_an_unreadable_task_is_logged_once_with_what_to_do(
    store: RedisStore, redis: Any, bad: str, server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.hset(bad, "s", "{")
    with caplog.at_level(logging.ERROR, logger="mcp_tasks"):
        for _ in range(3):
            await listed(store)
    (logged,) = caplog.messages
    assert "task bad cannot be read" in logged
    assert f"redis://127.0.0.1:{server.port}/0" in logged
    assert "To delete it: await store.delete('bad', expected=" in logged


async def test_something_else_in_the_place_of_a_task_is_said_to_be_that(
    store: RedisStore, redis: Any, bad: str
) -> None:
    await redis.delete(bad)
    await redis.set(bad, "a string")
    with pytest.raises(StoreCorrupt, match="has something else where tasks are kept"):
        await store.get("bad")
    assert await store.get("after") == AFTER


async def test_damaged_places_stop_neither_the_task_nor_others(store: RedisStore, redis: Any, bad: str) -> None:
    await redis.hset(bad, "ix", b"\xc1 no such thing")
    await store.save(replace(BAD, version=2), expected=1)
    assert await store.get("bad") == replace(BAD, version=2)
    await redis.hdel(bad, "ix")
    await store.delete("bad", expected=2)
    assert await store.get("bad") is None
    assert [record.id for record in await listed(store)] == ["before", "after"]


@pytest.mark.parametrize("field", ["s", "ix", "n", "o"])
async def test_what_cannot_be_read_expires_like_any_other(store: RedisStore, redis: Any, bad: str, field: str) -> None:
    over = {"status": TaskStatus.FAILED, "finished_at": NOON, "retention": timedelta(0)}
    for record in (BEFORE, BAD):
        await store.save(replace(record, version=2, **over), expected=1)
    readable = await store.get("before")
    await redis.hset(bad, field, b"\xc1 no such thing")
    forgotten = await store.forget_expired(NOON, limit=9, records=True)
    assert [(task.task_id, task.version) for task in forgotten] == [("before", 2), ("bad", 2)]
    assert forgotten[0].record == readable
    assert forgotten[1].record is None or field != "s"
    assert await store.versions(["before", "bad", "after"]) == {"after": 1}
    assert list(await store.forget_expired(NOON, limit=9)) == []


async def test_anybody_may_publish_anything(store: RedisStore, redis: Any, server: Valkey, prefix: str) -> None:
    peer = RedisStore(server.url, prefix=prefix)
    await peer.open()
    async with store.notifier().listen() as hints:
        for message in (b"", b"12345678", b"12345678x:y", b"12345678" + b"9" * 5_000 + b":long", b"\xff" * 20):
            await redis.publish(f"{{{prefix}}}:hints", message)
        await peer.save(replace(BAD, version=2), expected=1)
        with anyio.fail_after(5):
            heard = await anext(hints)
    await peer.close()
    assert (heard.task_id, heard.version) == ("bad", 2)


@pytest.fixture
async def encrypted(server: Valkey, prefix: str) -> AsyncIterator[RedisStore]:
    async with filled(server, prefix, Codec(AesCipher())) as store:
        yield store


async def test_nothing_of_what_is_encrypted_is_on_the_server(
    encrypted: RedisStore, redis: Any, server: Valkey, prefix: str
) -> None:
    dumps = [await redis.dump(key) or b"" async for key in redis.scan_iter(f"{{{prefix}}}:*")]
    assert len(dumps) > 10
    # Short texts are as they are in a dump; long ones may be compressed, and then are not in the file of commands.
    assert [dump for dump in dumps if SECRET.encode() in dump] == []
    commands = b"".join(path.read_bytes() for path in server.folder.rglob("*.aof"))
    mine = commands[commands.index(prefix.encode()) :]
    assert b"alice" in mine
    assert SECRET.encode() not in mine
    assert await encrypted.get("bad") == BAD
    assert await encrypted.request("bad") == REQUEST
    assert await encrypted.outcome("bad") == OUTCOME
    assert await steps_of(encrypted, "bad") == [STEP]
    assert await encrypted.note("demo", "mine") == f"{SECRET} mine".encode()
    assert await encrypted.set_note("demo", "mine", b"new", expected=f"{SECRET} mine".encode()) is True
    assert await encrypted.set_note("demo", "mine", b"newer", expected=f"{SECRET} mine".encode()) is False


@pytest.mark.parametrize(
    ("field", "verb", "part"),
    [("s", "get", "row"), ("r", "request", "request"), ("b", "outcome", "outcome"), ("m", "outcome", "outcome")],
)
async def test_a_part_of_another_task_is_refused(
    encrypted: RedisStore, redis: Any, prefix: str, bad: str, field: str, verb: str, part: str
) -> None:
    await redis.hset(bad, field, await redis.hget(f"{{{prefix}}}:t:after", field))
    with pytest.raises(TaskUnreadable, match=f"task bad cannot be read: its {part} cannot be decrypted"):
        await getattr(encrypted, verb)("bad")


async def test_an_answer_of_another_task_is_refused(encrypted: RedisStore, redis: Any, prefix: str) -> None:
    await redis.lset(f"{{{prefix}}}:j:bad", 2, await redis.lindex(f"{{{prefix}}}:j:after", 2) or b"")
    with pytest.raises(TaskUnreadable, match="task bad cannot be read: its journal entry number 1 cannot be decrypted"):
        await encrypted.journal("bad")


async def test_a_note_under_another_name_is_refused(encrypted: RedisStore, redis: Any, prefix: str) -> None:
    await redis.copy(f"{{{prefix}}}:note:demo:other", f"{{{prefix}}}:note:demo:mine", replace=True)
    with pytest.raises(
        StoreCorrupt, match=r"the note 'mine' of the server 'demo' cannot be read: it cannot be decrypted"
    ):
        await encrypted.note("demo", "mine")
    with pytest.raises(StoreCorrupt, match="cannot be decrypted"):
        await encrypted.set_note("demo", "mine", b"new", expected=None)
