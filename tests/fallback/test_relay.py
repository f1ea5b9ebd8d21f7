"""Progress on one open call, as clients of the SDK get it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types.version import LATEST_MODERN_VERSION

from harness.http import serving
from mcp_tasks.fallback.progress import ALIVE, ProgressRelay
from mcp_tasks.model.record import Progress, TaskRecord
from mcp_tasks.runtime.sweeps import MESSAGE as NO_WORKER
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

Script = Callable[[ProgressRelay], Awaitable[None]]
HEARTBEAT = timedelta(seconds=10)
MODES = [LATEST_MODERN_VERSION, "legacy"]
either_mode = pytest.mark.parametrize("mode", MODES)


def relaying(script: Script, *, last: float | None = None) -> MCPServer[Any]:
    """A server whose one tool does as the script says with the progress of its own call."""
    server = MCPServer("relaying", log_level="CRITICAL")

    @server.tool()
    async def tool(ctx: Context) -> str:
        relay = ProgressRelay(ctx.request_context, heartbeat=HEARTBEAT, last=last)
        async with anyio.create_task_group() as group:
            group.start_soon(relay.keep_alive)
            await script(relay)
            group.cancel_scope.cancel()
        return f"token: {relay.has_token}"

    return server


async def called(target: Any, mode: Literal["legacy"] | str, *, asks: bool = True) -> tuple[list[Any], str]:
    """The progress that the client gets, each report with the time of its coming, and the tool's result."""
    got: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        got.append((asyncio.get_running_loop().time(), progress, total, message))

    async with Client(target, mode=mode) as client:
        result = await client.call_tool("tool", {}, progress_callback=on_progress if asks else None)
    return got, getattr(result.content[0], "text", "")


def record(progress: Progress | None) -> TaskRecord:
    """A task that has come so far."""
    now = datetime.now(UTC)
    return TaskRecord(id="task", owner=None, name="tool", created_at=now, updated_at=now, progress=progress)


def values(got: list[Any]) -> list[Any]:
    """The reports without their times."""
    return [report[1:] for report in got]


@simulated
async def test_a_caller_who_waits_hears_that_there_is_no_worker_until_one_is_there() -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.look(record(Progress(progress=1, total=4, message="one")))
        await relay.look(replace(record(Progress(progress=1, total=4, message="one")), status_message=NO_WORKER))
        await time_passes(9)
        await relay.look(record(Progress(progress=1, total=4, message="one")))
        await time_passes(9)

    got, _ = await called(relaying(script), LATEST_MODERN_VERSION)
    assert [message for _, _, _, message in got] == ["one", NO_WORKER, "one"]


@simulated
@either_mode
async def test_a_call_of_a_quiet_tool_is_kept_alive(mode: str) -> None:
    async def script(relay: ProgressRelay) -> None:
        begun.append(asyncio.get_running_loop().time())
        await time_passes(15)
        await relay.report(1, 5, "one")
        await time_passes(45)
        begun.append(asyncio.get_running_loop().time())

    begun: list[float] = []
    got, _ = await called(relaying(script), mode)
    times = [begun[0], *(at for at, *_ in got), begun[1]]
    assert all(later - earlier <= HEARTBEAT.total_seconds() for earlier, later in pairwise(times))
    assert values(got)[0] == (0, None, ALIVE)
    assert (1, 5, "one") in values(got)
    assert values(got)[-1][1:] == (5, "one")
    assert all(earlier < later < 5 for earlier, later in pairwise(value for value, *_ in values(got)))


@simulated
async def test_what_is_held_back_at_the_total_does_not_keep_the_call_from_being_kept_alive() -> None:
    async def script(relay: ProgressRelay) -> None:
        await time_passes(7)
        await relay.report(5, 5, "all")
        await time_passes(7)
        await relay.finish()

    got, _ = await called(relaying(script), "legacy")
    assert [value[1:] for value in values(got)] == [(5, "all"), (5, "all")]
    assert got[0][1] < got[1][1] == 5


@either_mode
async def test_a_busy_tool_is_heard_as_in_a_plain_call_over_http(mode: str) -> None:
    async def script(relay: ProgressRelay) -> None:
        for done in range(5):
            await relay.report(done + 1, 5, f"frame {done}")
        await relay.finish()

    async with serving(relaying(script)) as wire:
        got, text = await called(wire.url, mode)
    assert values(got) == [(done + 1, 5, f"frame {done}") for done in range(5)]
    assert text == "token: True"


@either_mode
async def test_a_caller_that_did_not_ask_for_progress_gets_none(mode: str) -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.report(1, 5, "one")
        await relay.finish()

    async with serving(relaying(script)) as wire:
        got, text = await called(wire.url, mode, asks=False)
    assert got == []
    assert text == "token: False"


async def test_progress_of_a_run_elsewhere_is_read_from_the_record_once() -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.look(record(None))
        for progress in (Progress(progress=1, total=4, message="one"), Progress(progress=2, total=4)):
            await relay.look(record(progress))
            await relay.look(record(progress))
        await relay.look(record(Progress(progress=4, total=4, message="all")))
        await relay.finish()

    got, _ = await called(relaying(script), "legacy")
    assert values(got) == [(1, 4, "one"), (2, 4, None), (4, 4, "all")]


async def test_the_record_says_nothing_new_of_a_run_that_reports_here() -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.report(1, 4, "one")
        await relay.report(2, 4, "two")
        await relay.look(record(Progress(progress=1, total=4, message="one")))
        await relay.look(record(Progress(progress=2, total=4, message="two")))

    got, _ = await called(relaying(script), "legacy")
    assert values(got) == [(1, 4, "one"), (2, 4, "two")]


async def test_a_later_leg_does_not_repeat_what_was_seen_on_an_earlier_one() -> None:
    async def script(relay: ProgressRelay) -> None:
        assert relay.last == 3
        await relay.look(record(Progress(progress=3, total=10, message="three")))
        await relay.look(record(Progress(progress=4, total=10, message="four")))
        assert relay.last == 4

    got, _ = await called(relaying(script, last=3), "legacy")
    assert values(got) == [(4, 10, "four")]


@simulated
async def test_signs_of_life_on_a_later_leg_say_what_was_said_last() -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.look(record(Progress(progress=3, total=10, message="three")))
        await time_passes(10)

    got, _ = await called(relaying(script, last=3), "legacy")
    [(value, total, message)] = values(got)
    assert 3 < value < 3.001
    assert (total, message) == (10, "three")


async def test_what_is_said_after_the_end_is_not_sent() -> None:
    async def script(relay: ProgressRelay) -> None:
        await relay.report(1, None, "one")
        await relay.finish()
        await relay.report(2, None, "two")

    got, _ = await called(relaying(script), "legacy")
    assert values(got) == [(1, None, "one")]


@simulated
async def test_a_client_that_takes_nothing_holds_up_neither_a_look_nor_the_end() -> None:
    reads = asyncio.Event()
    begun: list[float] = []

    async def script(relay: ProgressRelay) -> None:
        begun.append(asyncio.get_running_loop().time())
        await relay.look(record(Progress(progress=1, total=2, message="one")))
        await relay.look(record(Progress(progress=2, total=2, message="two")))
        await relay.finish()
        begun.append(asyncio.get_running_loop().time())

    async def takes_nothing(progress: float, total: float | None, message: str | None) -> None:
        await reads.wait()

    # In this process progress is a call of the client's callback, which the server waits for.
    async with Client(relaying(script), mode=LATEST_MODERN_VERSION) as client:
        await client.call_tool("tool", {}, progress_callback=takes_nothing)
    assert begun[1] - begun[0] <= HEARTBEAT.total_seconds()
