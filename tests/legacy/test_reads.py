"""Prompts and resources as tasks on the 2025-11-25 wire, where their author offers it; the newest era knows none."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server import MCPServer

from harness.http import HttpWire, initialize, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, METHOD_NOT_FOUND, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from tests.legacy.tasking import ASKABLE, RELATED, OldTasks, over_http
from tests.push.listening import listening

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(desk: Desk | None = None) -> AsyncGenerator[HttpWire]:
    """The furnished server, with prompts and resources that may be tasks."""
    tasks = Tasks("memory://", settings=QUICK)
    place = desk or Desk()
    server: MCPServer[Any] = build(tasks, place)

    @server.prompt()
    @tasks.task(kind="prompt")
    async def slow_prompt(topic: str) -> str:
        """Think about it first."""
        await place.gate.wait()
        return f"Write about {topic}."

    @server.resource("slow://page")
    @tasks.task(kind="resource")
    async def slow_page() -> str:
        """Look it up first."""
        await place.gate.wait()
        return "a page"

    async with serving(server) as wire:
        yield wire


PROMPT: dict[str, Any] = {"name": "slow_prompt", "arguments": {"topic": "snow"}}
PAGE: dict[str, Any] = {"uri": "slow://page"}
BOTH = pytest.mark.parametrize(("method", "params"), [("prompts/get", PROMPT), ("resources/read", PAGE)])


async def create(old: OldTasks, method: str, params: dict[str, Any]) -> str:
    task = (await old.ask(method, {**params, "task": {"ttl": 60_000}})).result["task"]
    assert task["status"] == "working"
    return task["taskId"]


async def test_the_handshake_names_what_else_can_be_a_task() -> None:
    async with served() as wire:
        _, hello = await initialize(wire, ASKABLE)
    assert hello["capabilities"]["tasks"]["requests"] == {
        "tools": {"call": {}},
        "prompts": {"get": {}},
        "resources": {"read": {}},
    }


@BOTH
async def test_a_prompt_or_a_resource_as_a_task_gives_what_the_plain_request_gives(
    method: str, params: dict[str, Any]
) -> None:
    async with served(desk := Desk()) as wire:
        old = await over_http(wire)
        task_id = await create(old, method, params)
        assert await old.listed() == [task_id]
        desk.gate.set()
        result = await old.result(task_id)
        assert (await old.get(task_id))["status"] == "completed"
        assert result == {**(await old.ask(method, params)).result, "_meta": {RELATED: {"taskId": task_id}}}


@BOTH
async def test_such_a_task_does_not_exist_in_the_newest_era(method: str, params: dict[str, Any]) -> None:
    async with served() as wire:
        old, modern = await over_http(wire), Tasking(wire, EVERYTHING)
        task_id = await create(old, method, params)
        tool_task = await modern.create("gated")
        answers: dict[str, Any] = {"inputResponses": {}}
        for asked in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert (await modern.ask(asked, {"taskId": task_id, **answers})).code == INVALID_PARAMS
        async with listening(wire, [task_id, tool_task]) as stream:
            assert (await stream.acknowledged())["taskIds"] == [tool_task]
        assert (await old.get(task_id))["status"] == "working"
        assert (await old.cancel(task_id))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("prompts/get", {"name": "introduce", "arguments": {"person": "Ada"}}, METHOD_NOT_FOUND),
        ("resources/read", {"uri": "memo://greeting"}, METHOD_NOT_FOUND),
        ("prompts/get", {"name": "slow_prompt"}, INVALID_PARAMS),
        ("prompts/get", {"name": 7}, INVALID_PARAMS),
        ("resources/read", {}, INVALID_PARAMS),
    ],
)
async def test_what_is_not_offered_and_what_is_malformed_is_refused(
    method: str, params: dict[str, Any], code: int
) -> None:
    async with served() as wire:
        assert (await (await over_http(wire)).ask(method, {**params, "task": {}})).code == code


@pytest.mark.parametrize(("method", "params"), [("prompts/get", {"name": "x"}), ("resources/read", {"uri": "x://y"})])
async def test_what_is_not_there_is_refused_as_in_a_plain_request(method: str, params: dict[str, Any]) -> None:
    async with served() as wire:
        old = await over_http(wire)
        plain, asked = await old.ask(method, params), await old.ask(method, {**params, "task": {}})
        assert asked.error == plain.error
