"""Calls in the server's own process: synchronous until the caller asks for a task (document 004)."""

from __future__ import annotations

import logging

import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent, TextResourceContents

from harness.lowlevel import build_lowlevel
from mcp_tasks import Tasks
from mcp_tasks.errors import InvalidOption, UsageError, WiringError
from tests.local.serving import new_office, open_office

pytestmark = pytest.mark.anyio

FULL = "Error executing tool broken: the disk is full"
"""What the SDK makes of a tool's error."""


@pytest.mark.requirement("local/synchronous")
async def test_a_call_in_this_process_is_synchronous_and_makes_no_task() -> None:
    async with open_office() as office:
        result = await office.tasks.call("report", {"id": 42})
        assert result.structured_content == {"id": 42, "status": "ready"}
        assert office.seen == [None]
        assert (await office.tasks.list(everybody=True)).tasks == []


@pytest.mark.requirement("local/synchronous")
@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [("deploy", {"environment": "test"}, "deployed to test"), ("ping", {}, "pong"), ("plain", {}, "plain")],
)
async def test_any_tool_can_be_called_whatever_its_mode(tool: str, arguments: dict[str, str], text: str) -> None:
    async with open_office() as office:
        result = await office.tasks.call(tool, arguments)
        assert result.content == [TextContent(type="text", text=text)]


@pytest.mark.requirement("local/synchronous")
async def test_a_prompt_and_a_resource_are_got_synchronously() -> None:
    async with open_office() as office:
        prompt = await office.tasks.get_prompt("echo", {"title": "v1"})
        assert isinstance(prompt.messages[0].content, TextContent)
        assert prompt.messages[0].content.text == "Ship v1."
        resource = await office.tasks.read_resource("memo://echo")
        assert isinstance(resource.contents[0], TextResourceContents)
        assert (resource.contents[0].uri, resource.contents[0].text) == ("memo://echo", "1.2.3")
        assert (await office.tasks.list(everybody=True)).tasks == []


async def test_what_a_tool_fails_with_is_an_error_result_and_what_it_refuses_with_is_raised() -> None:
    async with open_office() as office:
        result = await office.tasks.call("broken")
        assert result.is_error
        assert result.content == [TextContent(type="text", text=FULL)]
        with pytest.raises(MCPError) as refused:
            await office.tasks.call("refusing")
        assert (refused.value.code, refused.value.data) == (-32099, {"why": "closed"})
        wrong = await office.tasks.call("report", {"id": "not a number"})
        assert wrong.is_error


async def test_the_log_says_what_failed_and_names_no_task(caplog: pytest.LogCaptureFixture) -> None:
    async with open_office() as office:
        with caplog.at_level(logging.INFO, logger="mcp_tasks"):
            await office.tasks.call("report", {"id": "not a number"})
            await office.tasks.call("broken")
    said = [message for message in caplog.messages if message.startswith("tool ")]
    assert said == ["tool 'report' failed", "tool 'broken' failed"]
    assert "task None" not in caplog.text


async def test_a_tool_that_asks_has_nobody_to_ask() -> None:
    async with open_office() as office:
        with pytest.raises(MCPError):
            await office.tasks.call("approve")


async def test_what_is_not_there_is_said() -> None:
    async with open_office() as office:
        with pytest.raises(UsageError, match="the server has no tool 'nothing'"):
            await office.tasks.call("nothing")
        with pytest.raises(UsageError, match="the server has no prompt 'nothing'"):
            await office.tasks.get_prompt("nothing")
        with pytest.raises(UsageError, match="the server has no resource 'memo://nothing'"):
            await office.tasks.read_resource("memo://nothing")
        with pytest.raises(UsageError, match="prompt 'echo' does not take these arguments: it needs 'title'"):
            await office.tasks.get_prompt("echo")
        with pytest.raises(InvalidOption, match="arguments must be a mapping"):
            await office.tasks.call("report", [1])  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidOption, match="name must be a non-empty string"):
            await office.tasks.call("")


async def test_without_a_running_server_nothing_is_called_or_started() -> None:
    office = new_office()
    tasks = office.tasks
    for attempt in (
        tasks.call("report", {"id": 1}),
        tasks.get_prompt("echo", {"title": "x"}),
        tasks.read_resource("memo://echo"),
        tasks.start("report", {"id": 1}),
        tasks.start_prompt("echo", {"title": "x"}),
        tasks.start_resource("memo://echo"),
        tasks.list(owner=None),
        tasks.handle("some id").fetch(),
    ):
        with pytest.raises(WiringError, match=r"tasks are not running.*async with tasks\.running\(server\)"):
            await attempt


async def test_the_tools_of_a_low_level_server_are_called_and_started() -> None:
    tasks = Tasks("memory://")
    server = build_lowlevel(tasks)
    async with tasks.running(server):
        called = await tasks.call("echo", {"value": "Ada"})
        started = await tasks.start("echo", {"value": "Ada"})
        result = await started.wait(10)
        assert result.content == called.content


async def test_another_server_is_refused() -> None:
    office = new_office()
    with pytest.raises(WiringError, match="has no tasks"):
        async with office.tasks.running(MCPServer("another")):
            pass
