"""A server that is served while its tasks run already: `python -m tests.push.inside PORT SHORT_WAY`."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from mcp_tasks import Tasks
from mcp_tasks.testing.fixture_server import build


async def main(port: int, *, short_way: bool) -> None:
    tasks = Tasks("memory://", short_way=short_way)
    server = build(tasks)
    async with tasks.running(server):
        app = server.streamable_http_app()
        await uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning")).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), short_way=sys.argv[2] == "True"))
