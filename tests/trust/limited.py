"""A server with limits, and tools that run into them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from harness.auth import USERS, server_with
from harness.http import HttpWire, serving
from harness.rpc import Reply, Tasking
from mcp_tasks import Limits, Settings, Tasks, current_task
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from mcp_tasks.stores.memory import MemoryStore

QUICK: Final = Settings(stop_timeout=timedelta(milliseconds=50), drain_timeout=timedelta(0))
UNPACED: Final[dict[str, Any]] = {"owner_creates": None, "owner_requests": None}
"""For a test of another limit: it may be as quick as it likes."""


class Name(BaseModel):
    """Somebody's name."""

    name: str


@dataclass
class Limited:
    """The server under test, while it is served."""

    tasks: Tasks
    server: MCPServer[Any]
    wire: HttpWire
    gate: asyncio.Event
    seen: list[str] = field(default_factory=list[str])

    def as_user(self, token: str) -> Tasking:
        """A client with a token."""
        return Tasking(self.wire.as_user(token))

    @property
    def anybody(self) -> Tasking:
        """A client without one."""
        return Tasking(self.wire)


def build(tasks: Tasks, gate: asyncio.Event, *, auth: bool) -> MCPServer[Any]:
    """The server."""
    server = server_with(tasks, "limited", USERS if auth else None)
    repeatable = ToolAnnotations(idempotent_hint=True)

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def gated(note: Any = None, size: int = 0) -> str:
        """Wait for the test, and return so many characters."""
        await gate.wait()
        return "through" + "x" * size

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def quick(size: int = 0) -> str:
        """Return so many characters."""
        return "x" * size

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def says(message: str, ctx: Context) -> str:
        """Report progress."""
        await ctx.report_progress(1, 2, message)
        await gate.wait()
        return "said"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def asks(times: int, ctx: Context) -> str:
        """Ask so many things at once."""
        await asyncio.gather(*(ctx.elicit(f"Who is number {n}?", Name) for n in range(times)))
        return "asked"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def steps(count: int) -> str:
        """Do so many steps."""

        async def nothing() -> None:
            """Nothing."""

        for number in range(count):
            await current_task().step(f"step-{number}", nothing)
        return "done"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def family(children: int) -> str:
        """Start so many children, and wait for them."""
        started = [await tasks.start("quick", {"size": n}) for n in range(children)]
        for child in started:
            await child.result()
        return "all"

    return server


@asynccontextmanager
async def limited(
    limits: Limits | None = None, *, auth: bool = True, store: MemoryStore | None = None, **options: Any
) -> AsyncGenerator[Limited]:
    """The server behind a port."""
    tasks = Tasks(store or MemoryStore(), limits=limits, settings=QUICK, **options)
    gate = asyncio.Event()
    server = build(tasks, gate, auth=auth)
    async with serving(server) as wire:
        try:
            yield Limited(tasks, server, wire, gate)
        finally:
            gate.set()


async def call(client: Tasking, tool: str, **arguments: Any) -> Reply:
    """Call a tool; whatever comes back."""
    return await client.ask("tools/call", {"name": tool, "arguments": arguments})


def check_refused(reply: Reply, limit: str, *, come_back: bool) -> int:
    """See that a reply is a refusal for a limit; gives the milliseconds after which to come back."""
    assert reply.code == LIMIT_EXCEEDED, reply.message
    data = reply.error["data"]
    assert (data["reason"], data["limit"]) == ("limit", limit)
    assert ("retryAfterMs" in data) is come_back
    if not come_back:
        return 0
    assert isinstance(data["retryAfterMs"], int)
    assert data["retryAfterMs"] > 0
    return data["retryAfterMs"]


async def settled(client: Tasking, task_id: str) -> dict[str, Any]:
    """The task once it has ended."""
    with anyio.fail_after(30):
        while (task := await client.get(task_id))["status"] in ("working", "input_required"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return task
