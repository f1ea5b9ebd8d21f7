"""`TaskRuntime`: whose a task is, what is seen of it, and a process that runs no tools."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from mcp_tasks.errors import TaskUnreadable, UnknownTask
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime.changes import MAX_ID_LENGTH
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    HOUR,
    RERUN,
    TogetherStore,
    answer,
    asks,
    at_once,
    cancel,
    create,
    finished,
    launch,
    never_ending,
    running,
    settle,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio


def is_final(record: TaskRecord) -> bool:
    return record.is_final


async def test_a_created_task_is_there_before_anybody_runs_it_and_only_for_its_owner() -> None:
    async with running(at_once) as runtime:
        record = await create(runtime, owner="alice", retention=HOUR)
        assert await runtime.get(record.id, owner="alice") == record
        assert (record.status, record.attempt) == (TaskStatus.WORKING, 0)
        nobodys = await create(runtime)
        strangers = [(record, owner) for owner in (None, "bob", "", "Alice")] + [(nobodys, "alice")]
        for task, owner in strangers:
            with pytest.raises(UnknownTask):
                await runtime.get(task.id, owner=owner)


@pytest.mark.parametrize("task_id", ["", "task_unknown", "x" * (MAX_ID_LENGTH + 1), "\ud800", "\x00"])
async def test_an_id_that_names_nothing_is_unknown(task_id: str) -> None:
    async with running(at_once) as runtime:
        with pytest.raises(UnknownTask):
            await runtime.get(task_id, owner=None)
        with pytest.raises(UnknownTask):
            await runtime.reading.get_with_outcome(task_id, owner=None)


async def test_a_task_runs_to_its_result_and_is_kept_for_longer_than_any_calendar(tmp_path: Path) -> None:
    async with running(at_once, store=SqliteStore(tmp_path / "tasks.db")) as runtime:
        task = await until_final(runtime, await launch(runtime, retention=timedelta.max))
        assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, {"value": "ok"}, 1)
        assert await finished(runtime, await runtime.get(task.id, owner=None)) == task


async def test_a_task_and_how_it_ended_come_in_one_look_of_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        task = await create(runtime, owner="ann")
        await runtime.engine.submit(task.id)
        await until_final(runtime, task)
        look = partial(runtime.reading.get_with_outcome, task.id)
        record, outcome = await look(owner="ann")
        assert (record.status, outcome) == (TaskStatus.COMPLETED, await runtime.outcome(task.id))
        for owner in ("bob", None):
            with pytest.raises(UnknownTask):
                await look(owner=owner)
        # It is there although its outcome cannot be read.
        store.damaged = {"outcome"}
        assert await look(owner="ann") == (record, None)
        with pytest.raises(TaskUnreadable, match="its outcome is damaged"):
            await runtime.outcome(task.id)
        store.damaged = {"row"}
        for _ in range(2):
            with pytest.raises(TaskUnreadable):
                await look(owner="ann")
    assert caplog.text.count("its row is damaged") == 1


async def test_waiting_for_a_task_ends_with_its_condition_or_its_time_or_if_it_is_not_there() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store) as one, running(at_once, store=store, runs_tools=False) as other:
        task = await launch(one)
        assert await one.wait_until(task.id, is_final, timedelta(milliseconds=10)) is None
        waiting = asyncio.create_task(one.wait_until(task.id, is_final, HOUR))
        await settle()
        await cancel(other, task)
        ended = await waiting
        assert ended is not None
        assert ended.status is TaskStatus.CANCELLED
        assert await one.wait_until(task.id, is_final, HOUR) == ended
        assert await one.wait_until("nobody", is_final, HOUR) is None


async def test_a_discarded_task_is_gone_and_discarding_it_twice_is_no_error() -> None:
    async with running(at_once) as runtime:
        task = await until_final(runtime, await launch(runtime))
        await runtime.discard(task)
        await runtime.discard(task)
        with pytest.raises(UnknownTask):
            await runtime.get(task.id, owner=None)


async def test_a_process_that_runs_no_tools_answers_cancels_and_waits_for_those_of_others() -> None:
    store = MemoryStore()
    async with (
        running(asks, store=store, runs_tools=False) as serving,
        running(asks, store=store, policy=RERUN) as worker,
    ):
        answered, cancelled = [await until_asking(worker, await launch(worker)) for _ in range(2)]
        await answer(serving, answered, elicitation_1="yes")
        assert (await cancel(serving, cancelled)).status is TaskStatus.CANCELLED
        ended = await serving.wait_until(answered.id, is_final, timedelta(seconds=5))
        assert ended is not None
        assert (await finished(serving, ended)).result == {"value": "yes"}


async def test_a_listing_says_whose_tasks_it_is_about() -> None:
    async with running(at_once) as runtime:
        for owner in ("ann", "bob", None):
            await create(runtime, owner=owner)
        listed = {
            whose: [record.owner for record in (await runtime.list(whose)).records]
            for whose in (OwnedBy("ann"), UNOWNED, EVERYBODY)
        }
        assert listed == {OwnedBy("ann"): ["ann"], UNOWNED: [None], EVERYBODY: ["ann", "bob", None]}


async def test_a_listing_shows_neither_what_has_expired_nor_what_is_of_another_server() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with running(at_once, clock=clock, store=store, namespace="here") as runtime:
        await until_final(runtime, await launch(runtime, retention=HOUR))
        async with running(at_once, clock=clock, store=store, namespace="there") as other:
            await create(other)
        clock.advance(2 * HOUR)
        kept = await create(runtime)
        assert (await runtime.list(EVERYBODY)).records == [kept]
