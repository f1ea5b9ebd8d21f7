"""An operator's commands on a store, beside real workers that run its tasks."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness.rpc import Tasking, text_of
from harness.waiting import eventually
from tests.cli.running import LIMIT, Cli, Done
from tests.cli.working import WorkerProcess, is_there, serving_only, working

BRISK = "tests.cli.farm:make_brisk()"


class Hands:
    """An operator at the command line, without holding up the server in this process."""

    def __init__(self, cli: Cli, url: str, tmp_path: Path) -> None:
        self._cli = cli
        self._url = url
        self._audit = tmp_path / "audit.jsonl"

    async def __call__(self, command: str, *words: str) -> Done:
        return await anyio.to_thread.run_sync(lambda: self._cli(command, "--store", self._url, "--as", "ops", *words))

    async def twice(self, command: str, *words: str) -> list[Done]:
        line = [command, "--store", self._url, "--as", "ops", *words]
        return await anyio.to_thread.run_sync(lambda: self._cli.together(line, line))

    async def json(self, command: str, *words: str) -> Any:
        done = await self(command, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def worker(self) -> str:
        """The one worker, by its short name, once it beats."""

        async def one() -> list[Any] | None:
            seen = [each for each in await self.json("workers") if each["beats"] and not each["gone"]]
            return seen if len(seen) == 1 else None

        [worker] = await eventually(one, LIMIT) or []
        return worker["worker"].rpartition("/")[2]

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._audit.read_text().splitlines()]


@pytest.fixture
def hands(cli: Cli, url: str, tmp_path: Path) -> Hands:
    cli.environment["MCP_TASKS_AUDIT"] = str(tmp_path / "audit.jsonl")
    return Hands(cli, url, tmp_path)


@asynccontextmanager
async def fleet(cli: Cli, url: str) -> AsyncGenerator[tuple[Tasking, WorkerProcess]]:
    """A server that only serves, and a worker."""
    async with serving_only(url) as client:
        with working(cli, "--health", "127.0.0.1:0", spec=BRISK) as worker:
            await worker.says("farm: running")
            yield client, worker


async def test_running_tasks_are_cancelled_and_run_again_and_their_worker_drains(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with fleet(cli, url) as (client, worker):
        pages = await worker.health()
        held = await client.create("hold", file=str(go))
        await is_there(tmp_path / "go.started")
        # Run again is only what has ended, and what runs is cancelled wherever it does.
        refused = await hands("rerun", held)
        assert refused.returncode == 2
        assert "has not ended" in refused.stderr
        done = await hands("cancel", held, "--reason", "Maintenance")
        assert done.returncode == 0, done.stderr
        assert (await client.until(held, "cancelled"))["statusMessage"] == "Maintenance"
        # By two at the same moment: one new task, as long as it has not ended.
        (tmp_path / "go.started").unlink()
        # Its tool had begun, and may have done something.
        refused = await hands("rerun", held)
        assert refused.returncode == 2
        assert "may have done its work" in refused.stderr
        assert "--yes" in refused.stderr
        first, second = await hands.twice("rerun", held, "--yes")
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert first.stdout == second.stdout != ""
        new = first.stdout.strip()
        await is_there(tmp_path / "go.started")
        # Its worker takes nothing more, and finishes what it has.
        name = await hands.worker()
        [seen] = await hands.json("drain", name)
        assert (seen["draining"], seen["claimed"], seen["drainedBy"]) == (True, 1, "ops")
        await pages.ready(False)
        late = await client.create("where")
        go.touch()
        assert text_of((await client.until(new, "completed"))["result"]) == "held"
        [seen] = await hands.json("workers")
        assert seen["claimed"] == 0
        assert [task["taskId"] for task in (await hands.json("ls", "--status", "working"))["tasks"]] == [late]
        # And takes tasks again.
        assert (await hands("drain", "--undo", name)).returncode == 0
        await client.until(late, "completed")
        await pages.ready(True)
        assert (await hands.json("show", new))["rerunOf"] == held
    written = [(entry["event"], entry.get("outcome")) for entry in hands.audited()]
    # Two had it run again, and one of them was given what the other had made.
    assert written.count(("rerun", None)) == 2
    assert ("listed", None) in written
    assert [each for each in written if each[0] not in ("rerun", "listed")] == [
        ("cancelled", None),
        ("created", "working"),
        ("drained", None),
        ("drained", "undone"),
        ("shown", None),
    ]
    for entry in hands.audited():
        assert (entry["actor"], entry["principal"], entry["server"]) == ("operator", "ops", "farm")
    assert held not in (tmp_path / "audit.jsonl").read_text()


async def test_a_running_task_is_not_deleted_unless_forced_and_then_its_run_ends(
    cli: Cli, url: str, hands: Hands, tmp_path: Path
) -> None:
    async with fleet(cli, url) as (client, _):
        held = await client.create("hold", file=str(tmp_path / "geheim-1"))
        await is_there(tmp_path / "geheim-1.started")
        # What it is about is shown only when asked for.
        shown = await hands("show", held)
        assert "geheim-1" not in shown.stdout
        assert "file: text of" in shown.stdout
        assert "geheim-1" in (await hands("show", held, "--secrets", "--json")).stdout
        refused = await hands("delete", held)
        assert refused.returncode == 2
        assert "has not ended" in refused.stderr
        assert "--force" in refused.stderr
        assert (await client.get(held))["status"] == "working"
        forced = await hands("delete", "--force", held, "task_not_there")
        assert forced.returncode == 8
        assert f"{held}: deleted" in forced.stderr
        assert "there is no task task_not_there" in forced.stderr
        assert (await hands("show", held)).returncode == 8
        # The worker has let go of it, and takes others.
        assert text_of((await client.finish("where"))["result"])
    events = [(entry["event"], entry.get("outcome")) for entry in hands.audited()]
    assert events == [("shown", None), ("shown", "secrets"), ("cancelled", None), ("deleted", None)]


def test_what_is_no_store_is_said_to_be_none_and_stays_as_it_is(cli: Cli, url: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    done = cli("ls", "--store", url)
    assert done.returncode == 2
    assert "no server has kept tasks there yet" in done.stderr
    assert not path.exists()
    path.write_text("something else")
    assert cli("workers").returncode == 10
    assert path.read_text() == "something else"
    assert cli("workers", "--store", "memory://").returncode == 2
    assert cli("workers", "--audit", f"{path}/audit").returncode == 2
    mistyped = cli("ls", "--store", url, "--audit", str(tmp_path / "nowhere" / "audit"))
    assert mistyped.returncode == 2
    assert "there is no folder" in mistyped.stderr
    assert not (tmp_path / "nowhere").exists()
    # Without --store, it is the ledger that is listed.
    assert cli("ls").returncode == 0
