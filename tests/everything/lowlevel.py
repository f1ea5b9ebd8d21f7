"""What only a low-level server has: pages, a level for the log, and subscriptions of the older era."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from mcp.server import Server, ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    PaginatedRequestParams,
    Prompt,
    Resource,
    ResourceTemplate,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    Tool,
    UnsubscribeRequestParams,
)

from mcp_tasks import Tasks

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

ANYTHING: Final[dict[str, Any]] = {"type": "object"}
LEVELS: Final[tuple[LoggingLevel, ...]] = ("debug", "info", "notice", "warning", "error")
COUNT: Final = 5
PAGE: Final = 2


def build_lowlevel(tasks: Tasks | None) -> Server[Any]:
    """The server: with tasks attached, or the same one without."""
    made = _Handlers()
    server: Server[Any] = Server(  # pyright: ignore[reportDeprecated]
        "everything-low",
        version="1",
        on_list_tools=made.list_tools,
        on_call_tool=made.call_tool,
        on_list_resources=made.list_resources,
        on_list_resource_templates=made.list_templates,
        on_list_prompts=made.list_prompts,
        on_set_logging_level=made.set_level,
        on_subscribe_resource=made.subscribe,
        on_unsubscribe_resource=made.unsubscribe,
    )
    if tasks is not None:
        for name in ("log", "touch", *(f"tool-{number}" for number in range(COUNT))):
            tasks.mark(name)
        tasks.attach(server)
    return server


def _page(params: PaginatedRequestParams | None) -> tuple[range, str | None]:
    """The numbers of the page that is asked for, and the cursor of the next."""
    start = int(params.cursor) if params is not None and params.cursor is not None else 0
    end = min(start + PAGE, COUNT)
    return range(start, end), str(end) if end < COUNT else None


class _Handlers:
    def __init__(self) -> None:
        self.level: LoggingLevel = "info"
        self.subscribed: set[str] = set()

    async def list_tools(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        numbers, cursor = _page(params)
        first = [] if numbers.start else [Tool(name=name, input_schema=ANYTHING) for name in ("log", "touch")]
        tools = [*first, *(Tool(name=f"tool-{number}", input_schema=ANYTHING) for number in numbers)]
        return ListToolsResult(tools=tools, next_cursor=cursor)

    async def list_resources(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> ListResourcesResult:
        numbers, cursor = _page(params)
        return ListResourcesResult(
            resources=[Resource(name=f"note-{number}", uri=f"note://{number}") for number in numbers],
            next_cursor=cursor,
        )

    async def list_templates(
        self, ctx: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        numbers, cursor = _page(params)
        found = [ResourceTemplate(name=f"shelf-{number}", uri_template=f"shelf{number}://{{id}}") for number in numbers]
        return ListResourceTemplatesResult(resource_templates=found, next_cursor=cursor)

    async def list_prompts(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> ListPromptsResult:
        numbers, cursor = _page(params)
        return ListPromptsResult(prompts=[Prompt(name=f"prompt-{number}") for number in numbers], next_cursor=cursor)

    async def set_level(self, ctx: RequestContext, params: SetLevelRequestParams) -> EmptyResult:
        self.level = params.level
        return EmptyResult()

    async def subscribe(self, ctx: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
        self.subscribed.add(str(params.uri))
        return EmptyResult()

    async def unsubscribe(self, ctx: RequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
        self.subscribed.discard(str(params.uri))
        return EmptyResult()

    async def call_tool(self, ctx: RequestContext, params: CallToolRequestParams) -> CallToolResult:
        if params.name == "log":
            for level in LEVELS[LEVELS.index(self.level) :]:
                await ctx.session.send_log_message(  # pyright: ignore[reportDeprecated]
                    level, f"a line of {level}", related_request_id=ctx.request_id
                )
        elif params.name == "touch":
            for uri in sorted(self.subscribed):
                await ctx.session.send_resource_updated(uri)
        return CallToolResult(content=[TextContent(type="text", text=f"{params.name} done")])
