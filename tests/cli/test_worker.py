"""`mcp-tasks worker`: runs what others serve, and hands back in order what it cannot finish."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGINT, SIGTERM

import anyio
import pytest

from harness.rpc import text_of
from mcp_tasks.model import TaskStatus
from mcp_tasks.runtime import sweeps
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.queries import LOOKS
from mcp_tasks.testing import make_record, make_request
from tests.cli.running import LIMIT, Cli
from tests.cli.working import SPEC, is_there, serving_only, working

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(cli: Cli, tmp_path: Path) -> str:
    """A store that the commands of a test use too."""
    cli.environment["MCP_TASKS_URL"] = url = f"sqlite:///{tmp_path / 'tasks.db'}"
    return url


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


async def test_a_task_says_that_no_worker_is_there_until_one_takes_it(
    cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweeps, "PATIENCE", 0.3)
    file = tmp_path / "held"
    async with serving_only(url) as client:
        task = await client.create("hold", file=str(file))
        with anyio.fail_after(LIMIT):
            while "statusMessage" not in (seen := await client.get(task)):  # noqa: ASYNC110 - as a client sees it
                await anyio.sleep(0.05)
        assert (seen["status"], seen["statusMessage"]) == ("working", sweeps.MESSAGE)
        assert caplog.text.count("no worker is running") == 1
        with working(cli):
            await is_there(tmp_path / "held.started")
            assert "statusMessage" not in await client.get(task)
            file.touch()
            await client.until(task, "completed")


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


async def test_a_second_signal_hands_back_at_once(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        with working(cli, "--drain", "3600", "--health", "127.0.0.1:0") as worker:
            task = await client.create("hold", file=str(tmp_path / "go"))
            await is_there(tmp_path / "go.started")
            worker.send(SIGTERM)
            await (await worker.health()).say("draining")
            worker.send(SIGTERM)
            assert await worker.ends() == 130
            assert "1 handed back" in worker.said
        assert (await client.get(task))["status"] == "working"


async def test_a_thread_that_does_not_stop_does_not_keep_the_process(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        with working(cli, "--drain", "0") as worker:
            await client.create("block", file=str(tmp_path / "block"))
            await is_there(tmp_path / "block.started")
            worker.send(SIGTERM)
            assert await worker.ends() == 0
            assert "1 handed back, 1 left behind in a thread that did not stop" in worker.said


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
        assert plan["tools"]["paint"] == {
            "queue": "gpu",
            "priority": 5,
            "version": "2",
            "maxAtWork": 2,
            "served": True,
        }
        assert (await client.get(task))["status"] == "working"


def test_check_fails_for_a_queue_that_no_tool_is_in(cli: Cli, url: str) -> None:
    done = cli("worker", SPEC, "--check", "--queues", "gpu,gpux")
    assert done.returncode == 2
    assert "no tool is in queue 'gpux'" in done.stderr


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
            ("backlog", SPEC, "--json"),
            ("backlog", url, "--namespace", "farm", "--output", "json"),
            ("backlog", SPEC),
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
    assert "there is no file" in gone.stderr
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


async def test_a_namespace_whose_tasks_have_mostly_expired_is_known(cli: Cli, url: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open("farm")
    ended = make_record(
        namespace="farm", status=TaskStatus.COMPLETED, finished_at=datetime.now(UTC), retention=timedelta(0)
    )
    gone = [replace(ended, id=f"gone-{number:05}") for number in range(LOOKS + 100)]
    kept = replace(ended, id="kept", retention=None)
    await asyncio.gather(*(store.create(record, make_request()) for record in [*gone, kept]))
    await store.close()
    done = cli("backlog", url, "--namespace", "farm")
    assert done.returncode == 0
    assert "spelled" not in done.stderr
