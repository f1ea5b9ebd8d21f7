"""The reference store passes the suite that it is the oracle of."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    shared = False

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = MemoryStore()
        await store.open()
        try:
            yield store
        finally:
            await store.close()
