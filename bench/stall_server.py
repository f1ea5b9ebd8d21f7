"""The server whose event loop is watched: tools that take and return megabytes, with tasks or without.

    python -m bench.stall_server --port 8000 --db tasks.db      tasks
    python -m bench.stall_server --port 8000                    the same tools as plain calls, on a bare SDK server

Runs on the `mcp_tasks` of whichever tree is first on PYTHONPATH, and says on stdout where that is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp_types import CallToolResult, RequestParams, TextContent, ToolAnnotations

import mcp_tasks
from bench.compat import list_tasks, wiring
from bench.options import at_least
from bench.payload import RESULT_BYTES, rows
from bench.serve import unlimited
from bench.ticker import Ticker, obey
from harness.serving import serving_until_told
from mcp_tasks import Tasks
from mcp_tasks.stores.sqlite import SqliteStore

NAME = "stall-bench"
LONG = 3600.0
"""Seconds that a parked tool sleeps: longer than any run of this."""

REPEATABLE = ToolAnnotations(idempotent_hint=True)

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]


STRING = CallToolResult(content=[TextContent(text="x" * RESULT_BYTES)])
STRUCTURE = CallToolResult(content=[], structured_content={"rows": rows(RESULT_BYTES)})
"""Made beforehand, and returned as the SDK's own type: what is measured is what becomes of a result, not its making."""


class AnyParams(RequestParams):
    """Params that are not looked at."""


class Ready(Extension):
    """Methods that answer with what is ready: the least that any `tasks/get` through the SDK can cost."""

    identifier = "example.com/ready"

    def methods(self) -> Sequence[MethodBinding]:
        """One for each kind of result."""
        string, structure = (
            one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in (STRING, STRUCTURE)
        )

        async def get_string(ctx: ServerRequestContext[Any, Any], params: AnyParams) -> dict[str, Any]:
            return string

        async def get_structure(ctx: ServerRequestContext[Any, Any], params: AnyParams) -> dict[str, Any]:
            return structure

        return [
            MethodBinding("ready/string", AnyParams, get_string),
            MethodBinding("ready/structure", AnyParams, get_structure),
        ]


def build(db: Path | None, concurrency: int) -> MCPServer[Any]:
    """The server; its tools become tasks if there is a file to keep them in."""
    if db is None:
        server: MCPServer[Any] = MCPServer(NAME, version="1", log_level="WARNING", extensions=[Ready()])
        _add_tools(server, lambda function: function)
        return server
    store = SqliteStore(db)
    # Megabytes are what this is about: they are more than a server takes by default.
    tasks = Tasks(store, concurrency=concurrency, **unlimited(argument_bytes=None))
    server = MCPServer(NAME, version="1", log_level="WARNING", **wiring(tasks))
    _add_tools(server, tasks.task())

    @server.tool()
    async def listing() -> str:
        """List the tasks, as an operator's tool does; says how many there are."""
        return str(len(await list_tasks(store, NAME)))

    return server


def _add_tools(server: MCPServer[Any], mark: Mark) -> None:
    async def park(scene: list[dict[str, Any]]) -> str:
        """Take megabytes, and sleep."""
        await anyio.sleep(LONG)
        return str(len(scene))

    async def take(scene: list[dict[str, Any]]) -> str:
        """Take megabytes, and end."""
        return str(len(scene))

    async def return_string() -> CallToolResult:
        """Return one long string."""
        return STRING

    async def return_structure() -> CallToolResult:
        """Return many small values."""
        return STRUCTURE

    for tool in (park, take, return_string, return_structure):
        server.tool(annotations=REPEATABLE)(mark(tool))


async def serve(server: MCPServer[Any], port: int, *, tick: bool) -> None:
    """Serve as `MCPServer.run` does, with a ticker beside it."""
    # What is here for the bench's sake is no work for the garbage collector: a server would not have it.
    gc.collect()
    gc.freeze()
    ticker = Ticker()
    obey(ticker)
    if tick:
        await ticker.start()
    app = server.streamable_http_app(host="127.0.0.1")
    await serving_until_told(app, port=port)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.stall_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--db", type=Path, help="SQLite file with the tasks; without it, there are none")
    parser.add_argument("--concurrency", type=at_least(1), default=50, help="how many tools run at a time")
    parser.add_argument("--tick", action="store_true", help="measure from before the start, not when told to")
    options = parser.parse_args()
    print(json.dumps(mcp_tasks.__file__), flush=True)
    asyncio.run(serve(build(options.db, options.concurrency), options.port, tick=options.tick))


if __name__ == "__main__":
    main()
