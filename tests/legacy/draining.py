"""A server that is told to stop while a client waits: `python -m tests.legacy.draining PORT WAY DRAIN_SECONDS`.

WAY is how it answers: `stream`, `json`, or `resumable`.
"""

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from harness.serving import serving_until_told
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks
from tests.conformance.everything_server import MemoryEvents


async def main(port: int, way: str, drain: float) -> None:
    tasks = Tasks("memory://", settings=Settings(drain_timeout=timedelta(seconds=drain)))
    server: MCPServer[Any] = MCPServer("draining", **tasks.wiring())

    @server.tool()
    @tasks.task()
    async def work(until: str) -> str:
        """Work until there is a file; make another one as soon as the process is told to stop."""
        before: Any = signal.getsignal(signal.SIGTERM)

        def tell(number: int, frame: Any) -> None:
            Path(f"{until}.told").touch()
            before(number, frame)

        signal.signal(signal.SIGTERM, tell)
        await eventually(Path(until).exists, limit=3600)
        return "worked"

    events: Any = {"event_store": MemoryEvents()} if way == "resumable" else {}
    app = server.streamable_http_app(json_response=way == "json", **events)
    # Nobody is cut off by the web server.
    await serving_until_told(app, port=port, timeout_graceful_shutdown=None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
