"""A small server whose tools run until a test lets them end, and clients that speak no tasks.

    python -m tests.fallback.rendering URL_OF_THE_STORE closed|open

serves it over stdio: its tools never end, or end at once, and may be run again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias, cast

from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, Implementation, TextContent
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import BaseModel

from harness.server import QUICK
from harness.serving import serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback

MODERN = LATEST_MODERN_VERSION
MODES = [MODERN, "legacy"]
SOON = timedelta(milliseconds=50)

Texts: TypeAlias = list[str]


class Publish(BaseModel):
    """What the tool `publish` asks for."""

    ok: bool
    note: str = ""


class Farm:
    """A server, how often each of its tools was started, and what holds them up."""

    def __init__(
        self,
        store: str = "memory://",
        *,
        ways: Fallback | None = None,
        options: dict[str, Any] | None = None,
        **server: Any,
    ) -> None:
        self.gate = asyncio.Event()
        self.started: Texts = []
        self.tasks = Tasks(store, settings=QUICK, fallback=ways or Fallback(wait=SOON, legs=1), **(options or {}))
        self.server: MCPServer[Any] = MCPServer("farm", log_level="CRITICAL", **self.tasks.wiring(), **server)
        self._add_tools()

    def _add_tools(self) -> None:
        server, tasks = self.server, self.tasks

        @server.tool()
        @tasks.task()
        async def render(scene: str) -> str:
            self.started.append("render")
            await self.gate.wait()
            return f"{scene} rendered"

        @server.tool()
        @tasks.task()
        async def publish(ctx: Context) -> str:
            self.started.append("publish")
            answer = await ctx.elicit("Publish?", Publish)
            return f"{answer.action} {getattr(answer, 'data', None)}"

        @server.tool()
        @tasks.task()
        async def fails() -> str:
            await self.gate.wait()
            raise ToolError("No film")

        @server.tool()
        async def plain() -> str:
            return "plain"

        del render, publish, fails, plain


@asynccontextmanager
async def chat(server: Any, mode: str, *, name: str = "chat", **options: Any) -> AsyncGenerator[Client]:
    """A host of which nothing is known."""
    async with Client(server, mode=mode, client_info=Implementation(name=name, version="1"), **options) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    """The one text of a result."""
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def facts_of(result: CallToolResult) -> dict[str, Any]:
    """The structured content of a result."""
    assert isinstance(result.structured_content, dict)
    return cast("dict[str, Any]", result.structured_content)


async def handle_of(client: Client, tool: str = "render", **arguments: Any) -> str:
    """Call a tool that goes on, and give the id that its answer names."""
    result = await client.call_tool(tool, arguments or ({"scene": "a"} if tool == "render" else {}))
    assert not result.is_error
    assert "is still running" in text_of(result)
    return facts_of(result)["taskId"]


async def main(store: str, gate: str) -> None:
    """Serve over stdio until the input ends."""
    farm = Farm(store)
    farm.tasks.mark("render", recover="rerun")
    if gate == "open":
        farm.gate.set()
    await serve_stdio(farm.server)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
