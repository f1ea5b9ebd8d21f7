"""Prompts, resources and resource templates as tasks in the server's own process (document 004)."""

from __future__ import annotations

import base64
import logging

import pytest
from mcp import Client
from mcp.server import MCPServer, Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

from mcp_tasks import Tasks
from mcp_tasks.client import TaskFailed, TasksClient, resume_task
from mcp_tasks.errors import InvalidMark, InvalidOption, UnknownTask
from mcp_tasks.model.record import Progress, TaskStatus
from mcp_tasks.server.catalog import Catalogue, ServedOffers
from mcp_tasks.server.options import TaskOptions
from tests.local.serving import LIMIT, new_office, open_office

pytestmark = pytest.mark.anyio

RELATED_TASK = "io.modelcontextprotocol/related-task"


@pytest.mark.requirement("local/prompt-task")
async def test_a_prompt_runs_as_a_task() -> None:
    async with open_office() as office:
        task = await office.tasks.start_prompt("echo", {"title": "v1"}, owner="alice")
        result = await task.wait(LIMIT)
        assert [message.content for message in result.messages] == [TextContent(type="text", text="Ship v1.")]
        assert result.meta == {RELATED_TASK: {"taskId": task.id}}
        assert office.seen == [task.id]
        seen = await task.fetch()
        assert (seen.kind, seen.name, seen.status, seen.owner) == ("prompt", "echo", TaskStatus.COMPLETED, "alice")
        assert seen.progress == Progress(progress=1, total=1, message="rendered")


@pytest.mark.requirement("local/resource-task")
async def test_a_resource_runs_as_a_task() -> None:
    async with open_office() as office:
        task = await office.tasks.start_resource("memo://echo")
        result = await task.wait(LIMIT)
        assert result.contents == [TextResourceContents(uri="memo://echo", text="1.2.3", mime_type="text/plain")]
        assert result.meta == {RELATED_TASK: {"taskId": task.id}}
        assert office.seen == [task.id]
        seen = await task.fetch()
        assert (seen.kind, seen.name) == ("resource", "memo://echo")


@pytest.mark.requirement("local/resource-task")
async def test_a_resource_template_runs_as_a_task() -> None:
    async with open_office() as office:
        task = await office.tasks.start_resource("memo://monday/notes")
        (content,) = (await task.wait(LIMIT)).contents
        assert isinstance(content, BlobResourceContents)
        assert base64.b64decode(content.blob) == b"notes of monday"
        assert content.uri == "memo://monday/notes"


async def test_a_tool_a_prompt_and_a_resource_of_one_name_are_three() -> None:
    async with open_office() as office:
        tool = await office.tasks.start("echo")
        prompt = await office.tasks.start_prompt("echo", {"title": "x"})
        resource = await office.tasks.start_resource("memo://echo")
        assert (await tool.wait(LIMIT)).structured_content == {"result": "tool"}
        assert (await prompt.wait(LIMIT)).messages
        assert (await resource.wait(LIMIT)).contents
        assert [task.kind for task in (await office.tasks.list(owner=None)).tasks] == ["tool", "prompt", "resource"]


@pytest.mark.requirement("local/outcome-raised")
async def test_what_a_prompt_or_a_resource_raises_is_raised_again_as_the_plain_call_would() -> None:
    async with open_office() as office:
        prompt, resource = (
            await office.tasks.start_prompt("broken_prompt"),
            await office.tasks.start_resource("memo://broken"),
        )
        with pytest.raises(TaskFailed) as failed:
            await prompt.wait(LIMIT)
        with pytest.raises(MCPError) as plain:
            await office.tasks.get_prompt("broken_prompt")
        assert (failed.value.code, failed.value.message) == (plain.value.code, plain.value.message)
        with pytest.raises(TaskFailed) as failed:
            await resource.wait(LIMIT)
        assert (failed.value.code, failed.value.data) == (INTERNAL_ERROR, {"uri": "memo://broken"})
        assert "secret" not in failed.value.message
        for task in (prompt, resource):
            seen = await task.fetch()
            assert (seen.status, seen.is_error) == (TaskStatus.FAILED, False)


async def test_they_only_read_so_they_may_run_again_unless_their_author_says_otherwise() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("reads", **tasks.wiring())
    server.prompt(name="safe")(lambda: "safe")
    server.prompt(name="once")(lambda: "once")
    tasks.mark("safe", kind="prompt")
    tasks.mark("once", kind="prompt", recover="fail")
    async with tasks.running(server):
        runtime = tasks.handle("x")._runtime()  # pyright: ignore[reportPrivateUsage]
        safe, once = await runtime.policy("prompts/get", "safe"), await runtime.policy("prompts/get", "once")
        assert safe is not None
        assert once is not None
        assert (safe.rerun, once.rerun) == (True, False)
        assert await runtime.policy("prompts/get", "nothing") is None
        assert await runtime.policy("completion/complete", "safe") is None


@pytest.mark.requirement("local/prompts-and-resources-offered")
async def test_they_are_offered_only_where_something_is_marked() -> None:
    catalogue = Catalogue(TaskOptions())
    offers = ServedOffers(catalogue)
    assert offers.methods() == {"tools/call"}
    catalogue.reads.set("prompt", "never", TaskOptions(mode="forbidden"))
    assert offers.methods() == {"tools/call"}
    catalogue.reads.set("prompt", "some", TaskOptions())
    assert offers.methods() == {"tools/call", "prompts/get"}
    catalogue.reads.set("resource", "memo://{day}", TaskOptions(mode="required"))
    assert offers.methods() == {"tools/call", "prompts/get", "resources/read"}
    everything = ServedOffers(Catalogue(TaskOptions(), "optional"))
    assert everything.methods() == {"tools/call", "prompts/get", "resources/read"}
    assert ServedOffers(Catalogue(TaskOptions(), "forbidden")).methods() == {"tools/call"}


@pytest.mark.requirement("local/never-on-the-modern-wire")
async def test_they_never_appear_on_the_modern_wire() -> None:
    async with open_office() as office, Client(office.server, extensions=[TasksClient()]) as client:
        for task in (
            await office.tasks.start_prompt("echo", {"title": "x"}),
            await office.tasks.start_resource("memo://echo"),
        ):
            await task.wait(LIMIT)
            with pytest.raises(UnknownTask):
                await resume_task(client, task.id).status()
            with pytest.raises(UnknownTask):
                await resume_task(client, task.id).cancel()
        prompt = await client.get_prompt("echo", {"title": "plain"})
        assert isinstance(prompt.messages[0].content, TextContent)
        resource = await client.read_resource("memo://echo")
        assert isinstance(resource.contents[0], TextResourceContents)


async def test_a_mark_that_belongs_to_nothing_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    office = new_office()
    office.tasks.mark("memo://{day}/notes", kind="resource")
    office.tasks.mark("nowhere", kind="prompt")
    with caplog.at_level(logging.WARNING):
        async with office.tasks.running(office.server):
            pass
    warned = [message for message in caplog.messages if "no such prompt or resource" in message]
    assert len(warned) == 1
    assert "'prompt nowhere'" in warned[0]
    assert "notes" not in warned[0]


async def test_marks_that_cannot_work_are_refused() -> None:
    tasks = Tasks("memory://")

    def twice() -> str:
        return ""

    tasks.task(kind="prompt")(twice)
    tasks.task(kind="resource")(twice)
    with pytest.raises(InvalidMark, match="two functions are marked as the prompt 'twice'"):
        tasks.task(kind="prompt")(twice)
    with pytest.raises(InvalidOption, match="kind must be 'tool', 'prompt' or 'resource', got 'song'"):
        tasks.task(kind="song")(twice)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOption, match="kind must be"):
        tasks.mark("x", kind="song")  # pyright: ignore[reportArgumentType]


async def call_tool(ctx: object, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[])


async def get_prompt(ctx: object, params: GetPromptRequestParams) -> GetPromptResult:
    text = TextContent(type="text", text=f"low {params.name}")
    return GetPromptResult(messages=[PromptMessage(role="user", content=text)])


async def read_resource(ctx: object, params: ReadResourceRequestParams) -> ReadResourceResult:
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, text="low")])


async def test_those_of_a_low_level_server_are_its_handlers_own() -> None:
    tasks = Tasks("memory://")
    server = Server("low", on_call_tool=call_tool, on_get_prompt=get_prompt, on_read_resource=read_resource)
    tasks.attach(server)
    tasks.mark("hello", kind="prompt")
    tasks.mark("memo://x", kind="resource")
    async with tasks.running(server):
        prompt = await tasks.start_prompt("hello")
        assert (await prompt.wait(LIMIT)).messages[0].content == TextContent(type="text", text="low hello")
        resource = await tasks.start_resource("memo://x")
        (content,) = (await resource.wait(LIMIT)).contents
        assert (content.uri, getattr(content, "text", None)) == ("memo://x", "low")


async def test_a_low_level_server_without_the_handler_says_so() -> None:
    tasks = Tasks("memory://")
    server = Server("low", on_call_tool=call_tool)
    tasks.attach(server)
    async with tasks.running(server):
        with pytest.raises(MCPError, match="no handler for prompts/get"):
            await tasks.get_prompt("hello")
