"""What waits in a file that several processes share: each takes what is next by priority and owner, of its queues."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import TaskRecord
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.unit.running import LIMIT, ok, real_clock, running

pytestmark = pytest.mark.anyio

MANY = 250
"""More than a sweep looks at in one go."""


class Started:
    """Notes in which order tasks begin, and ends each at once."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._one_more = anyio.Event()

    async def body(self, run: Run) -> Ending:
        self.ids.append(run.record.id)
        self._one_more.set()
        return ok()

    async def all_of(self, count: int) -> list[str]:
        """The ids in order, once so many have begun."""
        with anyio.fail_after(LIMIT):
            while len(self.ids) < count:
                self._one_more = anyio.Event()
                await self._one_more.wait()
        return self.ids


async def left_behind(store: SqliteStore, *records: TaskRecord) -> None:
    """Tasks that another process made, and had no room for."""
    async with anyio.create_task_group() as group:
        for record in records:
            group.start_soon(store.create, record, make_request(name="tool"))


def task(number: int, **fields: Any) -> TaskRecord:
    made = real_clock() + timedelta(microseconds=number)
    return make_record(**{"name": "tool", "created_at": made, "retention": None, **fields})


@pytest.mark.slow
async def test_a_process_that_finds_many_tasks_of_one_owner_soon_begins_the_one_of_another(tmp_path: Path) -> None:
    store, started = SqliteStore(tmp_path / "tasks.db"), Started()
    await store.open()
    many = [task(number, owner="alice") for number in range(MANY)]
    await left_behind(store, *many, task(MANY, id="bob's", owner="bob"), task(MANY, id="urgent", owner="x", priority=5))
    async with running(started.body, store=SqliteStore(store.path), engine=LocalEngine(1)):
        begun = await started.all_of(10)
    assert begun[0] == "urgent"
    assert "bob's" in begun[1:3]
    await store.close()


async def test_a_process_leaves_tasks_of_other_queues_alone(tmp_path: Path) -> None:
    store, started = SqliteStore(tmp_path / "tasks.db"), Started()
    await store.open()
    many = [task(number, queue="gpu") for number in range(MANY)]
    await left_behind(store, *many, task(MANY, id="wanted"))
    async with running(started.body, store=SqliteStore(store.path), engine=LocalEngine(1), queues=["default"]):
        assert await started.all_of(1) == ["wanted"]
    assert (await store.backlog("", real_clock()))["gpu"].ready == MANY
    await store.close()
