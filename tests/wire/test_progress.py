"""Progress of a task, as people read it and as programs do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.http import serving
from harness.rpc import EVERYTHING, PATIENCE, Tasking
from harness.server import QUICK, Desk, Name, build
from mcp_tasks import Settings, Tasks
from mcp_tasks.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

KEY = "mcp-tasks/progress"


@pytest.fixture
def desk() -> Desk:
    """Where tools wait for the test."""
    return Desk()


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves on."""
    return FakeClock()


@pytest.fixture
async def client(desk: Desk, clock: FakeClock) -> AsyncGenerator[Tasking]:
    """A client of the furnished server."""
    async with serving(build(Tasks("memory://", clock=clock, settings=QUICK), desk)) as wire:
        yield Tasking(wire)


async def _progressed(client: Tasking, task_id: str, progress: float) -> dict[str, Any]:
    """The task once it shows that progress."""
    with anyio.fail_after(PATIENCE):
        while True:
            task = await client.get(task_id)
            if task["_meta"].get(KEY, {}).get("progress") == progress:
                return task
            await anyio.sleep(0.005)


@pytest.mark.parametrize(
    ("total", "message", "text", "numbers"),
    [
        (4, "half of it", "half of it", {"progress": 2, "total": 4}),
        (4, None, "2 of 4", {"progress": 2, "total": 4}),
        (None, "two done", "two done", {"progress": 2}),
        (None, None, "2", {"progress": 2}),
    ],
    ids=["all", "no message", "no total", "a number"],
)
async def test_progress_is_a_message_for_people_and_numbers_for_programs(
    client: Tasking, total: float | None, message: str | None, text: str, numbers: dict[str, float]
) -> None:
    task_id = await client.create("progressing", steps=2, total=total, message=message)
    task = await _progressed(client, task_id, 2)
    assert (task["status"], task["statusMessage"]) == ("working", text)
    assert task["_meta"][KEY] == numbers


async def test_a_task_without_progress_says_nothing_about_it(client: Tasking) -> None:
    task = await client.get(await client.create("gated"))
    assert "statusMessage" not in task
    assert KEY not in task["_meta"]


async def test_progress_is_an_update_of_the_task(client: Tasking, clock: FakeClock, desk: Desk) -> None:
    created = await client.call("gated")
    await desk.started.wait()
    desk.started.clear()
    clock.advance(timedelta(seconds=5))
    task_id = await client.create("progressing", steps=1, total=2, message=None)
    await desk.started.wait()
    clock.advance(timedelta(seconds=5))
    first = await _progressed(client, task_id, 1)
    assert first["lastUpdatedAt"] >= first["createdAt"] > created["createdAt"]
    assert (await client.get(created["taskId"]))["lastUpdatedAt"] == created["lastUpdatedAt"]
    assert (await client.get(task_id))["lastUpdatedAt"] == first["lastUpdatedAt"]


async def test_the_last_progress_stays_with_a_task_that_has_ended_but_its_message_does_not(
    client: Tasking, desk: Desk
) -> None:
    task_id = await client.create("progressing", steps=3, total=3, message="nearly there")
    await desk.started.wait()
    desk.gate.set()
    done = await client.until(task_id, "completed")
    assert done["_meta"][KEY] == {"progress": 3, "total": 3}
    assert "statusMessage" not in done


async def test_a_tool_that_reports_all_the_time_does_not_write_all_the_time() -> None:
    tasks = Tasks(
        "memory://", settings=Settings(drain_timeout=timedelta(0), progress_interval=timedelta(seconds=PATIENCE))
    )
    server = MCPServer("eager", **tasks.wiring(), log_level="CRITICAL")
    reported, gate = asyncio.Event(), asyncio.Event()

    @server.tool()
    @tasks.task()
    async def eager(ctx: Context) -> str:
        for step in range(10_000):
            await ctx.report_progress(step, 10_000)
        reported.set()
        await gate.wait()
        return "done"

    async with serving(server) as wire:
        client = Tasking(wire)
        task_id = await client.create("eager")
        with anyio.fail_after(PATIENCE):
            await reported.wait()
        # One of the first was written at once; the rest waits for its turn, or for the end.
        assert (await client.get(task_id))["_meta"][KEY]["progress"] < 9_999
        gate.set()
        assert (await client.until(task_id, "completed"))["_meta"][KEY]["progress"] == 9_999


@pytest.mark.parametrize(
    ("progress", "total", "text"),
    [
        (1_234_567, 2_000_000, "1234567 of 2000000"),
        (1234567.0, 2e6, "1234567 of 2000000"),
        (2**53 + 1, None, "9007199254740993"),
        (1e21, None, "1000000000000000000000"),
        (0.1 + 0.2, 1, "0.3 of 1"),
        (1234567.891, None, "1234567.891"),
        (0.00001, None, "0.00001"),
        (-2.5, None, "-2.5"),
        (Fraction(1, 4), Decimal("1.5"), "0.25 of 1.5"),
        (True, None, "1"),
        (1, 10**400, "1"),
    ],
    ids=lambda value: str(value)[:25],
)
async def test_numbers_are_written_as_people_write_them(progress: Any, total: Any, text: str) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("counting", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task(recover="rerun")
    async def count(ctx: Context) -> str:
        await ctx.report_progress(progress, total)
        await ctx.elicit("Go on?", Name)
        return "done"

    async with serving(server) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("count")
        with anyio.fail_after(PATIENCE):
            while "statusMessage" not in (task := await client.get(task_id)):
                assert task["status"] in ("working", "input_required"), task
                await anyio.sleep(0.005)
    assert task["statusMessage"] == text


async def test_numbers_that_json_does_not_have_are_left_out() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("odd", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def odd(ctx: Context) -> str:
        await ctx.report_progress(1, math.inf, "no end in sight")
        await ctx.report_progress(math.nan, 2, "lost count")
        await ctx.report_progress(10**400, 2, "beyond counting")
        return "done"

    async with serving(server) as wire:
        done = await Tasking(wire).finish("odd")
    assert done["_meta"][KEY] == {"progress": 1}
