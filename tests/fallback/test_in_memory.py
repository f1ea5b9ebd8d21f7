"""The SDK's client on a server of its own process, where nothing goes over a wire; and tools that nobody marked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, Implementation

from harness.rpc import MODERN, PATIENCE
from harness.server import QUICK, Name
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback
from tests.client.connecting import Person, text

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.1), legs=2)
MODES = {"modern": MODERN, "older": "legacy"}


def build(tasks: Tasks, gate: asyncio.Event, starts: list[str]) -> MCPServer[Any]:
    """A server with a tool of each kind, one of them not marked."""
    server = MCPServer("in memory", version="1", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def gated(job: str) -> str:
        """Wait for the test."""
        starts.append(job)
        await gate.wait()
        return f"{job} is done"

    @server.tool()
    async def unmarked(job: str) -> dict[str, int]:
        """Wait for the test, and not as a task unless all tools are."""
        starts.append(job)
        await gate.wait()
        return {job: 1}

    @server.tool()
    @tasks.task()
    async def asks(ctx: Context) -> str:
        """Ask one thing."""
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    return server


def connected(server: MCPServer[Any], mode: str) -> Client:
    """A client that nobody knows, and that has a person."""
    info = Implementation(name="nobody", version="1")
    return Client(server, mode=MODES[mode], client_info=info, elicitation_callback=Person())


def handle_of(result: CallToolResult) -> str:
    assert "It has not finished, and this is not its result." in text(result)
    assert result.structured_content is not None
    return result.structured_content["taskId"]


@pytest.mark.parametrize("mode", MODES)
async def test_in_memory_the_answers_are_the_same(mode: str) -> None:
    gate, starts = asyncio.Event(), list[str]()
    async with connected(build(Tasks("memory://", settings=QUICK, fallback=SHORT), gate, starts), mode) as client:
        await client.list_tools()
        assert text(await client.call_tool("asks", {})) == "Hello, Ada!"
        task_id = handle_of(await client.call_tool("gated", {"job": "one"}))
        mine = (await client.call_tool("task_status", {})).structured_content
        assert mine is not None
        assert task_id in {task["taskId"] for task in mine["tasks"]}
        gate.set()
        result = await client.call_tool("task_status", {"task_id": task_id})
        assert (text(result), result.structured_content) == ("one is done", {"result": "one is done"})
    assert starts == ["one"]


@pytest.mark.parametrize("mode", MODES)
async def test_two_clients_of_one_server_have_the_same_tasks(mode: str) -> None:
    gate, starts = asyncio.Event(), list[str]()
    server = build(Tasks("memory://", settings=QUICK, fallback=SHORT), gate, starts)
    async with connected(server, mode) as first:
        task_id = handle_of(await first.call_tool("gated", {"job": "one"}))
        async with connected(server, "modern") as second:
            handle_of(await second.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0}))
        gate.set()
        assert text(await first.call_tool("task_status", {"task_id": task_id})) == "one is done"
    assert starts == ["one"]


@pytest.mark.parametrize("mode", MODES)
async def test_tools_that_all_become_tasks_are_answered_so_without_a_mark(mode: str) -> None:
    gate, starts = asyncio.Event(), list[str]()
    tasks = Tasks("memory://", settings=QUICK, fallback=SHORT, augment=lambda params: True)
    async with connected(build(tasks, gate, starts), mode) as client:
        # With the schemas, by which it would refuse a handle that does not fit.
        await client.list_tools()
        task_id = handle_of(await client.call_tool("unmarked", {"job": "one"}))
        gate.set()
        result = await client.call_tool("task_status", {"task_id": task_id})
        assert result.structured_content == {"one": 1}
    assert starts == ["one"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_that_is_not_marked_is_a_plain_call(mode: str) -> None:
    gate, starts = asyncio.Event(), list[str]()
    async with connected(build(Tasks("memory://", settings=QUICK, fallback=SHORT), gate, starts), mode) as client:
        calling = asyncio.create_task(client.call_tool("unmarked", {"job": "one"}))
        await anyio.sleep(0.5)  # sleep: longer than the call of a task would wait
        assert not calling.done()
        gate.set()
        with anyio.fail_after(PATIENCE):
            assert (await calling).structured_content == {"one": 1}
    assert starts == ["one"]
