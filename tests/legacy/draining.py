"""A server that is told to stop while a client waits: `python -m tests.legacy.draining PORT WAY DRAIN_SECONDS`.

WAY is how it answers: `stream`, `json`, or `resumable`. It says `done` when its tools have been told to end.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from mcp.server import MCPServer

from harness.serving import serving_until_told
from mcp_tasks import Settings, Tasks
from tests.conformance.everything_server import MemoryEvents


def build(drain: float) -> MCPServer[Any]:
    """A server with a tool that takes so long."""
    tasks = Tasks("memory://", settings=Settings(drain_timeout=timedelta(seconds=drain)))
    server = MCPServer("draining", **tasks.wiring())

    @server.tool()
    @tasks.task()
    async def work(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "worked"

    return server


async def main(port: int, way: str, drain: float) -> None:
    events: Any = {"event_store": MemoryEvents()} if way == "resumable" else {}
    app = build(drain).streamable_http_app(json_response=way == "json", **events)
    # Nobody is cut off by the web server.
    await serving_until_told(app, port=port, timeout_graceful_shutdown=None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
