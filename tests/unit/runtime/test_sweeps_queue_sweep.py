"""What sweeps hand to the engine, and how often: a queue behind a busy fleet is left alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.engines import Lane, LocalEngine
from mcp_tasks.model import TaskRecord, TaskRequest
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.sweeps import BATCH, PAGES
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import IdPage
from tests.unit.running import Seconds, create, ok, running, until
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Minutes pass in an instant."""
    return SIMULATED


class CountingEngine(LocalEngine):
    """Counts what it is handed, by lane."""

    def __init__(self, concurrency: int) -> None:
        super().__init__(concurrency)
        self.submits: Counter[Lane] = Counter()

    async def submit(self, task_id: str, *, lane: Lane = "new", **options: Any) -> None:
        self.submits[lane] += 1
        await super().submit(task_id, lane=lane, **options)


class CountingStore(MemoryStore):
    """Counts the looks at its queue, and may lose a task between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.gone: str | None = None

    async def get(self, task_id: str) -> TaskRecord | None:
        return None if task_id == self.gone else await super().get(task_id)

    async def queued(self, namespace: str, **options: Any) -> IdPage:
        self.looks += 1
        return await super().queued(namespace, **options)


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def process(store: MemoryStore, engine: LocalEngine, body: Any = never_ending) -> AsyncGenerator[TaskRuntime]:
    """A process that keeps house at its usual pace, on the time of the event loop."""
    pace = {"sweep_interval": timedelta(seconds=1), "lease_duration": timedelta(seconds=15)}
    async with running(body, store=store, engine=engine, monotonic=loop_time, uptime=loop_time, **pace) as runtime:
        yield runtime


async def launch(runtime: TaskRuntime) -> str:
    return (await runtime.launch(TaskRequest(name="tool", arguments={}), owner=None, retention=None)).id


@pytest.mark.slow
async def test_a_queue_behind_a_busy_fleet_is_not_submitted_again_and_again() -> None:
    store, engines = CountingStore(), [CountingEngine(5), CountingEngine(5)]
    async with process(store, engines[0]) as one, process(store, engines[1]) as other:
        for runtime in (one, other):
            for _ in range(5):
                await launch(runtime)
        for _ in range(150):
            await launch(one)
        before = store.looks
        await time_passes(5)
        assert [engine.submits for engine in engines] == [{"new": 150}, {}]
        assert store.looks - before <= 2 * 5 + 2, "one look per sweep"
        await time_passes(600)
        # Idle for half a minute, then with pauses that double: at 30, 60, 120, 240 and 480 seconds. The other process
        # has a page of them in line by then, and is not handed more.
        assert [engine.submits["again"] for engine in engines] == [150 * 5, BATCH]


async def test_what_one_process_has_in_line_is_taken_by_another_that_has_room() -> None:
    store = MemoryStore()
    async with process(store, LocalEngine(1)) as busy:
        for _ in range(4):
            await launch(busy)
        async with process(store, LocalEngine(10)) as idle:
            with anyio.fail_after(2):
                while len(idle.runs()) < 3:
                    await time_passes(0.1)
            task = await launch(busy)
            with anyio.fail_after(2):
                while not idle.has(task):
                    await time_passes(0.1)


async def test_catching_up_reads_nothing_while_nothing_could_be_started() -> None:
    store, may_end = CountingStore(), anyio.Semaphore(0)

    async def gated(run: Run) -> Ending:
        await may_end.acquire()
        return ok()

    async with running(gated, store=store, monotonic=loop_time) as earlier:
        pass
    for _ in range(2 * BATCH):
        await create(earlier)
    store.looks = 0
    # A sweep an hour: whatever is read before that is read to catch up.
    async with running(gated, store=store, engine=LocalEngine(1), monotonic=loop_time) as runtime:
        await time_passes(60)
        assert (store.looks, len(runtime.runs())) == (1, 1)
        for _ in range(BATCH):
            may_end.release()
        last = (await store.queued("", limit=1_000)).ids[-1]
        store.looks = 0
        await time_passes(60)
        assert store.looks == 1
        for _ in range(BATCH):
            may_end.release()
        task = await store.get(last)
        assert task is not None
        await until(runtime, task, lambda record: record.is_final)


async def test_a_task_that_cannot_be_run_here_is_tried_less_and_less_often() -> None:
    store, engine = MemoryStore(), CountingEngine(5)
    async with process(store, engine) as runtime:
        await create(runtime, "missing")
        await time_passes(1_000)
        assert 8 <= engine.submits["again"] <= 13


async def create_many(runtime: TaskRuntime, tool: str, count: int, *, timers: bool) -> list[TaskRecord]:
    """Tasks that nobody was told to run: queued ones, or ones whose timers have run out."""
    now = runtime.now()
    records = [
        TaskRecord(
            id=f"{tool}-{number}",
            owner=None,
            name=tool,
            created_at=now,
            updated_at=now,
            wake_at=now if timers else None,
        )
        for number in range(count)
    ]
    async with anyio.create_task_group() as group:
        for record in records:
            group.start_soon(runtime.store.create, record, TaskRequest(name=tool, arguments={}))
    return records


@pytest.mark.slow
async def test_a_sweep_looks_at_so_many_pages_and_the_next_goes_on_from_there() -> None:
    store, engine = CountingStore(), CountingEngine(100)
    async with running(never_ending, store=store, engine=engine, monotonic=Seconds()) as runtime:
        stuck = await create_many(runtime, "missing", (2 * PAGES - 1) * BATCH + 1, timers=False)
        queue = runtime.janitor.queue
        while engine.submits["again"] < len(stuck):
            await queue.sweep()
            await time_passes(1)
        while queue.is_behind:
            await queue.sweep()
        store.looks = 0
        await queue.sweep()
        assert store.looks == PAGES
        assert not queue.is_behind, "what is left alone can wait for the next sweep"
        await queue.sweep()
        assert store.looks == 2 * PAGES
        assert engine.submits["again"] == len(stuck)


async def test_a_task_that_is_gone_by_the_time_it_would_be_submitted_is_not() -> None:
    store, engine = CountingStore(), CountingEngine(4)
    async with running(never_ending, store=store, engine=engine) as runtime:
        gone, there = await create(runtime), await create(runtime)
        store.gone = gone.id
        await runtime.janitor.queue.sweep()
        await until(runtime, there, lambda record: record.worker == runtime.worker)
        assert engine.submits.total() == 1
