"""Clients that are killed while they host: what was accepted is there again, and is answered once."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.waiting import eventually
from mcp_tasks.client import Hosting, TasksClient
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.legacy.hosting import MAX_LOST
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.protocol.shapes import QUESTION_META_KEY
from tests.client.processes import client_process, lines_of, logged
from tests.hosted.raw_server import RELATED, Host, Refused, connected, http_server


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "hosted.db"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "people.log"


BEGIN = ["begin", json.dumps({"question": "Publish?"})]
ASKED, ANSWERED = "asked: Publish?", "answered: Publish?"


def fetch(task_id: str) -> list[str]:
    return ["fetch", json.dumps({"task_id": task_id, "seconds": 20})]


@pytest.mark.requirement("hosted/survives")
@pytest.mark.parametrize("answered", [False, True])
async def test_only_what_a_killed_client_had_not_answered_is_asked_again(
    ledger: Path, log: Path, answered: bool
) -> None:
    think = [] if answered else ["--think", "Publish?"]
    async with http_server() as server:
        hosting = (server.url, ledger, log, "host", "--mode", "legacy")
        async with client_process(*hosting, *think, *BEGIN) as client:
            task_id = (await client.line())["result"]
            await (eventually(lambda: _is_completed(ledger)) if answered else logged(log, ASKED))
            await client.kill()
        async with client_process(*hosting, *fetch(task_id)) as client:
            assert (await client.line())["result"] == "accept"
    assert lines_of(log) == ([ASKED, ANSWERED] if answered else [ASKED, ASKED, ANSWERED])


def _is_completed(ledger: Path) -> bool:
    """As its bytes say: while its process lives, nobody else can open it."""
    files = [path for path in (ledger, ledger.with_name(f"{ledger.name}-wal")) if path.exists()]
    return b"completed" in b"".join(path.read_bytes() for path in files)


async def test_an_orderly_end_leaves_the_question_for_the_next_time(ledger: Path, host: Host) -> None:
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        task = await server.create()
        await eventually(lambda: len(host.asked) == 1)
    assert host.cancelled == 1
    host.ready.set()
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        assert (await server.ask("tasks/result", {"taskId": task["taskId"]}))["action"] == "accept"
        shown = await server.ask("tasks/get", {"taskId": task["taskId"]})
        assert shown["createdAt"] == task["createdAt"]
    assert len(host.asked) == 2


async def test_a_client_that_dies_of_a_question_is_not_asked_it_for_ever(ledger: Path, host: Host) -> None:
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        task = await server.create()
    for deaths in range(1, MAX_LOST + 1):
        _pretend_to_have_died(ledger)
        async with connected(host, hosting=Hosting(ledger=ledger)) as server:
            state = await server.ask("tasks/get", {"taskId": task["taskId"]})
            assert state["status"] == ("working" if deaths < MAX_LOST else "failed")
            assert deaths < MAX_LOST or "died" in state["statusMessage"]


def _pretend_to_have_died(ledger: Path) -> None:
    """As a crash leaves it: the task still has its worker."""
    with sqlite3.connect(ledger) as db:
        db.execute("UPDATE tasks SET worker = 'client' WHERE finished IS NULL")
    db.close()


async def test_an_unfinished_task_is_forgotten_when_its_server_stays_away_for_its_ttl(ledger: Path, host: Host) -> None:
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        kept = await server.create(ttl=3_600_000)
        task = await server.create(ttl=60_000)
    with sqlite3.connect(ledger) as db:
        earlier = datetime.now(UTC) - timedelta(minutes=10)
        db.execute("UPDATE owners SET seen = ?", [int(earlier.timestamp() * 1_000_000)])
    db.close()
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        with pytest.raises(Refused):
            await server.status(task["taskId"])
        assert await server.status(kept["taskId"]) == "working"


async def test_a_question_that_a_server_of_ours_asks_again_is_the_task_that_it_has(ledger: Path, host: Host) -> None:
    meta = {RELATED: {"taskId": "of the server"}, QUESTION_META_KEY: "elicitation-1"}
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        task = await server.create(_meta=meta)
        await eventually(lambda: len(host.asked) == 1)
        assert (await server.create(_meta=meta))["taskId"] == task["taskId"]
        host.ready.set()
        await server.until(task["taskId"], "completed")
        again = await server.create(_meta=meta)
        assert (again["taskId"], again["status"]) == (task["taskId"], "working")
        assert len(host.asked) == 1
        for other in ({**meta, QUESTION_META_KEY: "elicitation-2"}, {**meta, RELATED: {"taskId": "another"}}):
            assert (await server.create(_meta=other))["taskId"] != task["taskId"]
        assert (await server.create(_meta=meta, message="Something else?"))["taskId"] != task["taskId"]
    async with connected(host, hosting=Hosting(ledger=ledger), address="raw:two") as server:
        assert (await server.create(_meta=meta))["taskId"] != task["taskId"]


async def test_a_ledger_is_open_in_one_place_at_a_time(ledger: Path, host: Host) -> None:
    async with connected(host, hosting=Hosting(ledger=ledger)):
        with pytest.raises(StoreUnavailable, match="another process has it open"):
            async with connected(host, hosting=Hosting(ledger=ledger)):
                pass
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        assert (await server.ask("tasks/list"))["tasks"] == []


def test_a_ledger_is_for_its_owner_alone_and_a_file_of_another_kind_is_left_alone(tmp_path: Path, ledger: Path) -> None:
    HostedFile(ledger).close()
    assert ledger.stat().st_mode & 0o077 == 0
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another kind"):
        HostedFile(path)
    assert path.read_bytes() == before
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreCorrupt):
        HostedFile(garbage)


@pytest.mark.parametrize(
    "damage",
    [
        "created = 9223372036854775807",
        "status = 'sleeping'",
        "status = CAST(x'ff' AS TEXT)",
        "updated = 'yesterday'",
        "lost = 'often'",
    ],
)
async def test_a_damaged_task_is_gone_and_takes_no_other_with_it(damage: str, ledger: Path, host: Host) -> None:
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        bad, good = [(await server.create())["taskId"] for _ in range(2)]
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute(f"UPDATE tasks SET {damage} WHERE task_id = ?", (bad,))
    host.ready.set()
    async with connected(host, hosting=Hosting(ledger=ledger)) as server:
        await server.until(good, "completed")
        assert [task["taskId"] for task in (await server.ask("tasks/list"))["tasks"]] == [good]
        with pytest.raises(Refused) as refused:
            await server.status(bad)
        assert refused.value.code == -32602


async def test_one_client_object_hosts_again_after_its_connection(ledger: Path, host: Host) -> None:
    host.ready.set()
    tasks = TasksClient(hosting=Hosting(ledger=ledger))
    async with connected(host, tasks=tasks) as server:
        task = await server.create()
        await server.until(task["taskId"], "completed")
    async with connected(host, tasks=tasks) as server:
        assert await server.status(task["taskId"]) == "completed"
