"""Grep: after a life with encryption on (calls, questions, a crash, ends, expiry) no secret is in any file or log.

The same without encryption finds every one of them in the database, so the search can find something.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import ENVIRONMENT
from harness.serving import ServerProcess
from mcp_tasks.client import Ledger, TaskFailed, TaskHandle, TasksClient, reconnecting_http
from mcp_tasks.encryption import Keyring, new_key
from tests.trust.keeping_secrets import MARK

pytestmark = pytest.mark.anyio

CARD = f"{MARK}-argument"
PIN = f"{MARK}-answer"
LIMIT = 60.0


class Bank(ServerProcess):
    """The server, on one address whatever becomes of its process."""

    def __init__(self, folder: Path, key: str | None) -> None:
        self.folder = folder
        self.database = folder / "store" / "tasks.db"
        keys = {} if key is None else {"MCP_TASKS_KEYS": key}
        super().__init__(
            "tests.trust.keeping_secrets", folder, f"sqlite:///{self.database}", "{fd}", env=ENVIRONMENT | keys
        )

    def kept(self) -> bytes:
        """All that is in the database's files: the file, its WAL, its shared memory."""
        files = sorted(self.database.parent.iterdir())
        assert self.database in files
        return b"".join(file.read_bytes() for file in files)

    def logged(self) -> str:
        return "".join((self.folder / file).read_text() for file in ("ours.log", "all.log"))


async def person(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"pin": PIN})


async def started(tasks: TasksClient, client: Client, tool: str) -> TaskHandle:
    handle = await tasks.start(client, tool, {"card": CARD})
    assert isinstance(handle, TaskHandle)
    return handle


async def lead_a_life(found: Bank, ledger: Ledger) -> list[str]:
    """Everything that can happen to a secret; gives the ids of the tasks."""
    tasks = TasksClient(ledger=ledger)
    async with Client(reconnecting_http(found.url), elicitation_callback=person, extensions=[tasks]) as client:
        paying = await started(tasks, client, "pay")
        others = [await started(tasks, client, tool) for tool in ("fail", "crash", "odd", "refuse", "brief")]
        ids = [handle.id for handle in (paying, *others)]
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                result = await paying.result()
                assert f"{MARK}-result {CARD} {PIN}" in str(result)

            group.start_soon(wait)
            while not (found.folder / "answered").exists():  # noqa: ASYNC110 - another process says so
                await anyio.sleep(0.05)
            await anyio.to_thread.run_sync(found.kill)
            assert len(found.kept()) > 0
            found.start()
            (found.folder / "gate").touch()
        failing, crashing, odd, refusing, brief = others
        assert f"{MARK}-error" in str(await failing.result())
        assert (await crashing.result()).is_error
        assert (await odd.result()).is_error
        with pytest.raises(TaskFailed, match=f"{MARK}-rpc-error"):
            await refusing.result()
        while is_there(found, brief.id):  # noqa: ASYNC110 - another process sweeps
            await anyio.sleep(0.1)
    return ids


def is_there(found: Bank, task_id: str) -> bool:
    """Whether the database still has a task: one that has expired is forgotten by a sweep."""
    with closing(sqlite3.connect(found.database)) as connection:
        return bool(connection.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).fetchall())


SECRETS = ("argument", "answer", "progress", "step-name", "step-value", "question", "error", "rpc-error", "result")


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
async def test_no_secret_is_found_anywhere_or_without_encryption_all_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encrypted: bool
) -> None:
    caplog.set_level(logging.DEBUG, "mcp_tasks")
    (tmp_path / "ledger").mkdir()
    path = tmp_path / "ledger" / "ledger.db"

    def remembered() -> bytes:
        return b"".join(file.read_bytes() for file in path.parent.iterdir())

    with anyio.fail_after(LIMIT), Bank(tmp_path, new_key() if encrypted else None) as found:
        cipher = Keyring(new_key()) if encrypted else None
        with closing(Ledger(path, keep_results=True, cipher=cipher)) as ledger:
            ids = await lead_a_life(found, ledger)
            assert any(f"{MARK}-result" in str(entry.result) for entry in ledger.entries())
            kept = found.kept() + remembered()
        await anyio.to_thread.run_sync(found.stop)
        at_the_end = found.kept() + remembered()
    if encrypted:
        assert MARK.encode() not in kept + at_the_end
    else:
        assert [secret for secret in SECRETS if f"{MARK}-{secret}".encode() not in kept] == []
    # Not even without encryption in a log.
    logged = found.logged()
    assert "raised an unexpected exception" in logged
    assert MARK not in logged + caplog.text
    assert [task_id for task_id in ids if task_id in logged + caplog.text] == []
