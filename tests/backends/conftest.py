"""Databases that the tests of this folder share; each test has an empty place of its own in them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from harness.databases import Postgres, Valkey, valkey
from harness.postgres_store import empty, execute, new_store_url
from tests.backends.places import Place, PostgresPlace, RedisPlace, SqlitePlace


@pytest.fixture(scope="session")
def _tables(shared_postgres: Postgres) -> str:  # pyright: ignore[reportUnusedFunction]
    return new_store_url(shared_postgres)


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "tasks.db")


@pytest.fixture
def postgres_place(_tables: str) -> PostgresPlace:
    empty(_tables)
    execute(_tables, b"TRUNCATE mcp_tasks_child_keys")
    return PostgresPlace(_tables)


@pytest.fixture
def redis_place(shared_valkey: Valkey) -> Iterator[RedisPlace]:
    place = RedisPlace(shared_valkey.new_database())
    yield place
    place.client.close()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    name = "sqlite" if request.param == "sqlite" else f"{request.param}_place"
    found: Place = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[tuple[Valkey, Valkey]]:
    """Two servers of a Redis cluster, of which the first has everything."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with valkey(*options) as first, valkey(*options) as second:
        clients: list[Any] = [Redis.from_url(server.url) for server in (first, second)]
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", str(second.port))
        clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until = time.monotonic() + 30
        for client in clients:
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                assert time.monotonic() < until, "the cluster does not come up"
                time.sleep(0.01)
            client.close()
        yield first, second


@pytest.fixture(scope="session")
def _jobs(shared_postgres: Postgres) -> str:  # pyright: ignore[reportUnusedFunction]
    return shared_postgres.new_database()


@pytest.fixture
def jobs_url(_jobs: str) -> str:
    """A database with no jobs in it, whose tables are made once."""
    with psycopg.connect(_jobs, autocommit=True) as connection:
        found = connection.execute("SELECT to_regclass('mcp_tasks_jobs.procrastinate_jobs')").fetchone()
        if found is not None and found[0] is not None:
            tables = ("procrastinate_jobs", "procrastinate_workers")
            connection.execute(f"TRUNCATE {', '.join(f'mcp_tasks_jobs.{table}' for table in tables)} CASCADE".encode())
    return _jobs
