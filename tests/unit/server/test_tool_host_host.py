"""Tools of a server, and what a client reads of their failures."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from mcp_tasks import current_task
from mcp_tasks.errors import StepError, StoreUnavailable
from mcp_tasks.runtime import TaskRuntime
from tests.unit.tooling import call_of, finish, new_server, outcome_of, running_tools

pytestmark = pytest.mark.anyio


def failing(server: MCPServer[Any]) -> None:
    """Add a tool for every way to fail."""

    @server.tool()
    async def same_step_twice() -> str:
        async def work() -> int:
            return 1

        await current_task().step("count", work)
        await current_task().step("count", work)
        return "unreachable"

    @server.tool()
    async def sleeps_for_a_number() -> str:
        await current_task().sleep(5)  # pyright: ignore[reportArgumentType]
        return "unreachable"

    @server.tool()
    async def crashes() -> str:
        raise RuntimeError("the password is 1234")

    @server.tool()
    async def fails_in_a_step() -> str:
        raise StepError("pay", "CardError", "card 1234 is refused")

    @server.tool()
    async def fails_as_tools_do() -> str:
        raise ToolError("out of paper")

    @server.tool()
    async def loses_the_store() -> str:
        raise StoreUnavailable("/var/lib/tasks.db is locked")

    @server.tool()
    async def calls_another(ctx: Context) -> str:
        await server.call_tool("sleeps_for_a_number", {}, ctx)
        return "unreachable"


async def _told(runtime: TaskRuntime, tool: str) -> str:
    """What a tool that failed says to its client."""
    result, _ = await outcome_of(runtime, (await finish(runtime, call_of(tool))).id)
    assert result["isError"] is True
    [content] = result["content"]
    return content["text"]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("same_step_twice", "'count'"),
        ("sleeps_for_a_number", "timedelta"),
        ("calls_another", "timedelta"),
        ("fails_as_tools_do", "out of paper"),
        ("loses_the_store", "The task store cannot take the request now"),
    ],
)
async def test_a_misuse_of_ours_reaches_the_client_with_its_text(tool: str, told: str) -> None:
    server = new_server()
    failing(server)
    async with running_tools(server) as runtime:
        text = await _told(runtime, tool)
    assert text.startswith(f"Error executing tool {tool}: ")
    assert told in text


async def test_the_log_names_the_task_and_the_tool_that_failed_and_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = new_server()
    failing(server)
    async with running_tools(server) as runtime:
        ended = await finish(runtime, call_of("fails_as_tools_do"))
    [said] = [record for record in caplog.records if record.name == "mcp_tasks.server.tool_host"]
    assert said.levelno == logging.INFO
    assert said.getMessage() == f"task {ended.id[:12]}…: tool 'fails_as_tools_do' failed"
    assert not [line for line in caplog.messages if "out of paper" in line]


@pytest.mark.parametrize("tool", ["crashes", "fails_in_a_step"])
async def test_the_text_of_any_other_exception_stays_on_the_server(tool: str) -> None:
    server = new_server()
    failing(server)
    async with running_tools(server) as runtime:
        assert await _told(runtime, tool) == f"Error executing tool {tool}"


async def test_a_store_that_fails_is_not_quoted() -> None:
    server = new_server()
    failing(server)
    async with running_tools(server) as runtime:
        assert "tasks.db" not in await _told(runtime, "loses_the_store")
