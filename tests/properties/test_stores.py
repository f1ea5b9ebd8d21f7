"""Each store against the reference store, under random sequences and interleavings."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from harness.databases import Postgres, Valkey
from harness.postgres_store import empty, new_store_url
from harness.thoroughness import TIMES, examples
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore
from tests.contracts.store_machine import store_machine

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

URLS: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def urls(shared_postgres: Postgres, shared_valkey: Valkey) -> Iterator[None]:
    """Where the databases are; a machine takes no fixtures."""
    URLS.update(postgres=new_store_url(shared_postgres), redis=shared_valkey.url)
    yield
    URLS.clear()


def thorough(number: int, steps: int) -> settings:
    """A step waits for other threads or a database, so time says nothing about the health of the data."""
    return settings(
        max_examples=examples(number),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


@contextmanager
def memory_store() -> Generator[Sequence[Store]]:
    yield [MemoryStore()]


@contextmanager
def two_sqlite_stores_on_one_file() -> Generator[Sequence[Store]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.db"
        yield [SqliteStore(path), SqliteStore(path)]


@contextmanager
def two_postgres_stores_on_one_database() -> Generator[Sequence[Store]]:
    empty(URLS["postgres"])
    yield [PostgresStore(URLS["postgres"], connections=4) for _ in range(2)]


@contextmanager
def two_redis_stores_on_one_prefix() -> Generator[Sequence[Store]]:
    prefix = uuid4().hex
    yield [RedisStore(URLS["redis"], prefix=prefix) for _ in range(2)]


TestMemoryStore = store_machine(memory_store).TestCase
# The reference against itself: a check of the machine, not of a store.
TestMemoryStore.settings = thorough(3, 25)

TestSqliteStore = store_machine(two_sqlite_stores_on_one_file).TestCase
TestSqliteStore.settings = thorough(10, 25)

TestPostgresStore = store_machine(two_postgres_stores_on_one_database).TestCase
TestPostgresStore.settings = thorough(5, 12)

TestRedisStore = store_machine(two_redis_stores_on_one_prefix).TestCase
# Every reading is a round trip, so fewer than for stores that read from their own memory.
TestRedisStore.settings = thorough(4, 15)
