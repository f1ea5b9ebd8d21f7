"""The yardstick: the SDK's server with one tool and no tasks, served as the fixture server is.

python -m bench.bare_server --port 8000
python -m bench.bare_server --port 8000 --db tasks.db      the same with tasks, of which that tool is none
python -m bench.bare_server --port 8000 --memory --inline  the same, and callers without tasks get plain calls
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from bench.compat import wiring
from mcp_tasks import Tasks


def build(url: str | None, *, inline: bool = False) -> MCPServer[Any]:
    """A server whose one plain tool does nothing, with tasks if there is a place to keep them in."""
    # Not said where it is not wanted: an older tree does not know it.
    ways: dict[str, Any] = {"fallback": "inline"} if inline else {}
    tasks = None if url is None else Tasks(url, **ways)
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
    parser.add_argument("--db", type=Path, help="SQLite file for tasks; without it or --memory, there are none")
    parser.add_argument("--memory", action="store_true", help="keep tasks in memory")
    parser.add_argument("--inline", action="store_true", help="callers without tasks get plain calls")
    options = parser.parse_args()
    url = "memory://" if options.memory else None if options.db is None else f"sqlite:///{options.db}"
    build(url, inline=options.inline).run(
        "streamable-http", host="127.0.0.1", port=options.port, json_response=options.json
    )


if __name__ == "__main__":
    main()
