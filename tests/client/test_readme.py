"""The client on the front page is run as it stands there, as a program of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.processes import ENVIRONMENT, ROOT, run
from mcp_tasks.client import Ledger, LedgerEntry, TaskStatus
from mcp_tasks.stores import MemoryStore

pytestmark = pytest.mark.anyio


async def test_the_client_of_the_readme_is_a_program_that_comes_back_to_its_tasks(tmp_path: Path) -> None:
    server_code, client_code = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    store = MemoryStore()
    names: dict[str, Any] = {"__name__": "readme_server", "store": store}
    exec(compile(server_code.replace("Tasks()", "Tasks(store)"), "README.md", "exec"), names)
    program = tmp_path / "client.py"
    async with serving(names["server"]) as wire:
        assert "http://127.0.0.1:8000/mcp" in client_code
        program.write_text(client_code.replace("http://127.0.0.1:8000/mcp", wire.url))
        first = await _run(program)
        second = await _run(program)
        left = [entry.task_id for entry in _entries(tmp_path)]
        for task_id in left:
            await _delete(store, task_id)
        third = await _run(program)
    assert (first.count("published"), first.count("<TaskHandle")) == (2, 1), first
    # The task that the first run left in the ledger, and its own call.
    assert (second.count("published"), second.count("<TaskHandle")) == (4, 1), second
    # A task that the server has deleted meanwhile is dropped, and the program goes on.
    assert left
    assert (third.count("published"), third.count("<TaskHandle")) == (2, 1), third
    assert not set(left) & {entry.task_id for entry in _entries(tmp_path)}


def _entries(folder: Path) -> Sequence[LedgerEntry]:
    with closing(Ledger(folder / "ledger.db")) as ledger:
        return ledger.entries()


async def _delete(store: MemoryStore, task_id: str) -> None:
    """Delete a task once it only waits for its answer: until then its run saves it again and again."""
    with anyio.fail_after(30):
        while True:
            record = await store.get(task_id)
            if record is not None and record.status is TaskStatus.INPUT_REQUIRED:
                return await store.delete(task_id, expected=record.version)
            await anyio.sleep(0.02)


async def _run(program: Path) -> str:
    command = [sys.executable, program.name]
    return (await asyncio.to_thread(run, command, cwd=program.parent, env=ENVIRONMENT, check=True)).stdout
