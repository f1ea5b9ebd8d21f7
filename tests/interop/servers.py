"""Our servers for the implementations of others.

python -m tests.interop.servers fixture --db FILE [--pid FILE] [--token TOKEN]     the tools of the fixture server
python -m tests.interop.servers hosted --db FILE --log FILE                         for hosts that speak no tasks

Over stdio, or with `--port N` over Streamable HTTP; there also `--json` and `--stateless`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from harness.auth import Tokens, locks
from mcp_tasks import Fallback, Host, Tasks
from mcp_tasks.testing import fixture_server

WAYS = Fallback(wait=timedelta(seconds=1), legs=3, heartbeat=timedelta(seconds=0.5))
"""A call waits for a second, and where it can be told to come back for four."""

HOSTS = {"inspector-*": Host(limit=timedelta(seconds=1.2))}
"""A host that is known for a limit, of which five sixths are used."""


class Publish(BaseModel):
    """A decision."""

    publish: bool


class Film(BaseModel):
    """What a structured tool gives."""

    title: str
    frames: int


async def work(seconds: float, ctx: Context) -> None:
    """Ten steps a second."""
    for tenth in range(1, round(seconds * 10) + 1):
        await anyio.sleep(0.1)
        await ctx.report_progress(tenth / 10, seconds, f"at {tenth / 10:g} s")


def hosted(store: str, log: Path) -> MCPServer[Any]:
    """The server for hosts without tasks. Each tool writes its label into the log when its body is entered."""
    tasks = Tasks(store, fallback=WAYS, hosts=HOSTS)
    server = MCPServer[Any]("hosted", version="1", **tasks.wiring(), log_level="WARNING")

    def started(label: str) -> None:
        with log.open("a") as file:
            file.write(f"{label}\n")

    async def render(seconds: float, label: str, ctx: Context) -> str:
        """Render a film."""
        started(label)
        await work(seconds, ctx)
        return f"{label}: rendered in {seconds:g} s"

    async def describe(seconds: float, label: str, ctx: Context) -> Film:
        """Render a film, and say what it is."""
        await render(seconds, label, ctx)
        return Film(title=label, frames=round(seconds * 24))

    async def publish(label: str, ctx: Context) -> str:
        """Publish a film, if the person agrees."""
        started(label)
        answer = await ctx.elicit(f"Publish {label}?", Publish)
        return f"{label}: {'published' if answer.action == 'accept' and answer.data.publish else 'kept'}"

    async def fail(seconds: float, label: str, ctx: Context) -> str:
        """Fail, as tools fail."""
        await render(seconds, label, ctx)
        raise ToolError(f"{label}: the film tore")

    @server.tool()
    @tasks.task(poll_interval=timedelta(hours=1))
    async def count(to: int, ctx: Context) -> str:
        """Count, ten a second; asks not to be polled, so whoever sees its task move soon was told."""
        await work(to / 10, ctx)
        return f"counted to {to}"

    for tool in (render, describe, publish, fail):
        server.tool()(tasks.task()(tool))
    return server


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("fixture", "hosted"))
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--pid", type=Path)
    parser.add_argument("--token")
    parser.add_argument("--port", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stateless", action="store_true")
    options = parser.parse_args(argv)
    if options.pid is not None:
        # Of several that a client starts over stdio, the first is the one to be killed.
        with suppress(FileExistsError), options.pid.open("x") as file:
            file.write(str(os.getpid()))
    store = f"sqlite:///{options.db}"
    if options.kind == "hosted":
        server = hosted(store, options.log)
    else:
        server = fixture_server.build(Tasks(store), **locks(Tokens(options.token) if options.token else None))
    if options.port is None:
        server.run("stdio")
    else:
        server.run(
            "streamable-http",
            host="127.0.0.1",
            port=options.port,
            json_response=options.json,
            stateless_http=options.stateless,
        )


if __name__ == "__main__":
    main()
