"""Companion tools beside open calls, and for callers that are not shown all of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult

from harness import rpc
from harness.http import serving
from harness.older import http_session
from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.fallback.options import Fallback, Host
from tests.fallback.rendering import MODES, SOON, Farm, chat, facts_of, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

either_mode = pytest.mark.parametrize("mode", MODES)
PATIENT = Fallback(wait=timedelta(seconds=PATIENCE))
ASKS_FOR_TASKS = Host(limit=timedelta(seconds=0.2), asks_for_tasks=True)


async def begun(farm: Farm, client: Client) -> tuple[asyncio.Task[CallToolResult], str]:
    """A call whose tool has begun, and the task that it waits for."""
    calling = asyncio.create_task(client.call_tool("render", {"scene": "a"}))
    await eventually(lambda: farm.started)
    [task] = facts_of(await client.call_tool("task_status", {}))["tasks"]
    return calling, task["taskId"]


@either_mode
async def test_who_says_how_long_to_wait_is_answered_then_also_of_a_tool_that_gives_no_word(mode: str) -> None:
    farm = Farm(ways=Fallback(wait=SOON, handle=False), options={"companions": "always"})
    async with chat(farm.server, mode) as client:
        task_id = (await farm.tasks.start("render", {"scene": "a"})).id
        result = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0.2})
    assert "It has not finished, and this is not its result." in text_of(result)
    assert 'call the tool "task_status"' in text_of(result)


async def test_it_waits_for_whoever_answers_a_question_that_it_cannot_put() -> None:
    farm = Farm(ways=replace(PATIENT, model_may_answer=True))
    async with serving(farm.server, json_response=True) as wire, http_session(wire) as client:
        told = (await client.call("publish")).result["structuredContent"]
        assert told["status"] == "input_required"
        pending = client.begin("tools/call", {"name": "task_status", "arguments": {"task_id": told["taskId"]}})
        await anyio.sleep(0.5)  # sleep: the time in which it must not be answered
        # Or a model that does as it is told would ask again, and again.
        assert not pending.answered
        answer = {"task_id": told["taskId"], "action": "accept", "content": {"ok": True}}
        assert "The answer was given" in rpc.text_of((await client.call("task_answer", answer)).result)
        assert rpc.text_of((await pending.reply()).result) == "accept ok=True note=''"


@either_mode
async def test_it_gets_the_result_beside_the_call_that_is_answered_with_it(mode: str) -> None:
    farm = Farm(ways=PATIENT)
    async with chat(farm.server, mode) as client:
        calling, task_id = await begun(farm, client)
        waiting = asyncio.create_task(client.call_tool("task_status", {"task_id": task_id}))
        await anyio.sleep(0.2)  # sleep: the second waits by then beside the first
        farm.gate.set()
        assert [text_of(await each) for each in (calling, waiting)] == ["a rendered"] * 2
    assert farm.started == ["render"]


@either_mode
async def test_a_task_that_was_cancelled_is_not_forgotten_with_its_call(mode: str) -> None:
    farm = Farm(ways=PATIENT)
    async with chat(farm.server, mode) as client:
        calling, task_id = await begun(farm, client)
        await client.call_tool("task_cancel", {"task_id": task_id})
        answered = await calling
        told = await client.call_tool("task_status", {"task_id": task_id})
    assert text_of(told) == text_of(answered)
    assert 'The tool "render" was cancelled, and has no result.' in text_of(told)


async def test_a_host_that_is_shown_no_companions_is_told_to_call_none() -> None:
    farm = Farm(options={"hosts": {"raw": ASKS_FOR_TASKS}})
    async with serving(farm.server) as wire, http_session(wire) as client:
        listed = (await client.ask("tools/list")).result["tools"]
        assert "task_status" not in [tool["name"] for tool in listed]
        told = (await client.call("render", {"scene": "a"})).result
    assert "It has not finished, and this is not its result." in rpc.text_of(told)
    assert "task_status" not in rpc.text_of(told)


async def test_what_is_known_of_a_host_over_stdio_counts_there_and_only_there() -> None:
    farm = Farm(options={"hosts": {"raw": Host(stdio=ASKS_FOR_TASKS)}})
    async with chat(farm.server, "legacy", name="raw") as client:
        assert "task_status" not in [tool.name for tool in (await client.list_tools()).tools]
        told = await client.call_tool("render", {"scene": "a"})
        assert "task_status" not in text_of(told)
    async with serving(farm.server) as wire, http_session(wire) as client:
        listed = (await client.ask("tools/list")).result["tools"]
        assert "task_status" in [tool["name"] for tool in listed]


async def test_who_cannot_be_told_apart_is_not_offered_a_list_of_its_tasks() -> None:
    farm = Farm()
    async with serving(farm.server) as wire, http_session(wire) as client:
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list")).result["tools"]}
    assert tools["task_status"]["inputSchema"]["required"] == ["task_id"]
    assert "lists your tasks" not in str(tools["task_status"])
    assert "to list your tasks" not in str(tools["task_status"])
    async with chat(farm.server, "legacy") as client:
        [status] = [tool for tool in (await client.list_tools()).tools if tool.name == "task_status"]
    assert "required" not in status.input_schema
    assert "Without a task_id, lists your tasks" in (status.description or "")
