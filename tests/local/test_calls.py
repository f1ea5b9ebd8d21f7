"""Calls in the server's own process are synchronous until the caller asks for a task; and modes of whole servers."""

import logging
import re
from typing import Any

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent, TextResourceContents

from harness.lowlevel import build_lowlevel
from harness.processes import ROOT
from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.errors import InvalidOption, UsageError, WiringError
from tests.local.serving import FULL, LIMIT, QUICK, Office, new_office


@pytest.mark.requirement("local/synchronous")
async def test_a_call_in_this_process_is_synchronous_and_makes_no_task(office: Office) -> None:
    result = await office.tasks.call("report", {"id": 42})
    assert result.structured_content == {"id": 42, "status": "ready"}
    assert office.seen == [None]
    prompt = await office.tasks.get_prompt("echo", {"title": "v1"})
    assert isinstance(prompt.messages[0].content, TextContent)
    assert prompt.messages[0].content.text == "Ship v1."
    resource = await office.tasks.read_resource("memo://echo")
    assert isinstance(resource.contents[0], TextResourceContents)
    assert (resource.contents[0].uri, resource.contents[0].text) == ("memo://echo", "1.2.3")
    # Whatever its mode.
    for tool, arguments, text in (
        ("deploy", {"environment": "test"}, "deployed to test"),
        ("ping", {}, "pong"),
        ("plain", {}, "plain"),
    ):
        assert (await office.tasks.call(tool, arguments)).content == [TextContent(type="text", text=text)]
    assert (await office.tasks.list(everybody=True)).tasks == []


async def test_what_a_tool_fails_with_is_an_error_result_and_what_it_refuses_with_is_raised(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        result = await office.tasks.call("broken")
        assert result.is_error
        assert result.content == [TextContent(type="text", text=FULL)]
        assert (await office.tasks.call("report", {"id": "not a number"})).is_error
    with pytest.raises(MCPError) as refused:
        await office.tasks.call("refusing")
    assert (refused.value.code, refused.value.data) == (-32099, {"why": "closed"})
    # The log says what failed, and names no task.
    said = [message for message in caplog.messages if message.startswith("tool ")]
    assert said == ["tool 'broken' failed", "tool 'report' failed"]
    assert "task None" not in caplog.text


async def test_what_is_not_there_or_not_possible_is_said(office: Office) -> None:
    tasks = office.tasks
    for call, error, said in (
        (tasks.call("nothing"), UsageError, "the server has no tool 'nothing'"),
        (tasks.get_prompt("nothing"), UsageError, "the server has no prompt 'nothing'"),
        (tasks.read_resource("memo://nothing"), UsageError, "the server has no resource 'memo://nothing'"),
        (tasks.get_prompt("echo"), UsageError, "prompt 'echo' does not take these arguments: it needs 'title'"),
        (tasks.call("report", [1]), InvalidOption, "arguments must be a mapping"),  # pyright: ignore[reportArgumentType]
        (tasks.call(""), InvalidOption, "name must be a non-empty string"),
        # Nobody is there to be asked.
        (tasks.call("approve"), MCPError, "elicitation"),
        (tasks.call("greet"), UsageError, "start it as a task, and answer with send_input"),
        (tasks.get_prompt("welcome"), UsageError, "start it as a task, and answer with send_input"),
    ):
        with pytest.raises(error, match=said):
            await call


async def test_without_a_running_server_nothing_is_called_or_started() -> None:
    tasks = new_office().tasks
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
    with pytest.raises(WiringError, match="has no tasks"):
        async with tasks.running(MCPServer("another")):
            pass


async def test_the_program_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "local.md"
    names: dict[str, Any] = {"__name__": "docs.local"}
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    exec(compile(code, page, "exec"), names)
    assert await names["main"]() == "release 42 is ready, accept"
    printed = capsys.readouterr().out
    assert "input_required" in printed
    assert "('release', <TaskStatus.COMPLETED: 'completed'>, None), ('report'," in printed


# --- for a whole server ---------------------------------------------------------------------------------------------


def server_with(**options: Any) -> tuple[MCPServer[Any], Tasks]:
    tasks = Tasks("memory://", settings=QUICK, **options)
    server = MCPServer("whole", **tasks.wiring())
    for name in ("tool_job", "never", "always", "marked"):
        server.add_tool(lambda: "done", name=name)
    tasks.mark("never", mode="forbidden")
    tasks.mark("always", mode="required")
    tasks.mark("marked")
    server.prompt(name="draft")(lambda: "Ship it.")
    server.prompt(name="never")(lambda: "never")
    tasks.mark("never", kind="prompt", mode="forbidden")
    server.resource("memo://release", name="release")(lambda: "1.2.3")
    return server, tasks


@pytest.mark.requirement("local/default-mode")
async def test_everything_may_be_a_task_by_default_and_a_mark_says_otherwise() -> None:
    with pytest.raises(InvalidOption, match="default_mode must be"):
        server_with(default_mode=True)
    server, tasks = server_with(default_mode="optional")
    async with tasks.running(server):
        for start in (tasks.start("tool_job"), tasks.start_prompt("draft"), tasks.start_resource("memo://release")):
            assert await (await start).wait(LIMIT)
        for refused in (tasks.start("never"), tasks.start_prompt("never")):
            with pytest.raises(UsageError, match='its mode is "forbidden"'):
                await refused


async def test_a_low_level_server_has_all_of_this_too() -> None:
    server = build_lowlevel(Tasks("memory://", default_mode="optional", settings=QUICK))
    async with Client(server, extensions=[TasksClient()]) as client:
        handle = await start_task(client, "greet", {"name": "Ada"})
        assert isinstance(handle, TaskHandle)
        assert handle.id in str((await handle.result(LIMIT)).content)
    tasks = Tasks("memory://")
    async with tasks.running(build_lowlevel(tasks)):
        called, started = await tasks.call("echo", {"value": "Ada"}), await tasks.start("echo", {"value": "Ada"})
        assert (await started.wait(LIMIT)).content == called.content
        with pytest.raises(MCPError, match="no handler for prompts/get"):
            await tasks.get_prompt("hello")
