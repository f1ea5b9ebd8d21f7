"""Redis servers as they are set up: their memory, their disk, their users, replicas and clusters."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis

from harness.backends import ALWAYS_SYNCED
from harness.databases import Valkey, valkey
from harness.stored import changed, opened
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.model import JournalEntry
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing import make_record, make_request

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
SECRET = "p4ssw0rd"
WAIT = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """A server whose settings are changed now and then."""
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
    """A setting of the server, while the block runs."""
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
    """What is logged, in one line or none."""
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
            with anyio.fail_after(WAIT):
                assert await anext(hints) == Hint(record.id, 1)
        await store.save(changed(record, version=2, worker="worker", attempt=1), expected=1, entries=[STEP])
        assert await peer.workers("") == {"worker": 0}
        before = store.round_trips
        assert len(await store.journal(record.id)) == 1
        await store.get(record.id)
        assert store.round_trips - before <= 3
        await store.delete(record.id, expected=2)
