"""Leaving memory, where that does not go as it should."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.stores import MemoryStore
from tests.unit.running import launch, ok, question, running

pytestmark = pytest.mark.anyio


class CountingEngine(LocalEngine):
    """Counts what it is handed."""

    submits = 0

    async def submit(self, task_id: str, **options: Any) -> None:
        self.submits += 1
        await super().submit(task_id, **options)


class GoneMeanwhile(MemoryStore):
    """Loses a task when it is to be parked."""

    async def save(self, record: TaskRecord, *, expected: int, **options: Any) -> TaskRecord:
        if record.status is TaskStatus.INPUT_REQUIRED and record.worker is None:
            await self.delete(record.id, expected=expected, now=record.updated_at)
        return await super().save(record, expected=expected, **options)


async def asking(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


async def until_so(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)


async def test_a_run_whose_task_is_gone_by_the_time_it_would_be_parked_just_ends() -> None:
    engine, policy = CountingEngine(), ToolPolicy(rerun=True, park_after=timedelta(0))
    begun = anyio.Event()

    async def says_that_it_begins(run: Run) -> Ending:
        begun.set()
        return await asking(run)

    async with running(says_that_it_begins, store=GoneMeanwhile(), engine=engine, policy=policy) as runtime:
        task = await launch(runtime)
        await begun.wait()
        await until_so(lambda: not runtime.runs())
        assert await runtime.store.get(task.id) is None
        assert engine.submits == 1, "nothing is started again"
