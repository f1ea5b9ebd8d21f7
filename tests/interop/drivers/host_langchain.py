# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""LangChain's MCP adapter, under a name of its own: `python host_langchain.py PLAN`."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from common import PLAN, report
from host_common import Call, Host, asked
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult, Implementation


async def answer(mcp_context: Any, params: Any, context: Any) -> ElicitResult:
    asked.append(params.message)
    return ElicitResult(action="accept", content={"publish": True})


async def connected(callbacks: Callbacks | None = None) -> Call:
    named = {"client_info": Implementation(name="interop", version="1")}
    server = {"transport": "http", "url": PLAN["url"], "session_kwargs": named}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"ours": server}, callbacks=callbacks).get_tools()}

    async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        message = await tools[tool].ainvoke({"type": "tool_call", "id": "1", "name": tool, "args": arguments})
        structured = message.artifact["structured_content"] if message.artifact else None
        return {"text": message.text, "isError": message.status == "error", "structured": structured}

    return call


async def main() -> None:
    host = Host(await connected(Callbacks(on_elicitation=answer)), await connected())
    report([await host.run()], version=version("langchain-mcp-adapters"))


asyncio.run(main())
