"""Workers on a database that many machines share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest

from harness.databases import Postgres, Valkey, postgres, valkey
from harness.rpc import text_of
from tests.cli.running import Cli
from tests.cli.working import SPEC, is_there, serving_only, working

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["postgres", "redis"])
def database(request: pytest.FixtureRequest) -> Iterator[Postgres | Valkey]:
    """A database server for all tests here."""
    with postgres() if request.param == "postgres" else valkey() as server:
        yield server


@pytest.fixture
def url(cli: Cli, database: Postgres | Valkey) -> str:
    """An empty database that the commands of a test use too."""
    url = database.new_database() if isinstance(database, Postgres) else database.url
    cli.environment["MCP_TASKS_URL"] = url
    return url


async def test_workers_share_what_a_server_was_asked_for(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        waiting = await client.create("where")
        with working(cli, "--queues", "gpu", "--health", "127.0.0.1:0") as gpu:
            painted = text_of((await client.finish("paint"))["result"])
            pages = await gpu.health()
            assert pages.json("/ready")[0] == 200
            assert pages.json("/backlog")[1]["queues"]["default"]["ready"] == 1
            with working(cli, "--queues", "default", "--drain", "0.1") as usual:
                assert text_of((await client.until(waiting, "completed"))["result"]) != painted
                held = await client.create("hold", file=str(tmp_path / "go"))
                await is_there(tmp_path / "go.started")
                usual.send(SIGTERM)
                assert await usual.ends() == 0
                assert "1 handed back" in usual.said
            (tmp_path / "go").touch()
            with working(cli):
                await client.until(held, "completed")


def test_check_opens_the_database_and_hides_its_password(cli: Cli, url: str) -> None:
    cli.environment["MCP_TASKS_URL"] = url.replace("postgres@", "postgres:geheim@")
    done = cli("worker", SPEC, "--check")
    assert done.returncode == 0, done.stderr
    assert "geheim" not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stdout


def test_counting_what_waits_makes_no_tables(cli: Cli, url: str, database: Postgres | Valkey) -> None:
    if isinstance(database, Valkey):
        pytest.skip("there are no tables")
    for where in ((url, "--namespace", "farm"), (SPEC,)):
        done = cli("backlog", *where)
        assert done.returncode == 2, done.stderr
        assert "no server has kept tasks there yet" in done.stderr
    with psycopg.connect(url) as connection:
        assert not connection.execute("SELECT 1 FROM pg_tables WHERE tablename LIKE 'mcp_tasks%'").fetchall()


async def test_a_worker_without_its_database_is_not_ready_and_is_again_with_it(
    cli: Cli, url: str, database: Postgres | Valkey
) -> None:
    async with serving_only(url) as client:
        with working(cli, "--health", "127.0.0.1:0") as worker:
            await worker.says("farm: running")
            pages = await worker.health()
            database.stop()
            try:
                await pages.ready(False)
                assert pages.get("/live")[0] == 200
                assert pages.json("/backlog")[0] == 503
                assert "mcp_tasks_worker_ready 0" in pages.get("/metrics")[1]
            finally:
                database.start()
            await pages.ready(True)
            await client.finish("where")
