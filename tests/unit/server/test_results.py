"""What a tool returns or raises in a task: kept as a plain call would have sent it, or told as what went wrong."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    ListToolsResult,
)
from mcp_types import Tool as ListedTool

from harness.official import in_memory
from harness.rpc import Tasking, text_of
from harness.server import QUICK
from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskHandle, TasksClient
from mcp_tasks.errors import StepError, StoreUnavailable
from mcp_tasks.model import TaskRequest
from mcp_tasks.server.tool_runner import LARGEST_CLIENT, MOST_CLIENTS, ClientCache


async def ada(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def as_task(answer: Callable[[Any], Any], mode: str = "auto") -> CallToolResult | ErrorData:
    """What a handler's answer comes to in a task; a client of the older version waits for one that it does not see."""
    tasks = TasksClient()
    extensions = [tasks] if mode == "auto" else []
    async with Client(_server(answer), mode=mode, extensions=extensions, elicitation_callback=ada) as client:
        try:
            if mode == "legacy":
                return await client.call_tool("any", {})
            handle = await tasks.start(client, "any", {})
            assert isinstance(handle, TaskHandle)
            return await handle.result()
        except MCPError as exc:
            return exc.error


def _server(answer: Callable[[Any], Any]) -> Server[Any]:
    async def call_tool(ctx: Any, params: Any) -> Any:
        return answer(params)

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[ListedTool(name="any", input_schema={"type": "object"})])

    server = Server("low", on_call_tool=call_tool, on_list_tools=list_tools)
    Tasks("memory://", default_mode="optional", settings=QUICK).attach(server)
    return server


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_a_handler_may_answer_and_ask_with_plain_objects() -> None:
    def answer(params: Any) -> Any:
        if params.input_responses:
            text = f"{params.request_state}, answered"
            return {"content": [{"type": "text", "text": text}], "resultType": "complete"}
        question = ElicitRequestFormParams(message="Who?", requested_schema={"type": "object", "properties": {}})
        asked = InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state="asked")
        return asked.model_dump(by_alias=True, mode="json", exclude_none=True)

    result = await as_task(answer)
    assert isinstance(result, CallToolResult)
    assert text_of(result.model_dump()) == "asked, answered"


INVALID = (-32603, "Handler returned an invalid result")
INTERNAL = (-32603, "Internal server error")
NO_RESULT = (-32603, "'any' returned a CreateTaskResult. A marked tool returns its own result")
WRONG: list[tuple[str, Any, tuple[int, str]]] = [
    *(("both", wrong, INVALID) for wrong in (None, {}, {"resultType": "complete"}, {"content": "text"})),
    *(("auto", wrong, INTERNAL) for wrong in ("", "text", [], [("content", 1)], False)),
    ("auto", {"content": []}, INVALID),
    ("auto", {"resultType": 7}, INVALID),
    ("auto", {"resultType": "input_required", "inputRequests": {"who": {"method": "no/such"}}}, INVALID),
    ("auto", {"content": [], "resultType": "zork"}, (-32603, "The result of tool 'any' has the resultType 'zork'")),
    ("both", {"resultType": "task", "taskId": "x"}, NO_RESULT),
    ("both", {"task": {"taskId": "x"}}, NO_RESULT),
    ("auto", ErrorData(code=-32001, message="mine", data={"a": 1}), (-32001, "mine")),
]


@pytest.mark.parametrize(
    ("mode", "returned", "told"),
    [(mode, *case) for eras, *case in WRONG for mode in (("auto", "legacy") if eras == "both" else (eras,))],
)
async def test_what_is_no_result_is_an_error_that_says_so_and_quotes_nothing(
    mode: str, returned: Any, told: tuple[int, str]
) -> None:
    error = await as_task(lambda _: returned, mode)
    assert isinstance(error, ErrorData)
    code, message = told
    assert error.code == code
    assert error.message.startswith(message)


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
    error = await as_task(lambda _: CallToolResult(content=[], **fields))
    assert isinstance(error, ErrorData)
    assert error.message.startswith(f"The result of tool 'any' {why}")
    # The author's mistake needs no traceback of ours.
    assert not [record for record in caplog.records if record.name.startswith("mcp_tasks") and record.exc_info]


async def test_a_question_asked_by_returning_that_is_too_large_fails_the_task_and_says_so() -> None:
    def answer(params: Any) -> Any:
        question = ElicitRequestFormParams(message="x" * 300_000, requested_schema={"type": "object", "properties": {}})
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)})

    error = await as_task(answer)
    assert isinstance(error, ErrorData)
    assert "at most 262,144 can be asked" in error.message


# Tools that fail


def failing() -> MCPServer[Any]:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = MCPServer("failing", **tasks.wiring(), log_level="CRITICAL")

    async def same_step_twice() -> None:
        async def work() -> int:
            return 1

        await current_task().step("count", work)
        await current_task().step("count", work)

    async def sleeps_for_a_number() -> None:
        await current_task().sleep(5)  # pyright: ignore[reportArgumentType]

    async def crashes() -> None:
        raise RuntimeError("the password is 1234")

    async def fails_in_a_step() -> None:
        raise StepError("pay", "CardError", "card 1234 is refused")

    async def fails_as_tools_do() -> None:
        raise ToolError("out of paper")

    async def loses_the_store() -> None:
        raise StoreUnavailable("/var/lib/tasks.db is locked")

    async def calls_another(ctx: Context) -> None:
        await server.call_tool("sleeps_for_a_number", {}, ctx)

    async def asks_too_much(ctx: Context) -> None:
        await ctx.session.elicit_form("x" * 300_000, {"type": "object", "properties": {}})

    of_tasks = (same_step_twice, sleeps_for_a_number, calls_another)
    for tool in (*of_tasks, crashes, fails_in_a_step, fails_as_tools_do, loses_the_store, asks_too_much):
        server.add_tool(tasks.task()(tool))
    return server


TOLD = {
    "same_step_twice": "'count'",
    "sleeps_for_a_number": "timedelta",
    "calls_another": "timedelta",
    "fails_as_tools_do": "out of paper",
    "loses_the_store": "The task store cannot take the request now",
    "crashes": "",
    "fails_in_a_step": "",
}
"""What a client reads of a failure. Where it is nothing, the text stays on the server."""


async def test_a_misuse_of_ours_reaches_the_client_and_any_other_exception_stays_on_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "mcp_tasks")
    async with in_memory(failing(), elicitation_callback=ada) as wire:
        client = Tasking(wire)
        for tool, told in TOLD.items():
            ended = await client.finish(tool)
            assert ended["result"]["isError"] is True
            text = text_of(ended["result"])
            assert text.startswith(f"Error executing tool {tool}{': ' if told else ''}")
            assert told in text if told else text == f"Error executing tool {tool}"
            assert "tasks.db" not in text
        too_large = await client.until(await client.create("asks_too_much"), "failed", "completed")
        assert "at most 262,144 can be asked" in str(too_large)
    said = [record for record in caplog.records if "'fails_as_tools_do' failed" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.INFO]
    assert not [line for line in caplog.messages if "out of paper" in line or "1234" in line]


# Who a client is: parsed once, and kept within bounds


def _request(version: str, *, size: int = 0, **capabilities: Any) -> TaskRequest:
    info = {"name": "x" * size, "version": version}
    return TaskRequest(
        name="tool", arguments={}, protocol_version="2026-07-28", client_info=info, client_capabilities=capabilities
    )


def test_clients_that_say_the_same_are_parsed_once_as_far_as_there_is_room() -> None:
    cache = ClientCache()
    known = {version: cache.client_of(_request(version)) for version in "12"}
    assert cache.client_of(_request("1")) is known["1"]
    assert cache.client_of(_request("1", elicitation={})) is not known["1"]
    for number in range(MOST_CLIENTS - 2):
        cache.client_of(_request(f"other {number}"))
    # The one that was not asked for longest has made room.
    assert cache.client_of(_request("1")) is known["1"]
    assert cache.client_of(_request("2")) is not known["2"]
    # One that says too much of itself is not kept, and takes no other's place.
    talkative = cache.client_of(_request("3", size=LARGEST_CLIENT))
    assert cache.client_of(_request("3", size=LARGEST_CLIENT)) is not talkative
    assert cache.client_of(_request("1")) is known["1"]
