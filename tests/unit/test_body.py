"""Runs of tools, from their records."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from mcp.server import Server
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.core import TaskStatus
from mcp_tasks.tools import LowLevelHost
from tests.unit.tooling import (
    answer_the_question,
    call_of,
    finish,
    new_server,
    outcome_of,
    running_tools,
    until_status,
    who_is_it,
)

pytestmark = pytest.mark.anyio

MEBIBYTE = 2**20


@pytest.mark.parametrize("version", [LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION])
async def test_a_result_is_kept_without_the_mark_of_an_era_and_its_meta_apart(version: str) -> None:
    server = new_server()

    @server.tool()
    async def tool() -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")], _meta={"example.com/a": 1})

    async with running_tools(server) as runtime:
        result, meta = await outcome_of(runtime, (await finish(runtime, call_of("tool", version=version))).id)
    assert result == {"content": [{"type": "text", "text": "done"}], "isError": False}
    assert meta == {"example.com/a": 1}


async def test_a_result_that_is_not_valid_unicode_fails_the_task_and_says_so() -> None:
    server = new_server()

    @server.tool()
    def name_of_a_file() -> str:
        return "half a character: \ud800"

    async with running_tools(server) as runtime:
        ended = await finish(runtime, call_of("name_of_a_file"))
        error, _ = await outcome_of(runtime, ended.id)
    assert ended.status is TaskStatus.FAILED
    assert error["message"] == "The result of tool 'name_of_a_file' holds text that is not valid Unicode"


def _low_level(answers: Callable[[Any], Any]) -> LowLevelHost:
    """Tools of a server whose one handler answers as told."""

    async def call_tool(ctx: Any, params: Any) -> Any:
        return answers(params)

    return LowLevelHost(Server("low"), call_tool)


async def test_a_handler_may_answer_with_a_plain_object() -> None:
    content = [{"type": "text", "text": "done"}]
    async with running_tools(_low_level(lambda _: {"content": content})) as runtime:
        result, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert result["content"] == content


async def test_a_handler_may_ask_with_a_plain_object() -> None:
    def answer(params: Any) -> Any:
        if params.input_responses:
            return {"content": [{"type": "text", "text": f"{params.request_state}, answered"}]}
        return who_is_it().model_dump(by_alias=True, mode="json", exclude_none=True)

    async with running_tools(_low_level(answer)) as runtime:
        created = await runtime.launch(call_of("any"), owner=None, retention=None)
        await answer_the_question(runtime, created.id)
        await until_status(runtime, created.id, TaskStatus.COMPLETED)
        result, _ = await outcome_of(runtime, created.id)
    assert result["content"][0]["text"] == "asked, answered"


@pytest.mark.parametrize(
    "returned",
    [{"resultType": 7}, {"resultType": "input_required", "inputRequests": {"who": {"method": "no/such"}}}],
    ids=["result", "question"],
)
async def test_what_is_not_a_valid_result_fails_the_task_and_is_not_quoted(returned: dict[str, Any]) -> None:
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert error == {"code": -32603, "message": "Handler returned an invalid result"}


async def test_a_question_that_the_client_cannot_answer_fails_the_task() -> None:
    server = new_server()

    @server.tool()
    async def tool(ctx: Context) -> str:
        await ctx.session.elicit_form("Well?", {"type": "object", "properties": {}})
        return "unreachable"

    async with running_tools(server) as runtime:
        ended = await finish(runtime, call_of("tool", capabilities={}))
        error, _ = await outcome_of(runtime, ended.id)
    assert error["data"] == {"requiredCapabilities": {"elicitation": {}}}


async def test_a_question_that_is_too_large_reaches_the_tool_as_an_error_with_its_text() -> None:
    server = new_server()

    @server.tool()
    async def tool(ctx: Context) -> str:
        try:
            await ctx.session.elicit_form("x" * 300_000, {"type": "object", "properties": {}})
        except MCPError as exc:
            return exc.error.message
        return "it was asked"

    async with running_tools(server) as runtime:
        result, _ = await outcome_of(runtime, (await finish(runtime, call_of("tool"))).id)
    assert "at most 262,144 can be asked" in result["content"][0]["text"]


async def test_a_question_asked_by_returning_that_is_too_large_fails_the_task_and_says_so() -> None:
    def answer(params: Any) -> Any:
        question = ElicitRequestFormParams(message="x" * 300_000, requested_schema={"type": "object", "properties": {}})
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)})

    async with running_tools(_low_level(answer)) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert "at most 262,144 can be asked" in error["message"]


async def test_tasks_of_many_talkative_clients_leave_no_memory_behind() -> None:
    server = new_server()

    @server.tool()
    async def tool() -> str:
        return "done"

    async with running_tools(server) as runtime:

        async def call(version: str) -> None:
            info = {"name": "x" * MEBIBYTE, "version": version}
            await runtime.discard(await finish(runtime, call_of("tool", info=info)))

        await call("first")
        tracemalloc.start()
        try:
            for number in range(64):
                await call(str(number))
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 16 * MEBIBYTE
