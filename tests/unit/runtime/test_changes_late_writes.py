"""What runs did while their process could not reach the store, written when it can."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.model.machine import RunLost, StepRecorded
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.changes import LateWrites, Write
from tests.unit.running import CLIENT, Ending, FailingStore, PausingStore, Run, launch, ok, running, until

pytestmark = pytest.mark.anyio


async def waiting(run: Run) -> Ending:
    await run.stopped.wait()
    return ok()


async def at_work(runtime: TaskRuntime) -> TaskRecord:
    return await until(runtime, await launch(runtime), lambda record: record.attempt == 1)


def step(name: str) -> Write:
    entry = JournalEntry(kind="step", key=name, value={"value": name})
    return Write(events=[StepRecorded(attempt=1)], actor=Actor("run"), entries=[entry])


async def keys(runtime: TaskRuntime, task: TaskRecord) -> list[str]:
    return [entry.key for entry in await runtime.store.journal(task.id)]


async def test_they_are_written_in_the_order_in_which_things_were_done() -> None:
    async with running(waiting) as runtime:
        task, late = await at_work(runtime), LateWrites(runtime.changes)
        for name in "abc":
            late.add(task, step(name))
        await late.flush()
        assert await keys(runtime, task) == ["a", "b", "c"]
        await late.flush()
        assert await keys(runtime, task) == ["a", "b", "c"], "written once"


async def test_two_who_write_them_at_once_write_them_once() -> None:
    async with running(waiting, store=PausingStore()) as runtime:
        task, late = await at_work(runtime), LateWrites(runtime.changes)
        for name in "abc":
            late.add(task, step(name))
        async with anyio.create_task_group() as group:
            group.start_soon(late.flush)
            group.start_soon(late.flush)
        assert await keys(runtime, task) == ["a", "b", "c"]


async def test_what_cannot_be_written_yet_is_not_lost() -> None:
    store = FailingStore()
    async with running(waiting, store=store) as runtime:
        task, late = await at_work(runtime), LateWrites(runtime.changes)
        for name in "ab":
            late.add(task, step(name))
        store.refuse_save(lambda record: True, times=1)
        with pytest.raises(StoreUnavailable):
            await late.flush()
        await late.flush()
        assert await keys(runtime, task) == ["a", "b"]


async def test_what_belongs_to_another_run_by_now_is_dropped() -> None:
    async with running(waiting) as runtime:
        lost, kept, late = await at_work(runtime), await at_work(runtime), LateWrites(runtime.changes)
        late.add(lost, step("a"))
        late.add(kept, step("b"))
        await runtime.changes.change(lost, RunLost(attempt=1), actor=CLIENT)
        await late.flush()
        assert (await keys(runtime, lost), await keys(runtime, kept)) == ([], ["b"])
