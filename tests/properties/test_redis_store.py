"""The Redis store against the reference store, under random sequences and interleavings, on a real Valkey."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from harness.databases import Valkey
from harness.thoroughness import TIMES, examples
from mcp_tasks.stores import Store
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing.store_machine import store_machine

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

SERVERS: list[Valkey] = []


@pytest.fixture(scope="module", autouse=True)
def server(shared_valkey: Valkey) -> Iterator[None]:
    """Each example has a prefix of its own."""
    SERVERS.append(shared_valkey)
    yield
    SERVERS.clear()


@contextmanager
def two_redis_stores_on_one_prefix() -> Generator[Sequence[Store]]:
    prefix = uuid4().hex
    yield [RedisStore(SERVERS[0].url, prefix=prefix), RedisStore(SERVERS[0].url, prefix=prefix)]


TestRedisStore = store_machine(two_redis_stores_on_one_prefix).TestCase
# Every reading is a round trip, so fewer than for stores that read from their own memory.
TestRedisStore.settings = settings(
    max_examples=examples(4), stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
