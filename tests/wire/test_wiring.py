"""A server with tasks: what it is wired with, clients of it in one process, and tools that run in another."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.processes import start_async
from harness.rpc import EXTENSION, PATIENCE, Tasking, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Settings, Tasks
from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import InvalidOption, UsageError, WiringError
from mcp_tasks.model.machine import TaskCancelled, TaskCreated
from mcp_tasks.runtime import TaskChange
from tests.wire.servers import new_tasks


class Other(Extension):
    identifier = "com.example/other"

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        self.seen.append(params.name)
        return await call_next(ctx)


async def test_other_extensions_are_wired_along_and_see_calls_before_they_become_tasks() -> None:
    tasks, other = new_tasks(), Other()
    server = MCPServer("two", **tasks.wiring(extensions=[other]), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    def work() -> str:
        return "worked"

    for number in (1, 2):
        # Started twice, it has each of ours once.
        async with in_memory(server) as wire:
            assert text_of((await Tasking(wire).finish("work"))["result"]) == "worked"
            discovered = (await Tasking(wire).ask("server/discover")).result
        assert other.seen == ["work"] * number
        assert discovered["capabilities"]["extensions"].keys() == {EXTENSION, other.identifier}


async def test_without_a_store_tasks_go_where_the_environment_says_or_to_a_file_named_after_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    chosen = tmp_path / "chosen.db"
    for url in (f"sqlite:///{chosen}", ""):
        monkeypatch.setenv("MCP_TASKS_URL", url) if url else monkeypatch.delenv("MCP_TASKS_URL")
        async with in_memory(build(Tasks(settings=QUICK), name="My server / 2")) as wire:
            await Tasking(wire).finish("echo", value=1)
        assert chosen.exists()
    (file,) = (tmp_path / "home").rglob("*.db")
    assert file.name.startswith("My-server-2-")
    assert "tests-wire-test_wiring.py-" in file.name


# The author's own state


@dataclass
class Farm:
    renderers: int
    closed: bool = False


async def test_a_tool_sees_the_authors_state_in_a_task_as_in_a_call_and_until_the_last_has_ended() -> None:
    farm, seen, started = Farm(renderers=3), list[bool](), asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: MCPServer[Farm]) -> AsyncGenerator[Farm]:
        try:
            yield farm
        finally:
            farm.closed = True

    tasks = new_tasks()
    server = MCPServer("farm", **tasks.wiring(lifespan), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def count(ctx: Context[Farm]) -> str:
        state = ctx.request_context.lifespan_context
        return f"{state.renderers} renderers, closed: {state.closed}"

    @server.tool()
    @tasks.task()
    async def lasting() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(farm.closed)

    async with serving(server) as wire:
        client = Tasking(wire)
        as_task = text_of((await client.finish("count"))["result"])
        plain = text_of(await client.declaring({}).call("count"))
        await client.create("lasting")
        await started.wait()
    assert as_task == plain == "3 renderers, closed: False"
    assert (seen, farm.closed) == ([False], True)


async def test_a_low_level_servers_own_lifespan_is_kept() -> None:
    entered: list[str] = []

    @asynccontextmanager
    async def own(server: Server[Any]) -> AsyncGenerator[dict[str, int]]:
        entered.append("in")
        yield {}
        entered.append("out")

    async with in_memory(build_lowlevel(new_tasks(), lifespan=own)) as wire:
        assert entered == ["in"]
        assert text_of((await Tasking(wire).finish("echo", value=1))["result"]) == "1"
    assert entered == ["in", "out"]


# Several clients of one server in memory


async def test_the_first_client_to_leave_does_not_stop_the_tasks_of_the_second() -> None:
    desk = Desk()
    server = build(new_tasks(), desk)
    first_may_leave, first_has_left, made = asyncio.Event(), asyncio.Event(), list[str]()

    async def first() -> None:
        async with in_memory(server) as wire:
            made.append(await Tasking(wire).create("gated"))
            await desk.started.wait()
            await first_may_leave.wait()
        first_has_left.set()

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await desk.started.wait()
        async with in_memory(server) as wire:
            client = Tasking(wire)
            task_id = await client.create("gated")
            first_may_leave.set()
            with anyio.fail_after(PATIENCE):
                await first_has_left.wait()
            assert (await client.get(task_id))["status"] == "working"
            desk.gate.set()
            assert text_of((await client.until(task_id, "completed"))["result"]) == "through"
            assert await client.until(made[0], "completed")


class WatchedEngine(LocalEngine):
    def __init__(self) -> None:
        super().__init__()
        self.draining = asyncio.Event()

    async def drain(self, timeout: timedelta) -> None:
        self.draining.set()
        await super().drain(timeout)


async def test_a_client_that_comes_while_the_last_one_leaves_gets_its_tasks_run() -> None:
    desk, engine, left = Desk(), WatchedEngine(), asyncio.Event()
    # The shutdown waits for a tool that the test holds up, so the second client comes in the middle of it.
    settings = Settings(drain_timeout=timedelta(seconds=PATIENCE), stop_timeout=timedelta(seconds=1))
    server = build(Tasks("memory://", engine=engine, settings=settings), desk)

    async def first() -> None:
        async with in_memory(server) as wire:
            await Tasking(wire).create("gated")
            await desk.started.wait()
        left.set()

    async def second() -> None:
        async with in_memory(server) as wire:
            await left.wait()
            await Tasking(wire).finish("echo", value=1)

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await engine.draining.wait()
        group.start_soon(second)
        for _ in range(50):
            # Nothing says that the second waits at the door; by then it does, or it is in already.
            await anyio.lowlevel.checkpoint()
        assert not left.is_set()
        desk.gate.set()


WORKER = """
import asyncio, sys
from mcp.server import MCPServer
from mcp_tasks import Tasks
from harness.server import QUICK, Desk, furnish

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


async def _call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text="from below")])


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'tasks.db'}"


@pytest.mark.slow
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
        worker = await start_async([sys.executable, "-c", WORKER, _url(tmp_path)])
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
    before = set(threading.enumerate())

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
    # To its end: the threads of its store and of its observers are gone as well.
    assert {thread for thread in threading.enumerate() if thread.name.startswith("mcp-tasks")} <= before


@pytest.mark.parametrize("kind", ["low-level", "one that only serves"])
async def test_any_server_runs_tools_where_it_is_told_to_work(tmp_path: Path, kind: str) -> None:
    front = build(Tasks(_url(tmp_path), settings=QUICK, runs_tools=False))
    tasks = Tasks(_url(tmp_path), settings=QUICK, runs_tools=kind == "low-level")
    if kind == "low-level":
        worker: Any = Server("furnished", on_call_tool=_call_tool)
        tasks.attach(worker)
        tasks.mark("echo")
    else:
        worker = build(tasks)
    async with in_memory(front) as wire, anyio.create_task_group() as group:
        group.start_soon(partial(Tasks.of(worker).work, worker, concurrency=2, queues=["default"]))
        said = text_of((await Tasking(wire).finish("echo", value=1))["result"])
        assert said == ("from below" if kind == "low-level" else "1")
        group.cancel_scope.cancel()


async def test_the_tasks_of_a_server_are_found_by_the_server() -> None:
    tasks = Tasks("memory://")
    assert Tasks.of(MCPServer("high", **tasks.wiring())) is tasks
    lowlevel = Server("low", on_call_tool=_call_tool)
    with pytest.raises(WiringError, match=r"'low' has no tasks: call tasks.attach"):
        Tasks.of(lowlevel)
    others = Tasks("memory://")
    others.attach(lowlevel)
    assert Tasks.of(lowlevel) is others
    with pytest.raises(WiringError, match=r"'none' has no tasks: make it with MCPServer\(\.\.\., \*\*tasks"):
        Tasks.of(MCPServer("none"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency must be"),
        ({"queues": "default"}, r"queues must be a list of names, got 'default'"),
        ({"queues": []}, "queues must be a list of names"),
        ({"queues": [""]}, "a queue must be"),
        ({"drain": 5}, "drain must be a timedelta"),
    ],
)
async def test_what_a_worker_cannot_do_is_refused(options: Any, why: str) -> None:
    tasks = Tasks("memory://")
    with pytest.raises(InvalidOption, match=why):
        await tasks.work(MCPServer("idle", **tasks.wiring()), **options)


async def test_tasks_that_run_already_or_are_of_another_server_or_engine_are_not_worked_for() -> None:
    tasks, others = Tasks("memory://"), Tasks("memory://", engine=LocalEngine(3))
    server = MCPServer("busy", **tasks.wiring())
    async with tasks.running(server):
        with pytest.raises(UsageError, match="'busy' run in this process already"):
            await tasks.work(server)
    elsewhere = MCPServer("others", **others.wiring())
    for stranger in (MCPServer("none"), elsewhere):
        with pytest.raises(WiringError, match=stranger.name):
            await tasks.work(stranger)
    with pytest.raises(UsageError, match="give it to the engine you pass instead"):
        await others.work(elsewhere, concurrency=4)


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
