"""What tests of this folder make their servers with, and what they ask first."""

from typing import Any

from mcp.server import MCPServer

from harness.rpc import Tasking
from harness.server import QUICK
from mcp_tasks import Tasks, current_task


def new_tasks(**options: Any) -> Tasks:
    return Tasks("memory://", settings=QUICK, **options)


def server_of(tasks: Tasks, name: str = "wired") -> MCPServer[Any]:
    return MCPServer(name, **tasks.wiring(), log_level="CRITICAL")


def where() -> str:
    return "in a task" if current_task().id else "in a call"


async def kind_of(client: Tasking, tool: str) -> str:
    """How a tool answers: as a task, plainly, or with an error's code."""
    reply = await client.ask("tools/call", {"name": tool, "arguments": {}})
    return str(reply.code) if "error" in reply.message else reply.result["resultType"]
