"""The yardstick: the SDK's server with one tool and no tasks, served as the fixture server is.

python -m bench.bare_server --port 8000
python -m bench.bare_server --port 8000 --db tasks.db      the same with tasks, of which that tool is none
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from bench.compat import wiring
from mcp_tasks import Tasks


def build(db: Path | None) -> MCPServer[Any]:
    """A server whose one plain tool does nothing, with tasks if there is a file to keep them in."""
    tasks = None if db is None else Tasks(f"sqlite:///{db}")
    server: MCPServer[Any] = MCPServer(
        "bare", version="1", log_level="WARNING", **({} if tasks is None else wiring(tasks))
    )

    # Async, as the tool behind a measured task is: the SDK runs sync tools on a thread, and a yardstick with a
    # thread in it would flatter everything measured by it.
    @server.tool()
    async def plain_noop() -> str:
        """Do nothing."""
        return "ok"

    if tasks is not None:

        @server.tool()
        @tasks.task()
        async def noop() -> str:
            """Do nothing, as a task: a server with tasks has a tool for them."""
            return "ok"

    return server


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of SSE streams")
    parser.add_argument("--db", type=Path, help="SQLite file for tasks; without it, there are none")
    options = parser.parse_args()
    build(options.db).run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
