"""A task that can be run, behind many that cannot, in a real file and on real time: a file has threads of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.waiting import eventually
from mcp_tasks.engines import LocalEngine
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.sweeps import BATCH
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.running import Seconds, ok, running, until_final
from tests.unit.runtime.test_sweeps_queue_sweep import create_many

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize("timers", [False, True])
async def test_tasks_that_cannot_be_run_here_do_not_keep_back_one_that_can(tmp_path: Path, timers: bool) -> None:
    async def at_once(run: Run) -> Ending:
        return ok()

    # On a clock that stands still, so what was submitted once is left alone from then on.
    store, engine, clock = SqliteStore(tmp_path / "tasks.db"), LocalEngine(), Seconds()
    async with running(at_once, store=store, engine=engine, monotonic=clock) as runtime:
        stuck = await create_many(runtime, "missing", 5 * BATCH, timers=timers)
        queue = runtime.janitor.queue
        for _ in stuck[::BATCH]:
            await queue.sweep()
            await eventually(lambda: engine.is_idle)
        (task,) = await create_many(runtime, "tool", 1, timers=timers)
        await queue.sweep()
        await until_final(runtime, task)
