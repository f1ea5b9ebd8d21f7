"""What the Redis store does with its keys: their names, what expires by itself, how often it asks, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.crc import key_slot

from harness.stored import opened
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.model import JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, Forgotten, Handing, Hint, InSession, OwnedBy, Share, WorkLimits
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.redis.writes import KEYS_AT_ONCE, LOOKS
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.places import RedisPlace

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
async def store(redis_place: RedisPlace) -> AsyncIterator[RedisStore]:
    async with opened(redis_place.store()) as store:
        yield store


def ended(record: TaskRecord, **fields: Any) -> TaskRecord:
    """The task one version on, completed at noon."""
    changes = {"version": record.version + 1, "status": TaskStatus.COMPLETED, "finished_at": NOON, "worker": None}
    return replace(record, **changes | fields)


async def live_through_everything(store: RedisStore) -> None:
    """Tasks that are in every index there is, a note and a heartbeat."""
    share = Share(owner=1, tools={"render": 5}, owner_at_work=5)
    claimed = make_record(id="claimed")
    await store.create(claimed, REQUEST)
    for number in range(3):
        record = make_record(id=f"queued {number}", namespace="a:b", session="s", parent="claimed", queue="gpu")
        await store.create(record, REQUEST, key=f"key {number}", handing=Handing(share=share))
    running = replace(claimed, version=2, worker="worker", attempt=1)
    await store.save(running, expected=1, entries=[STEP], limits=WorkLimits(tool=9))
    await store.create(make_record(id="asleep", wake_at=NOON), REQUEST)
    over = make_record(id="over")
    await store.create(over, REQUEST, key="key")
    await store.save(ended(over), expected=1, entries=[STEP], outcome=OUTCOME)
    await store.hand_out("a:b", Share(owner=2), limit=1)
    await store.heartbeat("worker", namespace="demo")
    await store.set_note("demo", "note", b"1", expected=None)


async def test_every_key_has_the_hash_tag_of_the_store_and_none_is_left_of_what_is_deleted(
    store: RedisStore, redis_place: RedisPlace
) -> None:
    await live_through_everything(store)
    keys = redis_place.names()
    assert len(keys) > 25
    assert [key for key in keys if not key.startswith("{mcp-tasks}:")] == []
    assert {key_slot(key.encode()) for key in keys} == {key_slot(b"mcp-tasks")}
    everything = [f"queued {number}" for number in range(3)] + ["claimed", "asleep", "over"]
    for task_id, version in (await store.versions(everything)).items():
        await store.delete(task_id, expected=version)
    await store.retire("worker")
    left = {key.split(":", 1)[1] for key in redis_place.names()}
    assert left == {"meta", "turns:a%3Ab", "note:demo:note"}


def verbs_on(store: RedisStore, record: TaskRecord) -> list[Callable[[], Awaitable[object]]]:
    """Every verb there is, on one task from its creation to its end."""
    limits = WorkLimits(tool=1, owner=1)
    return [
        lambda: store.create(record, REQUEST, key=record.id, handing=Handing(share=Share(owner=1))),
        lambda: store.get(record.id),
        lambda: store.save(ended(record), expected=1, entries=[STEP], outcome=OUTCOME, limits=limits),
        lambda: store.request(record.id),
        lambda: store.outcome(record.id),
        lambda: store.journal(record.id),
        lambda: store.versions([record.id, "other"]),
        lambda: store.list("", EVERYBODY, now=NOON),
        lambda: store.queued("", limit=9),
        lambda: store.due("", NOON, limit=9),
        lambda: store.claimed("worker", limit=9),
        lambda: store.forget_expired(NOON, limit=9),
        lambda: store.hand_out("", Share(owner=1), limit=9),
        lambda: store.hand_back(record.id),
        lambda: store.backlog("", NOON),
        lambda: store.heartbeat("worker", namespace=""),
        lambda: store.workers(""),
        lambda: store.retire("worker"),
        lambda: store.note("", "note"),
        lambda: store.delete(record.id, expected=2),
    ]


async def test_every_verb_is_one_round_trip_and_a_hint_is_none(store: RedisStore, redis_place: RedisPlace) -> None:
    # Before that, each script is sent as text, whenever the server has forgotten it.
    for verb in verbs_on(store, make_record()):
        redis_place.client.script_flush()
        await verb()
    for verb in verbs_on(store, make_record()):
        await verb()
    record = make_record()
    for verb in verbs_on(store, record):
        before = store.round_trips
        await verb()
        assert store.round_trips - before == 1
    with redis_place.client.pubsub() as channel:
        channel.subscribe(redis_place.key("hints"))
        channel.get_message(timeout=5)
        before = store.round_trips
        await store.create(record, REQUEST)
        await store.notifier().publish(Hint(record.id, 1))
        assert store.round_trips - before == 1
        assert channel.get_message(timeout=5)["data"].endswith(f"1:{record.id}".encode())


async def test_only_a_task_that_has_ended_expires_by_itself(store: RedisStore, redis_place: RedisPlace) -> None:
    client, record = redis_place.client, make_record(id="task", retention=HOUR)
    await store.create(record, REQUEST, key="key")
    claimed = replace(record, version=2, worker="worker", attempt=1)
    await store.save(claimed, expected=1, entries=[STEP])
    assert {client.pttl(key) for key in redis_place.names()} == {-1}
    await store.save(ended(claimed), expected=2, outcome=OUTCOME)
    expiring = {key for key in redis_place.names() if client.pttl(key) != -1}
    # The row with its request and its outcome, the journal, and the key under which it stands.
    parts = (("t", "task"), ("j", "task"), ("key", "", "key", "=alice"))
    assert expiring == {redis_place.key(*each) for each in parts}
    for key in expiring:
        # From now on, by the server's own clock, and later than any sweep.
        assert 0 <= (HOUR + DAY) / timedelta(milliseconds=1) - client.pttl(key) < 60_000
    # One that is kept for good is, and so is one that only looks as if it had ended.
    for number, odd in enumerate((ended(claimed, retention=None), replace(claimed, finished_at=NOON, version=3)), 4):
        await store.save(replace(odd, version=number), expected=number - 1)
        assert {client.pttl(key) for key in expiring} == {-1}


async def test_a_key_that_outlives_its_task_is_spent_for_as_long_as_nobody_sweeps(
    store: RedisStore, redis_place: RedisPlace
) -> None:
    record = make_record(id="task", retention=HOUR)
    await store.create(record, REQUEST, key="key", key_outlives=7 * DAY)
    await store.save(ended(record), expected=1)
    for key in (redis_place.key("t", "task"), redis_place.key("key", "", "key", "=alice")):
        assert 0 <= (HOUR + 8 * DAY) / timedelta(milliseconds=1) - redis_place.client.pttl(key) < 60_000


async def test_what_the_server_removed_leaves_the_indexes_with_the_next_sweep(
    store: RedisStore, redis_place: RedisPlace
) -> None:
    kept = make_record(id="kept", session="s", status=TaskStatus.COMPLETED, finished_at=NOON)
    await store.create(kept, REQUEST)
    await store.create(make_record(id="p", namespace="open"), REQUEST)
    for number in range(5):
        record = make_record(id=f"{number}", session="s", parent="p", retention=timedelta(seconds=number))
        await store.create(record, REQUEST, key=f"{number}")
        await store.save(ended(record), expected=1, entries=[STEP])
        # As it would be a day later.
        for parts in (("t", record.id), ("j", record.id), ("key", "", f"{number}", "=alice")):
            assert redis_place.client.delete(redis_place.key(*parts)) == 1
    # Nobody is shown what is not there, and its key and its id are free.
    assert [record.id for record in (await store.list("", EVERYBODY, now=NOON)).records] == ["kept"]
    assert [record.id for record in (await store.list("", InSession("s"), now=NOON, limit=1)).records] == ["kept"]
    assert await store.get("1") is None
    again = make_record(id="again")
    assert await store.create(again, REQUEST, key="1") == again
    # What is kept of an owner is counted until the sweep.
    assert (await store.usage("", OwnedBy("alice"))).stored_bytes > 500
    assert list(await store.forget_expired(NOON + DAY, limit=1)) == [Forgotten("kept", 1)]
    await store.delete("again", expected=1)
    await store.delete("p", expected=1)
    assert {key.split(":", 1)[1] for key in redis_place.names()} == {"meta"}


async def test_what_the_server_removed_hides_nothing_behind_it(store: RedisStore, redis_place: RedisPlace) -> None:
    gone = [make_record(id=f"{number}", retention=timedelta(0)) for number in range(LOOKS + 5)]
    await asyncio.gather(*(store.create(replace(ended(record), version=1), REQUEST) for record in gone))
    redis_place.client.delete(*(redis_place.key("t", record.id) for record in gone))
    last = make_record(id="last", retention=timedelta(seconds=1))
    await store.create(replace(ended(last), version=1), REQUEST)
    assert list(await store.forget_expired(NOON + DAY, limit=1)) == [Forgotten("last", 1)]


async def test_what_a_release_does_that_does_not_count_is_counted_again(
    store: RedisStore, redis_place: RedisPlace
) -> None:
    records = [make_record() for _ in range(3)]
    for record in records:
        await store.create(record, REQUEST)

    async def stored() -> int:
        return (await store.usage("", OwnedBy("alice"))).stored_bytes

    one = await stored() // 3
    # It takes a task that it forgets, or saves, out of all indexes that it is in and that it does not know.
    assert redis_place.client.zrem(redis_place.key("sized", "", "=alice"), f"{one}:{records[0].id}") == 1
    assert redis_place.client.delete(redis_place.key("t", records[0].id)) == 1
    assert await stored() == 2 * one
    # As at every look from then on, and whatever is written by those that count.
    await store.save(replace(records[1], version=2), expected=1, entries=[STEP])
    grown = await stored()
    assert grown > 2 * one
    await store.delete(records[2].id, expected=1)
    assert await stored() == grown - one
    await store.delete(records[1].id, expected=2)
    assert await stored() == 0
    assert not {key for key in redis_place.names() if key.endswith((":stored", ":counted", "sized::=alice"))}


WITHOUT_SIZE = """
local packed = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'ix'))
packed[1][#packed[1]], packed[1][#packed[1] - 1] = nil, nil
redis.call('HSET', KEYS[1], 'ix', cmsgpack.pack(packed))
return redis.call('HDEL', KEYS[1], 'z')
"""


async def test_a_row_of_a_release_that_did_not_count_is_counted_when_it_is_saved(
    store: RedisStore, redis_place: RedisPlace
) -> None:
    record = make_record(owner="bob")
    await store.create(record, REQUEST)
    counted = await store.usage("", OwnedBy("bob"))
    # As that one leaves it: without a size, and without a place among those that have one.
    redis_place.client.eval(WITHOUT_SIZE, 1, redis_place.key("t", record.id))
    redis_place.client.delete(redis_place.key("sized", "", "=bob"))
    assert (await store.usage("", OwnedBy("bob"))).stored_bytes == 0
    await store.save(replace(record, version=2), expected=1)
    assert await store.usage("", OwnedBy("bob")) == counted


async def test_keys_that_are_over_are_forgotten_some_at_a_time(store: RedisStore, redis_place: RedisPlace) -> None:
    spent = redis_place.key("spent")
    redis_place.client.zadd(spent, {f"{number}": number for number in range(2 * KEYS_AT_ONCE + 5)})
    left: list[int] = []
    for _ in range(3):
        assert list(await store.forget_expired(NOON, limit=1)) == []
        left.append(redis_place.client.zcard(spent))
    assert left == [KEYS_AT_ONCE + 5, 5, 0]


async def test_stores_with_different_prefixes_share_nothing(store: RedisStore, redis_place: RedisPlace) -> None:
    record = make_record()
    await store.create(record, REQUEST)
    async with opened(RedisStore(redis_place.url, prefix=uuid4().hex)) as other:
        assert await other.get(record.id) is None
        await other.create(record, REQUEST)


SECRET = "p4ssw0rd"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@localhost:port/0",
        f"redis://user:{SECRET}/x@localhost/0",
        f"redis://localhost:6379/0?socket_timeout={SECRET}",
        f"http://:{SECRET}@localhost",
        f"localhost:{SECRET}",
    ],
)
def test_a_url_that_names_no_server_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        RedisStore(url)
    assert "Redis store" in str(refused.value)
    assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r}"


def test_what_is_shown_of_a_url_has_no_secret() -> None:
    for url in (f"rediss://user:{SECRET}@[::1]:7000/3?password={SECRET}", f"unix:///run/redis.sock?password={SECRET}"):
        assert SECRET not in repr(RedisStore(url))
    assert repr(RedisStore(f"valkeys://:{SECRET}@example.org")) == "RedisStore('valkeys://example.org:6379/0')"


@pytest.mark.parametrize("prefix", ["", "{tag}", "a}b", "line\nbreak"])
def test_a_prefix_that_would_break_the_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidOption, match="prefix"):
        RedisStore("redis://localhost", prefix=prefix)
