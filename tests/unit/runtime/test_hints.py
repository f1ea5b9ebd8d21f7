"""What a process makes of hints from others, and what it knows although hints are lost.

In all of these a sweep comes once an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model import Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime import Body, Ending, Run, TaskRuntime, changes
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint, LocalNotifier
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.losing import as_of_now
from tests.unit.running import (
    CLIENT,
    HOUR,
    REQUEST,
    DeafStore,
    Held,
    MeddledStore,
    asks,
    at_once,
    cancel,
    create,
    launch,
    never_ending,
    opened_by,
    running,
    settle,
    telling,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


class CountingFile(SqliteStore):
    """Notes which records were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[str] = []

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads.append(task_id)
        return await super().get(task_id)


A_FEW_LOOKS = 0.4


async def start(runtime: TaskRuntime) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=REQUEST))


async def test_a_task_that_does_not_find_room_where_it_is_made_is_started_by_another(path: Path) -> None:
    async with (
        running(never_ending, store=SqliteStore(path), concurrency=1) as busy,
        running(at_once, store=SqliteStore(path)) as idle,
    ):
        await settle()
        await start(busy)
        for _ in range(5):
            ended = await until_final(idle, await start(busy))
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)


class LateFile(CountingFile):
    """Says that something is written when others have seen it for long."""

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        created = await super().create(record, request, **options)
        await anyio.sleep(A_FEW_LOOKS)  # sleep: the time in which others see it
        return created

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        saved = await super().save(record, **options)
        await anyio.sleep(A_FEW_LOOKS)  # sleep: the time in which others see it
        return saved


async def test_what_a_process_is_writing_it_does_not_look_at_either(path: Path) -> None:
    store = LateFile(path)
    async with running(at_once, store=store) as runtime:
        await settle()
        before = list(store.reads)
        await start(runtime)
        await eventually(lambda: not runtime.runs())
        assert store.reads == before


async def test_listeners_hear_of_a_change_that_came_before_one_of_their_own_process() -> None:
    hold, may_end = Held(lambda record, _: record.status is TaskStatus.COMPLETED), anyio.Event()
    store = MeddledStore(save=hold)
    async with (
        running(opened_by(may_end), store=store, look_interval=HOUR) as runtime,
        running(at_once, store=store, runs_tools=False) as other,
    ):
        task = await start(runtime)
        await settle()
        with runtime.hints.listen([task.id]) as hints, anyio.fail_after(5):
            may_end.set()
            await hold.came.wait()
            cancelled = await cancel(other, task)
            await settle()
            hold.goes_on.set()
            assert await anext(hints) == Hint(task.id, cancelled.version)
        assert (await until_final(runtime, task)).status is TaskStatus.CANCELLED


async def test_a_run_hears_of_a_change_that_came_before_one_that_failed() -> None:
    hold, store = Held(), MeddledStore()

    async def fails_late(record: TaskRecord, **options: Any) -> None:
        if record.status is TaskStatus.CANCELLED and not hold.came.is_set():
            await hold(record)
            raise StoreUnavailable("the disk is full")

    store.before["save"] = fails_late
    async with (
        running(never_ending, store=store, look_interval=HOUR) as runtime,
        running(never_ending, store=store, runs_tools=False) as other,
    ):
        task = await start(runtime)
        await settle()
        cancelling = asyncio.create_task(cancel(runtime, task))
        await hold.came.wait()
        await cancel(other, task)
        await settle()
        assert runtime.runs()
        hold.goes_on.set()
        await eventually(lambda: not runtime.runs())
        assert isinstance(await asyncio.gather(cancelling, return_exceptions=True), list)


async def test_a_run_hears_of_a_change_that_came_after_one_of_its_own_that_it_has_not_been_told_of() -> None:
    hold, store, stopped = Held(lambda saved, _: saved.progress is not None), MeddledStore(), anyio.Event()

    async def reporting(run: Run) -> Ending:
        await run.report(Progress(progress=1))
        return await telling(stopped)(run)

    store.after["save"] = hold
    async with (
        running(reporting, store=store, look_interval=HOUR, progress_interval=timedelta(milliseconds=1)) as runtime,
        running(never_ending, store=store, runs_tools=False) as other,
    ):
        await settle()
        task = await start(runtime)
        with anyio.fail_after(5):
            await hold.came.wait()
            await cancel(other, await as_of_now(other, task))
            await settle()
            hold.goes_on.set()
            await stopped.wait()


# What goes wrong


@asynccontextmanager
async def one_run(store: MemoryStore, body: Body = never_ending, **options: Any) -> AsyncGenerator[tuple[Any, ...]]:
    """A process with one run, that looks at the store by itself once an hour."""
    async with running(body, store=store, **{"look_interval": HOUR, **options}) as runtime:
        task = await start(runtime)
        await eventually(lambda: runtime.has(task.id))
        await settle()
        yield runtime, task


async def test_a_hint_of_what_a_run_knows_already_costs_no_look() -> None:
    store = MeddledStore()
    async with one_run(store, asks) as (runtime, task), running(asks, store=store, runs_tools=False) as other:
        held = await other.host(await until_asking(runtime, task), "elicitation-1", "theirs", actor=CLIENT)
        await eventually(lambda: runtime.run_of(task.id).record.version == held.version)
        store.calls.clear()
        await store.notifier().publish(Hint(held.id, held.version))
        await settle()
        assert store.calls["get"] == 0


@pytest.mark.parametrize("damaged", [False, True], ids=["gone", "cannot be read"])
async def test_the_run_of_a_task_that_is_not_there_any_more_is_stopped(damaged: bool) -> None:
    store = MeddledStore()
    async with one_run(store) as (runtime, task):
        if damaged:
            store.refuse(TaskUnreadable(task.id, "its row is damaged"), "get")
        else:
            await store.delete(task.id, expected=task.version, now=runtime.now())
        await store.notifier().publish(Hint(task.id, task.version + 1))
        await eventually(lambda: not runtime.runs())
        store.before.clear()


async def test_a_hint_that_cannot_be_followed_now_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = MeddledStore()
    async with one_run(store) as (runtime, task):
        store.refuse(StoreUnavailable("the disk is full"), "get")
        await store.notifier().publish(Hint(task.id, task.version + 1))
        await settle()
        store.before.clear()
        assert (await as_of_now(runtime, task)).worker == runtime.worker
        await cancel(runtime, task)
    assert "could not look at task" in caplog.text


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), StoreUnavailable("the disk is full")])
async def test_whatever_goes_wrong_in_a_look_at_the_store_the_next_one_comes(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = MeddledStore()
    async with one_run(store, look_interval=timedelta(milliseconds=5)) as (runtime, task):
        store.refuse(failure, "versions", "get")
        await eventually(lambda: "could not be compared with the store" in caplog.text)
        store.before.clear()
        await store.delete(task.id, expected=task.version, now=runtime.now())
        await eventually(lambda: not runtime.runs())


async def test_a_change_that_was_passed_over_and_cannot_be_looked_at_is_found_by_a_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = MeddledStore()
    async with one_run(store) as (runtime, task):
        await store.delete(task.id, expected=task.version, now=runtime.now())
        store.refuse(RuntimeError("a defect"), "get")
        runtime.changes.unheard.put(Hint(task.id, task.version + 1))
        await eventually(lambda: "could not hear of a change" in caplog.text)
        store.before.clear()
        await runtime.lookout.look()
        await eventually(lambda: not runtime.runs())


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), StoreUnavailable("the disk is full")])
async def test_a_task_that_another_queued_and_that_cannot_be_looked_at_is_found_by_a_sweep(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = MeddledStore()
    async with running(at_once, store=store, runs_tools=False) as front, running(at_once, store=store) as runtime:
        await settle()
        store.refuse(failure, "get", "hand_out")
        task = await launch(front)
        await eventually(lambda: "could not look at task" in caplog.text or "could not hear of" in caplog.text)
        store.before.clear()
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


class HangingUp(LocalNotifier):
    """Ends the first time that somebody listens, without a word."""

    listeners = 0

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        self.listeners += 1
        if self.listeners == 1:
            yield _no_hints()
        else:
            async with super().listen(origin=origin) as hints:
                yield hints


async def _no_hints() -> AsyncGenerator[Hint]:
    for hint in ():
        yield hint


async def test_hints_that_end_are_listened_to_again(caplog: pytest.LogCaptureFixture) -> None:
    notifier = HangingUp()

    class HangingUpStore(MemoryStore):
        def notifier(self) -> LocalNotifier:
            return notifier

    async with running(at_once, store=HangingUpStore()):
        await eventually(lambda: notifier.listeners == 2)
    assert "hints are not followed" not in caplog.text, "that was no failure"


async def test_what_a_run_writes_while_the_store_is_being_asked_is_no_news() -> None:
    hold, reports, reported = Held(), anyio.Event(), anyio.Event()

    async def reporting(run: Run) -> Ending:
        await reports.wait()
        await run.step("one", partial(asyncio.sleep, 0))
        reported.set()
        return await never_ending(run)

    store = MeddledStore()
    async with one_run(store, reporting) as (runtime, _):
        store.after["versions"] = hold
        looking = asyncio.create_task(runtime.lookout.look())
        await hold.came.wait()
        reports.set()
        await reported.wait()
        store.calls.clear()
        hold.goes_on.set()
        await looking
        assert store.calls["get"] == 0


# Hints that were lost


async def test_a_run_and_whoever_listens_learn_of_a_change_although_every_hint_is_lost() -> None:
    store, stopped = DeafStore(), anyio.Event()
    async with running(telling(stopped), store=store) as one, running(at_once, store=store, runs_tools=False) as other:
        task = await launch(one)
        await settle()
        with one.hints.listen([task.id]) as hints:
            await one.lookout.look()
            seen = await anext(hints)
            await one.lookout.look()
            assert hints.pop() is None, "what did not change is no news"
            cancelled = await cancel(other, await as_of_now(other, task))
            await one.lookout.look()
            assert (await anext(hints)).version == cancelled.version > seen.version
        with anyio.fail_after(5):
            await stopped.wait()


async def test_of_its_own_changes_a_process_remembers_only_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_REMEMBERED", 2)
    async with running(at_once, runs_tools=False) as runtime:
        written = [Hint(task.id, task.version) for task in [await create(runtime) for _ in range(3)]]
        assert [runtime.changes.wrote(hint) for hint in written] == [False, True, True]
