"""Tasks as code of the server sees them, in a tool that waits for one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mcp_tasks.errors import UnknownTask
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.server.local_handle import LocalTask
from tests.unit.running import launch, ok, running, until_final
from tests.unit.virtual_time import SIMULATED


def simulated_clock() -> datetime:
    return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")])
async def test_that_a_task_is_gone_is_recorded_so_a_later_run_is_told_the_same() -> None:
    runs = 0

    async def body(run: Run) -> Ending:
        nonlocal runs
        runs += 1
        try:
            await LocalTask(lambda: runtime, "gone").wait()
        except UnknownTask as exc:
            await run.sleep(timedelta(minutes=1))
            return ok(exc.task_id)
        raise AssertionError("there is no such task")

    policy = ToolPolicy(rerun=True, park_after=timedelta(0))
    async with running(body, policy=policy, clock=simulated_clock, sweep_interval=timedelta(seconds=1)) as runtime:
        task = await until_final(runtime, await launch(runtime), limit=600.0)
        assert (task.error, task.result) == (None, {"value": "gone"})
        assert runs == 2
