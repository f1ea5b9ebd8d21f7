"""Our server for hosts that speak no tasks, with waits of a second, and a log of what was started.

python -m tests.interop.host_server --db FILE --log FILE                 stdio
python -m tests.interop.host_server --db FILE --log FILE --port N        Streamable HTTP; also --stateless
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from mcp_tasks import Fallback, Host, Tasks

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


def build(store: str, log: Path) -> MCPServer[dict[str, object]]:
    """The server. Each tool writes its label into the log when its body is entered."""
    tasks = Tasks(store, fallback=WAYS, hosts=HOSTS)
    server = MCPServer("hosted", version="1", **tasks.wiring(), log_level="WARNING")

    def started(label: str) -> None:
        with log.open("a") as file:
            file.write(f"{label}\n")

    async def work(seconds: float, ctx: Context) -> None:
        for tenth in range(1, round(seconds * 10) + 1):
            await anyio.sleep(0.1)
            await ctx.report_progress(tenth / 10, seconds, f"at {tenth / 10:g} s")

    @server.tool()
    @tasks.task()
    async def render(seconds: float, label: str, ctx: Context) -> str:
        """Render a film."""
        started(label)
        await work(seconds, ctx)
        return f"{label}: rendered in {seconds:g} s"

    @server.tool()
    @tasks.task()
    async def describe(seconds: float, label: str, ctx: Context) -> Film:
        """Render a film, and say what it is."""
        started(label)
        await work(seconds, ctx)
        return Film(title=label, frames=round(seconds * 24))

    @server.tool()
    @tasks.task()
    async def publish(label: str, ctx: Context) -> str:
        """Publish a film, if the person agrees."""
        started(label)
        answer = await ctx.elicit(f"Publish {label}?", Publish)
        return f"{label}: {'published' if answer.action == 'accept' and answer.data.publish else 'kept'}"

    @server.tool()
    @tasks.task()
    async def fail(seconds: float, label: str, ctx: Context) -> str:
        """Fail, as tools fail."""
        started(label)
        await work(seconds, ctx)
        raise ToolError(f"{label}: the film tore")

    return server


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--stateless", action="store_true")
    options = parser.parse_args(argv)
    server = build(f"sqlite:///{options.db}", options.log)
    if options.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port, stateless_http=options.stateless)


if __name__ == "__main__":
    main()
