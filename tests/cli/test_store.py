"""An operator's commands on a store, beside real workers that run its tasks."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from mcp_tasks.runtime.operator import Operator
from mcp_tasks.stores.url import store_from_url
from tests.cli.running import LIMIT, Cli, Done
from tests.cli.working import WorkerProcess, is_there, serving_only, working
from tests.helpers.databases import Postgres, Valkey, postgres, valkey
from tests.helpers.rpc import Tasking, text_of

pytestmark = pytest.mark.anyio

BRISK = "tests.cli.brisk_farm:make()"


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis"])
def database(request: pytest.FixtureRequest) -> Iterator[Postgres | Valkey | None]:
    """A database server for all tests here; none for a file."""
    match request.param:
        case "postgres":
            with postgres(durable=False) as server:
                yield server
        case "redis":
            with valkey() as server:
                yield server
        case _:
            yield None


@pytest.fixture
def url(cli: Cli, database: Postgres | Valkey | None, tmp_path: Path) -> str:
    """An empty store that the workers of a test use too."""
    match database:
        case Postgres():
            url = database.new_database()
        case Valkey():
            url = database.url
        case _:
            url = f"sqlite:///{tmp_path / 'tasks.db'}"
    cli.environment |= {"MCP_TASKS_URL": url, "MCP_TASKS_AUDIT": str(tmp_path / "audit.jsonl")}
    return url


class Hands:
    """An operator at the command line, without holding up the server in this process."""

    def __init__(self, cli: Cli, url: str, tmp_path: Path) -> None:
        self._cli = cli
        self._url = url
        self._audit = tmp_path / "audit.jsonl"

    async def __call__(self, command: str, *words: str) -> Done:
        return await anyio.to_thread.run_sync(lambda: self._cli(command, "--store", self._url, "--as", "ops", *words))

    async def json(self, command: str, *words: str) -> Any:
        done = await self(command, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def worker(self) -> str:
        """The one worker, by its short name, once it beats."""
        until = time.monotonic() + LIMIT
        while True:
            seen = [each for each in await self.json("workers") if each["beats"] and not each["gone"]]
            if len(seen) == 1:
                return seen[0]["worker"].rpartition("/")[2]
            assert time.monotonic() < until, seen
            await anyio.sleep(0.05)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._audit.read_text().splitlines()]


@pytest.fixture
def hands(cli: Cli, url: str, tmp_path: Path) -> Hands:
    return Hands(cli, url, tmp_path)


@asynccontextmanager
async def fleet(cli: Cli, url: str) -> AsyncGenerator[tuple[Tasking, WorkerProcess]]:
    """A server that only serves, and a worker."""
    async with serving_only(url) as client:
        with working(cli, "--health", "127.0.0.1:0", spec=BRISK) as worker:
            await worker.says("farm: running")
            yield client, worker


async def test_a_running_task_is_cancelled_and_its_worker_goes_on(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with fleet(cli, url) as (client, _):
        held = await client.create("hold", file=str(tmp_path / "go"))
        await is_there(tmp_path / "go.started")
        done = await hands("cancel", held, "--reason", "Maintenance")
        assert done.returncode == 0, done.stderr
        assert (await client.until(held, "cancelled"))["statusMessage"] == "Maintenance"
        # The one slot that it may have had is free, and the worker takes others.
        assert text_of((await client.finish("where"))["result"])
        again = await hands("cancel", held)
        assert "had ended already, as cancelled" in again.stderr
    entries = [entry for entry in hands.audited() if entry["event"] == "cancelled"]
    assert [(entry["actor"], entry["principal"], entry["server"]) for entry in entries] == [("operator", "ops", "farm")]
    assert held not in (tmp_path / "audit.jsonl").read_text()


async def test_an_ended_task_is_run_again_as_a_new_one_with_a_link_to_the_old(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with fleet(cli, url) as (client, _):
        held = await client.create("hold", file=str(tmp_path / "go"))
        await is_there(tmp_path / "go.started")
        refused = await hands("rerun", held)
        assert refused.returncode == 2
        assert "has not ended" in refused.stderr
        await hands("cancel", held)
        # At the same moment: one new task, as long as it has not ended.
        first, second = await anyio.to_thread.run_sync(
            lambda: cli.together(*[["rerun", held, "--store", url, "--as", "ops"]] * 2)
        )
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert first.stdout == second.stdout != ""
        new = first.stdout.strip()
        assert new != held
        (tmp_path / "go").touch()
        assert text_of((await client.until(new, "completed"))["result"]) == "held"
        shown = await hands.json("show", new)
        assert shown["rerunOf"] == held
        assert (await hands.json("rerun", held))[0]["taskId"] not in (held, new)
    made = [entry for entry in hands.audited() if entry["event"] == "created"]
    assert len(made) == 2
    assert all(entry["rerunOfDigest"] and entry["actor"] == "operator" for entry in made)


async def test_a_worker_drains_finishes_what_it_has_and_takes_tasks_again(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with fleet(cli, url) as (client, worker):
        pages = await worker.health()
        held = await client.create("hold", file=str(tmp_path / "go"))
        await is_there(tmp_path / "go.started")
        name = await hands.worker()
        [seen] = await hands.json("drain", name)
        assert seen["draining"] and seen["claimed"] == 1 and seen["drainedBy"] == "ops"
        await pages.ready(False)
        late = await client.create("where")
        (tmp_path / "go").touch()
        await client.until(held, "completed")
        [seen] = await hands.json("workers")
        assert seen["claimed"] == 0
        assert (await client.get(late))["status"] == "working"
        assert [task["taskId"] for task in (await hands.json("ls", "--status", "working"))["tasks"]] == [late]
        assert (await hands("drain", "--undo", name)).returncode == 0
        await client.until(late, "completed")
        await pages.ready(True)
    drained = [(entry["principal"], entry.get("outcome")) for entry in hands.audited() if entry["event"] == "drained"]
    assert drained == [("ops", None), ("ops", "undone")]


async def test_a_running_task_is_not_deleted_unless_forced_and_then_its_run_ends(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with fleet(cli, url) as (client, worker):
        held = await client.create("hold", file=str(tmp_path / "go"))
        await is_there(tmp_path / "go.started")
        refused = await hands("delete", held)
        assert refused.returncode == 2
        assert "has not ended" in refused.stderr
        assert (await client.get(held))["status"] == "working"
        forced = await hands("delete", "--force", held)
        assert forced.returncode == 0, forced.stderr
        assert (await hands("show", held)).returncode == 8
        assert (await hands("delete", held)).returncode == 8
        pages = await worker.health()
        until = time.monotonic() + LIMIT
        while (await hands.json("workers"))[0]["claimed"] or pages.json("/ready")[0] != 200:
            assert time.monotonic() < until
            await anyio.sleep(0.05)
        assert text_of((await client.finish("where"))["result"])
    assert [entry["event"] for entry in hands.audited()] == ["cancelled", "deleted"]


async def test_tasks_are_listed_by_what_they_are_page_by_page(cli: Cli, url: str, hands: Hands, tmp_path: Path) -> None:
    async with serving_only(url) as client:
        ids = [await client.create("where") for _ in range(4)] + [await client.create("paint")]

        async def listed(*words: str) -> list[str]:
            return [task["taskId"] for task in (await hands.json("ls", *words))["tasks"] if task["taskId"] in ids]

        assert await listed("--tool", "paint") == ids[4:]
        assert await listed("--queue", "gpu") == ids[4:]
        assert await listed("--owner", "") == ids
        assert await listed("--owner", "ann") == []
        assert await listed("--older-than", "1h") == []
        assert await listed("--older-than", "0s", "--limit", "1000") == ids
        assert await listed("--namespace", "other") == []
        if url.startswith("redis"):
            return
        seen, cursor = [], None
        while True:
            page = await hands.json("ls", "--tool", "where", "--limit", "3", *(["--cursor", cursor] if cursor else []))
            assert len(page["tasks"]) <= 3
            seen += [task["taskId"] for task in page["tasks"]]
            cursor = page["cursor"]
            if cursor is None:
                break
        assert seen == ids[:4]
        assert (await hands("ls", "--cursor", "nonsense")).returncode == 2


async def test_what_a_task_is_about_is_shown_only_when_asked_for(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with serving_only(url) as client:
        task = await client.create("hold", file="geheim-1")
        for words in ((), ("--json",)):
            done = await hands("show", task, *words)
            assert done.returncode == 0, done.stderr
            assert "geheim-1" not in done.stdout + done.stderr
            assert "file: text of 8" in done.stdout
        assert "geheim-1" in (await hands("show", task, "--secrets")).stdout
    shown = [entry.get("outcome") for entry in hands.audited() if entry["event"] == "shown"]
    assert shown == [None, None, "secrets"]


async def test_an_operator_changes_nothing_by_looking(url: str, database: object) -> None:
    store = store_from_url(url)
    if not isinstance(database, Valkey):
        with pytest.raises(Exception, match="no server has kept tasks there yet"):
            async with Operator(store, name="ops").opened():
                raise AssertionError("there is nothing to open")
        if database is None:
            assert not Path(url.removeprefix("sqlite:///")).exists()
