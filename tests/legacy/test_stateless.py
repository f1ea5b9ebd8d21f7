"""The older tasks over stateless HTTP: by id, for whoever has it; listed only for owners; and nothing can be asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.auth import Tokens
from harness.http import HttpWire, initialize, serving
from harness.rpc import METHOD_NOT_FOUND, text_of
from harness.server import QUICK, Desk, Name, build
from mcp_tasks import Tasks
from tests.legacy.tasking import ASKABLE, without_session

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stateless(desk: Desk | None = None, *, auth: bool = False, json: bool = False) -> AsyncGenerator[HttpWire]:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = build(tasks, desk, verifier=Tokens() if auth else None)

    @server.tool()
    @tasks.task()
    async def tries_to_ask(ctx: Context) -> str:
        """Ask, and go on without."""
        try:
            await ctx.elicit("Who is it?", Name)
        except Exception as exc:
            return f"could not ask: {exc}"
        return "asked"

    async with serving(server, stateless=True, json_response=json) as wire:
        yield wire


@pytest.mark.parametrize("json", [False, True], ids=["streams", "json"])
async def test_tasks_work_by_their_id(json: bool) -> None:
    async with stateless(desk := Desk(), json=json) as wire:
        old = without_session(wire)
        task_id = (await old.create("gated", ttl=5000))["taskId"]
        assert (await old.get(task_id))["status"] == "working"
        other = (await old.create("gated"))["taskId"]
        assert (await old.cancel(other))["status"] == "cancelled"
        desk.gate.set()
        assert text_of(await old.result(task_id)) == "through"


@pytest.mark.parametrize("json", [False, True], ids=["streams", "json"])
async def test_without_a_name_or_a_session_nothing_is_listed_and_nothing_else_is_said(json: bool) -> None:
    async with stateless(json=json) as wire:
        _, hello = await initialize(wire, ASKABLE)
        assert hello["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        assert (await without_session(wire).ask("tasks/list")).code == METHOD_NOT_FOUND


async def test_an_owner_can_list() -> None:
    async with stateless(auth=True) as wire:
        _, hello = await initialize(wire.as_user("alice"), ASKABLE)
        assert "list" in hello["capabilities"]["tasks"]
        alice, bob = without_session(wire.as_user("alice")), without_session(wire.as_user("bob"))
        task_id = (await alice.create("gated"))["taskId"]
        assert await alice.listed() == [task_id]
        assert await bob.listed() == []


async def test_tools_say_whether_they_can_be_tasks() -> None:
    async with stateless() as wire:
        tools = {tool["name"]: tool for tool in (await without_session(wire).ask("tools/list")).result["tools"]}
        assert tools["must"]["execution"] == {"taskSupport": "required"}


async def test_a_tool_that_asks_is_told_that_it_cannot() -> None:
    async with stateless() as wire:
        old = without_session(wire)
        told = text_of(await old.result((await old.create("tries_to_ask"))["taskId"]))
        assert "could not ask" in told
        # The client may have declared anything; it is not what is missing.
        for tool in ("ask_name", "ask_by_returning"):
            failed = await old.until((await old.create(tool))["taskId"], "failed")
            assert "this server is stateless" in failed["statusMessage"]
            assert "did not declare" not in failed["statusMessage"]
