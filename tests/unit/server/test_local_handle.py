"""Tasks as code of the server sees them, in a tool that waits for one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_tasks.errors import UnknownTask
from mcp_tasks.runtime import Ending, Run, Success, ToolPolicy
from mcp_tasks.server.local import LocalTask
from tests.unit.running import Tool, launch, ok, running, until_final
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
            await LocalTask[Any](lambda: runtime, "gone").wait()
        except UnknownTask as exc:
            await run.sleep(timedelta(minutes=1))
            return ok(exc.task_id)
        raise AssertionError("there is no such task")

    policy = ToolPolicy(rerun=True, park_after=timedelta(0))
    async with running(body, policy=policy, clock=simulated_clock, sweep_interval=timedelta(seconds=1)) as runtime:
        task = await until_final(runtime, await launch(runtime), limit=600.0)
        assert (task.error, task.result) == (None, {"value": "gone"})
        assert runs == 2


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")])
async def test_tools_that_come_back_from_a_sleep_while_a_child_is_waited_for_leave_the_slots_to_the_children() -> None:
    async def parent(run: Run) -> Ending:
        async def start(key: str) -> str:
            return (await launch(runtime, "child")).id

        waited_for = LocalTask[Any](lambda: runtime, await run.children.start("child", start))
        await asyncio.gather(run.sleep(timedelta(seconds=0.1)), waited_for.wait())
        return ok()

    async def child(run: Run) -> Ending:
        await run.sleep(timedelta(seconds=1))
        return Success({"content": []})

    tools = {"parent": Tool(parent), "child": Tool(child)}
    async with running(tools, concurrency=2, clock=simulated_clock, sweep_interval=timedelta(seconds=1)) as runtime:
        parents = [await launch(runtime, "parent") for _ in range(3)]
        ended = [await until_final(runtime, each, limit=600.0) for each in parents]
        assert [each.error for each in ended] == [None, None, None]
