# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""The client of the Python SDK 1.x, without tasks: `python host_python_sdk.py PLAN`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from common import PLAN, report
from host_common import Call, Host, asked
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client

NAME = types.Implementation(name="interop", version="1")
heard: list[tuple[float, float | None]] = []


async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={"publish": True})


async def hear(progress: float, total: float | None, message: str | None) -> None:
    heard.append((progress, total))


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[Any, Any]]:
    if "url" in PLAN:
        async with streamable_http_client(PLAN["url"]) as opened:
            yield opened[0], opened[1]
    else:
        command, *arguments = PLAN["command"]
        async with stdio_client(StdioServerParameters(command=command, args=arguments, cwd=PLAN["cwd"])) as pair:
            yield pair


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[Call]:
    async with streams() as (read, write), ClientSession(read, write, client_info=NAME, **options) as session:
        await session.initialize()
        await session.list_tools()  # from which it knows what results have to fit

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            result = await session.call_tool(tool, arguments, progress_callback=hear if "label" in arguments else None)
            return {"text": result.content[0].text, "isError": result.isError, "structured": result.structuredContent}

        yield call


async def main() -> None:
    async with connected(elicitation_callback=answer) as call, connected() as call_unasked:
        outcomes = await Host(call, call_unasked).run()
    report([{**outcomes, "heard": len(heard)}], version=version("mcp"))


asyncio.run(main())
