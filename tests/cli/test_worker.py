"""`mcp-tasks worker`: runs what others serve, hands back in order what it cannot finish, and says how it fares."""

import asyncio
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from signal import SIGINT, SIGTERM

import psycopg
import pytest

from harness.databases import Postgres, Valkey, postgres, valkey
from harness.rpc import text_of
from mcp_tasks.cli.commands import worker as health_http
from mcp_tasks.cli.commands.worker import Answer, Page, Recent, serving
from tests.cli.running import Cli
from tests.cli.working import SPEC, is_there, serving_only, working


async def test_a_worker_runs_what_another_process_serves_and_stops_when_told_to(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        waiting = await client.create("where")
        with working(cli, "--concurrency", "3") as worker:
            first = await client.until(waiting, "completed")
            assert text_of(first["result"]) == text_of((await client.finish("where"))["result"])
            await worker.says(r"farm: running where, paint, hold, hold_once, block \(all queues\), at most 3")
            worker.send(SIGTERM)
            assert await worker.ends() == 0
            assert worker.said.endswith("farm: stopped. Nothing was at work.\n")


async def test_what_ends_within_the_drain_is_finished(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        with working(cli, "--drain", "30", "--health", "127.0.0.1:0") as worker:
            held, file = await client.create("hold", file=str(tmp_path / "go")), tmp_path / "go"
            await is_there(tmp_path / "go.started")
            pages = await worker.health()
            assert pages.json("/ready")[0] == 200
            worker.send(SIGINT)
            await pages.say("draining")
            assert pages.json("/ready") == (503, {"ready": False, "state": "draining", "problems": ["draining"]})
            assert pages.get("/live") == (200, "alive\n")
            late = await client.create("where")
            file.touch()
            assert await worker.ends() == 0
            assert "Tasks at work: 1 finished." in worker.said
        assert (await client.get(held))["status"] == "completed"
        assert (await client.get(late))["status"] == "working"


async def test_what_does_not_end_is_handed_back_or_ends_as_interrupted(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        with working(cli, "--drain", "0.1") as worker:
            again = await client.create("hold", file=str(tmp_path / "again"))
            once = await client.create("hold_once", file=str(tmp_path / "once"))
            await is_there(tmp_path / "again.started")
            await is_there(tmp_path / "once.started")
            worker.send(SIGTERM)
            assert await worker.ends() == 0
            assert "Tasks at work: 1 handed back, 1 ended as interrupted." in worker.said
        assert "Interrupted" in (await client.until(once, "failed"))["error"]["message"]
        (tmp_path / "again").touch()
        with working(cli):
            await client.until(again, "completed")


async def test_a_worker_runs_only_what_is_in_its_queues(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        with working(cli, "--queues", "gpu") as gpu:
            other = await client.create("where")
            painted = text_of((await client.finish("paint"))["result"])
            assert (await client.get(other))["status"] == "working"
            await gpu.says(r"farm: running paint \(queue gpu\)")
            with working(cli, "--queues", "default, nonsense") as usual:
                assert text_of((await client.until(other, "completed"))["result"]) != painted
                await usual.says("No tool of farm is in queue 'nonsense'")


async def test_check_says_what_would_be_run_and_runs_nothing(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        task = await client.create("where")
        done = cli("worker", SPEC, "--check", "--queues", "gpu", "--drain", "7")
        assert done.returncode == 0, done.stderr
        for fact in (r"farm", "SqliteStore(", "local: processes of this machine", "gpu", "7 s", "at most 2", "where"):
            assert fact in done.stdout
        assert "plain" not in done.stdout
        plan = cli.json("worker", SPEC, "--check")
        assert (plan["queues"], plan["drainSeconds"], plan["concurrency"]) == (None, 25, 100)
        paint = {"queue": "gpu", "priority": 5, "version": "2", "maxAtWork": 2, "served": True}
        assert plan["tools"]["paint"] == paint
        wrong = cli("worker", SPEC, "--check", "--queues", "gpu,gpux")
        assert (wrong.returncode, "no tool is in queue 'gpux'" in wrong.stderr) == (2, True)
        assert (await client.get(task))["status"] == "working"


async def test_the_pages_of_a_worker_say_how_it_and_its_queues_fare(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        for _ in range(3):
            await client.create("where")
        with working(cli, "--queues", "gpu", "--health", "127.0.0.1:0") as worker:
            await worker.says("running paint")
            pages = await worker.health()
            assert pages.json("/ready") == (200, {"ready": True, "state": "working", "problems": []})
            status, backlog = pages.json("/backlog")
            assert (status, backlog["ready"]) == (200, 3)
            assert backlog["queues"]["gpu"] == {"ready": 0, "oldestAgeSeconds": 0.0}
            assert backlog["queues"]["default"]["oldestAgeSeconds"] > 0
            status, metrics = pages.get("/metrics")
            assert status == 200
            assert 'mcp_tasks_queue_ready{queue="default"} 3\n' in metrics
            assert "mcp_tasks_worker_ready 1\n" in metrics
            # Of its tasks too, and nothing twice, which Prometheus would refuse.
            assert "mcp_tasks_lease_valid 1.0\n" in metrics
            kinds = [line for line in metrics.splitlines() if line.startswith("# TYPE ")]
            assert len(kinds) == len({line.split()[2] for line in kinds})
            assert pages.get("/other")[0] == 404


async def test_the_backlog_is_counted_for_scripts(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        for _ in range(2):
            await client.create("where")
        by_server, by_url, words = cli.together(
            ("backlog", SPEC, "--json"), ("backlog", url, "--namespace", "farm", "--output", "json"), ("backlog", SPEC)
        )
    for done in (by_server, by_url):
        assert done.returncode == 0, done.stderr
        assert '"ready": 2' in done.stdout
    assert '"gpu": {"ready": 0, "oldestAgeSeconds": 0.0}' in by_server.stdout
    assert words.stdout.split()[:5] == ["queue", "ready", "oldest", "default", "2"]


def test_the_backlog_of_what_is_not_there_is_an_error_and_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    gone, memory, nameless, named = cli.together(
        ("backlog", f"sqlite:///{missing}", "--namespace", "farm"),
        ("backlog", "memory://", "--namespace", "farm"),
        ("backlog", f"sqlite:///{missing}"),
        ("backlog", SPEC, "--namespace", "farm"),
    )
    assert {done.returncode for done in (gone, memory, nameless, named)} == {2}
    assert "no server has kept tasks there yet" in gone.stderr
    assert not missing.exists()
    assert "only by the process that has them" in memory.stderr
    assert "--namespace NAME is missing" in nameless.stderr
    assert "--namespace goes with the URL of a store" in named.stderr


async def test_a_namespace_that_nobody_has_is_said_to_be_none(cli: Cli, url: str) -> None:
    async with serving_only(url) as client:
        # It has ended, and so does not wait.
        await client.cancel(await client.create("where"))
        right, wrong = cli.together(("backlog", url, "--namespace", "farm"), ("backlog", url, "--namespace", "fram"))
    assert (right.returncode, wrong.returncode) == (0, 0)
    assert "namespace 'fram'" in wrong.stderr
    assert "spelled" not in right.stderr


@pytest.fixture(scope="module", params=["postgres", "redis"])
def database(request: pytest.FixtureRequest) -> Iterator[Postgres | Valkey]:
    with postgres() if request.param == "postgres" else valkey() as server:
        yield server


@pytest.fixture
def database_url(cli: Cli, database: Postgres | Valkey) -> str:
    """An empty database that the commands of a test use too."""
    url = database.new_database() if isinstance(database, Postgres) else database.url
    cli.environment["MCP_TASKS_URL"] = url
    return url


def test_check_opens_the_database_and_hides_its_password(cli: Cli, database_url: str) -> None:
    cli.environment["MCP_TASKS_URL"] = database_url.replace("postgres@", "postgres:geheim@")
    done = cli("worker", SPEC, "--check")
    assert done.returncode == 0, done.stderr
    assert "geheim" not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stdout


def test_counting_what_waits_makes_no_tables(cli: Cli, database_url: str, database: Postgres | Valkey) -> None:
    if isinstance(database, Valkey):
        pytest.skip("there are no tables")
    for where in ((database_url, "--namespace", "farm"), (SPEC,)):
        done = cli("backlog", *where)
        assert done.returncode == 2, done.stderr
        assert "no server has kept tasks there yet" in done.stderr
    with psycopg.connect(database_url) as connection:
        assert not connection.execute("SELECT 1 FROM pg_tables WHERE tablename LIKE 'mcp_tasks%'").fetchall()


async def test_a_worker_without_its_database_is_not_ready_and_is_again_with_it(
    cli: Cli, database_url: str, database: Postgres | Valkey
) -> None:
    async with serving_only(database_url) as client:
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


async def _hello() -> Answer:
    return Answer(body="hello\n")


async def _broken() -> Answer:
    raise ValueError("secret")


PAGES: Mapping[str, Page] = {"/hello": _hello, "/broken": _broken}


async def _exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


ASKED = {
    b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n": 200,
    b"GET /hello?full=1 HTTP/1.0\r\n\r\n": 200,
    b"HEAD /hello HTTP/1.1\r\n\r\n": 200,
    b"GET /hello/ HTTP/1.1\r\n\r\n": 404,
    b"GET http://elsewhere/hello HTTP/1.1\r\n\r\n": 404,
    b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello": 405,
    b"GET /broken HTTP/1.1\r\n\r\n": 500,
    b"\x16\x03\x01\x02\x00\r\n\r\n": 400,
    b"GET /hello HTTP/2\r\n\r\n": 400,
    b"GET /hello\r\n\r\n": 400,
    b"GET /hello HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n": 431,
}


async def test_a_page_is_answered_whole_and_says_nothing_of_a_defect() -> None:
    async with serving("127.0.0.1", 0, PAGES) as port:
        for sent, status in ASKED.items():
            answer = await _exchange(port, sent)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()), sent
            assert b"secret" not in answer
            if sent.startswith(b"HEAD"):
                assert (body, b"Content-Length: 6" in head) == (b"", True)
            else:
                assert f"Content-Length: {len(body)}".encode() in head
                assert (body == b"hello\n") == (status == 200)


async def test_who_does_not_finish_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_http, "TIME_LIMIT", 0.05)
    async with serving("127.0.0.1", 0, PAGES) as port:
        assert await _exchange(port, b"GET /hello HTTP/1.1\r\nHost:") == b""


async def test_more_than_so_many_at_a_time_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_http, "MOST_CONNECTIONS", 1)
    async with serving("127.0.0.1", 0, PAGES) as port:
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        idle.write(b"GET ")
        await idle.drain()
        answer = await _exchange(port, b"GET /hello HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        idle.close()
        await idle.wait_closed()


async def test_however_many_ask_at_once_there_is_one_look() -> None:
    looks: list[int] = []

    async def look() -> int:
        looks.append(1)
        await asyncio.sleep(0)
        return len(looks)

    recent = Recent(look)
    assert await asyncio.gather(*(recent.get() for _ in range(20))) == [1] * 20
