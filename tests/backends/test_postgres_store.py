"""The Postgres store: the suite on a real Postgres, plain and encrypted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from harness.databases import Postgres
from harness.postgres_store import empty, new_store_url
from harness.proxy import proxy_to
from harness.stored import opened
from mcp_tasks.stores import Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing.store_suite import StoreSuite


@pytest.fixture(scope="module")
def database(shared_postgres: Postgres) -> str:
    return new_store_url(shared_postgres)


class TestPostgresStore(StoreSuite):
    codec: Codec | None = None

    @pytest.fixture(autouse=True)
    def place(self, database: str) -> None:
        empty(database)
        self.url = database

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = PostgresStore(self.url, codec=self.codec)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        async with proxy_to(self.url) as proxy, opened(PostgresStore(proxy.url, codec=self.codec)) as store:
            yield store, proxy.lose
            assert proxy.lost, "no answer was lost"
