"""Progress of a task, as people read it and as programs do."""

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
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks
from mcp_tasks.testing.clock import FakeClock

KEY = "mcp-tasks/progress"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def client(desk: Desk, clock: FakeClock) -> AsyncGenerator[Tasking]:
    async with serving(build(Tasks("memory://", clock=clock, settings=QUICK), desk)) as wire:
        yield Tasking(wire)


async def _progressed(client: Tasking, task_id: str, progress: float) -> dict[str, Any]:
    """The task once it shows that progress."""

    async def look() -> dict[str, Any] | None:
        task = await client.get(task_id)
        return task if task["_meta"].get(KEY, {}).get("progress") == progress else None

    return await eventually(look) or {}


async def test_progress_is_a_message_for_people_and_numbers_for_programs(client: Tasking) -> None:
    shown: list[tuple[float | None, str | None, str, dict[str, float]]] = [
        (4, "half of it", "half of it", {"progress": 2, "total": 4}),
        (4, None, "2 of 4", {"progress": 2, "total": 4}),
        (None, "two done", "two done", {"progress": 2}),
        (None, None, "2", {"progress": 2}),
    ]
    for total, message, text, numbers in shown:
        task_id = await client.create("progressing", steps=2, total=total, message=message)
        task = await _progressed(client, task_id, 2)
        assert (task["status"], task["statusMessage"], task["_meta"][KEY]) == ("working", text, numbers)


async def test_progress_is_an_update_of_its_task_and_stays_after_the_end_without_its_message(
    client: Tasking, clock: FakeClock, desk: Desk
) -> None:
    created = await client.call("gated")
    await desk.started.wait()
    desk.started.clear()
    clock.advance(timedelta(seconds=5))
    task_id = await client.create("progressing", steps=3, total=3, message="nearly there")
    await desk.started.wait()
    clock.advance(timedelta(seconds=5))
    shown = await _progressed(client, task_id, 3)
    assert shown["lastUpdatedAt"] >= shown["createdAt"] > created["createdAt"]
    # A look is no update, and progress of another task is none either.
    assert (await client.get(task_id))["lastUpdatedAt"] == shown["lastUpdatedAt"]
    other = await client.get(created["taskId"])
    assert other["lastUpdatedAt"] == created["lastUpdatedAt"]
    assert ("statusMessage" in other, KEY in other["_meta"]) == (False, False)
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
        for step in range(1_000):
            await ctx.report_progress(step, 1_000)
        reported.set()
        await gate.wait()
        return "done"

    async with serving(server) as wire:
        client = Tasking(wire)
        task_id = await client.create("eager")
        with anyio.fail_after(PATIENCE):
            await reported.wait()
        # One of the first was written at once; the rest waits for its turn, or for the end.
        assert (await client.get(task_id))["_meta"][KEY]["progress"] < 999
        gate.set()
        assert (await client.until(task_id, "completed"))["_meta"][KEY]["progress"] == 999


NUMBERS: list[tuple[Any, Any, str]] = [
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
]


async def test_numbers_are_written_as_people_write_them_and_what_json_does_not_have_is_left_out() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("counting", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task(recover="rerun")
    async def count(number: int, ctx: Context) -> str:
        progress, total, _ = NUMBERS[number]
        await ctx.report_progress(progress, total)
        await ctx.elicit("Go on?", Name)
        return "done"

    @server.tool()
    @tasks.task()
    async def odd(ctx: Context) -> str:
        await ctx.report_progress(1, math.inf, "no end in sight")
        await ctx.report_progress(math.nan, 2, "lost count")
        await ctx.report_progress(10**400, 2, "beyond counting")
        return "done"

    async with serving(server) as wire:
        client = Tasking(wire, EVERYTHING)
        for number, (_, _, text) in enumerate(NUMBERS):
            task = await client.until(await client.create("count", number=number), "input_required")
            assert task["statusMessage"] == text
        assert (await client.finish("odd"))["_meta"][KEY] == {"progress": 1}
