"""More to do than one sweep does: the rest is done before the next sweep, and not by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.model import RunParked, RunStarted
from mcp_tasks.runtime import Ending, Run, TaskRuntime, sweeps
from mcp_tasks.runtime import sweeps as recovery
from mcp_tasks.runtime.sweeps import BATCH
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.testing import FakeClock
from tests.unit.losing import ANOTHER, HOUR, SECOND, claimed_by
from tests.unit.running import RERUN, cancel, create, make_runtime, ok
from tests.unit.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.anyio

SWEEPS_EVERY = timedelta(minutes=1)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Minutes pass in an instant."""
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def at_once(run: Run) -> Ending:
    return ok()


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def sweeping(store: MemoryStore, clock: FakeClock, **options: Any) -> AsyncGenerator[TaskRuntime]:
    """A process whose first sweep is over, and whose next one is far away."""
    options = {"policy": RERUN, "sweep_interval": SWEEPS_EVERY, "monotonic": loop_time, "uptime": loop_time} | options
    runtime = make_runtime(at_once, store=store, clock=clock, **options)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def one_sweep_and_a_moment() -> None:
    await anyio.sleep((SWEEPS_EVERY + SWEEPS_EVERY / 2).total_seconds())  # sleep: the time is simulated


async def test_what_has_expired_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "PER_SWEEP", sweeps.SLICE)
    store, clock = MemoryStore(), FakeClock()
    async with sweeping(store, clock, runs_tools=False) as runtime:
        for _ in range(3 * sweeps.SLICE):
            await cancel(runtime, await create(runtime, retention=SECOND))
        clock.advance(HOUR)
        await one_sweep_and_a_moment()
        assert (await store.forget_expired(clock(), limit=1)) == []
        assert not runtime.janitor.expiry.is_behind


async def test_what_was_lost_is_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PER_SWEEP", BATCH)
    store, clock = MemoryStore(), FakeClock()
    async with sweeping(store, clock) as runtime:
        for _ in range(3 * BATCH):
            await claimed_by(runtime, "gone")
        await one_sweep_and_a_moment()
        assert all(record.is_final for record in (await runtime.list(EVERYBODY, limit=4 * BATCH)).records)
        assert (await store.claimed("gone", limit=1)).ids == []


async def test_what_is_due_is_run() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with sweeping(store, clock) as runtime:
        for _ in range(3 * BATCH):
            task = await create(runtime, retention=HOUR)
            slept = RunStarted(worker="gone"), RunParked(attempt=1, wake_at=clock() + SECOND)
            await runtime.changes.change(task, *slept, actor=ANOTHER)
        clock.advance(2 * SECOND)
        await one_sweep_and_a_moment()
        assert all(record.is_final for record in (await runtime.list(EVERYBODY, limit=4 * BATCH)).records)


async def test_of_what_is_its_own_and_does_not_run_a_process_gives_up_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PER_SWEEP", 2)
    store, clock = MemoryStore(), FakeClock()
    async with sweeping(store, clock) as runtime:
        for _ in range(5):
            await claimed_by(runtime, runtime.worker)
        await runtime.janitor.take_up()
        await one_sweep_and_a_moment()
        assert [record.attempt for record in (await runtime.list(EVERYBODY)).records] == [2] * 5
