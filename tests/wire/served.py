"""A server that says what it is served by, on a socket that its parent has bound.

python -m tests.wire.served FD DB
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from mcp.server import MCPServer

from mcp_tasks import Tasks


def main(number: int, db: str) -> None:
    """Serve until stopped, with what uvicorn takes by itself."""
    tasks = Tasks(f"sqlite:///{db}")
    server = MCPServer("served", **tasks.wiring(), log_level="WARNING")

    @server.tool()
    @tasks.task()
    async def served_by() -> str:
        """The event loop and the HTTP parser that are at work."""
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return f"{loop} {getattr(config.http_protocol_class, '__module__', None)}"

    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    with socket.socket(fileno=number) as listener:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
