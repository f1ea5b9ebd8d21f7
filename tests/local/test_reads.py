"""Prompts, resources and resource templates as tasks: in the server's own process, and on the 2025-11-25 wire."""

import base64
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

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
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)

from harness.http import serving
from harness.older import RELATED, OlderClient, http_session
from harness.rpc import INVALID_PARAMS, METHOD_NOT_FOUND
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import TaskFailed, TasksClient, resume_task
from mcp_tasks.errors import InvalidOption, UnknownTask, UsageError
from mcp_tasks.model.record import Progress, TaskStatus
from tests.local.serving import LIMIT, QUICK, Office, new_office


@pytest.mark.requirement("local/prompt-task", "local/resource-task")
async def test_a_tool_a_prompt_and_a_resource_of_one_name_run_as_three_tasks(office: Office) -> None:
    tool = await office.tasks.start("echo")
    prompt = await office.tasks.start_prompt("echo", {"title": "v1"}, owner="alice")
    resource = await office.tasks.start_resource("memo://echo")
    assert (await tool.wait(LIMIT)).structured_content == {"result": "tool"}
    got = await prompt.wait(LIMIT)
    assert [message.content for message in got.messages] == [TextContent(type="text", text="Ship v1.")]
    read = await resource.wait(LIMIT)
    assert read.contents == [TextResourceContents(uri="memo://echo", text="1.2.3", mime_type="text/plain")]
    assert [each.meta for each in (got, read)] == [{RELATED: {"taskId": task.id}} for task in (prompt, resource)]
    assert sorted(office.seen) == sorted([prompt.id, resource.id])
    seen = await prompt.fetch()
    assert (seen.status, seen.owner) == (TaskStatus.COMPLETED, "alice")
    assert seen.progress == Progress(progress=1, total=1, message="rendered")
    listed = (await office.tasks.list(everybody=True)).tasks
    names = [("tool", "echo"), ("prompt", "echo"), ("resource", "memo://echo")]
    assert [(task.kind, task.name) for task in listed] == names
    (content,) = (await (await office.tasks.start_resource("memo://monday/notes")).wait(LIMIT)).contents
    assert isinstance(content, BlobResourceContents)
    assert (content.uri, base64.b64decode(content.blob)) == ("memo://monday/notes", b"notes of monday")


@pytest.mark.requirement("local/outcome-raised")
async def test_what_a_prompt_or_a_resource_raises_is_raised_again_as_the_plain_call_would(office: Office) -> None:
    prompt = await office.tasks.start_prompt("broken_prompt")
    resource = await office.tasks.start_resource("memo://broken")
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
    office = new_office()
    began: list[str] = []

    async def read() -> str:
        began.append("read")
        await office.gate.wait()
        return "read"

    for name in ("safe", "once"):
        office.server.prompt(name=name)(read)
    office.tasks.mark("safe", kind="prompt")
    office.tasks.mark("once", kind="prompt", recover="fail")
    async with office.tasks.running(office.server):
        safe, once = await office.tasks.start_prompt("safe"), await office.tasks.start_prompt("once")
        await eventually(lambda: len(began) == 2)
    # The server stopped in the middle of both.
    office.gate.set()
    async with office.tasks.running(office.server):
        assert (await office.tasks.handle(safe.id).wait(LIMIT)).messages
        with pytest.raises(TaskFailed, match="nterrupted"):
            await office.tasks.handle(once.id).wait(LIMIT)
    assert len(began) == 3


@pytest.mark.requirement("local/never-on-the-modern-wire")
async def test_they_never_appear_on_the_modern_wire(office: Office) -> None:
    async with Client(office.server, extensions=[TasksClient()]) as client:
        for task in (
            await office.tasks.start_prompt("echo", {"title": "x"}),
            await office.tasks.start_resource("memo://echo"),
        ):
            await task.wait(LIMIT)
            for act in (resume_task(client, task.id).status, resume_task(client, task.id).cancel):
                with pytest.raises(UnknownTask):
                    await act()
        assert (await client.get_prompt("echo", {"title": "plain"})).messages
        assert (await client.read_resource("memo://echo")).contents


async def test_marks_that_cannot_work_are_refused_and_those_of_nothing_are_told_of_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks("memory://")

    def twice() -> str:
        return ""

    tasks.task(kind="prompt")(twice)
    tasks.task(kind="resource")(twice)
    with pytest.raises(InvalidOption, match="two functions are marked as the prompt 'twice'"):
        tasks.task(kind="prompt")(twice)
    with pytest.raises(InvalidOption, match="kind must be 'tool', 'prompt' or 'resource', got 'song'"):
        tasks.task(kind="song")(twice)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOption, match="kind must be"):
        tasks.mark("x", kind="song")  # pyright: ignore[reportArgumentType]
    office = new_office()
    office.tasks.mark("memo://{day}/notes", kind="resource")
    office.tasks.mark("nowhere", kind="prompt")
    with caplog.at_level(logging.WARNING):
        async with office.tasks.running(office.server):
            pass
    (warned,) = [message for message in caplog.messages if "no such prompt or resource" in message]
    assert "'prompt nowhere'" in warned
    assert "notes" not in warned


# --- low-level servers ----------------------------------------------------------------------------------------------


async def call_tool(ctx: object, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[])


async def get_prompt(ctx: object, params: GetPromptRequestParams) -> GetPromptResult:
    text = TextContent(type="text", text=f"low {params.name}")
    return GetPromptResult(messages=[PromptMessage(role="user", content=text)])


async def read_resource(ctx: object, params: ReadResourceRequestParams) -> ReadResourceResult:
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, text="low")])


async def list_prompts(ctx: object, params: PaginatedRequestParams | None) -> ListPromptsResult:
    if params is None or params.cursor is None:
        return ListPromptsResult(prompts=[Prompt(name="first")], next_cursor="2")
    needs = [PromptArgument(name="title", required=True), PromptArgument(name="more")]
    return ListPromptsResult(prompts=[Prompt(name="second", arguments=needs)])


async def list_nothing(ctx: object, params: PaginatedRequestParams | None) -> ListResourcesResult:
    raise RuntimeError("not now")


async def list_templates(ctx: object, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    templates = [ResourceTemplate(name="bad", uri_template="{"), ResourceTemplate(name="n", uri_template="n://{day}")]
    return ListResourceTemplatesResult(resource_templates=templates)


async def test_every_page_of_a_low_level_servers_listing_counts_and_one_that_fails_decides_nothing() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = Server(
        "low",
        on_call_tool=call_tool,
        on_get_prompt=get_prompt,
        on_list_prompts=list_prompts,
        on_read_resource=read_resource,
        on_list_resources=list_nothing,
        on_list_resource_templates=list_templates,
    )
    tasks.attach(server)
    tasks.mark("second", kind="prompt")
    for uri in ("n", "unlisted://x"):
        tasks.mark(uri, kind="resource")
    async with tasks.running(server):
        for wrong, why in (({}, "it needs 'title'"), ({"title": 7}, "its arguments are texts, and 'title' is not")):
            with pytest.raises(UsageError, match=f"prompt 'second' does not take these arguments: {why}"):
                await tasks.start_prompt("second", wrong)  # pyright: ignore[reportArgumentType]
        task = await tasks.start_prompt("second", {"title": "x"})
        assert (await task.wait(LIMIT)).messages[0].content == TextContent(type="text", text="low second")
        for uri in ("n://monday", "unlisted://x"):
            (content,) = (await (await tasks.start_resource(uri)).wait(LIMIT)).contents
            assert (content.uri, getattr(content, "text", None)) == (uri, "low")
        for start in (tasks.start_prompt("first"), tasks.start_resource("other://x")):
            with pytest.raises(UsageError, match="never becomes a task: it is not marked"):
                await start


# --- on the 2025-11-25 wire -----------------------------------------------------------------------------------------


async def create(old: OlderClient, method: str, params: Mapping[str, Any], **task: Any) -> dict[str, Any]:
    return (await old.ask(method, {**params, "task": task})).result["task"]


async def listed(old: OlderClient) -> list[str]:
    return [task["taskId"] for task in await old.listed()]


TOOLS: dict[str, Any] = {"tools": {"call": {}}}
PROMPTS: dict[str, Any] = {"prompts": {"get": {}}}
RESOURCES: dict[str, Any] = {"resources": {"read": {}}}


@pytest.mark.requirement("local/prompts-and-resources-offered")
@pytest.mark.parametrize(
    ("marks", "default_mode", "offered"),
    [
        ({}, None, TOOLS),
        ({}, "forbidden", TOOLS),
        ({}, "optional", {**TOOLS, **PROMPTS, **RESOURCES}),
        ({"prompt": "forbidden"}, None, TOOLS),
        ({"prompt": "optional"}, None, {**TOOLS, **PROMPTS}),
        ({"resource": "required"}, None, {**TOOLS, **RESOURCES}),
    ],
)
async def test_the_handshake_names_them_where_something_is_marked(
    marks: dict[Any, Any], default_mode: Any, offered: dict[str, Any]
) -> None:
    tasks = Tasks("memory://", settings=QUICK, default_mode=default_mode)
    server = MCPServer("offers", **tasks.wiring())
    server.prompt(name="memo://hello")(lambda: "hello")
    server.resource("memo://hello", name="hello")(lambda: "hello")
    for kind, mode in marks.items():
        tasks.mark("memo://hello", kind=kind, mode=mode)
    async with serving(server) as wire, http_session(wire) as old:
        assert old.capabilities["tasks"]["requests"] == offered
        if "prompts" not in offered:
            # 2025-11-25: what was not declared is processed as if it were not there.
            assert "messages" in (await old.ask("prompts/get", {"name": "memo://hello", "task": {}})).result


@pytest.mark.requirement("local/prompt-task", "local/resource-task")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "echo", "arguments": {"title": "v1"}}),
        ("resources/read", {"uri": "memo://echo"}),
        ("resources/read", {"uri": "memo://monday/notes"}),
    ],
    ids=["prompt", "resource", "template"],
)
async def test_they_are_got_as_tasks_of_the_older_wire(method: str, params: dict[str, Any]) -> None:
    office = new_office()
    async with serving(office.server) as wire, http_session(wire) as old:
        plain = (await old.ask(method, params)).result
        task = await create(old, method, params, ttl=5000)
        assert (task["status"], task["ttl"]) == ("working", 5000)
        result = (await old.result(task["taskId"])).result
        assert result == {**plain, "_meta": {RELATED: {"taskId": task["taskId"]}}}
        assert (await old.get(task["taskId"]))["status"] == "completed"
        assert await listed(old) == [task["taskId"]]
        # And in the process itself.
        local = office.tasks.handle(task["taskId"])
        assert await local.wait(LIMIT)
        assert (await local.fetch()).session is not None


@pytest.mark.requirement("local/outcome-raised", "local/error-related-task")
@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "broken_prompt"}), ("resources/read", {"uri": "memo://broken"})]
)
async def test_an_error_is_that_of_the_plain_request(method: str, params: dict[str, Any]) -> None:
    async with serving(new_office().server) as wire, http_session(wire) as old:
        plain = (await old.ask(method, params)).error
        task = await create(old, method, params)
        error = (await old.result(task["taskId"])).error
        assert (error["code"], error["message"]) == (plain["code"], plain["message"])
        assert error["data"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
        assert (await old.get(task["taskId"]))["status"] == "failed"


@pytest.mark.requirement("local/modes")
async def test_what_cannot_be_a_task_is_refused() -> None:
    async with serving(new_office().server) as wire, http_session(wire) as old:
        for method, params, code in (
            ("prompts/get", {"name": "plain_prompt"}, METHOD_NOT_FOUND),
            ("resources/read", {"uri": "memo://plain"}, METHOD_NOT_FOUND),
            ("prompts/get", {"name": "echo"}, INVALID_PARAMS),
            ("prompts/get", {"name": "echo", "arguments": {"title": 7}}, INVALID_PARAMS),
        ):
            assert (await old.ask(method, {**params, "task": {}})).code == code
        # One that is not there is for the server to say.
        plain = await old.ask("prompts/get", {"name": "nothing"})
        assert (await old.ask("prompts/get", {"name": "nothing", "task": {}})).error == plain.error
        assert await listed(old) == []


@pytest.mark.requirement("local/modes")
async def test_what_must_be_a_task_is_refused_without_and_plain_where_there_are_none() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("must", **tasks.wiring())
    server.prompt(name="must")(lambda: "hello")
    server.resource("memo://must", name="must")(lambda: "hello")
    tasks.mark("must", kind="prompt", mode="required", ttl=timedelta(minutes=1))
    tasks.mark("memo://must", kind="resource", mode="required")
    async with serving(server) as wire, http_session(wire) as old:
        for method, params in (("prompts/get", {"name": "must"}), ("resources/read", {"uri": "memo://must"})):
            assert (await old.ask(method, params)).code == METHOD_NOT_FOUND
            task = await create(old, method, params)
            assert (await old.result(task["taskId"])).result
    async with Client(server) as modern:
        # There they can be no tasks at all, and every host gets an answer.
        assert (await modern.get_prompt("must")).messages
        assert (await modern.read_resource("memo://must")).contents


@pytest.mark.requirement("local/session-scope")
async def test_a_session_scopes_the_list_and_owns_nothing() -> None:
    office = new_office()
    async with serving(office.server) as wire, http_session(wire) as old:
        task = await office.tasks.start("report", {"id": 1}, session="another")
        others = await office.tasks.start("report", {"id": 1}, owner="alice")
        await task.wait(LIMIT)
        assert await listed(old) == []
        assert (await old.get(task.id))["status"] == "completed"
        assert await listed(old) == [task.id]
        unknown = (await old.ask("tasks/get", {"taskId": "nothing"})).error
        assert (await old.ask("tasks/get", {"taskId": others.id})).error == unknown
        # An error result is a failed task there, as it is here.
        broken = await office.tasks.start("broken")
        assert (await old.result(broken.id)).result["isError"]
        seen = await old.get(broken.id)
        assert (seen["status"], seen["statusMessage"]) == ("failed", (await broken.fetch()).message)
