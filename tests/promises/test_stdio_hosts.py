"""Hosts that start a server over its pipes, and end it when they leave: tasks go on with the next one."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from harness.processes import ENVIRONMENT
from mcp_tasks.client import ServerAddress, TaskHandle, connect, start_task
from mcp_tasks.model import TaskStatus
from mcp_tasks.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def test_a_server_that_its_host_ends_while_it_drains_hands_its_runs_over(tmp_path: Path) -> None:
    """Otherwise a task would count as one that takes its process down, because somebody came to look at it."""
    db = tmp_path / "tasks.db"
    server = ServerAddress.parse(f"{sys.executable} -m tests.cli.asking_server --db {db} --drain 60")
    # The SDK's client closes the pipes, and ends the process if it is still there two seconds later.
    async with connect(server, environment=ENVIRONMENT) as client:
        task = await start_task(client, "slow", {"seconds": 60})
        assert isinstance(task, TaskHandle)
        async with aclosing(task.watch()) as states:
            await anext(state async for state in states if state.progress is not None)
    store = SqliteStore(db)
    await store.open()
    try:
        record, workers = await store.get(task.id), await store.workers("asking")
    finally:
        await store.close()
    assert record is not None
    assert (record.status, record.worker, record.attempt, record.lost) == (TaskStatus.WORKING, None, 1, 0)
    assert workers == {}, "the process signed off"
