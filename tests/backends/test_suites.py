"""The shipped suites on each durable store and each engine, as somebody else's would be tested."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.cipher import AesCipher
from harness.databases import Postgres
from harness.proxy import proxy_to
from harness.stored import opened
from mcp_tasks.errors import UsageError
from mcp_tasks.stores import Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.store_suite import NoteTests, PartTests, RecordTests, StoreSuite
from tests.backends.child import CREATES, printed_by
from tests.backends.places import Place, PostgresPlace, RedisPlace, SqlitePlace


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


class _OnAServer(StoreSuite):
    url: str

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[Store]:
        async with opened(store_from_url(self.url)) as store:
            yield store

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        async with proxy_to(self.url) as proxy, opened(store_from_url(proxy.url)) as store:
            yield store, proxy.lose
            assert proxy.lost, "no answer was lost"


class TestPostgresStore(_OnAServer):
    @pytest.fixture(autouse=True)
    def place(self, postgres_place: PostgresPlace) -> None:
        self.url = postgres_place.url


class TestRedisStore(_OnAServer):
    @pytest.fixture(autouse=True)
    def place(self, redis_place: RedisPlace) -> None:
        self.url = redis_place.url


# What is true of every durable store, and takes other processes, or none that has it open


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_processes_that_start_together_in_a_new_place_make_one_store_and_lose_nothing(
    kind: str, shared_postgres: Postgres, tmp_path: Path
) -> None:
    new_file = f"sqlite:///{tmp_path / 'deep' / 'er' / 'tasks.db'}"
    url = new_file if kind == "sqlite" else shared_postgres.new_database()
    created = await asyncio.to_thread(printed_by, "create_tasks", url, 4)
    async with opened(store_from_url(url)) as store:
        assert await store.versions(created) == dict.fromkeys(created, 1)
    assert len(created) == 4 * CREATES


async def test_a_store_that_is_not_open_says_so(place: Place) -> None:
    store = place.store()
    await store.close()
    for act in (lambda: store.get("x"), lambda: store.create(make_record(), make_request())):
        with pytest.raises(UsageError, match=r"is not open: `await store.open\(\)` comes first"):
            await act()
    if isinstance(place, SqlitePlace):
        with pytest.raises(UsageError, match="is not open"):
            async with store.notifier().listen():
                pass
        assert not place.path.exists()
