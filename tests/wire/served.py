"""A server that says what it is served by, on a port that its parent has chosen.

python -m tests.wire.served PORT DB
"""

from __future__ import annotations

import asyncio
import sys

from mcp.server import MCPServer

from harness.serving import web_server
from mcp_tasks import Tasks


def main(port: int, db: str) -> None:
    """Serve until stopped, with what uvicorn takes by itself."""
    tasks = Tasks(f"sqlite:///{db}")
    server = MCPServer("served", **tasks.wiring(), log_level="WARNING")

    @server.tool()
    @tasks.task()
    async def served_by() -> str:
        """The event loop and the HTTP parser that are at work."""
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return f"{loop} {getattr(web.config.http_protocol_class, '__module__', None)}"

    web = web_server(server.streamable_http_app(), port=port)
    web.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
