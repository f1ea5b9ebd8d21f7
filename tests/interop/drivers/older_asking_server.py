# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""A stdio server of the Python SDK 1.x whose tools ask the client for tasks."""

from __future__ import annotations

import warnings
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

warnings.simplefilter("ignore", DeprecationWarning)
QUESTION: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
server = Server("older-asking")


@server.list_tools()
async def tools() -> list[types.Tool]:
    return [types.Tool(name=name, inputSchema={"type": "object"}) for name in ("elicit", "sample")]


@server.call_tool()
async def call(name: str, arguments: dict[str, Any]) -> list[types.TextContent]:
    asking = server.request_context.session.experimental
    if name == "elicit":
        answer = await asking.elicit_as_task("Approve?", QUESTION, ttl=60_000)
        return [types.TextContent(type="text", text=f"{answer.action} {answer.content}")]
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hello"))
    sampled = await asking.create_message_as_task([message], max_tokens=5)
    return [types.TextContent(type="text", text=sampled.content.text)]


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
