"""The shipped suites on each durable store and each engine, as somebody else's would be tested."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from harness.cipher import AesCipher
from harness.proxy import proxy_to
from harness.stored import opened
from mcp_tasks.stores import Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing.store_suite import NoteTests, PartTests, RecordTests, StoreSuite
from tests.backends.places import PostgresPlace, RedisPlace, SqlitePlace


class _InAFile:
    codec: Codec | None = None

    @pytest.fixture(autouse=True)
    def place(self, sqlite: SqlitePlace) -> None:
        self.sqlite = sqlite

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        async with opened(self.sqlite.store(self.codec)) as store:
            yield store


class TestSqliteStore(_InAFile, StoreSuite):
    pass


class TestEncryptedSqliteStore(_InAFile, RecordTests, PartTests, NoteTests):
    """What a cipher has to do with: the rest of the suite never looks into a part."""

    codec = Codec(AesCipher())


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, postgres_place: PostgresPlace) -> None:
        self.url = postgres_place.url

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        async with opened(PostgresStore(self.url)) as store:
            yield store

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        async with proxy_to(self.url) as proxy, opened(PostgresStore(proxy.url)) as store:
            yield store, proxy.lose
            assert proxy.lost, "no answer was lost"


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def place(self, redis_place: RedisPlace) -> None:
        self.url = redis_place.url

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        async with opened(RedisStore(self.url)) as store:
            yield store

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        async with proxy_to(self.url) as proxy, opened(RedisStore(proxy.url)) as store:
            yield store, proxy.lose
            assert proxy.lost, "no answer was lost"
