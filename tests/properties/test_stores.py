"""Each store against the reference store, under random sequences and interleavings."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from harness.thoroughness import TIMES, examples
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing.store_machine import store_machine

# Hypothesis may take five minutes to make a failure small, and says what failed only then.
pytestmark = pytest.mark.timeout(400 * TIMES)

# A step waits for other threads, so time says nothing about the health of the data.
SETTINGS = settings(
    max_examples=examples(10), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@contextmanager
def memory_store() -> Generator[Sequence[Store]]:
    yield [MemoryStore()]


@contextmanager
def two_sqlite_stores_on_one_file() -> Generator[Sequence[Store]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.db"
        yield [SqliteStore(path), SqliteStore(path)]


TestMemoryStore = store_machine(memory_store).TestCase
# The reference against itself: a check of the machine, not of a store.
TestMemoryStore.settings = settings(SETTINGS, max_examples=examples(6))

TestSqliteStore = store_machine(two_sqlite_stores_on_one_file).TestCase
TestSqliteStore.settings = SETTINGS
