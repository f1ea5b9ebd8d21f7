"""Runs whose task went to another process: they are stopped, and what they say does not count."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime import Body, Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.stores import MemoryStore
from tests.unit.running import (
    ONCE,
    RERUN,
    DeafStore,
    Seconds,
    finished,
    launch,
    ok,
    running,
    settle,
    until,
    until_final,
)

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def is_final(record: TaskRecord) -> bool:
    return record.is_final


class Pair:
    """Two processes on one store, of which the first goes silent for the second: it says so in vain."""

    def __init__(self, store: MemoryStore) -> None:
        self._monotonic = Seconds()
        self._store = store

    def first(self, body: Body, policy: ToolPolicy = RERUN) -> AbstractAsyncContextManager[TaskRuntime]:
        return running(body, store=self._store, policy=policy)

    def second(self, body: Body, policy: ToolPolicy = RERUN) -> AbstractAsyncContextManager[TaskRuntime]:
        return running(body, store=self._store, policy=policy, monotonic=self._monotonic)

    async def lose_first(self, second: TaskRuntime) -> None:
        """Let the second process look until the first one counts as dead."""
        for _ in range(4):
            await second.janitor.sweep()
            self._monotonic.advance(HOUR / 2)


async def test_a_run_of_a_silent_process_is_stopped_and_the_task_runs_elsewhere() -> None:
    pair, stopped = Pair(MemoryStore()), anyio.Event()

    async def on_one(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    async def on_other(run: Run) -> Ending:
        return ok(run.attempt)

    async with pair.first(on_one) as one:
        task = await launch(one)
        await until(one, task, lambda record: record.attempt == 1)
        async with pair.second(on_other) as other:
            await other.janitor.sweep()
            assert (await other.get(task.id, owner=None)).worker == one.worker
            await pair.lose_first(other)
            record = await until_final(other, task)
            assert (record.result, record.attempt) == ({"value": 2}, 2)
        with anyio.fail_after(5):
            await stopped.wait()


async def test_a_run_that_lost_its_task_is_stopped_while_the_next_one_is_still_at_work() -> None:
    pair, stopped = Pair(MemoryStore()), anyio.Event()

    async def on_one(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    async with pair.first(on_one) as one, pair.second(never_ending) as other:
        task = await until(one, await launch(one), lambda record: record.attempt == 1)
        await pair.lose_first(other)
        await until(other, task, lambda record: record.worker == other.worker)
        with anyio.fail_after(5):
            await stopped.wait()
        assert (await other.get(task.id, owner=None)).worker == other.worker


async def test_a_task_that_may_not_run_again_ends_as_interrupted_when_its_process_is_silent() -> None:
    pair = Pair(MemoryStore())
    async with pair.first(never_ending, ONCE) as one, pair.second(at_once, ONCE) as other:
        task = await until(one, await launch(one), lambda record: record.attempt == 1)
        await pair.lose_first(other)
        record = await finished(other, await other.get(task.id, owner=None))
        assert (record.status, record.attempt) == (TaskStatus.FAILED, 1)
        assert record.error is not None
        assert record.error["data"] == {"type": "Interrupted"}


async def test_nothing_that_a_stale_run_says_counts() -> None:
    store = DeafStore()
    pair, go_on, done = Pair(store), anyio.Event(), anyio.Event()

    async def slow(run: Run) -> Ending:
        # Nobody tells it anything, so it finds out by itself.
        await go_on.wait()
        try:
            with anyio.CancelScope(shield=True):
                await current_task().step("late", lambda: "late")
        finally:
            done.set()
        return ok("late")

    async def quick(run: Run) -> Ending:
        return ok("in time")

    async with pair.first(slow) as one, pair.second(quick) as other:
        task = await launch(one)
        await settle()
        await pair.lose_first(other)
        assert await other.wait_until(task.id, is_final, timedelta(seconds=5)) is not None
        ended = await store.get(task.id)
        go_on.set()
        with anyio.fail_after(5):
            await done.wait()
        await settle()
        assert await store.get(task.id) == ended
        assert not await store.journal(task.id)
        assert ended is not None
        ended = await finished(other, ended)
    assert (ended.result, ended.attempt) == ({"value": "in time"}, 2)


async def test_a_stale_run_is_refused_while_the_next_one_is_still_at_work() -> None:
    store = DeafStore()
    pair, late, finish = Pair(store), anyio.Event(), anyio.Event()
    outlived: list[str] = []

    async def slow(run: Run) -> Ending:
        await late.wait()
        await current_task().step("late", lambda: "late")
        await anyio.lowlevel.checkpoint()
        outlived.append("it went on after its step was refused")
        return ok("late")

    async def careful(run: Run) -> Ending:
        await finish.wait()
        return ok("in time")

    async with pair.first(slow) as one, pair.second(careful) as other:
        task = await launch(one)
        await settle()
        await pair.lose_first(other)
        await settle()
        late.set()
        await settle()
        # The step runs on a thread; give that its time too.
        await anyio.to_thread.run_sync(lambda: None)
        await settle()
        finish.set()
        ended = await other.wait_until(task.id, is_final, timedelta(seconds=5))
        assert ended is not None
        ended = await finished(other, ended)
    assert (ended.result, ended.attempt) == ({"value": "in time"}, 2)
    assert outlived == []
    assert not await store.journal(task.id)


async def test_a_tool_is_not_given_the_value_of_a_step_whose_task_has_ended_elsewhere() -> None:
    store, began, may_end, given = DeafStore(), anyio.Event(), anyio.Event(), list[str]()

    async def work() -> str:
        began.set()
        await may_end.wait()
        return "done"

    async def stepping(run: Run) -> Ending:
        given.append(await current_task().step("work", work))
        return ok()

    async with running(stepping, store=store) as one, running(at_once, store=store, runs_tools=False) as other:
        task = await launch(one)
        await began.wait()
        await other.cancel(await other.get(task.id, owner=None), "by its caller", actor=Actor("client"))
        may_end.set()
        await settle()
        assert not one.has(task.id)
    assert given == []
    assert await store.journal(task.id) == []
