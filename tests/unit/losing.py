"""Tasks whose runs other processes have, or had."""

from dataclasses import replace
from datetime import timedelta

from mcp_tasks.model import TaskRecord
from mcp_tasks.model.machine import RunLost, RunStarted
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.lease import abandon
from tests.unit.running import HOUR, Seconds, create

ANOTHER = Actor("worker", "another")

GONE = "gone"
"""A worker that is known to be dead."""
abandon(GONE)


async def claimed_by(
    runtime: TaskRuntime, worker: str, tool: str = "tool", *, lost: int = 0, announced: bool = True
) -> TaskRecord:
    """A task whose run another process has, after so many lost ones."""
    task = await create(runtime, tool, retention=HOUR)
    if not announced:
        task = replace(task, announced=False, version=task.version + 1)
        await runtime.store.save(task, expected=task.version - 1)
    for earlier in range(lost):
        await runtime.changes.change(await as_of_now(runtime, task), RunStarted(worker=f"{earlier}"), actor=ANOTHER)
        await lose(runtime, task)
    return await runtime.changes.change(await as_of_now(runtime, task), RunStarted(worker=worker), actor=ANOTHER)


async def queued(runtime: TaskRuntime, tool: str = "tool", *, lost: int = 0) -> TaskRecord:
    """A task that nobody has, after so many lost runs."""
    task = await claimed_by(runtime, "the last one", tool, lost=lost - 1)
    return await lose(runtime, task)


async def lose(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    record = await as_of_now(runtime, task)
    return await runtime.changes.change(record, RunLost(attempt=record.attempt), actor=ANOTHER)


async def as_of_now(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    record = await runtime.store.get(task.id)
    assert record is not None
    return record


async def sweep_for(runtime: TaskRuntime, monotonic: Seconds, time: timedelta, *, sweeps: int = 4) -> None:
    """Let that time go by, looking often enough for all of it to count."""
    await runtime.janitor.sweep()
    for _ in range(sweeps):
        monotonic.advance(time / sweeps)
        await runtime.janitor.sweep()
