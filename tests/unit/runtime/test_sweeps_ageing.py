"""Tasks that are too old: what may go wrong when they are ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks.errors import StoreUnavailable, TasksError, UnknownTask, ValueNotStorable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.unit.losing import as_of_now
from tests.unit.running import create, ok, running

pytestmark = pytest.mark.anyio

MONTH = timedelta(days=30)


class RefusingStore(MemoryStore):
    """Does not take changes of some tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[str, TasksError] = {}

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if record.id in self.refusals:
            raise self.refusals[record.id]
        return await super().save(record, **options)


async def at_once(run: Run) -> Ending:
    return ok()


@asynccontextmanager
async def two_old_tasks() -> AsyncGenerator[tuple[TaskRuntime, RefusingStore, TaskRecord, TaskRecord]]:
    """A process, and two tasks whose time is over."""
    store, clock = RefusingStore(), FakeClock()
    options: dict[str, Any] = {"clock": clock, "limits": Limits(task_age=MONTH)}
    async with running(at_once, store=store, runs_tools=False, **options) as runtime:
        first, second = await create(runtime), await create(runtime)
        clock.advance(MONTH)
        yield runtime, store, first, second


@pytest.mark.parametrize("said", [False, True], ids=["gone meanwhile", "cannot be ended"])
async def test_one_that_cannot_be_ended_keeps_no_other(said: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with two_old_tasks() as (runtime, store, bad, old):
        store.refusals[bad.id] = ValueNotStorable("too odd") if said else UnknownTask(bad.id)
        await runtime.janitor.ageing.look()
        assert (await as_of_now(runtime, bad)).status is TaskStatus.WORKING
        assert (await as_of_now(runtime, old)).status is TaskStatus.FAILED
    assert ("too odd" in caplog.text) is said


async def test_while_the_store_is_away_none_is_ended_and_the_next_look_finds_them() -> None:
    async with two_old_tasks() as (runtime, store, first, second):
        store.refusals = {task.id: StoreUnavailable("the disk is full") for task in (first, second)}
        with pytest.raises(StoreUnavailable):
            await runtime.janitor.ageing.look()
        store.refusals = {}
        await runtime.janitor.ageing.look()
        for task in (first, second):
            assert (await as_of_now(runtime, task)).status is TaskStatus.FAILED
