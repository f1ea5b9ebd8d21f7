"""Fixtures of pytest: databases that all tests of one process share. Each test makes a place of its own in them."""

from __future__ import annotations

from collections.abc import Generator
from uuid import uuid4

import pytest

from harness.databases import Postgres, Valkey, postgres, valkey


@pytest.fixture(scope="session")
def shared_postgres() -> Generator[Postgres]:
    """A Postgres that waits for no disk. Who restarts or damages one starts their own."""
    with postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def shared_valkey() -> Generator[Valkey]:
    """A Valkey, of which each test has the keys with a prefix of its own, or a database."""
    with valkey() as server:
        yield server


@pytest.fixture
def key_prefix() -> str:
    """The beginning of the keys of one test."""
    return f"test-{uuid4().hex}"
