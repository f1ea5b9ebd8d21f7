"""What a tool in a task of 2025-11-25 sends beside progress and questions arrives as in a plain call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import TextContent

from harness.http import serving
from harness.older import pipe_session
from harness.rpc import PATIENCE
from harness.stdio import stdio_process
from mcp_tasks.client import TasksClient
from tests.legacy.http_session import RELATED, HttpSession, Message, open_session
from tests.legacy.talking import build

pytestmark = pytest.mark.anyio

MESSAGE, UPDATED = "notifications/message", "notifications/resources/updated"
TOOLS, COMPLETE = "notifications/tools/list_changed", "notifications/elicitation/complete"
ALL = [MESSAGE, TOOLS, UPDATED, COMPLETE, MESSAGE]


@asynccontextmanager
async def talking(*, held: bool = True) -> AsyncGenerator[tuple[HttpSession, asyncio.Event]]:
    gate = asyncio.Event()
    if not held:
        gate.set()
    async with serving(build(gate)) as wire:
        yield await open_session(wire), gate


def methods(messages: list[Message]) -> list[str]:
    return [each["method"] for each in messages if each.get("method") in ALL]


def related(message: Message) -> str | None:
    return message.get("params", {}).get("_meta", {}).get(RELATED, {}).get("taskId")


async def test_what_a_tool_sends_arrives_on_the_streams_of_its_session() -> None:
    async with talking() as (client, gate), client.listen() as own:
        task_id = await client.create("talk")
        async with client.open_result(task_id) as result:
            gate.set()
            answer = await result.answer()
            await own.until(lambda message: message.get("method") == UPDATED)
        assert answer["result"]["content"][0]["text"] == "talked"
        # As in a plain call: what belongs to the request comes before its answer, the rest on the session's stream.
        assert methods(result.messages) == [MESSAGE, COMPLETE, MESSAGE]
        assert methods(own.messages) == [TOOLS, UPDATED]
        assert {related(each) for each in result.messages if "method" in each} == {task_id}
        assert [related(each) for each in own.messages if each["method"] in ALL] == [None, None]
        assert result.messages[0]["params"]["data"] == "said 0"


async def test_without_a_result_open_everything_arrives_on_the_sessions_own_stream() -> None:
    async with talking(held=False) as (client, _), client.listen() as own:
        task_id = await client.create("talk")
        await own.until(lambda message: message.get("params", {}).get("status") == "completed")
        # Also what was said before the client knew the task, and before it is told of the end.
        assert methods(own.messages) == ALL
        assert [related(each) for each in own.messages if each["method"] in (MESSAGE, COMPLETE)] == [task_id] * 3


async def test_what_is_said_while_no_stream_is_open_waits_for_one() -> None:
    async with talking() as (client, gate):
        task_id = await client.create("chatter", {"count": 3})
        await anyio.sleep(0.5)  # sleep: by now it would have been dropped
        async with client.open_result(task_id) as result:
            await result.until(lambda message: message.get("method") == MESSAGE, number=3)
            gate.set()
            await result.answer()
        assert [each["params"]["data"] for each in result.sent(MESSAGE)] == ["said 0", "said 1", "said 2"]


async def test_a_quick_tool_is_heard_before_its_result() -> None:
    async with talking(held=False) as (client, _):
        task_id = await client.create("talk")
        async with client.open("tasks/result", taskId=task_id) as result:
            await result.answer()
        assert methods(result.messages) == [MESSAGE, COMPLETE, MESSAGE]


async def test_a_client_that_has_no_stream_open_keeps_the_last_of_them_and_does_not_hold_up_the_tool() -> None:
    async with talking() as (client, gate):
        with anyio.fail_after(PATIENCE):
            task_id = await client.create("chatter", {"count": 5_000})
            await anyio.sleep(0.5)  # sleep: nobody is told how far the tool has got
            async with client.open_result(task_id) as result:
                gate.set()
                await result.answer()
        said = [each["params"]["data"] for each in result.sent(MESSAGE)]
        assert said == [f"said {number}" for number in range(4_900, 5_000)]


async def test_a_plain_call_says_the_same_once() -> None:
    async with talking(held=False) as (client, _), client.listen() as own:
        async with client.open("tools/call", name="talk", arguments={}) as call:
            await call.answer()
        await own.until(lambda message: message.get("method") == UPDATED)
        assert methods(call.messages) == [MESSAGE, COMPLETE, MESSAGE]
        assert methods(own.messages) == [TOOLS, UPDATED]


async def test_over_pipes_it_arrives_before_the_end_of_the_task_is_told() -> None:
    async with stdio_process(module="tests.legacy.talking") as wire, pipe_session(wire) as client:
        task_id = await client.start("talk")
        await client.status(task_id, "completed")
        assert [each.method for each in client.arrived if each.method in ALL] == ALL
        assert client.arrived[-1].method == "notifications/tasks/status"
        assert [each.related for each in client.arrived if each.method in (MESSAGE, COMPLETE)] == [task_id] * 3


# A ping asks nothing, but is a request


async def test_a_tool_in_a_task_pings_the_client_that_waits_for_its_result() -> None:
    async with talking() as (client, gate):
        task_id = await client.create("ping")
        async with client.open_result(task_id) as result:
            gate.set()
            asked = await result.request("ping")
            assert related(asked) == task_id
            await client.reply(asked, {})
            assert (await result.answer())["result"]["content"][0]["text"] == "pinged"


async def test_where_no_stream_is_open_the_task_stands_in_for_the_client() -> None:
    async with talking(held=False) as (client, _):
        assert await client.result(await client.create("ping")) == "pinged"


async def test_in_a_plain_call_the_caller_is_pinged() -> None:
    async with talking(held=False) as (client, _), client.open("tools/call", name="ping", arguments={}) as call:
        await client.reply(await call.request("ping"), {})
        assert (await call.answer())["result"]["content"][0]["text"] == "pinged"


@pytest.mark.parametrize("extensions", [[], [TasksClient()]], ids=["plain", "task"])
async def test_in_the_newest_era_a_ping_is_no_error_either(extensions: list[Any]) -> None:
    gate = asyncio.Event()
    gate.set()
    async with Client(build(gate), mode="2026-07-28", extensions=extensions) as client:
        result = await client.call_tool("ping", {})
    assert isinstance(result.content[0], TextContent)
    assert result.content[0].text == "pinged"
