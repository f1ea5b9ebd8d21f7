"""Tasks for a whole server, with what a mark says of one tool, prompt or resource above it (document 004)."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, CallToolRequestParams

from harness.lowlevel import build_lowlevel
from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.errors import InvalidOption, UsageError
from tests.local.serving import LIMIT, QUICK

pytestmark = pytest.mark.anyio


def server_with(**options: Any) -> tuple[MCPServer[Any], Tasks]:
    """A server of which only two tools are marked."""
    tasks = Tasks("memory://", settings=QUICK, **options)
    server = MCPServer("whole", **tasks.wiring())

    @server.tool()
    def tool_job() -> str:
        return "ok"

    @server.tool()
    @tasks.task(mode="forbidden")
    def never() -> str:
        return "never"

    @server.tool()
    @tasks.task(mode="required")
    def always() -> str:
        return "always"

    @server.tool()
    @tasks.task()
    def marked() -> str:
        return "marked"

    @server.prompt()
    def draft_release() -> str:
        return "Ship it."

    @server.prompt()
    @tasks.task(kind="prompt", mode="forbidden")
    def never_prompt() -> str:
        return "never"

    @server.resource("memo://release")
    def release() -> str:
        return "1.2.3"

    return server, tasks


async def becomes_task(client: Client, tool: str) -> bool:
    return isinstance(await start_task(client, tool, {}), TaskHandle)


@pytest.mark.requirement("local/default-mode")
async def test_everything_may_be_a_task_by_default_and_a_mark_says_otherwise() -> None:
    server, tasks = server_with(default_mode="optional")
    async with tasks.running(server):
        tool = await tasks.start("tool_job")
        assert (await tool.wait(LIMIT)).structured_content == {"result": "ok"}
        prompt = await tasks.start_prompt("draft_release")
        assert (await prompt.wait(LIMIT)).messages
        resource = await tasks.start_resource("memo://release")
        assert (await resource.wait(LIMIT)).contents
        for refused in (tasks.start("never"), tasks.start_prompt("never_prompt")):
            with pytest.raises(UsageError, match='its mode is "forbidden"'):
                await refused


@pytest.mark.requirement("local/default-mode")
@pytest.mark.parametrize(
    ("default_mode", "expected"),
    [
        (None, {"tool_job": False, "never": False, "always": True, "marked": True}),
        ("optional", {"tool_job": True, "never": False, "always": True, "marked": True}),
        ("required", {"tool_job": True, "never": False, "always": True, "marked": True}),
        ("forbidden", {"tool_job": False, "never": False, "always": True, "marked": True}),
    ],
)
async def test_which_calls_of_a_client_become_tasks(default_mode: Any, expected: dict[str, bool]) -> None:
    server, _ = server_with(default_mode=default_mode)
    async with Client(server, extensions=[TasksClient()]) as client:
        assert {tool: await becomes_task(client, tool) for tool in expected} == expected


@pytest.mark.requirement("local/default-mode")
async def test_a_server_whose_tools_must_be_tasks_refuses_clients_without_them() -> None:
    server, _ = server_with(default_mode="required")
    async with Client(server) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("tool_job", {})
        assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert (await client.call_tool("never", {})).structured_content == {"result": "never"}


@pytest.mark.parametrize(
    ("default_mode", "agrees", "expected"),
    [
        # The rule is asked where the mode is optional, and without a default mode also where nothing is said.
        (None, True, {"tool_job": True, "never": False, "always": True, "marked": True}),
        (None, False, {"tool_job": False, "never": False, "always": True, "marked": False}),
        ("optional", True, {"tool_job": True, "never": False, "always": True, "marked": True}),
        ("optional", False, {"tool_job": False, "never": False, "always": True, "marked": False}),
        ("required", False, {"tool_job": True, "never": False, "always": True, "marked": False}),
        ("forbidden", True, {"tool_job": False, "never": False, "always": True, "marked": True}),
    ],
)
async def test_how_it_goes_together_with_a_rule(default_mode: Any, agrees: bool, expected: dict[str, bool]) -> None:
    def rule(params: CallToolRequestParams) -> bool:
        return agrees

    server, _ = server_with(default_mode=default_mode, augment=rule)
    async with Client(server, extensions=[TasksClient()]) as client:
        assert {tool: await becomes_task(client, tool) for tool in expected} == expected


async def test_a_low_level_server_has_it_too() -> None:
    tasks = Tasks("memory://", default_mode="optional", settings=QUICK)
    server = build_lowlevel(tasks)
    async with Client(server, extensions=[TasksClient()]) as client:
        handle = await start_task(client, "greet", {"name": "Ada"})
        assert isinstance(handle, TaskHandle)
        result = await handle.result(LIMIT)
        assert handle.id in str(result.content)


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match="default_mode must be"):
        Tasks("memory://", default_mode=True)  # pyright: ignore[reportArgumentType]
