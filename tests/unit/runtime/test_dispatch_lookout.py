"""What a process makes of hints from others: tasks that were queued elsewhere are started without waiting for a sweep.

In all of these a sweep comes once an hour. They begin when every process listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable, VersionConflict
from mcp_tasks.model import Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.machine import TaskCancelled
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import Hint, LocalNotifier
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.running import (
    CLIENT,
    LIMIT,
    UnreliableStore,
    answer,
    create,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

REQUEST = TaskRequest(name="tool", arguments={})

PARKS = ToolPolicy(rerun=True, park_after=timedelta(milliseconds=10))

NEVER = timedelta(hours=1)
"""Between two looks at the store, in a test of what is known without."""

A_FEW_LOOKS = 0.4
"""Seconds in which a listener has looked at its file several times."""


@pytest.fixture(params=["memory", "sqlite"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The store of each process: one and the same, or one file."""
    shared = CountingMemory()
    return lambda: shared if request.param == "memory" else CountingFile(tmp_path / "tasks.db")


class CountingMemory(MemoryStore):
    """Notes which records were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads.append(task_id)
        return await super().get(task_id)


class CountingFile(SqliteStore):
    """Notes which records were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[str] = []

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads.append(task_id)
        return await super().get(task_id)


async def until_heard(here: TaskRuntime, there: TaskRuntime) -> None:
    """Return when one process has heard of all that another wrote so far, and has made of it what it does."""
    last = await create(there)
    with anyio.fail_after(5), here.hints.listen([last.id]) as hints:
        # Hints come in order.
        await there.cancel(last, "enough", actor=CLIENT)
        await anext(aiter(hints))
    await settle()


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


async def asking(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


class CountingEngine(LocalEngine):
    """Counts what it is handed."""

    submits = 0

    async def submit(self, task_id: str, **options: Any) -> None:
        self.submits += 1
        await super().submit(task_id, **options)


async def test_a_task_that_is_made_where_nothing_runs_is_started_where_there_is_room(
    new_store: Callable[[], Store],
) -> None:
    async with (
        running(at_once, store=new_store(), runs_tools=False) as front,
        running(at_once, store=new_store()),
        running(at_once, store=new_store()),
    ):
        await settle()
        for _ in range(5):
            ended = await until_final(front, await launch(front))
            assert (ended.status, ended.attempt) == (TaskStatus.COMPLETED, 1)


async def test_a_task_that_does_not_find_room_where_it_is_made_is_started_by_another(
    new_store: Callable[[], Store],
) -> None:
    async with (
        running(never_ending, store=new_store(), concurrency=1) as busy,
        running(at_once, store=new_store()) as idle,
    ):
        await settle()
        await busy.launch(REQUEST, owner=None, retention=None)
        task = await busy.launch(REQUEST, owner=None, retention=None)
        assert (await until_final(idle, task)).status is TaskStatus.COMPLETED


async def test_a_task_that_parked_is_started_when_it_is_answered_elsewhere(new_store: Callable[[], Store]) -> None:
    async with (
        running(asking, store=new_store(), runs_tools=False) as front,
        running(asking, store=new_store(), policy=PARKS),
    ):
        await settle()
        task = await launch(front)
        await until(front, task, lambda record: record.attempt == 1 and record.worker is None)
        await until_asking(front, task)
        await answer(front, task, elicitation_1="yes")
        assert (await until_final(front, task)).result == {"value": "yes"}


@pytest.mark.slow
async def test_a_busy_process_reads_nothing_because_of_hints(new_store: Callable[[], Store]) -> None:
    store = new_store()
    assert isinstance(store, CountingMemory | CountingFile)
    async with (
        running(never_ending, store=new_store(), runs_tools=False) as front,
        running(never_ending, store=store, engine=LocalEngine(1)) as busy,
    ):
        await settle()
        await launch(front)
        with anyio.fail_after(5):
            while not busy.runs():  # noqa: ASYNC110 - nothing tells of a run
                await anyio.sleep(0.01)
        tasks = {(await launch(front)).id for _ in range(20)}
        await until_heard(busy, front)
        assert tasks.isdisjoint(store.reads)


async def test_what_a_process_wrote_itself_it_does_not_look_at_again(new_store: Callable[[], Store]) -> None:
    store = new_store()
    assert isinstance(store, CountingMemory | CountingFile)
    engine = LocalEngine()
    async with (
        running(at_once, store=store, engine=engine) as runtime,
        running(at_once, store=new_store(), runs_tools=False) as other,
    ):
        for _ in range(20):
            task = await runtime.launch(REQUEST, owner=None, retention=None)
            await runtime.cancel(task, "enough", actor=CLIENT)
        await eventually(lambda: engine.is_idle)
        before = len(store.reads)
        await until_heard(runtime, other)
        assert len(set(store.reads[before:])) <= 1, "only what the other process wrote"


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


async def test_what_a_process_is_writing_it_does_not_look_at_either(tmp_path: Path) -> None:
    store = LateFile(tmp_path / "tasks.db")
    async with running(at_once, store=store) as runtime:
        await settle()
        before = list(store.reads)
        await runtime.launch(REQUEST, owner=None, retention=None)
        with anyio.fail_after(5):
            while runtime.runs():  # noqa: ASYNC110 - nothing tells of the last one
                await anyio.sleep(0.01)
        assert store.reads == before


async def test_what_another_wrote_first_is_looked_at(tmp_path: Path) -> None:
    """A write that is refused leaves nothing behind that would hide the write that was first."""
    store = LateFile(tmp_path / "tasks.db")
    async with running(never_ending, store=store) as runtime:
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        newer = replace(task, version=task.version + 1)
        with pytest.raises(VersionConflict):
            await runtime.changes.swap(newer, TaskCancelled(reason="enough"), actor=CLIENT)
        assert runtime.changes.wrote(Hint(task.id, task.version))
        assert not runtime.changes.wrote(Hint(task.id, newer.version + 1))


async def test_a_task_of_another_server_is_left_alone(new_store: Callable[[], Store]) -> None:
    engine = CountingEngine()
    async with (
        running(at_once, store=new_store(), runs_tools=False, namespace="other") as front,
        running(at_once, store=new_store(), engine=engine) as here,
    ):
        await settle()
        task = await launch(front)
        await until_heard(here, front)
        assert engine.submits == 0
        record = await front.store.get(task.id)
        assert record is not None
        assert record.worker is None


class GatedStore(MemoryStore):
    """Makes one write wait, while others are made: the next that leaves its task in this status."""

    def __init__(self, status: TaskStatus) -> None:
        super().__init__()
        self._status = status
        self.failure: Exception | None = None
        self.waits = anyio.Event()
        self.goes_on = anyio.Event()

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if record.status is self._status and not self.waits.is_set():
            self.waits.set()
            await self.goes_on.wait()
            if self.failure is not None:
                raise self.failure
        return await super().save(record, **options)


async def test_listeners_hear_of_a_change_that_came_before_one_of_their_own_process() -> None:
    may_end = anyio.Event()

    async def ending(run: Run) -> Ending:
        await may_end.wait()
        return ok()

    store = GatedStore(TaskStatus.COMPLETED)
    async with (
        running(ending, store=store, look_interval=NEVER) as runtime,
        running(ending, store=store, runs_tools=False) as other,
    ):
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        await settle()
        with runtime.hints.listen([task.id]) as hints, anyio.fail_after(5):
            may_end.set()
            await store.waits.wait()
            cancelled = await other.cancel(task, "enough", actor=CLIENT)
            await settle()
            store.goes_on.set()
            assert await anext(hints) == Hint(task.id, cancelled.version)
        assert (await until_final(runtime, task)).status is TaskStatus.CANCELLED


async def test_a_run_hears_of_a_change_that_came_before_one_that_failed() -> None:
    store = GatedStore(TaskStatus.CANCELLED)
    store.failure = StoreUnavailable("the disk is full")
    async with (
        running(never_ending, store=store, look_interval=NEVER) as runtime,
        running(never_ending, store=store, runs_tools=False) as other,
        anyio.create_task_group() as group,
    ):
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        await settle()

        async def cancel() -> None:
            with pytest.raises(StoreUnavailable):
                await runtime.cancel(task, "too late", actor=CLIENT)

        group.start_soon(cancel)
        await store.waits.wait()
        await other.cancel(task, "enough", actor=CLIENT)
        await settle()
        assert runtime.runs()
        store.goes_on.set()
        with anyio.fail_after(5):
            while runtime.runs():  # noqa: ASYNC110 - nothing tells of the last one
                await anyio.sleep(0.01)


class SlowToSay(MemoryStore):
    """Has one write made long before it says so: the next that brings progress."""

    def __init__(self) -> None:
        super().__init__()
        self.made = anyio.Event()
        self.says_so = anyio.Event()

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        saved = await super().save(record, **options)
        if record.progress is not None and not self.made.is_set():
            self.made.set()
            await self.says_so.wait()
        return saved


async def test_a_run_hears_of_a_change_that_came_after_one_of_its_own_that_it_has_not_been_told_of() -> None:
    stopped = anyio.Event()

    async def reporting(run: Run) -> Ending:
        try:
            await run.report(Progress(progress=1))
            await anyio.sleep_forever()
        finally:
            stopped.set()
        raise AssertionError("unreachable")

    store = SlowToSay()
    async with (
        running(reporting, store=store, look_interval=NEVER, progress_interval=timedelta(milliseconds=1)) as runtime,
        running(never_ending, store=store, runs_tools=False) as other,
    ):
        await settle()
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        with anyio.fail_after(5):
            await store.made.wait()
            seen = await store.get(task.id)
            assert seen is not None
            await other.cancel(seen, "no need", actor=CLIENT)
            await settle()
            store.says_so.set()
            await stopped.wait()


# What goes wrong


async def until_so(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)


async def until_it_runs(runtime: TaskRuntime) -> TaskRecord:
    task = await runtime.launch(REQUEST, owner=None, retention=None)
    await until_so(lambda: runtime.run_of(task.id) is not None)
    await settle()
    return task


async def test_a_hint_of_what_a_run_knows_already_costs_no_look() -> None:
    store = CountingMemory()
    async with (
        running(asking, store=store, look_interval=NEVER) as runtime,
        running(asking, store=store, runs_tools=False) as other,
    ):
        task = await until_asking(runtime, await until_it_runs(runtime))
        held = await other.host(task, "elicitation-1", "theirs", actor=CLIENT)
        run = runtime.run_of(task.id)
        assert run is not None
        await until_so(lambda: run.record.version == held.version)
        before = list(store.reads)
        await store.notifier().publish(Hint(held.id, held.version))
        await settle()
        assert store.reads == before


@pytest.mark.parametrize("damaged", [False, True], ids=["gone", "cannot be read"])
async def test_the_run_of_a_task_that_is_not_there_any_more_is_stopped(damaged: bool) -> None:
    store = UnreliableStore()
    async with running(never_ending, store=store, look_interval=NEVER) as runtime:
        task = await until_it_runs(runtime)
        if damaged:
            store.failure = TaskUnreadable(task.id, "its row is damaged")
        else:
            await store.delete(task.id, expected=task.version, now=runtime.now())
        await store.notifier().publish(Hint(task.id, task.version + 1))
        await until_so(lambda: not runtime.runs())
        store.failure = None


async def test_whatever_goes_wrong_in_a_look_at_the_store_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    store = UnreliableStore()
    async with running(never_ending, store=store, look_interval=timedelta(milliseconds=5)) as runtime:
        task = await until_it_runs(runtime)
        store.failure = RuntimeError("a defect")
        await until_so(lambda: "could not be compared with the store" in caplog.text)
        store.failure = None
        await store.delete(task.id, expected=task.version, now=runtime.now())
        await until_so(lambda: not runtime.runs())


async def test_a_change_that_was_passed_over_and_cannot_be_looked_at_is_found_by_a_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = UnreliableStore()
    async with running(never_ending, store=store, look_interval=NEVER) as runtime:
        task = await until_it_runs(runtime)
        await store.delete(task.id, expected=task.version, now=runtime.now())
        store.failure = RuntimeError("a defect")
        runtime.changes.unheard.put(Hint(task.id, task.version + 1))
        await until_so(lambda: "could not hear of a change" in caplog.text)
        assert runtime.runs()
        store.failure = None
        await runtime.lookout.look()
        await until_so(lambda: not runtime.runs())


async def test_a_task_that_another_queued_and_that_cannot_be_looked_at_is_found_by_a_sweep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.runtime.dispatch")
    store = UnreliableStore()
    async with (
        running(at_once, store=store, runs_tools=False) as front,
        running(at_once, store=store) as runtime,
    ):
        await settle()
        store.failure = StoreUnavailable("the disk is full")
        task = await launch(front)
        await until_so(lambda: "could not look at task" in caplog.text)
        store.failure = None
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
        await until_so(lambda: notifier.listeners == 2)
    assert "hints are not followed" not in caplog.text, "that was no failure"


class SlowVersions(MemoryStore):
    """Gives versions that it read a while ago, and counts the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        found = await super().versions(task_ids)
        self.asked.set()
        await self.answers.wait()
        return found

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads += 1
        return await super().get(task_id)


async def test_what_a_run_writes_while_the_store_is_being_asked_is_no_news() -> None:
    store, reports, reported = SlowVersions(), asyncio.Event(), asyncio.Event()

    async def reporting(run: Run) -> Ending:
        await reports.wait()
        await run.step("one", partial(asyncio.sleep, 0))
        reported.set()
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async with running(reporting, store=store) as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.worker is not None)
        looking = asyncio.create_task(runtime.lookout.look())
        await store.asked.wait()
        reports.set()
        with anyio.fail_after(LIMIT):
            await reported.wait()
        store.reads = 0
        store.answers.set()
        await looking
        assert store.reads == 0
