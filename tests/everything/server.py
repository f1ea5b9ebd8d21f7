"""A server with all that MCP has for servers. With tasks every tool of it is marked, and nobody may notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    ListToolsResult,
    PaginatedRequestParams,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel

from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges

Mark: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

CITIES = ("Paris", "Prague", "Porto")


class Weather(BaseModel):
    """What it is like somewhere."""

    city: str
    degrees: float
    wind: float | None = None


class Name(BaseModel):
    """Somebody's name."""

    name: str


def ask_for_name() -> Elicit[Name]:
    """Asked before the tool's body, in both eras."""
    return Elicit("Who is it?", Name)


def build(
    tasks: Tasks | None,
    changes: ListChanges | None = None,
) -> MCPServer[Any]:
    """The server: with tasks, or the same one without."""
    more: Mapping[str, Any] = {**({} if changes is None else changes.wiring())}
    if tasks is not None:
        more = {**more, **tasks.wiring()}
    server: MCPServer[Any] = MCPServer(
        "everything",
        title="Everything",
        version="1",
        instructions="Ask for anything.",
        log_level="CRITICAL",
        **more,
    )
    mark: Mark = _unmarked if tasks is None else tasks.task()
    _add_answering_tools(server, mark)
    _add_asking_tools(server, mark)
    _add_changing_tools(server, mark)
    _add_resources(server)
    _add_prompts(server)
    return server


def _unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _add_answering_tools(server: MCPServer[Any], mark: Mark) -> None:
    @server.tool(title="Weather", annotations=ToolAnnotations(read_only_hint=True))
    @mark
    def weather(city: str) -> Weather:
        """A structured result, with a null in it."""
        return Weather(city=city, degrees=21.5)

    @server.tool()
    @mark
    def fail() -> str:
        """A defect."""
        raise RuntimeError("out of paper")

    @server.tool()
    @mark
    async def talk(ctx: Context) -> str:
        """Logs and progress, then a resource read by the tool itself."""
        await ctx.info("for the log")  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(1, 2, "half")
        [content] = await ctx.read_resource("memo://greeting")
        return str(content.content)

    @server.tool()
    @mark
    async def linger(ctx: Context) -> str:
        """Long enough for a client to lose its stream meanwhile."""
        await ctx.report_progress(1, 2, "half")
        await anyio.sleep(0.3)
        await ctx.report_progress(2, 2, "all")
        return "lingered"


def _add_asking_tools(server: MCPServer[Any], mark: Mark) -> None:
    @server.tool()
    @mark
    async def ask_form(ctx: Context) -> str:
        """A form, in the middle of the tool."""
        answer = await ctx.elicit("Who is it?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    @server.tool()
    @mark
    async def ask_before(who: Annotated[Name, Resolve(ask_for_name)]) -> str:
        """A form, before the tool's body."""
        return f"Hello, {who.name}!"

    @server.tool()
    @mark
    async def think(ctx: Context) -> str:
        """A question to the client's model."""
        question = SamplingMessage(role="user", content=TextContent(type="text", text="Six times seven?"))
        answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
            [question], max_tokens=10, related_request_id=ctx.request_context.request_id
        )
        return answer.content.text if isinstance(answer.content, TextContent) else "no text"

    @server.tool()
    @mark
    async def roots(ctx: Context) -> str:
        """The client's roots."""
        listed = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        return ", ".join(str(root.uri) for root in listed.roots)


def _add_changing_tools(server: MCPServer[Any], mark: Mark) -> None:
    @server.tool()
    @mark
    async def grow(count: int, ctx: Context) -> str:
        """Add tools and prompts while the server runs, and say so for each."""
        for number in range(count):
            server.add_tool(lambda: "fresh", name=f"fresh-{number}", description="New.")
        # All of it within one window, also where making tools takes its time.
        for _ in range(count):
            await ctx.notify_tools_changed()
            await ctx.notify_prompts_changed()
        return f"{count} more"

    @server.tool()
    @mark
    async def shrink(count: int, ctx: Context) -> str:
        """Take them away again."""
        for number in range(count):
            server.remove_tool(f"fresh-{number}")
            await ctx.notify_tools_changed()
        return f"{count} fewer"


def _add_resources(server: MCPServer[Any]) -> None:
    @server.resource("memo://greeting", mime_type="text/plain")
    def greeting() -> str:
        """A text."""
        return "Good day."

    @server.resource("weather://{city}/today", mime_type="application/json")
    def today(city: str) -> str:
        """A template."""
        return Weather(city=city, degrees=19).model_dump_json()


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(title="Travel")
    def travel(city: str, days: str = "3") -> list[UserMessage | AssistantMessage]:
        """A prompt with an argument that may be left out."""
        return [UserMessage(f"{days} days in {city}, please."), AssistantMessage("With pleasure.")]

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion | None:
        """Cities, but not where one has been already."""
        been = (context.arguments or {}).get("last") if context is not None else None
        found = [city for city in CITIES if city.startswith(argument.value) and city != been]
        return Completion(values=found, total=len(found), has_more=False)


PAGES = (("tool-0", "tool-1"), ("tool-2", "tool-3"), ("tool-4",))
"""The tools of a low-level server, as it lists them."""


def build_lowlevel(tasks: Tasks | None) -> Server[Any]:
    """A low-level server that lists its tools in pages: with tasks attached, or the same one without."""

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        page = 0 if params is None or params.cursor is None else int(params.cursor)
        tools = [Tool(name=name, input_schema={"type": "object"}) for name in PAGES[page]]
        return ListToolsResult(tools=tools, next_cursor=str(page + 1) if page + 1 < len(PAGES) else None)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=f"{params.name} done")])

    server: Server[Any] = Server("everything-low", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    if tasks is not None:
        for name in (name for page in PAGES for name in page):
            tasks.mark(name)
        tasks.attach(server)
    return server
