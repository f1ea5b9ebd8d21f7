"""Tasks for those who ask about them, from a store that gives a task and its outcome in one look."""

from __future__ import annotations

import pytest

from mcp_tasks.errors import TaskUnreadable, UnknownTask
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.changes import MAX_ID_LENGTH
from tests.unit.running import TogetherStore, create, ok, running, until_final

pytestmark = pytest.mark.anyio


async def at_once(run: Run) -> Ending:
    return ok()


async def ended_task(runtime: TaskRuntime) -> TaskRecord:
    """A task of ann's that has ended."""
    task = await create(runtime, owner="ann")
    await runtime.engine.submit(task.id)
    return await until_final(runtime, task)


async def test_a_task_and_how_it_ended_come_in_one_look() -> None:
    async with running(at_once, store=TogetherStore()) as runtime:
        task = await ended_task(runtime)
        record, outcome = await runtime.reading.get_with_outcome(task.id, owner="ann")
        assert record.status is TaskStatus.COMPLETED
        assert outcome == await runtime.outcome(task.id)


@pytest.mark.parametrize("owner", ["bob", None])
async def test_nobody_else_is_told_that_there_is_such_a_task(owner: str | None) -> None:
    async with running(at_once, store=TogetherStore()) as runtime:
        task = await ended_task(runtime)
        for task_id in (task.id, "no such task", "x" * (MAX_ID_LENGTH + 1)):
            with pytest.raises(UnknownTask):
                await runtime.reading.get_with_outcome(task_id, owner=owner)


async def test_a_task_whose_outcome_cannot_be_read_is_there_without_it() -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        task = await ended_task(runtime)
        store.damaged = {"outcome"}
        record, outcome = await runtime.reading.get_with_outcome(task.id, owner="ann")
        assert (record.status, outcome) == (TaskStatus.COMPLETED, None)
        with pytest.raises(TaskUnreadable, match="its outcome is damaged"):
            await runtime.outcome(task.id)


async def test_a_task_that_cannot_be_read_is_said_to_be_so_each_time_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        task = await ended_task(runtime)
        store.damaged = {"row"}
        for _ in range(2):
            with pytest.raises(TaskUnreadable):
                await runtime.reading.get_with_outcome(task.id, owner="ann")
    assert caplog.text.count("its row is damaged") == 1
