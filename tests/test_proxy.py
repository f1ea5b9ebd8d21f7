"""The proxy of the harness does to a real Redis and a real Postgres what its name for it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias
from uuid import uuid4

import anyio
import pytest

from harness.databases import postgres, valkey
from harness.proxy import Proxy, proxy_to
from harness.stored import opened
from mcp_tasks.errors import StoreUnavailable, VersionConflict
from mcp_tasks.model import JournalEntry
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing import make_record, make_request

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
WAIT = 20
PATIENCE = timedelta(seconds=3)

Place: TypeAlias = tuple[str, Callable[[str], Store]]
"""A server with what is needed in it, and a store at a URL of it."""


@pytest.fixture(scope="module", params=["redis", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "redis":
        with valkey() as server:
            yield server.url, lambda url: RedisStore(url, prefix=uuid4().hex, timeout=PATIENCE)
    else:
        with postgres(durable=False) as database:
            yield database.new_database(), lambda url: PostgresStore(url, patience=PATIENCE)


@pytest.fixture
async def proxy(place: Place) -> AsyncIterator[Proxy]:
    async with proxy_to(place[0]) as proxy:
        yield proxy


@pytest.fixture
async def store(place: Place, proxy: Proxy) -> AsyncIterator[Store]:
    async with opened(place[1](proxy.url)) as store:
        yield store
        proxy.restore()


async def test_a_write_is_carried_out_and_its_answer_lost(proxy: Proxy, store: Store) -> None:
    record = make_record().written(new_write_id())
    proxy.lose(then_cut=True)
    with pytest.raises(StoreUnavailable):
        await store.create(record, REQUEST)
    with anyio.fail_after(WAIT):
        await proxy.until_lost()
    proxy.restore()
    assert await store.get(record.id) == record
    # Often enough for drivers that send a statement's text only the first few times.
    for version in range(2, 12):
        proxy.lose()
        record = replace(record, version=version).written(new_write_id())
        await store.save(record, expected=version - 1, entries=[STEP])
        assert (await store.versions([record.id]))[record.id] == version
        assert len(await store.journal(record.id)) == version - 1
    assert proxy.lost == 11


async def test_a_read_and_a_write_that_fails_lose_nothing(proxy: Proxy, store: Store) -> None:
    record = make_record()
    await store.create(record, REQUEST)
    proxy.lose(of="nothing of this kind")
    assert await store.get(record.id) == record
    with pytest.raises(VersionConflict):
        await store.save(replace(record, version=9), expected=8)
    assert proxy.lost == 0
