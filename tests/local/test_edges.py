"""What asks by returning, and what a low-level server lists: seen from the server's own process."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
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

from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import UsageError
from mcp_tasks.testing import TaskTester
from tests.local.serving import LIMIT, QUICK

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def asking(state: str | None = None) -> InputRequiredResult:
    question = ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=SCHEMA))
    return InputRequiredResult(input_requests={"who": question}, request_state=state)


def asking_server() -> tuple[MCPServer[Any], Tasks]:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("asking", **tasks.wiring())

    def name_in(ctx: Context) -> str | None:
        answer = (ctx.input_responses or {}).get("who")
        return str((answer.content or {})["name"]) if isinstance(answer, ElicitResult) else None

    @server.tool()
    @tasks.task()
    async def greet(ctx: Context) -> str | InputRequiredResult:
        name = name_in(ctx)
        return asking() if name is None else f"Hello, {name}! ({current_task().id})"

    @server.prompt()
    @tasks.task(kind="prompt")
    async def welcome(ctx: Context) -> Any:
        name = name_in(ctx)
        return asking("state") if name is None else f"Welcome {name}, {ctx.request_state}."

    @server.tool()
    @tasks.task()
    async def outer() -> str:
        result = await tasks.call("greet")
        return result.content[0].text if isinstance(result.content[0], TextContent) else ""

    return server, tasks


async def test_what_asks_by_returning_is_answered_in_its_task() -> None:
    server, tasks = asking_server()
    async with tasks.running(server):
        tool = await tasks.start("greet")
        (question,) = (await tool.until_asked(LIMIT)).values()
        assert question.params["message"] == "Who?"
        await tool.send_input("accept", {"name": "Ada"})
        assert (await tool.wait(LIMIT)).content == [TextContent(type="text", text=f"Hello, Ada! ({tool.id})")]
        prompt = await tasks.start_prompt("welcome")
        await prompt.until_asked(LIMIT)
        await prompt.send_input("accept", {"name": "Bob"})
        (message,) = (await prompt.wait(LIMIT)).messages
        assert message.content == TextContent(type="text", text="Welcome Bob, state.")


async def test_what_asks_by_returning_cannot_be_called_where_nobody_answers() -> None:
    server, tasks = asking_server()
    async with tasks.running(server):
        for call in (tasks.call("greet"), tasks.get_prompt("welcome")):
            with pytest.raises(UsageError, match="start it as a task, and answer with send_input"):
                await call


async def test_what_a_called_tool_asks_by_returning_its_caller_asks() -> None:
    server, tasks = asking_server()
    async with TaskTester(server, tasks) as tester:
        task = await tester.call("outer")
        await tester.answer(task, {"name": "Ada"})
        result = await tester.result(task)
        assert result.content == [TextContent(type="text", text=f"Hello, Ada! ({task})")]


async def call_tool(ctx: object, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[])


async def get_prompt(ctx: object, params: GetPromptRequestParams) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(type="text", text="hello"))])


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


async def test_every_page_of_a_low_level_servers_listing_counts() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = Server("low", on_call_tool=call_tool, on_get_prompt=get_prompt, on_list_prompts=list_prompts)
    tasks.attach(server)
    tasks.mark("second", kind="prompt")
    async with tasks.running(server):
        for wrong, why in (({}, "it needs 'title'"), ({"title": 7}, "its arguments are texts, and 'title' is not")):
            with pytest.raises(UsageError, match=f"prompt 'second' does not take these arguments: {why}"):
                await tasks.start_prompt("second", wrong)  # pyright: ignore[reportArgumentType]
        task = await tasks.start_prompt("second", {"title": "x"})
        assert (await task.wait(LIMIT)).messages
        with pytest.raises(UsageError, match="never becomes a task: it is not marked"):
            await tasks.start_prompt("first")


async def test_a_listing_that_fails_decides_nothing() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = Server(
        "low",
        on_call_tool=call_tool,
        on_read_resource=read_resource,
        on_list_resources=list_nothing,
        on_list_resource_templates=list_templates,
    )
    tasks.attach(server)
    tasks.mark("n", kind="resource")
    tasks.mark("unlisted://x", kind="resource")
    async with tasks.running(server):
        for uri in ("n://monday", "unlisted://x"):
            assert (await (await tasks.start_resource(uri)).wait(LIMIT)).contents
        with pytest.raises(UsageError, match="never becomes a task"):
            await tasks.start_resource("other://x")
