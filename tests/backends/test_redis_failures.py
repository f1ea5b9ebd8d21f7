"""Redis that stops, restarts, loses answers, refuses or forgets: what the store says, and that it goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis

from mcp_tasks.core import JournalEntry
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, VersionConflict
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing import make_record, make_request
from tests.backends.redis_proxy import Proxy, proxy_to
from tests.helpers.databases import Valkey, valkey

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
SECRET = "p4ssw0rd"
WAIT = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """A server that is restarted now and then. It writes everything to its disk before it answers."""
    with valkey("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@asynccontextmanager
async def opened(store: RedisStore) -> AsyncGenerator[RedisStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(server: Valkey) -> AsyncIterator[RedisStore]:
    async with opened(RedisStore(server.url, prefix=uuid4().hex)) as store:
        yield store


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
async def test_a_restart_in_the_middle_loses_nothing_that_was_acknowledged(
    server: Valkey, store: RedisStore, how: signal.Signals
) -> None:
    acknowledged: dict[str, int] = {}
    refused = 0
    over = anyio.Event()

    async def write() -> None:
        nonlocal refused
        while not over.is_set():
            record = make_record()
            try:
                await store.create(record, REQUEST)
                acknowledged[record.id] = 1
                await store.save(replace(record, version=2), expected=1, entries=[STEP])
                acknowledged[record.id] = 2
            except StoreUnavailable:
                refused += 1
                await anyio.sleep(0.01)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(write)
            while len(acknowledged) < 50:
                await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(server.restart, how)
            there = len(acknowledged)
            while len(acknowledged) < there + 50:
                await anyio.sleep(0.01)
            over.set()
    found = await store.versions(list(acknowledged))
    # One that was refused after its creation may have been written: then nothing is said against it.
    assert {task_id for task_id, version in acknowledged.items() if found.get(task_id, 0) < version} == set()
    for task_id in list(acknowledged)[:20]:
        assert len(await store.journal(task_id)) == found[task_id] - 1


async def test_while_the_server_is_away_every_verb_says_so_and_after_that_works_again(server: Valkey) -> None:
    url = server.url.replace("//", f"//default:{SECRET}@")
    async with opened(RedisStore(url, prefix=uuid4().hex)) as store:
        record = make_record()
        await store.create(record, REQUEST)
        server.stop()
        try:
            verbs: list[Any] = [
                store.get(record.id),
                store.create(make_record(), REQUEST),
                store.save(replace(record, version=2), expected=1),
                store.delete(record.id, expected=1),
                store.heartbeat("worker", namespace=""),
                store.hand_out("", Share(owner=1), limit=1),
                store.set_note("", "note", b"1", expected=None),
            ]
            raised = await asyncio.gather(*verbs, return_exceptions=True)
            assert {type(exc) for exc in raised} == {StoreUnavailable}
            for exc in raised:
                assert f"redis://127.0.0.1:{server.port}/0 cannot be reached" in str(exc)
                assert SECRET not in f"{exc!r} {exc.__cause__!r}"
        finally:
            server.start()
        assert await store.get(record.id) == record
        await store.save(replace(record, version=2), expected=1)


async def test_a_server_that_is_not_there_is_said_to_be_so_at_the_start() -> None:
    store = RedisStore(f"redis://:{SECRET}@127.0.0.1:1/0")
    with pytest.raises(
        StoreUnavailable, match=r"redis://127\.0\.0\.1:1/0 cannot be reached. Start the server"
    ) as raised:
        await store.open()
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r}"
    await store.close()


async def test_a_server_that_hangs_is_waited_for_and_no_longer(server: Valkey) -> None:
    async with opened(RedisStore(server.url, timeout=timedelta(milliseconds=200))) as store:
        server.pause()
        try:
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await store.get("task")
        finally:
            server.resume()
        assert await store.get("task") is None


@pytest.fixture
async def proxy(server: Valkey) -> AsyncIterator[Proxy]:
    async with proxy_to(server.port) as proxy:
        yield proxy


async def test_a_write_whose_answer_was_lost_is_done_once(proxy: Proxy) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex)) as store:
        record, handing = make_record(), Handing(share=Share(owner=1))
        # Each is known to the server, so that the answer that is lost is that of the write.
        warm = make_record(namespace="warm")
        await store.create(warm, REQUEST)
        await store.save(replace(warm, version=2), expected=1, entries=[STEP])
        await store.delete(warm.id, expected=2)
        await store.set_note("", "warm", b"1", expected=None)

        proxy.lose = 1
        assert await store.create(record, REQUEST, key="key", handing=handing) == record
        assert handing.handed is True
        proxy.lose = 2
        await store.save(replace(record, version=2), expected=1, entries=[STEP])
        assert await store.get(record.id) == replace(record, version=2)
        assert len(await store.journal(record.id)) == 1
        proxy.lose = 1
        await store.delete(record.id, expected=2)
        assert await store.get(record.id) is None
        # The note is looked at first, and then written.
        await store.note("", "note")
        proxy.lose = 1
        assert await store.set_note("", "note", b"1", expected=None) is True
        assert proxy.lost == 5
        assert await store.note("", "note") == b"1"


async def test_a_write_that_was_not_the_first_is_told_so_when_its_answer_was_lost(
    store: RedisStore, proxy: Proxy
) -> None:
    prefix = uuid4().hex
    async with (
        opened(RedisStore(proxy.url, prefix=prefix)) as here,
        opened(RedisStore(store_url(proxy), prefix=prefix)),
    ):
        record = make_record()
        await here.create(record, REQUEST)
        await here.save(replace(record, version=2, status_message="first"), expected=1)
        proxy.lose = 1
        with pytest.raises(VersionConflict):
            await here.save(replace(record, version=2, status_message="late"), expected=1)
        found = await here.get(record.id)
        assert found is not None
        assert found.status_message == "first"


def store_url(proxy: Proxy) -> str:
    return proxy.url
