"""One process of a fleet whose one tool does nothing.

python -m bench.fleet_server serve URL --port 8000     serves, and runs no tools unless they are on SQLite
python -m bench.fleet_server work URL                  a worker
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from mcp.server import MCPServer

from mcp_tasks import Limits, Tasks


def build(url: str) -> tuple[Tasks, MCPServer[Any]]:
    """The server, with tasks at `url`."""
    tasks = Tasks(url, runs_tools=url.startswith("sqlite:"), limits=Limits(anonymous=False))
    server: MCPServer[Any] = MCPServer("fleet", version="1", log_level="WARNING", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun")
    async def noop() -> str:
        """Do nothing."""
        return "ok"

    return tasks, server


def main() -> None:
    """Serve or work until stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_server", description=__doc__)
    parser.add_argument("role", choices=["serve", "work"])
    parser.add_argument("url")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1")
    options = parser.parse_args()
    tasks, server = build(options.url)
    if options.role == "work":
        asyncio.run(tasks.work(server))
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port, json_response=True)


if __name__ == "__main__":
    main()
