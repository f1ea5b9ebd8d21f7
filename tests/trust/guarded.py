"""A server that is to keep its users' tasks apart, over any transport.

    python -m tests.trust.guarded stdio [--auth] [--required]

Tools that end, ask, wait, fail to be there any more, and that look at tasks of others on behalf of their caller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from harness.auth import Tokens, server_with
from harness.http import HttpWire, serving
from harness.server import QUICK
from harness.serving import serve_stdio
from mcp_tasks import Fallback, Limits, Tasks
from mcp_tasks.server import Caller

MIB: Final = 1024 * 1024


def by_header(caller: Caller) -> str | None:
    """Who calls, as a proxy of the author's own says."""
    return caller.headers.get("authorization", "").removeprefix("Bearer ").partition("!")[0] or None


class Name(BaseModel):
    """Somebody's name."""

    name: str


def build(tasks: Tasks, *, auth: bool = False) -> MCPServer[Any]:
    """The server, with the SDK's authentication or without."""
    server = server_with(tasks, "guarded", Tokens(scopes=("tasks",)) if auth else None)
    _add_tools(server, tasks)
    return server


def _add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.task()
    def echo(size: int = 1) -> str:
        """Give so many characters."""
        return "x" * size

    @server.tool()
    @tasks.task(ttl=timedelta(milliseconds=1))
    def brief() -> str:
        """Be gone at once."""
        return "gone"

    @server.tool()
    @tasks.task()
    async def ask(ctx: Context[Any, Any], size: int = 0) -> str:
        """Ask who it is, with so many characters more."""
        return str(await ctx.elicit("Who?" + "x" * size, Name))

    @server.tool()
    @tasks.task()
    async def hold() -> str:
        """Wait for good."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    @tasks.task()
    async def peek(task_id: str) -> str:
        """Look at a task whose id the caller gives."""
        return (await tasks.handle(task_id).fetch()).status

    @server.tool()
    async def plant(owner: str) -> str:
        """Make tasks of every kind for somebody, in this process; their ids."""
        return json.dumps(await planted(tasks, owner))


async def planted(tasks: Tasks, owner: str | None) -> dict[str, str]:
    """Tasks of every kind that somebody has: small, large, asking, at work, and one that has expired."""
    small, large = await tasks.start("echo", owner=owner), await tasks.start("echo", {"size": MIB}, owner=owner)
    ask, hold = await tasks.start("ask", owner=owner), await tasks.start("hold", owner=owner)
    gone = await tasks.start("brief", owner=owner)
    await small.wait(30)
    await large.wait(30)
    await ask.until_asked(30)
    with_ids = {"small": small, "large": large, "ask": ask, "hold": hold, "gone": gone}
    return {kind: task.id for kind, task in with_ids.items()}


def new_tasks(**options: Any) -> Tasks:
    """Tasks as the tests here want them."""
    usual: dict[str, Any] = {
        "companions": "always",
        "fallback": Fallback(model_may_answer=True),
        # Everything is asked at once here.
        "limits": Limits(owner_requests=None, owner_creates=None, owner_streams=None),
    }
    return Tasks("memory://", settings=QUICK, **(usual | options))


@asynccontextmanager
async def guarded(*, auth: bool = True, **options: Any) -> AsyncGenerator[tuple[HttpWire, Tasks]]:
    """The server behind HTTP."""
    tasks = new_tasks(**options)
    async with serving(build(tasks, auth=auth)) as wire:
        yield wire, tasks


def blanked(message: Mapping[str, Any], *ids: str) -> str:
    """An answer without its id, and without the ids of tasks."""
    text = json.dumps({key: value for key, value in message.items() if key != "id"}, sort_keys=True)
    for task_id in ids:
        text = text.replace(task_id, "ID")
    return text


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio",))
    parser.add_argument("--auth", action="store_true")
    parser.add_argument("--required", action="store_true")
    options = parser.parse_args()
    tasks = new_tasks(require_owner=True if options.required else None)
    asyncio.run(serve_stdio(build(tasks, auth=options.auth)))


if __name__ == "__main__":
    main()
