"""Fixtures of pytest: databases that all tests of one process share. Each test makes a place of its own in them."""

from collections.abc import Callable, Generator
from functools import cache

import pytest

from harness.backends import Backend, BackendName, in_files
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


@pytest.fixture(scope="session")
def shared_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[BackendName], Backend]:
    """The shared database of each kind, started when the first test wants it."""

    @cache
    def shared(name: BackendName) -> Backend:
        if name == "sqlite":
            return in_files(tmp_path_factory.mktemp("shared"))
        server: Postgres | Valkey = request.getfixturevalue(f"shared_{'valkey' if name == 'redis' else name}")
        return Backend(name, server.new_database(), server)

    return shared
