"""`client.call_tool` stays what it was, over every transport: the task behind it does not show."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from harness.forking import piped
from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.processes import ENVIRONMENT, ROOT
from harness.server import CUSTOM_ERROR, QUICK, build
from mcp_tasks import Tasks
from mcp_tasks.client import (
    TaskHandle,
    TasksClient,
    call_tool,
    pending_tasks,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.errors import UsageError
from mcp_tasks.testing import fixture_server
from tests.client.connecting import Person, begin, connect, text

pytestmark = pytest.mark.anyio

WAYS = ["http-sse", "http-json", "http-reconnecting", "stdio", "memory"]


@pytest.fixture(scope="module", params=WAYS)
async def client(request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    """A client of the furnished server, over each transport in turn."""
    way: str = request.param
    async with AsyncExitStack() as stack:
        target = await _target(way, stack)
        yield await stack.enter_async_context(connect(target, person=Person()))


async def _target(way: str, stack: AsyncExitStack) -> Any:
    if way == "stdio":
        command, *arguments = piped("harness.furnished", "stdio")
        return StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    server = build(Tasks("memory://", settings=QUICK))
    if way == "memory":
        return server
    wire = await stack.enter_async_context(serving(server, json_response=way == "http-json"))
    return reconnecting_http(wire.url) if way == "http-reconnecting" else wire.url


@pytest.mark.requirement("client/either-result")
async def test_a_tool_that_is_a_task_gives_its_result(client: Client) -> None:
    assert text(await client.call_tool("echo", {"value": "hello"})) == "hello"


@pytest.mark.requirement("client/either-result")
async def test_a_tool_that_is_none_answers_inline(client: Client) -> None:
    assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
    assert text(await client.call_tool("never", {})) == "task: None"


async def test_a_tool_that_must_be_a_task_is_one(client: Client) -> None:
    assert text(await client.call_tool("must", {})) == "as a task"


async def test_structured_output_comes_through_with_its_nulls(client: Client) -> None:
    result = await client.call_tool("point", {"x": 1})
    assert result.structured_content == {"x": 1.0, "y": None}


async def test_errors_are_those_of_a_plain_call(client: Client) -> None:
    assert (await client.call_tool("fails", {})).is_error
    with pytest.raises(MCPError) as caught:
        await client.call_tool("breaks", {})
    assert (caught.value.code, caught.value.error.data) == (CUSTOM_ERROR, {"hint": "ask again"})


@pytest.mark.requirement("client/inspects-input-requests")
async def test_questions_in_the_middle_are_answered(client: Client) -> None:
    assert text(await client.call_tool("ask_name", {})) == "Hello, Ada!"
    assert text(await client.call_tool("ask_both", {})) == "Ada is 36"


async def test_questions_before_the_task_are_answered_on_the_call(client: Client) -> None:
    assert text(await client.call_tool("ask_by_returning", {})) == "Hello, Ada!"
    assert text(await client.call_tool("ask_before", {})) == "Hello, Ada!"


async def test_a_handle_is_there_for_who_wants_it(client: Client) -> None:
    handle = await begin(client, "echo", value=5)
    assert handle.tool == "echo"
    assert text(await resume_task(client, handle.id).result()) == "5"


async def test_one_call_wanting_a_handle_does_not_change_the_next(client: Client) -> None:
    assert isinstance(await start_task(client, "echo", {"value": 1}), TaskHandle)
    assert text(await client.call_tool("echo", {"value": 2})) == "2"
    assert text(await call_tool(client, "echo", {"value": 3}, timeout=60)) == "3"


# Other servers and other clients


async def test_a_question_before_the_task_is_asked_once_and_the_task_only_greets() -> None:
    seen: list[str] = []

    async def name(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        seen.append(params.message)
        return ElicitResult(action="accept", content={"name": "Grace"})

    server = fixture_server.build(Tasks("memory://", settings=QUICK))
    async with serving(server) as wire, connect(wire.url, person=name) as client:
        assert text(await client.call_tool("test_tool_with_task", {})) == "Hello, Grace!"
        handle = await begin(client, "test_tool_with_task")
        assert text(await handle.result()) == "Hello, Grace!"
    assert seen == ["What is your name?"] * 2


@pytest.mark.parametrize("push", [True, False])
async def test_a_low_level_server_that_pushes_nothing_is_polled(push: bool) -> None:
    server = build_lowlevel(Tasks("memory://", settings=QUICK))
    async with serving(server) as wire, connect(wire.url, person=Person(), push=push) as client:
        assert text(await client.call_tool("echo", {"value": 7})) == "7"
        assert text(await client.call_tool("ask_name", {})) == "Hello, Ada!"


async def test_a_server_without_the_extension_is_called_as_ever() -> None:
    server = MCPServer("plain", log_level="CRITICAL")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with serving(server) as wire, connect(wire.url) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_on_the_older_wire_calls_are_plain_calls() -> None:
    server = build(Tasks("memory://", settings=QUICK))
    async with serving(server) as wire, Client(wire.url, mode="legacy", extensions=[TasksClient()]) as client:
        assert text(await client.call_tool("echo", {"value": "old"})) == "old"


async def test_a_client_without_tasks_says_how_to_have_them(url: str) -> None:
    async with Client(url) as client:
        for use in (lambda: resume_task(client, "x"), lambda: pending_tasks(client)):
            with pytest.raises(UsageError, match="TasksClient"):
                use()
        with pytest.raises(UsageError, match="TasksClient"):
            await start_task(client, "echo", {"value": 1})
        with pytest.raises(UsageError, match="TasksClient"):
            await call_tool(client, "echo", {"value": 1})


# The verbs of the extension


async def test_the_extension_starts_calls_and_resumes_by_itself(url: str) -> None:
    tasks = TasksClient()
    async with Client(url, extensions=[tasks]) as client:
        handle = await tasks.start(client, "echo", {"value": 1})
        assert isinstance(handle, TaskHandle)
        assert text(await tasks.resume(client, handle.id, tool="echo").result()) == "1"
        assert text(await tasks.call(client, "echo", {"value": 2}, timeout=60)) == "2"
        assert tasks.pending(client) == []


async def test_the_extension_gives_back_the_tasks_of_its_ledger(url: str, tmp_path: Path) -> None:
    tasks = TasksClient(ledger=tmp_path / "ledger.db")
    async with Client(reconnecting_http(url), extensions=[tasks]) as client:
        handle = await tasks.start(client, "gated")
        assert isinstance(handle, TaskHandle)
        assert [(pending.id, pending.tool) for pending in tasks.pending(client)] == [(handle.id, "gated")]
        await handle.cancel()


async def test_an_extension_that_the_client_was_not_given_says_so(url: str) -> None:
    tasks = TasksClient()
    async with connect(url) as client:
        for use in (lambda: tasks.resume(client, "x"), lambda: tasks.pending(client)):
            with pytest.raises(UsageError, match="not given this TasksClient"):
                use()
        with pytest.raises(UsageError, match="not given this TasksClient"):
            await tasks.start(client, "echo", {"value": 1})
        with pytest.raises(UsageError, match="not given this TasksClient"):
            await tasks.call(client, "echo", {"value": 1})
