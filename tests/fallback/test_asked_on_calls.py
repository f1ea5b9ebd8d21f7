"""Tools that ask, called by older clients without tasks: the whole way, with the SDK's client and after a crash."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from harness.forking import piped
from harness.http import serving
from harness.older import PipeClient, http_session, pipe_session
from harness.processes import ROOT
from harness.rpc import Tasking, accept, text_of
from harness.server import Name
from harness.stdio import stdio_process
from mcp_tasks import Fallback, current_task
from mcp_tasks.fallback import questions
from tests.fallback.asking_process import asking_server
from tests.fallback.matrix.legs import ASKABLE, Call
from tests.fallback.moods import quick_tasks, server_of

pytestmark = pytest.mark.anyio

MODULE = "tests.fallback.asking_process"
ELICIT = "elicitation/create"


class Person:
    """Somebody who answers when the test says so."""

    def __init__(self, **answer: Any) -> None:
        self.asked: list[str] = []
        self.ready = anyio.Event()
        self._answer = answer or {"action": "accept", "content": {"name": "Ada"}}

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        await self.ready.wait()
        return ElicitResult(**self._answer)


@asynccontextmanager
async def connected(transport: str, person: Person) -> AsyncGenerator[Client]:
    """The SDK's client, in its older mode."""
    if transport == "stdio":
        command, *arguments = piped(MODULE, "stdio")
        parameters = StdioServerParameters(command=command, args=arguments, cwd=ROOT)
        async with Client(stdio_client(parameters), mode="legacy", elicitation_callback=person) as client:
            yield client
    elif transport == "memory":
        async with Client(asking_server(), mode="legacy", elicitation_callback=person) as client:
            yield client
    else:
        async with (
            serving(asking_server()) as wire,
            Client(wire.url, mode="legacy", elicitation_callback=person) as client,
        ):
            yield client


async def told(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def task_of(text: str) -> str:
    """The task of a call whose answer says that its tool waits."""
    assert "has not finished" in text
    found = re.search(r"Task: (\S+)", text)
    assert found is not None, text
    return found[1]


everywhere = pytest.mark.parametrize("transport", ["memory", "stdio", "http"])


@everywhere
async def test_a_tool_that_asks_is_answered_in_one_call(transport: str) -> None:
    person = Person()
    person.ready.set()
    async with connected(transport, person) as client:
        assert await told(client, "ask_name") == "Hello, Ada!"
    assert person.asked == ["What is your name?"]


@everywhere
async def test_a_person_who_takes_longer_than_the_call_is_asked_once_and_answers(transport: str) -> None:
    person = Person()
    async with connected(transport, person) as client:
        task_id = task_of(await told(client, "ask_name"))
        assert task_of(await told(client, "task_status", task_id=task_id, wait_seconds=0)) == task_id
        assert task_of(await told(client, "task_status", task_id=task_id, wait_seconds=1)) == task_id
        person.ready.set()
        assert await told(client, "task_status", task_id=task_id) == "Hello, Ada!"
    assert person.asked == ["What is your name?"]


async def test_a_person_who_declines_declines_to_the_tool() -> None:
    person = Person(action="decline")
    person.ready.set()
    async with connected("http", person) as client:
        assert await told(client, "ask_name") == "decline, then"


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_timeout_of_the_tool_is_not_cut_short_because_its_caller_speaks_no_tasks(version: str) -> None:
    tasks = quick_tasks(fallback=Fallback(answer_within=timedelta(milliseconds=1)))
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    async def patient(ctx: Context) -> str:
        answer = await current_task().ask(ctx.elicit("What is your name?", Name), timeout=timedelta(days=2))
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    async with serving(server) as wire:
        if version == "2026-07-28":
            caller, call = Tasking(wire, ASKABLE), Call("patient", {})
            [key] = (await call.begin(caller))["inputRequests"]
            result = await call.end(caller, {key: accept(name="Ada")})
        else:
            async with http_session(wire) as client:
                pending = client.begin("tools/call", {"name": "patient", "arguments": {}})
                question = await client.wait_for(lambda seen: seen.method == ELICIT)
                await client.answer(question, accept(name="Ada"))
                result = (await pending.reply()).result
    assert text_of(result) == "Hello, Ada!"


async def test_an_answer_of_plain_json_says_at_once_that_the_tool_waits() -> None:
    async with serving(asking_server(), json_response=True) as wire, http_session(wire) as client:
        result = (await client.call("ask_name")).result
        assert result["structuredContent"]["status"] == "input_required"
        assert client.arrived == []


async def test_over_a_pipe_a_person_is_asked_again_a_while_after_the_call_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some clients close a dialog with the call that it came on, and say nothing.
    person = Person()
    async with connected("memory", person) as client:
        task_id = task_of(await told(client, "ask_name"))
        await told(client, "task_status", task_id=task_id, wait_seconds=0.1)
        assert len(person.asked) == 1
        monkeypatch.setattr(questions, "AGAIN_AFTER", 0.0)
        await told(client, "task_status", task_id=task_id, wait_seconds=0.1)
        assert len(person.asked) == 2
        person.ready.set()
        assert await told(client, "task_status", task_id=task_id) == "Hello, Ada!"


async def test_over_a_pipe_a_question_is_cancelled_with_its_call_and_asked_again_at_once() -> None:
    async with stdio_process("memory://", "30", module=MODULE) as wire, pipe_session(wire) as client:
        call = client.begin("tools/call", {"name": "ask_name", "arguments": {}})
        question = await client.wait_for(lambda seen: seen.method == ELICIT)
        await client.notify("notifications/cancelled", {"requestId": call.request_id})
        cancelled = await client.wait_for(lambda seen: seen.method == "notifications/cancelled")
        assert cancelled.params["requestId"] == question.message["id"]
        [task] = (await client.call("task_status")).result["structuredContent"]["tasks"]
        after = len(client.arrived)
        waiting = client.begin("tools/call", {"name": "task_status", "arguments": {"task_id": task["taskId"]}})
        question = await client.wait_for(lambda seen: seen.method == ELICIT, after=after)
        await client.answer(question, {"action": "accept", "content": {"name": "Ada"}})
        assert (await waiting.reply()).result["content"][0]["text"] == "Hello, Ada!"


async def test_after_a_crash_the_next_call_asks_again_and_the_work_goes_on(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with first_life(store) as client:
        result = (await client.call("ask_name")).result
        task_id = result["structuredContent"]["taskId"]
        assert [seen.method for seen in client.arrived] == [ELICIT]
    async with stdio_process(store, module=MODULE) as wire, pipe_session(wire) as client:
        waiting = client.begin("tools/call", {"name": "task_status", "arguments": {"task_id": task_id}})
        question = await client.wait_for(lambda seen: seen.method == ELICIT)
        await client.answer(question, {"action": "accept", "content": {"name": "Ada"}})
        assert (await waiting.reply()).result["content"][0]["text"] == "Hello, Ada!"
        assert len(client.arrived) == 1


@asynccontextmanager
async def first_life(store: str) -> AsyncGenerator[PipeClient]:
    """A session with a server that is killed at its end."""
    try:
        async with stdio_process(store, module=MODULE) as wire:
            async with pipe_session(wire) as client:
                yield client
            wire.process.kill()
            await wire.process.wait()
    except AssertionError as exc:
        assert "ended by itself with -9" in str(exc)  # noqa: PT017 - what the helper says of a server that was killed
