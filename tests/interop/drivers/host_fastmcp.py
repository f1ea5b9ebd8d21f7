# pyright: basic, reportMissingImports=false
"""FastMCP's client without any extension for tasks: `python host_fastmcp.py PLAN`."""

from __future__ import annotations

import asyncio
from typing import Any

import fastmcp
from common import PLAN, report
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from host_common import Call, Host, asked
from mcp_types import Implementation

NAME = Implementation(name="interop", version="1")


async def answer(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
    asked.append(message)
    return {"publish": True}


def client_of(**options: Any) -> Client:
    if "url" in PLAN:
        return Client(PLAN["url"], client_info=NAME, **options)
    command, *arguments = PLAN["command"]
    return Client(StdioTransport(command, arguments, cwd=PLAN["cwd"]), client_info=NAME, **options)


def calling(client: Client) -> Call:
    async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments, raise_on_error=False)
        return {"text": result.content[0].text, "isError": result.is_error, "structured": result.structured_content}

    return call


async def main() -> None:
    async with client_of(elicitation_handler=answer) as client, client_of() as other:
        await client.list_tools()
        outcomes = await Host(calling(client), calling(other)).run()
        report([{**outcomes, "wire": client.protocol_version}], version=fastmcp.__version__)


asyncio.run(main())
