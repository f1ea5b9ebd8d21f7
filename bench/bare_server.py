"""The yardstick: the SDK's server with one tool and no tasks, served as the fixture server is.

python -m bench.bare_server --port 8000
"""

from __future__ import annotations

import argparse

from mcp.server import MCPServer


def build() -> MCPServer:
    """A server whose one tool does nothing."""
    server = MCPServer("bare", version="1", log_level="WARNING")

    # Async, as the tool behind a measured task is: the SDK runs sync tools on a thread, and a yardstick with a
    # thread in it would flatter everything measured by it.
    @server.tool()
    async def plain_noop() -> str:
        """Do nothing."""
        return "ok"

    return server


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of SSE streams")
    options = parser.parse_args()
    build().run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
