# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""A server of the Python SDK 1.x with its experimental tasks, for our client to talk to.

python older_server.py --port N     stateful Streamable HTTP
python older_server.py              stdio
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import AsyncIterator
from typing import Any

import anyio
import uvicorn
from mcp import types
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route

QUESTION: dict[str, Any] = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
warnings.simplefilter("ignore", DeprecationWarning)


def tool(name: str, support: str | None, /, **properties: str) -> types.Tool:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    execution = None if support is None else types.ToolExecution(taskSupport=support)
    return types.Tool(name=name, inputSchema=schema, execution=execution)


TOOLS = [
    tool("greet", None, name="string"),
    tool("slow_compute", "optional", seconds="number", label="string"),
    tool("failing_job", "required"),
    tool("park", "optional", seconds="number"),
    tool("confirm_delete", "optional", filename="string"),
    tool("elicit", None),
    tool("sample", None),
]
"""The last two ask the client for a task."""

server = Server("older-python", version="1")
server.experimental.enable_tasks()


def said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=is_error)


async def slow_compute(arguments: dict[str, Any], task: ServerTaskContext) -> types.CallToolResult:
    label, seconds = arguments["label"], arguments["seconds"]
    for step in range(4):
        await task.update_status(f"{label}: step {step}")
        await anyio.sleep(seconds / 4)
    return said(f"{label}: done after {seconds:g} s")


async def failing_job(arguments: dict[str, Any], task: ServerTaskContext) -> types.CallToolResult:
    raise RuntimeError("the job failed, as it always does")


async def park(arguments: dict[str, Any], task: ServerTaskContext) -> types.CallToolResult:
    await anyio.sleep(arguments["seconds"])
    return said("ok")


async def confirm_delete(arguments: dict[str, Any], task: ServerTaskContext) -> types.CallToolResult:
    filename = arguments["filename"]
    answer = await task.elicit(f"Delete {filename}?", QUESTION)
    accepted = answer.action == "accept" and (answer.content or {}).get("confirm")
    return said(f"deleted {filename}" if accepted else f"kept {filename}")


async def ask_for_task(what: str) -> str:
    asking = server.request_context.session.experimental
    if what == "elicit":
        answer = await asking.elicit_as_task("Approve?", QUESTION, ttl=60_000)
        return f"{answer.action} {answer.content}"
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hello"))
    return (await asking.create_message_as_task([message], max_tokens=5)).content.text


WORK = {work.__name__: work for work in (slow_compute, failing_job, park, confirm_delete)}


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    return TOOLS


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    if name == "greet":
        return said(f"Hello, {arguments['name']}!")
    if name in ("elicit", "sample"):
        return said(await ask_for_task(name))
    context = server.request_context.experimental
    called = next(tool for tool in TOOLS if tool.name == name)
    context.validate_for_tool(called)
    if not context.is_task:
        # The SDK has no context of a task for a plain call; nothing here calls more than this one plainly.
        await anyio.sleep(arguments["seconds"])
        return said("ok")
    work = WORK[name]
    return await context.run_task(lambda task: work(arguments, task))


async def serve_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class Endpoint:
    """The manager as something that a route takes."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self.manager = manager

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.manager.handle_request(scope, receive, send)


def serve_http(port: int) -> None:
    manager = StreamableHTTPSessionManager(app=server)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", endpoint=Endpoint(manager))], lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args().port
    if chosen is None:
        anyio.run(serve_stdio)
    else:
        serve_http(chosen)
