"""Claiming: what becomes of tasks that cannot be claimed, or that may take their process down."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

import anyio
import pytest

from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.runtime.claims import CALLED_AT_A_TIME, MAX_CROWDED_OUT, CrowdedOut
from mcp_tasks.stores import MemoryStore
from tests.unit.losing import as_of_now, queued
from tests.unit.running import (
    CLIENT,
    RERUN,
    FailingStore,
    TogetherStore,
    create,
    launch,
    ok,
    running,
    settle,
    until,
    until_final,
)

pytestmark = pytest.mark.anyio

SUSPECT = ToolPolicy(rerun=True, max_lost_runs=2)
"""One lost run makes a suspect of a task."""


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def test_only_so_many_that_were_crowded_out_are_remembered_and_the_first_come_first() -> None:
    crowded_out = CrowdedOut()
    for number in range(MAX_CROWDED_OUT + 1):
        crowded_out.add(f"{number}")
    called: list[str] = []
    while some := crowded_out.called():
        assert len(some) <= CALLED_AT_A_TIME
        called += some
    assert called == [f"{number}" for number in range(MAX_CROWDED_OUT)]


async def test_a_task_whose_request_cannot_be_read_is_ended_with_words() -> None:
    store = TogetherStore()
    async with running(at_once, store=store) as runtime:
        task = await create(runtime)
        store.damaged = {"request"}
        await runtime.engine.submit(task.id)
        ended = await until_final(runtime, task)
        assert ended.error is not None
        assert (ended.status, ended.error["data"]) == (TaskStatus.FAILED, {"type": "RequestUnreadable"})


class CancelledMeanwhile(MemoryStore):
    """Cannot read journals, and while it tries a client cancels the task."""

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        await self.cancel(task_id)
        raise TaskUnreadable(task_id, "its journal is damaged")

    async def cancel(self, task_id: str) -> None:
        raise AssertionError("given by the test")


async def test_a_task_that_cannot_be_started_and_has_ended_meanwhile_stays_as_it_ended() -> None:
    store = CancelledMeanwhile()
    async with running(at_once, store=store, policy=RERUN) as runtime:

        async def cancel(task_id: str) -> None:
            await runtime.cancel(await as_of_now(runtime, task), "enough", actor=CLIENT)

        store.cancel = cancel
        task = await queued(runtime, lost=1)
        await runtime.engine.submit(task.id)
        ended = await until_final(runtime, task)
        assert (ended.status, ended.status_message) == (TaskStatus.CANCELLED, "enough")


def is_tried(record: TaskRecord) -> bool:
    return record.attempt == 2 and record.trial is not None


async def test_a_suspect_whose_run_has_lasted_for_long_enough_has_passed_its_trial() -> None:
    async with running(never_ending, policy=SUSPECT, trial_duration=timedelta(milliseconds=1)) as runtime:
        task = await queued(runtime, lost=1)
        await runtime.engine.submit(task.id)
        await until(runtime, task, is_tried)
        passed = await until(runtime, task, lambda record: record.trial is None)
        assert (passed.attempt, passed.worker) == (2, runtime.worker)


async def test_a_trial_goes_on_if_its_end_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.claims")
    store = FailingStore()
    store.refuse_save(lambda record: record.attempt == 2 and record.trial is None)
    async with running(never_ending, store=store, policy=SUSPECT, trial_duration=timedelta(milliseconds=1)) as runtime:
        task = await queued(runtime, lost=1)
        await runtime.engine.submit(task.id)
        with anyio.fail_after(5):
            while "goes on: the disk is full" not in caplog.text:  # noqa: ASYNC110 - nothing else tells of it
                await anyio.sleep(0.01)
        assert is_tried(await as_of_now(runtime, task))
        assert runtime.run_of(task.id) is not None
        store.recover()


class CountingStore(MemoryStore):
    """Counts how often it is asked for a task."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def get(self, task_id: str) -> TaskRecord | None:
        self.looks += 1
        return await super().get(task_id)


async def test_a_task_beyond_a_limit_is_not_tried_again_before_a_run_has_ended() -> None:
    store, let_go = CountingStore(), anyio.Event()

    async def waits(run: Run) -> Ending:
        await let_go.wait()
        return ok()

    async with running(waits, store=store, policy=ToolPolicy(max_at_work=1)) as runtime:
        first, second = await launch(runtime), await launch(runtime)
        await until(runtime, first, lambda record: record.worker is not None)
        await settle()
        looks = store.looks
        await settle(500)
        assert store.looks == looks
        let_go.set()
        for task in (first, second):
            assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED
