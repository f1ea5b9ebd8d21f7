"""A server that is served while its tasks run already: `python -m tests.push.processes PORT SHORT_WAY`."""

import asyncio
import sys

from harness.serving import serving_until_told
from mcp_tasks import Tasks
from mcp_tasks.testing.fixture_server import build


async def serve(port: int, *, short_way: bool) -> None:
    tasks = Tasks("memory://", short_way=short_way)
    server = build(tasks)
    async with tasks.running(server):
        # Nobody is cut off: whoever listens is to be told.
        await serving_until_told(server.streamable_http_app(), port=port, timeout_graceful_shutdown=None)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), short_way=sys.argv[2] == "True"))
