"""A server on the SDK's low-level `Server`, with tasks attached."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from mcp_tasks import Tasks, current_task

RequestContext = ServerRequestContext[Any, Any]

_ANYTHING: dict[str, Any] = {"type": "object"}


Lifespan = Callable[[Server[Any]], AbstractAsyncContextManager[Any]]


def build_lowlevel(tasks: Tasks, gate: asyncio.Event | None = None, lifespan: Lifespan | None = None) -> Server[Any]:
    async def list_tools(ctx: RequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name="greet", input_schema=_ANYTHING),
                Tool(name="echo", input_schema=_ANYTHING),
                Tool(name="ask_name", input_schema=_ANYTHING, annotations=ToolAnnotations(idempotent_hint=True)),
                Tool(name="gated", input_schema=_ANYTHING),
                Tool(name="crashes", input_schema=_ANYTHING),
            ]
        )

    async def call_tool(ctx: RequestContext, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=await _run(ctx, params, gate))])

    server: Server[Any] = Server(
        "low", version="1", lifespan=lifespan or _no_state, on_list_tools=list_tools, on_call_tool=call_tool
    )
    for name in ("echo", "ask_name", "gated", "crashes"):
        tasks.mark(name)
    tasks.attach(server)
    return server


@asynccontextmanager
async def _no_state(server: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
    yield {}


async def _run(ctx: RequestContext, params: CallToolRequestParams, gate: asyncio.Event | None) -> str:
    arguments = params.arguments or {}
    match params.name:
        case "greet":
            return f"Hello, {arguments['name']}! (task: {current_task().id})"
        case "echo":
            return str(arguments["value"])
        case "crashes":
            raise RuntimeError("secret defect")
        case "ask_name":
            schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
            answer = await ctx.session.elicit_form("What is your name?", schema)
            return f"Hello, {(answer.content or {})['name']}!"
        case _:
            assert gate is not None
            await gate.wait()
            return "through"
