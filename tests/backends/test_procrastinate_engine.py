"""The engine on Postgres: what procrastinate carries, in a real database."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from harness.databases import Postgres
from mcp_tasks.engines import Engine
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.backends.procrastinate_child import QUICK, make_engine

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def database(shared_postgres: Postgres) -> str:
    return shared_postgres.new_database()


@pytest.fixture
def url(database: str) -> str:
    """A database with no jobs in it."""
    with psycopg.connect(database, autocommit=True) as connection:
        jobs = connection.execute("SELECT to_regclass('mcp_tasks_jobs.procrastinate_jobs')").fetchone()
        if jobs is not None and jobs[0] is not None:
            connection.execute(
                "TRUNCATE mcp_tasks_jobs.procrastinate_jobs, mcp_tasks_jobs.procrastinate_workers CASCADE"
            )
    return database


class TestProcrastinateEngine(EngineSuite):
    outlasts = 2 * QUICK.dead.total_seconds()
    rescues = 3 * QUICK.dead.total_seconds()

    @pytest.fixture(autouse=True)
    def an_empty_database(self, url: str) -> None:
        self.url = url

    def make_engine(self) -> Engine:
        return make_engine(self.url)

    def elsewhere(self) -> Sequence[str]:
        return ["tests.backends.procrastinate_child:make_engine", self.url]
