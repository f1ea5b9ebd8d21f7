"""A server of ours that asks not to be polled: whoever sees its task move soon was told.

python -m tests.interop.seldom_server --port N --db FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from mcp_tasks import Tasks


def build(store: str) -> MCPServer[dict[str, object]]:
    """The server, with one tool."""
    tasks = Tasks(store)
    server = MCPServer("seldom", **tasks.wiring(), log_level="WARNING")

    @server.tool()
    @tasks.task(poll_interval=timedelta(hours=1))
    async def count(to: int, ctx: Context) -> str:
        """Count, ten a second."""
        for number in range(1, to + 1):
            await anyio.sleep(0.1)
            await ctx.report_progress(number, to, f"at {number}")
        return f"counted to {to}"

    return server


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    build(f"sqlite:///{options.db}").run("streamable-http", host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
