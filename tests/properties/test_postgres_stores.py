"""The Postgres store against the reference store, under random sequences and interleavings."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

from harness.databases import Postgres
from harness.postgres_store import empty, new_store_url
from harness.thoroughness import TIMES, examples
from mcp_tasks.stores import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.testing.store_machine import store_machine

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

DATABASE: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def database(shared_postgres: Postgres) -> Iterator[None]:
    DATABASE.append(new_store_url(shared_postgres))
    yield
    DATABASE.clear()


@contextmanager
def two_stores_on_one_database() -> Generator[Sequence[Store]]:
    (url,) = DATABASE
    empty(url)
    yield [PostgresStore(url, connections=4), PostgresStore(url, connections=4)]


TestPostgresStore = store_machine(two_stores_on_one_database).TestCase
# A step waits for the database, so time says nothing about the health of the data.
TestPostgresStore.settings = settings(
    max_examples=examples(5), stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
