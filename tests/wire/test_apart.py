"""Serving in one process and running tools in another."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer, Server
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from mcp_tasks import Tasks
from mcp_tasks.core.events import TaskCancelled, TaskCreated
from mcp_tasks.errors import UsageError, WiringError
from mcp_tasks.runtime import TaskChange
from tests.helpers.official import in_memory
from tests.helpers.rpc import PATIENCE, Tasking, text_of
from tests.helpers.server import QUICK, Desk, build

pytestmark = pytest.mark.anyio

WORKER = """
import asyncio, sys
from mcp.server import MCPServer
from mcp_tasks import Tasks
from tests.helpers.server import QUICK, Desk, furnish

tasks = Tasks(sys.argv[1], settings=QUICK)
server = MCPServer("furnished", **tasks.wiring(), log_level="ERROR")
furnish(server, tasks, Desk())

@server.tool()
@tasks.task()
def where() -> str:
    import os
    return str(os.getpid())

asyncio.run(tasks.work(server))
"""


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'tasks.db'}"


async def test_a_process_that_only_serves_leaves_the_tools_to_one_that_only_runs_them(tmp_path: Path) -> None:
    tasks = Tasks(_url(tmp_path), settings=QUICK, runs_tools=False)
    server = build(tasks)

    @server.tool()
    @tasks.task()
    def where() -> str:
        raise AssertionError("runs in the process that only serves")

    async with in_memory(server) as wire:
        client = Tasking(wire)
        task_id = await client.create("where")
        with anyio.move_on_after(0.3):
            await client.until(task_id, "completed")
        assert (await client.get(task_id))["status"] == "working"
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, _url(tmp_path))
        try:
            done = await client.until(task_id, "completed")
            assert text_of(done["result"]) == str(worker.pid)
        finally:
            worker.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                ended = await worker.wait()
    # Told to stop, it stops in order.
    assert ended == 0


async def test_working_ends_when_it_is_cancelled_and_the_servers_own_lifespan_with_it(tmp_path: Path) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(server: MCPServer[None]) -> AsyncGenerator[None]:
        seen.append("in")
        try:
            yield
        finally:
            seen.append("out")

    serving, running = (Tasks(_url(tmp_path), settings=QUICK, runs_tools=runs) for runs in (False, True))
    worker = MCPServer("furnished", **running.wiring(own))

    @worker.tool()
    @running.task()
    def echo(value: Any) -> str:
        return f"worker: {value}"

    async with in_memory(build(serving)) as wire, anyio.create_task_group() as group:
        group.start_soon(running.work, worker)
        assert text_of((await Tasking(wire).finish("echo", value=1))["result"]) == "worker: 1"
        group.cancel_scope.cancel()
    assert seen == ["in", "out"]


async def test_a_low_level_server_can_work_as_well(tmp_path: Path) -> None:
    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="from below")])

    lowlevel, tasks = Server("furnished", on_call_tool=call_tool), Tasks(_url(tmp_path), settings=QUICK)
    tasks.attach(lowlevel)
    tasks.mark("echo")
    server = build(Tasks(_url(tmp_path), settings=QUICK, runs_tools=False))
    async with in_memory(server) as wire, anyio.create_task_group() as group:
        group.start_soon(tasks.work, lowlevel)
        assert text_of((await Tasking(wire).finish("echo", value=1))["result"]) == "from below"
        group.cancel_scope.cancel()


async def test_who_runs_no_tools_cannot_work() -> None:
    tasks = Tasks("memory://", runs_tools=False)
    with pytest.raises(UsageError, match="runs_tools=False"):
        await tasks.work(MCPServer("idle", **tasks.wiring()))


async def test_a_server_without_these_tasks_cannot_be_worked_for() -> None:
    tasks, others = Tasks("memory://"), Tasks("memory://")
    for server in (MCPServer("none"), MCPServer("others", **others.wiring())):
        with pytest.raises(WiringError, match=server.name):
            await tasks.work(server)


async def test_observers_are_told_what_happened_and_who_did_it() -> None:
    changes: list[TaskChange] = []
    desk = Desk()
    async with in_memory(build(Tasks("memory://", settings=QUICK, observers=[changes.append]), desk)) as wire:
        client = Tasking(wire)
        task_id = await client.create("gated")
        await desk.started.wait()
        await client.cancel(task_id)
    events: Mapping[type, TaskChange] = {type(change.event): change for change in changes}
    created, cancelled = events[TaskCreated], events[TaskCancelled]
    assert created.before is None
    assert cancelled.task.id == task_id
    assert cancelled.actor.kind == "client"
