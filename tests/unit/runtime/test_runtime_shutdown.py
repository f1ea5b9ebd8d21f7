"""How a process begins and ends, and what becomes of its tasks."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_tasks.engines import InlineEngine
from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.running import (
    CLIENT,
    ONCE,
    RERUN,
    FailingStore,
    PausingStore,
    Tool,
    create,
    finished,
    launch,
    make_runtime,
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


async def test_a_quick_run_ends_by_itself_while_the_process_drains() -> None:
    going, end = anyio.Event(), anyio.Event()

    async def quick(run: Run) -> Ending:
        going.set()
        await end.wait()
        return ok()

    runtime = make_runtime(quick, drain_timeout=HOUR)
    await runtime.start()
    task = await launch(runtime)
    await going.wait()
    async with anyio.create_task_group() as group:
        group.start_soon(runtime.stop)
        await settle()
        end.set()
    assert (await runtime.get(task.id, owner=None)).status is TaskStatus.COMPLETED


async def test_what_does_not_end_in_time_is_released_or_ends_as_interrupted() -> None:
    tools = {"again": Tool(never_ending, RERUN), "once": Tool(never_ending, ONCE)}
    runtime = make_runtime(tools, concurrency=2)
    await runtime.start()
    again, once, queued = [await launch(runtime, tool) for tool in ("again", "once", "once")]
    await until(runtime, again, lambda record: record.attempt == 1)
    await until(runtime, once, lambda record: record.attempt == 1)
    with anyio.fail_after(5):
        await runtime.stop()
    records = [await runtime.get(task.id, owner=None) for task in (again, once, queued)]
    assert [record.status for record in records] == [TaskStatus.WORKING, TaskStatus.FAILED, TaskStatus.WORKING]
    assert [record.worker for record in records] == [None, None, None]
    assert [record.attempt for record in records] == [1, 1, 0]
    interrupted = await finished(runtime, records[1])
    assert interrupted.error is not None
    assert interrupted.error["data"] == {"type": "Interrupted"}
    assert await runtime.store.workers("") == {}


async def test_a_released_task_is_run_by_the_next_process() -> None:
    store = MemoryStore()
    async with running(never_ending, store=store, policy=RERUN) as one:
        task = await launch(one)
        await until(one, task, lambda record: record.attempt == 1)
    async with running(at_once, store=store, policy=RERUN) as other:
        assert (await until_final(other, task)).attempt == 2


async def test_a_process_that_cannot_sign_off_stops_all_the_same() -> None:
    store = FailingStore()
    runtime = make_runtime(never_ending, store=store, policy=RERUN)
    await runtime.start()
    task = await launch(runtime)
    await until(runtime, task, lambda record: record.attempt == 1)
    store.refuse_save(lambda record: True)
    with anyio.fail_after(5):
        await runtime.stop()
    store.recover()
    record = await runtime.get(task.id, owner=None)
    assert record.worker == runtime.worker, "its lease runs out, and the next process finds it"


class StubbornStore(MemoryStore):
    """Does not forget a process."""

    async def retire(self, worker: str) -> None:
        raise StoreUnavailable("the disk is full")


async def test_a_process_that_the_store_does_not_forget_stops_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async with running(at_once, store=StubbornStore()) as runtime:
        await until_final(runtime, await launch(runtime))
    assert "could not sign off" in caplog.text


class ForgetfulStore(MemoryStore):
    """Cannot be read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.away:
            raise StoreUnavailable("the disk is full")
        return await super().get(task_id)


async def test_a_hint_that_cannot_be_followed_now_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = ForgetfulStore()
    async with running(never_ending, store=store) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
        store.away = True
        await store.notifier().publish(Hint(task.id, task.version + 1))
        await settle()
        store.away = False
        assert (await runtime.get(task.id, owner=None)).worker == runtime.worker
        await runtime.cancel(task, "enough", actor=CLIENT)
    assert "could not look at task" in caplog.text


async def test_a_thread_that_does_not_listen_is_left_behind() -> None:
    release = threading.Event()

    async def deaf(run: Run) -> Ending:
        await anyio.to_thread.run_sync(release.wait)
        return ok()

    runtime = make_runtime(deaf, stop_timeout=timedelta(milliseconds=20))
    await runtime.start()
    try:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.attempt == 1)
        with anyio.fail_after(5):
            await runtime.stop()
        assert (await runtime.get(task.id, owner=None)).status is TaskStatus.FAILED
    finally:
        release.set()
    await settle()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_stopping_is_safe_twice(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "tasks.db")
    runtime = make_runtime(at_once, store=store)
    await runtime.start()
    await runtime.stop()
    await runtime.stop()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_stopping_is_safe_before_the_start(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "tasks.db")
    await make_runtime(at_once, store=store).stop()


async def test_a_runtime_can_be_started_again() -> None:
    runtime = make_runtime(at_once)
    for _ in range(2):
        await runtime.start()
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.COMPLETED
        await runtime.stop()


async def test_a_shutdown_that_is_cut_short_still_hands_everything_over() -> None:
    runtime = make_runtime(never_ending, store=PausingStore(), policy=RERUN, drain_timeout=HOUR)
    await runtime.start()
    task = await launch(runtime)
    await until(runtime, task, lambda record: record.attempt == 1)
    with anyio.move_on_after(0.02):
        await runtime.stop()
    assert (await runtime.get(task.id, owner=None)).worker is None


async def test_in_a_hurry_what_has_not_ended_is_handed_over_at_once() -> None:
    runtime = make_runtime(never_ending, policy=RERUN, drain_timeout=HOUR)
    await runtime.start()
    task = await launch(runtime)
    await until(runtime, task, lambda record: record.attempt == 1)
    hurry = asyncio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.stop, hurry)
            await settle()
            assert (await runtime.get(task.id, owner=None)).worker is not None
            hurry.set()
    assert (await runtime.get(task.id, owner=None)).worker is None


class ClosedStore(MemoryStore):
    """Counts who opened and closed it, and can refuse to note that a process is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.opened_for: str | None = None
        self.refuse_beat = True

    async def open(self, namespace: str = "") -> None:
        self.opened += 1
        self.opened_for = namespace

    async def close(self) -> None:
        self.opened -= 1

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        if self.refuse_beat:
            raise StoreUnavailable("the disk is full")
        await super().heartbeat(worker, namespace=namespace, beats=beats)


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    store = ClosedStore()
    runtime = make_runtime(at_once, store=store, namespace="ours")
    threads = anyio.to_thread.current_default_thread_limiter().total_tokens
    with pytest.raises(StoreError, match="the disk is full"):
        await runtime.start()
    assert store.opened == 0
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == threads
    store.refuse_beat = False
    await runtime.start()
    assert store.opened_for == "ours", "tasks from before there were namespaces go to this server"
    assert (await until_final(runtime, await launch(runtime))).is_final
    await runtime.stop()
    assert store.opened == 0


async def test_a_start_that_fails_while_sweeping_runs_nothing_more() -> None:
    store = FailingStore()
    first = await create(make_runtime(at_once, store=store))
    runtime = make_runtime(at_once, store=store)

    async def broken() -> None:
        raise RuntimeError("a defect")

    runtime.janitor.start_waiting = broken
    with pytest.raises(RuntimeError, match="a defect"):
        await runtime.start()
    with anyio.fail_after(5):
        second = await create(runtime)
        await runtime.engine.submit(second.id)
        await settle()
    assert (await runtime.get(second.id, owner=None)).attempt == 0
    assert (await runtime.get(first.id, owner=None)).worker is None


async def test_with_the_inline_engine_a_task_has_ended_when_it_was_submitted() -> None:
    async with running(at_once, engine=InlineEngine()) as runtime:
        task = await launch(runtime)
        assert (await runtime.get(task.id, owner=None)).status is TaskStatus.COMPLETED
