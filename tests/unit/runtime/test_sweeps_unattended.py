"""A process that only serves says when tasks wait and no worker is there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.model import TaskRecord
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.sweeps import MESSAGE, PATIENCE, UNATTENDED_BATCH
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.codec import queued_since
from tests.unit.running import Seconds, create, launch, ok, running, until_final

pytestmark = pytest.mark.anyio


async def at_once(run: Run) -> Ending:
    return ok()


async def said_of(runtime: TaskRuntime, task: TaskRecord) -> str | None:
    return (await runtime.get(task.id, owner=None)).status_message


async def sweep_for(runtime: TaskRuntime, clock: Seconds, seconds: float) -> None:
    """What the sweeps of so many seconds do."""
    await runtime.janitor.sweep()
    clock.advance(timedelta(seconds=seconds))
    await runtime.janitor.sweep()


async def test_a_task_that_waits_without_a_worker_says_so_until_one_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), Seconds()
    async with running(at_once, store=store, monotonic=clock, runs_tools=False) as serving:
        first = await launch(serving)
        await sweep_for(serving, clock, PATIENCE - 0.1)
        assert await said_of(serving, first) is None, "a worker may just be replaced by a new one"
        clock.advance(timedelta(seconds=0.1))
        await serving.janitor.sweep()
        told = await serving.get(first.id, owner=None)
        assert told.status_message == MESSAGE
        assert told.updated_at > first.updated_at
        assert queued_since(told) == queued_since(first), "the age of the backlog goes on"
        second = await launch(serving)
        await serving.janitor.sweep()
        assert await said_of(serving, second) == MESSAGE
        await serving.janitor.sweep()
        assert (await serving.get(first.id, owner=None)).version == told.version, "once"
        assert caplog.text.count("no worker is running") == 1
        async with running(at_once, store=store):
            for task in (first, second):
                assert (await until_final(serving, task)).status_message is None


async def test_while_a_worker_is_there_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), Seconds()
    async with (
        running(at_once, store=store, queues=["another"]),
        running(at_once, store=store, monotonic=clock, runs_tools=False) as serving,
    ):
        task = await launch(serving)
        await sweep_for(serving, clock, 2 * PATIENCE)
        assert await said_of(serving, task) is None
    assert "no worker" not in caplog.text


async def test_a_worker_says_nothing_of_what_it_has_no_room_for() -> None:
    clock = Seconds()
    async with running(at_once, monotonic=clock, queues=["another"]) as runtime:
        task = await create(runtime)
        await sweep_for(runtime, clock, 2 * PATIENCE)
        assert await said_of(runtime, task) is None


async def test_many_tasks_are_told_of_in_turns() -> None:
    clock = Seconds()
    async with running(at_once, monotonic=clock, runs_tools=False) as serving:
        tasks = [await create(serving) for _ in range(UNATTENDED_BATCH + 1)]
        await sweep_for(serving, clock, PATIENCE)
        said = [await said_of(serving, task) for task in tasks]
        assert said == [MESSAGE] * UNATTENDED_BATCH + [None]
        await serving.janitor.sweep()
        assert await said_of(serving, tasks[-1]) == MESSAGE
