"""Runs of tools, from their records."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from mcp.server import Server
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ErrorData,
    Icon,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import methods as mcp_methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.model import TaskStatus
from mcp_tasks.server.tool_host import LowLevelHost
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


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("place", ["structured_content", "_meta"])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": {"\ud800": 1}}, "holds text that is not valid Unicode"),
        ({"a": _nested(900)}, "cannot be stored: Maximum serialization depth exceeded"),
        ({"a": object()}, "cannot be stored: Unable to serialize unknown type: <class 'object'>"),
        ({"a": b"\xff"}, "cannot be stored: 'utf-8' codec can't decode byte 0xff"),
    ],
    ids=["half a character in a key", "nested", "an object", "bytes"],
)
async def test_a_result_that_cannot_be_written_fails_the_task_and_says_why(
    place: str, value: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {place: value}
    async with running_tools(_low_level(lambda _: CallToolResult(content=[], **fields))) as runtime:
        ended = await finish(runtime, call_of("any"))
        error, _ = await outcome_of(runtime, ended.id)
    assert ended.status is TaskStatus.FAILED
    assert error["message"].startswith(f"The result of tool 'any' {why}")
    # The whole id is all it takes to see the task, and the author's mistake needs no traceback of ours.
    assert ended.id not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


_ICON = Icon(src="https://example.com/a.png", mime_type="image/png", sizes=["48x48"])
_NOTES = Annotations(audience=["user", "assistant"], priority=0.3)
_RESULTS = {
    "nothing": CallToolResult(content=[]),
    "text": CallToolResult(
        content=[TextContent(type="text", text="a", annotations=_NOTES, _meta={"example.com/a": 1})]
    ),
    "error": CallToolResult(content=[TextContent(type="text", text="no")], is_error=True),
    "image": CallToolResult(content=[ImageContent(type="image", data="AAAA", mime_type="image/png")]),
    "audio": CallToolResult(content=[AudioContent(type="audio", data="AAAA", mime_type="audio/wav")]),
    "link": CallToolResult(
        content=[ResourceLink(type="resource_link", name="a", uri="file:///a", size=3, title="A", icons=[_ICON])]
    ),
    "embedded": CallToolResult(
        content=[
            EmbeddedResource(
                type="resource", resource=TextResourceContents(uri="file:///a", text="a"), annotations=_NOTES
            ),
            EmbeddedResource(type="resource", resource=BlobResourceContents(uri="file:///b", blob="AAAA")),
        ]
    ),
    "structured": CallToolResult(
        content=[],
        structured_content={
            "none": None,
            "nan": float("nan"),
            "dates": [date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)],
            "keys": {1: 2, None: 3},
            "model": _NOTES,
            "tuple": (1, 2.5, True),
            "bytes": b"abc",
            "nested": _nested(100),
        },
        _meta={"example.com/a": {"b": [None, 1]}},
    ),
    "a list": CallToolResult(content=[], structured_content=[1, None]),
    "false": CallToolResult(content=[], structured_content=False),
    "not a number": CallToolResult(content=[], structured_content=float("nan")),
}


@pytest.mark.parametrize("returned", _RESULTS.values(), ids=_RESULTS)
async def test_a_result_is_kept_as_the_sdk_would_send_it(returned: CallToolResult) -> None:
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        result, meta = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    dumped = returned.model_dump(by_alias=True, mode="json", exclude_none=True)
    sent = mcp_methods.serialize_server_result("tools/call", LATEST_MODERN_VERSION, dumped)
    del sent["resultType"]
    assert (meta, list(result)) == (sent.pop("_meta", None), list(sent))
    assert result == sent


def _low_level(answers: Callable[[Any], Any]) -> LowLevelHost:
    """Tools of a server whose one handler answers as told."""

    async def call_tool(ctx: Any, params: Any) -> Any:
        return answers(params)

    return LowLevelHost(Server("low"), call_tool)


@pytest.mark.parametrize(
    ("version", "mark"), [(LATEST_MODERN_VERSION, {"resultType": "complete"}), (LATEST_HANDSHAKE_VERSION, {})]
)
async def test_a_handler_may_answer_with_a_plain_object(version: str, mark: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "done"}]
    async with running_tools(_low_level(lambda _: {"content": content, **mark})) as runtime:
        result, _ = await outcome_of(runtime, (await finish(runtime, call_of("any", version=version))).id)
    assert result == {"content": content}


@pytest.mark.parametrize("version", [LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION])
@pytest.mark.parametrize("returned", [None, {}, {"resultType": "complete"}, {"content": "text"}])
async def test_what_a_plain_call_would_refuse_fails_the_task(returned: Any, version: str) -> None:
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        ended = await finish(runtime, call_of("any", version=version))
        error, _ = await outcome_of(runtime, ended.id)
    assert ended.status is TaskStatus.FAILED
    assert error == {"code": -32603, "message": "Handler returned an invalid result"}


@pytest.mark.parametrize("returned", ["", "text", [], [("content", 1)], False])
async def test_what_is_not_an_object_at_all_is_an_internal_error(returned: Any) -> None:
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert error == {"code": -32603, "message": "Internal server error"}


async def test_an_object_without_a_mark_is_refused_in_the_era_that_has_marks() -> None:
    async with running_tools(_low_level(lambda _: {"content": []})) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert error == {"code": -32603, "message": "Handler returned an invalid result"}


async def test_a_result_of_another_extension_is_not_passed_off_as_complete() -> None:
    async with running_tools(_low_level(lambda _: {"content": [], "resultType": "zork"})) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert error["message"] == "The result of tool 'any' has the resultType 'zork', and a task ends with 'complete'"


@pytest.mark.parametrize("version", [LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION])
@pytest.mark.parametrize("returned", [{"resultType": "task", "taskId": "x"}, {"task": {"taskId": "x"}}])
async def test_a_task_is_no_result_of_a_tool_and_the_error_says_so(returned: Any, version: str) -> None:
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any", version=version))).id)
    assert error["code"] == -32603
    assert error["message"].startswith("'any' returned a CreateTaskResult. A marked tool returns its own result")


async def test_an_error_that_a_handler_returns_is_the_error_of_the_task() -> None:
    returned = ErrorData(code=-32001, message="mine", data={"a": 1})
    async with running_tools(_low_level(lambda _: returned)) as runtime:
        error, _ = await outcome_of(runtime, (await finish(runtime, call_of("any"))).id)
    assert error == {"code": -32001, "message": "mine", "data": {"a": 1}}


async def test_a_handler_may_ask_with_a_plain_object() -> None:
    def answer(params: Any) -> Any:
        if params.input_responses:
            return CallToolResult(content=[TextContent(type="text", text=f"{params.request_state}, answered")])
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


@pytest.mark.slow
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
