"""What a process makes of hints from others: tasks that were queued elsewhere are started without waiting for a sweep.

In all of these a sweep comes once an hour. They begin when every process listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks.core import Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.core.events import TaskCancelled
from mcp_tasks.engines import LocalEngine, RemoteEngine
from mcp_tasks.errors import StoreUnavailable, VersionConflict
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.carrying import Broker, BrokerCarrier, carrying_engine
from tests.unit.running import CLIENT, answer, launch, ok, question, running, settle, until, until_asking, until_final

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
    """Counts the records that were read."""

    reads = 0

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads += 1
        return await super().get(task_id)


class CountingFile(SqliteStore):
    """Counts the records that were read."""

    reads = 0

    async def get(self, task_id: str) -> TaskRecord | None:
        self.reads += 1
        return await super().get(task_id)


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


class RoomyEngine(RemoteEngine):
    """One that carries ids, and says that there is room here."""

    @property
    def has_room(self) -> bool:
        return True


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
        await anyio.sleep(A_FEW_LOOKS)
        before = store.reads
        for _ in range(20):
            await launch(front)
        await anyio.sleep(A_FEW_LOOKS)
        assert store.reads == before


async def test_what_a_process_wrote_itself_it_does_not_look_at_again(new_store: Callable[[], Store]) -> None:
    store = new_store()
    assert isinstance(store, CountingMemory | CountingFile)
    engine = LocalEngine()
    async with running(at_once, store=store, engine=engine) as runtime:
        for _ in range(20):
            task = await runtime.launch(REQUEST, owner=None, retention=None)
            await runtime.cancel(task, "enough", actor=CLIENT)
        with anyio.fail_after(5):
            while not engine.is_idle:  # noqa: ASYNC110 - nothing tells of the last one
                await anyio.sleep(0.01)
        before = store.reads
        await anyio.sleep(A_FEW_LOOKS)
        assert store.reads == before


class LateFile(CountingFile):
    """Says that something is written when others have seen it for long."""

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        created = await super().create(record, request, **options)
        await anyio.sleep(A_FEW_LOOKS)
        return created

    async def save(self, record: TaskRecord, **options: Any) -> None:
        await super().save(record, **options)
        await anyio.sleep(A_FEW_LOOKS)


async def test_what_a_process_is_writing_it_does_not_look_at_either(tmp_path: Path) -> None:
    store = LateFile(tmp_path / "tasks.db")
    async with running(at_once, store=store) as runtime:
        await settle()
        before = store.reads
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
        running(at_once, store=new_store(), engine=engine),
    ):
        await settle()
        task = await launch(front)
        await anyio.sleep(A_FEW_LOOKS)
        assert engine.submits == 0
        record = await front.store.get(task.id)
        assert record is not None
        assert record.worker is None


async def test_what_an_engine_carries_is_not_submitted_because_of_hints(new_store: Callable[[], Store]) -> None:
    broker = Broker(copies=0)
    async with (
        running(at_once, store=new_store(), engine=carrying_engine(broker), runs_tools=False) as front,
        running(at_once, store=new_store(), engine=RoomyEngine(BrokerCarrier(broker))),
    ):
        await settle()
        task = await front.launch(REQUEST, owner=None, retention=None)
        await anyio.sleep(A_FEW_LOOKS)
        assert broker.submitted == {task.id: 1}


class GatedStore(MemoryStore):
    """Makes one write wait, while others are made: the next that leaves its task in this status."""

    def __init__(self, status: TaskStatus) -> None:
        super().__init__()
        self._status = status
        self.failure: Exception | None = None
        self.waits = anyio.Event()
        self.goes_on = anyio.Event()

    async def save(self, record: TaskRecord, **options: Any) -> None:
        if record.status is self._status and not self.waits.is_set():
            self.waits.set()
            await self.goes_on.wait()
            if self.failure is not None:
                raise self.failure
        await super().save(record, **options)


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

    async def save(self, record: TaskRecord, **options: Any) -> None:
        await super().save(record, **options)
        if record.progress is not None and not self.made.is_set():
            self.made.set()
            await self.says_so.wait()


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
