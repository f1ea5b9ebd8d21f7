"""The Postgres store: the suite, on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from mcp_tasks.stores import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing.store_suite import StoreSuite
from tests.helpers.databases import Postgres, postgres

EMPTY = b"""
TRUNCATE mcp_tasks_tasks, mcp_tasks_requests, mcp_tasks_outcomes, mcp_tasks_journal, mcp_tasks_heartbeats,
    mcp_tasks_notes
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Postgres) -> str:
    """The URL of a database that has all tables."""
    url = server.new_database()

    async def prepare() -> None:
        store = PostgresStore(url)
        await store.open()
        await store.close()

    asyncio.run(prepare())
    return url


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, database: str) -> None:
        self.url = database
        # Emptied and not made anew: that takes ten times as long.
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(EMPTY)

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        store = PostgresStore(self.url)
        await store.open()
        try:
            yield store
        finally:
            await store.close()
