"""A server that is to keep its users' tasks apart and within limits, over any transport.

    python -m tests.trust.guarded stdio [--auth] [--required] [--seldom]

Tools that end, ask, wait, fail to be there any more, run into limits, and look at tasks of others for their caller.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from harness.auth import Tokens, server_with
from harness.http import HttpWire, serving
from harness.rpc import Reply, Tasking
from harness.server import QUICK
from harness.serving import serve_stdio
from harness.waiting import eventually
from mcp_tasks import Fallback, Limits, Tasks, current_task
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from mcp_tasks.server import Caller
from mcp_tasks.stores import MemoryStore

MIB: Final = 1024 * 1024

NAMELESS: Final = ("creates", "cancels", "unknown")
"""What is counted of callers without a name."""


def by_header(caller: Caller) -> str | None:
    """Who calls, as a proxy of the author's own says."""
    return caller.headers.get("authorization", "").removeprefix("Bearer ").partition("!")[0] or None


class Name(BaseModel):
    name: str


def build(tasks: Tasks, gate: asyncio.Event | None = None, *, auth: bool = False) -> MCPServer[Any]:
    """The server, with the SDK's authentication or without. Some tools wait for the gate."""
    server = server_with(tasks, "guarded", Tokens(scopes=("tasks",)) if auth else None)
    _add_tools(server, tasks)
    _add_limited_tools(server, tasks, gate or asyncio.Event())
    return server


def _add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    def echo(size: int = 1) -> str:
        return "x" * size

    @server.tool()
    @tasks.task(ttl=timedelta(milliseconds=1))
    def brief() -> str:
        return "gone"

    @server.tool()
    @tasks.task()
    async def ask(ctx: Context[Any, Any], size: int = 0) -> str:
        return str(await ctx.elicit("Who?" + "x" * size, Name))

    @server.tool()
    @tasks.task()
    async def peek(task_id: str) -> str:
        return (await tasks.handle(task_id).fetch()).status

    @server.tool()
    async def plant(owner: str) -> str:
        """Make tasks of every kind for somebody, in this process; their ids."""
        return json.dumps(await planted(tasks, owner))


def _add_limited_tools(server: MCPServer[Any], tasks: Tasks, gate: asyncio.Event) -> None:
    repeatable = ToolAnnotations(idempotent_hint=True)

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def gated(note: Any = None, size: int = 0) -> str:
        """Wait for the test, and return so many characters."""
        await gate.wait()
        return "through" + "x" * size

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def asks(times: int, ctx: Context) -> str:
        await asyncio.gather(*(ctx.elicit(f"Who is number {n}?", Name) for n in range(times)))
        return "asked"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def steps(count: int) -> str:
        async def nothing() -> None:
            """Nothing."""

        for number in range(count):
            await current_task().step(f"step-{number}", nothing)
        return "done"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def family(children: int) -> str:
        started = [await tasks.start("gated", {"note": n}) for n in range(children)]
        for child in started:
            await child.result()
        return "all"


async def planted(tasks: Tasks, owner: str | None) -> dict[str, str]:
    """Tasks of every kind that somebody has: small, large, asking, at work, and one that has expired."""
    small, large = await tasks.start("echo", owner=owner), await tasks.start("echo", {"size": MIB}, owner=owner)
    ask, hold = await tasks.start("ask", owner=owner), await tasks.start("gated", owner=owner)
    gone = await tasks.start("brief", owner=owner)
    await small.wait(30)
    await large.wait(30)
    await ask.until_asked(30)
    with_ids = {"small": small, "large": large, "ask": ask, "gated": hold, "gone": gone}
    return {kind: task.id for kind, task in with_ids.items()}


def new_tasks(**options: Any) -> Tasks:
    usual: dict[str, Any] = {
        "companions": "always",
        "fallback": Fallback(model_may_answer=True),
        # Everything is asked at once here.
        "limits": Limits(owner_requests=None, owner_creates=None, owner_streams=None),
    }
    return Tasks("memory://", settings=QUICK, **(usual | options))


@asynccontextmanager
async def guarded(*, auth: bool = True, **options: Any) -> AsyncGenerator[tuple[HttpWire, Tasks]]:
    tasks = new_tasks(**options)
    async with serving(build(tasks, auth=auth)) as wire:
        yield wire, tasks


@dataclass(frozen=True)
class Limited:
    """The server while it is served, for tests of limits."""

    wire: HttpWire
    gate: asyncio.Event
    store: MemoryStore

    def as_user(self, token: str) -> Tasking:
        return Tasking(self.wire.as_user(token))

    @property
    def anybody(self) -> Tasking:
        return Tasking(self.wire)


@asynccontextmanager
async def limited(**wanted: Any) -> AsyncGenerator[Limited]:
    """The server behind HTTP, with the limits that are wanted; beside them `auth`, `store` and `options` of tasks."""
    auth: bool = wanted.pop("auth", True)
    store: MemoryStore = wanted.pop("store", None) or MemoryStore()
    options: dict[str, Any] = wanted.pop("options", {})
    gate = asyncio.Event()
    tasks = Tasks(
        store, limits=Limits(**wanted), settings=replace(QUICK, stop_timeout=timedelta(milliseconds=50)), **options
    )
    async with serving(build(tasks, gate, auth=auth)) as wire:
        try:
            yield Limited(wire, gate, store)
        finally:
            gate.set()


async def call(client: Tasking, tool: str, **arguments: Any) -> Reply:
    return await client.ask("tools/call", {"name": tool, "arguments": arguments})


def check_refused(reply: Reply, limit: str, *, come_back: bool = True) -> float:
    """See that a reply is a refusal for a limit; gives the seconds after which to come back."""
    assert reply.code == LIMIT_EXCEEDED, reply.message
    data = reply.error["data"]
    assert (data["reason"], data["limit"], "retryAfterMs" in data) == ("limit", limit, come_back)
    assert not come_back or (isinstance(data["retryAfterMs"], int) and data["retryAfterMs"] > 0)
    return data.get("retryAfterMs", 0) / 1000


async def settled(client: Tasking, task_id: str) -> dict[str, Any]:
    async def ended() -> dict[str, Any] | None:
        task = await client.get(task_id)
        return None if task["status"] in ("working", "input_required") else task

    found = await eventually(ended)
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio",))
    for option in ("--auth", "--required", "--seldom"):
        parser.add_argument(option, action="store_true")
    options = parser.parse_args()
    more: dict[str, Any] = {}
    if options.seldom:
        # Next to nothing is let through of callers without a name.
        paces: dict[str, Any] = {f"{prefix}{kind}": 0.01 for prefix in ("", "connection_") for kind in NAMELESS}
        more = {"limits": Limits(**paces)}
    tasks = new_tasks(require_owner=True if options.required else None, **more)
    asyncio.run(serve_stdio(build(tasks, auth=options.auth)))


if __name__ == "__main__":
    main()
