"""A handler that returns a task by itself, to a client that did not ask for one."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import ListToolsResult, Tool

from mcp_tasks import Tasks

pytestmark = pytest.mark.anyio

STRAY = {
    "resultType": "task",
    "taskId": "x",
    "status": "working",
    "createdAt": "2026-07-28T10:30:00Z",
    "lastUpdatedAt": "2026-07-28T10:30:00Z",
    "ttlMs": None,
}


def stray() -> Server[Any]:
    """A server with a tool that is not marked."""

    async def call_tool(ctx: Any, params: Any) -> Any:
        return STRAY

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="stray", input_schema={"type": "object"})])

    server: Server[Any] = Server("stray", on_call_tool=call_tool, on_list_tools=list_tools)
    Tasks("memory://").attach(server)
    return server


async def test_the_client_gets_an_error_that_names_the_tool_and_the_extension() -> None:
    async with Client(stray(), mode="2026-07-28") as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("stray", {})
    assert refused.value.code == -32603
    said = "Tool 'stray' returned a CreateTaskResult, and the client did not declare the extension"
    assert refused.value.message.startswith(said)
