"""What becomes of tasks whose runs end, or are made, while their process takes up its tasks again after it had lost its
lease: simulated time, the usual settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, Settings, TaskRuntime
from mcp_tasks.stores import MemoryStore
from tests.unit.running import RERUN, Tool, launch, ok, running, settle, until, until_final
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

USUAL = Settings()

LONG = 1_000.0
"""Seconds of simulated time after which a test that waits has failed."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Held:
    """One write that waits on its way to the store."""

    def __init__(self, is_it: Callable[[TaskRecord, bool], bool]) -> None:
        self.is_it = is_it
        self.came = anyio.Event()
        self.goes_on = anyio.Event()


class Slow(MemoryStore):
    """Refuses heartbeats for as long as it is told to, and holds single writes back."""

    def __init__(self) -> None:
        super().__init__()
        self.takes_heartbeats = True
        self._held: list[Held] = []

    def hold(self, is_it: Callable[[TaskRecord, bool], bool]) -> Held:
        """Hold back the next write of which this is true, given its record and whether it is of a journal's entries."""
        held = Held(is_it)
        self._held.append(held)
        return held

    async def heartbeat(self, worker: str, *, namespace: str, beats: int | None = None) -> None:
        if not self.takes_heartbeats:
            raise StoreUnavailable("the network is down")
        await super().heartbeat(worker, namespace=namespace, beats=beats)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        held = next((each for each in self._held if each.is_it(record, bool(options.get("entries")))), None)
        if held is not None:
            self._held.remove(held)
            held.came.set()
            await held.goes_on.wait()
        return await super().save(record, **options)


async def work_until_stopped(run: Run) -> Ending:
    """Works on and on in its first run."""
    if run.attempt == 1:
        await anyio.sleep_forever()
    return ok()


async def pay(run: Run) -> Ending:
    async def work() -> None:
        pass

    await run.step("pay", work)
    return ok()


def process(store: Slow) -> AbstractAsyncContextManager[TaskRuntime]:
    return running(
        {"stopped": Tool(work_until_stopped, RERUN), "pays": Tool(pay, RERUN)},
        store=store,
        monotonic=lambda: asyncio.get_running_loop().time(),
        uptime=lambda: asyncio.get_running_loop().time(),
        lease_duration=USUAL.lease_duration,
        sweep_interval=USUAL.sweep_interval,
    )


async def lose_the_lease(runtime: TaskRuntime, store: Slow) -> None:
    store.takes_heartbeats = False
    with anyio.fail_after(LONG):
        while runtime.lease.is_valid:
            await time_passes(0.1)


async def ends_soon(runtime: TaskRuntime, task: TaskRecord) -> None:
    """Not only when a sweep finds for the second time that nothing runs it."""
    ended = await until_final(runtime, task, runtime.sweep_interval.total_seconds() * 2 + 1)
    assert ended.status is TaskStatus.COMPLETED


async def test_a_run_that_ends_while_other_tasks_are_taken_up_again_leaves_its_task_to_the_next_run() -> None:
    store = Slow()
    async with process(store) as runtime:
        step = store.hold(lambda record, has_entries: record.name == "pays" and has_entries)
        # In this order they are taken up.
        slow = await launch(runtime, "pays")
        other = await launch(runtime, "stopped")
        await until(runtime, other, lambda record: record.worker is not None)
        await step.came.wait()
        await lose_the_lease(runtime, store)
        release = store.hold(lambda record, _: record.id == other.id and record.worker is None)
        store.takes_heartbeats = True
        await release.came.wait()
        step.goes_on.set()
        await settle()
        assert (runtime.has(slow.id), runtime.lease.is_valid) == (False, False)
        release.goes_on.set()
        await ends_soon(runtime, slow)
        await ends_soon(runtime, other)


async def test_a_task_whose_claim_is_made_while_others_are_taken_up_again_is_run() -> None:
    store = Slow()
    async with process(store) as runtime:
        other = await launch(runtime, "stopped")
        await until(runtime, other, lambda record: record.worker is not None)
        claim = store.hold(lambda record, _: record.name == "pays" and record.worker is not None)
        slow = await launch(runtime, "pays")
        await claim.came.wait()
        await lose_the_lease(runtime, store)
        release = store.hold(lambda record, _: record.id == other.id and record.worker is None)
        store.takes_heartbeats = True
        await release.came.wait()
        claim.goes_on.set()
        await settle()
        assert (runtime.has(slow.id), runtime.lease.is_valid) == (False, False)
        release.goes_on.set()
        await ends_soon(runtime, slow)
        await ends_soon(runtime, other)
