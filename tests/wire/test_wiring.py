"""A server with tasks: its extensions, its store, its author's own state, and several clients of it in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import EXTENSION, PATIENCE, Tasking, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Settings, Tasks
from mcp_tasks.engines import InlineEngine, LocalEngine
from tests.wire.servers import new_tasks

pytestmark = pytest.mark.anyio


class Other(Extension):
    """An extension of somebody else's, which sees every call."""

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


def _databases(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*.db")]


async def test_without_a_store_tasks_go_to_a_file_named_after_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_TASKS_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    async with in_memory(build(Tasks(settings=QUICK), name="My server / 2")) as wire:
        await Tasking(wire).finish("echo", value=1)
    (name,) = _databases(tmp_path)
    assert name.startswith("My-server-2-")
    assert "tests-wire-test_wiring.py-" in name


async def test_the_environment_chooses_the_store_of_an_author_who_chose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "chosen.db"
    monkeypatch.setenv("MCP_TASKS_URL", f"sqlite:///{chosen}")
    async with in_memory(build(Tasks(settings=QUICK))) as wire:
        await Tasking(wire).finish("echo", value=1)
    assert chosen.exists()


async def test_an_engine_is_taken_as_it_is() -> None:
    async with in_memory(build(Tasks("memory://", engine=InlineEngine(), settings=QUICK))) as wire:
        client = Tasking(wire)
        # The inline engine has run the tool before the call is answered.
        assert (await client.get(await client.create("echo", value=1)))["status"] == "completed"


# The author's own state


@dataclass
class Farm:
    """State of an author's lifespan."""

    renderers: int
    closed: bool = False


def _farm_server(tasks: Tasks, farm: Farm) -> MCPServer[Farm]:
    @asynccontextmanager
    async def lifespan(server: MCPServer[Farm]) -> AsyncGenerator[Farm]:
        try:
            yield farm
        finally:
            farm.closed = True

    server = MCPServer("farm", **tasks.wiring(lifespan), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def count(ctx: Context[Farm]) -> str:
        state = ctx.request_context.lifespan_context
        return f"{state.renderers} renderers, closed: {state.closed}"

    return server


async def test_a_tool_sees_the_authors_state_in_a_task_as_in_a_call() -> None:
    farm = Farm(renderers=3)
    async with serving(_farm_server(new_tasks(), farm)) as wire:
        client = Tasking(wire)
        as_task = text_of((await client.finish("count"))["result"])
        plain = text_of(await client.declaring({}).call("count"))
    assert as_task == plain == "3 renderers, closed: False"
    assert farm.closed


async def test_the_authors_state_is_there_until_the_last_tool_has_ended() -> None:
    farm, seen = Farm(renderers=1), list[bool]()
    started = asyncio.Event()
    tasks = new_tasks()
    server = _farm_server(tasks, farm)

    @server.tool()
    @tasks.task()
    async def lasting() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(farm.closed)

    async with in_memory(server) as wire:
        await Tasking(wire).create("lasting")
        await started.wait()
    assert seen == [False]
    assert farm.closed


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
    """An engine that says when it is being stopped."""

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
