"""The Redis store: its keys, what expires, how often it asks, what is counted; and servers as they are set up."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from harness.backends import ALWAYS_SYNCED
from harness.databases import Valkey, valkey
from harness.stored import changed, opened
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.model import JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, Forgotten, Handing, Hint, InSession, OwnedBy, Share, WorkLimits
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.redis.store import KEYS_AT_ONCE, LOOKS
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.backends.places import RedisPlace

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
OUTCOME = Outcome(body=b'{"content":[]}', meta=b"{}")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
async def store(redis_place: RedisPlace) -> AsyncIterator[RedisStore]:
    async with opened(redis_place.store()) as store:
        yield store


def ended(record: TaskRecord, **fields: Any) -> TaskRecord:
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
    await store.heartbeat("worker", namespace="demo", beats=1)
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
        lambda: store.heartbeat("worker", namespace="", beats=1),
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


# Servers: their memory, their disk, their users, replicas and clusters


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey(*ALWAYS_SYNCED) as server:
        yield server


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(server.url)
    yield client
    await client.aclose()


async def refusal(act: Callable[[], Awaitable[object]]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as refused:
        await act()
    return refused.value


@asynccontextmanager
async def setting(redis: Any, name: str, value: str) -> AsyncGenerator[None]:
    found: Any = await redis.config_get(name)
    await redis.config_set(name, value)
    try:
        yield
    finally:
        await redis.config_set(name, found[name])


async def test_a_server_that_hangs_is_waited_for_and_no_longer(server: Valkey, redis: Any) -> None:
    async with opened(RedisStore(server.url, prefix=uuid4().hex, timeout=timedelta(milliseconds=200))) as store:
        await redis.execute_command("CLIENT", "PAUSE", "600", "ALL")
        refused = await refusal(lambda: store.create(changed(make_record()), REQUEST))
        assert (refused.may_have_happened, "did not answer in time" in str(refused)) == (True, True)
        await redis.ping()
        assert await store.get("task") is None


async def test_a_server_without_memory_takes_no_write_in_part(server: Valkey, redis: Any) -> None:
    record, other = changed(make_record()), changed(make_record())
    async with opened(RedisStore(server.url, prefix=uuid4().hex)) as store:
        await store.create(record, REQUEST)
        async with setting(redis, "maxmemory", "1mb"):
            for write in (
                lambda: store.create(other, REQUEST),
                lambda: store.save(changed(record, version=2, worker="worker"), expected=1, entries=[STEP]),
            ):
                refused = await refusal(write)
                assert (refused.may_have_happened, "has no memory left" in str(refused)) == (False, True)
            # What makes room is taken.
            await store.delete(record.id, expected=1)
        assert await store.get(other.id) is None
        assert list((await store.queued("", limit=9)).ids) == []
        assert list((await store.claimed("worker", limit=9)).ids) == []


async def test_a_replica_takes_no_write_and_says_so(server: Valkey, redis: Any) -> None:
    async with opened(RedisStore(server.url, prefix=uuid4().hex)) as store:
        await redis.replicaof("127.0.0.1", 1)
        try:
            refused = await refusal(lambda: store.create(changed(make_record()), REQUEST))
            assert (refused.may_have_happened, "is a replica, which takes no writes" in str(refused)) == (False, True)
            assert "is a replica" in str(await refusal(RedisStore(server.url, prefix=uuid4().hex).open))
        finally:
            await redis.replicaof("NO", "ONE")


async def said_at_start(url: str, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="mcp_tasks"):
        async with opened(RedisStore(url)):
            (said,) = [f"{each.levelname}: {each.getMessage()}" for each in caplog.records] or [""]
            return said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "appendonly",
            "no",
            ["WARNING: redis://127", "keeps tasks in memory alone (appendonly no)", "is lost when", "`appendonly yes`"],
        ),
        (
            "maxmemory-policy",
            "allkeys-lru",
            ["WARNING", "(maxmemory-policy allkeys-lru): tasks could be lost. Set `maxmemory-policy noeviction`"],
        ),
        ("appendfsync", "everysec", ["INFO", "the last second may be lost"]),
    ],
)
async def test_a_server_that_may_forget_tasks_is_warned_of(
    server: Valkey, redis: Any, caplog: pytest.LogCaptureFixture, name: str, value: str, said: list[str]
) -> None:
    assert await said_at_start(server.url, caplog) == ""
    async with setting(redis, name, value):
        logged = await said_at_start(server.url, caplog)
    assert [part for part in said if part not in logged] == []


async def test_what_may_not_be_checked_is_said_quietly(
    server: Valkey, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rights = ("on", f">{SECRET}", "~*", "&*", "+@all", "-@dangerous", "+info")
    await redis.execute_command("ACL", "SETUSER", "task", *rights)
    url = server.url.replace("//", f"//task:{SECRET}@")
    said = await said_at_start(url, caplog)
    assert said.startswith("DEBUG: how often the server writes to its disk could not be checked")
    await redis.execute_command("ACL", "SETUSER", "task", "-info")
    said = await said_at_start(url, caplog)
    assert said.startswith("INFO: whether the server keeps tasks over a restart could not be checked")
    assert SECRET not in said


async def test_who_is_not_let_in_is_told_why_without_the_password(server: Valkey, redis: Any) -> None:
    await redis.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "-@write")
    await redis.config_set("requirepass", "right")
    try:
        for user, says in (
            ("reader", "does not let this user do what a task store needs"),
            ("someone", "password"),
            ("", "password"),
        ):
            url = server.url.replace("//", f"//{user}:{SECRET}@" if user else "//")
            refused = await refusal(RedisStore(url).open)
            assert says in str(refused)
            assert SECRET not in f"{refused!r} {refused.__cause__!r}"
    finally:
        await redis.config_set("requirepass", "")


async def test_a_server_or_a_database_that_is_not_there_is_said_to_be_missing(server: Valkey) -> None:
    refused = await refusal(RedisStore(server.url.removesuffix("0") + "99999").open)
    assert "has no database of that number" in str(refused)
    away = RedisStore(f"redis://:{SECRET}@127.0.0.1:1/0")
    refused = await refusal(away.open)
    assert "redis://127.0.0.1:1/0 cannot be reached. Start the server" in str(refused)
    assert SECRET not in f"{refused!r} {refused.__cause__!r}"
    await away.close()


async def test_keys_of_somebody_else_and_of_a_newer_layout_are_left_alone(server: Valkey, redis: Any) -> None:
    await redis.set("{theirs}:meta", "something")
    with pytest.raises(StoreCorrupt, match=r"has keys that begin with \{theirs\}: and are not a task store's"):
        await RedisStore(server.url, prefix="theirs").open()
    assert await redis.get("{theirs}:meta") == b"something"
    await redis.hset("{newer}:meta", mapping={"layout": 9, "compatible_from": 9})
    with pytest.raises(StoreCorrupt, match="has tasks in layout 9, and this release knows up to 1"):
        await RedisStore(server.url, prefix="newer").open()
    # Unless it says that they may be used.
    await redis.hset("{newer}:meta", mapping={"compatible_from": 1})
    async with opened(RedisStore(server.url, prefix="newer")) as store:
        assert await store.get("task") is None


async def test_in_a_cluster_the_server_that_has_the_slot_is_found_and_does_it_all(
    cluster: tuple[Valkey, Valkey],
) -> None:
    first, second = cluster
    # The one that is asked has nothing, and says where to go.
    async with opened(RedisStore(second.url)) as store, opened(RedisStore(first.url)) as peer:
        record = changed(make_record())
        async with store.notifier().listen() as hints:
            await peer.create(record, REQUEST, key="key", handing=Handing(share=Share(owner=1)))
            with anyio.fail_after(20):
                assert await anext(hints) == Hint(record.id, 1)
        await store.save(changed(record, version=2, worker="worker", attempt=1), expected=1, entries=[STEP])
        assert await peer.workers("") == {"worker": 0}
        before = store.round_trips
        assert len(await store.journal(record.id)) == 1
        await store.get(record.id)
        assert store.round_trips - before <= 3
        await store.delete(record.id, expected=2)
