"""The Redis store passes the suite, on a real Valkey; and what is its own to promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from mcp_tasks.stores import Store
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing.store_suite import StoreSuite
from tests.helpers.databases import Valkey, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """One server for all tests here; each has a prefix of its own."""
    with valkey() as server:
        yield server


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, server: Valkey) -> None:
        self.url = server.url
        self.prefix = uuid4().hex

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = RedisStore(self.url, prefix=self.prefix)
        await store.open()
        try:
            yield store
        finally:
            await store.close()
