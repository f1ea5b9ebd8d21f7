"""The extra `fast`: where it is installed, uvicorn takes both of its parts by itself, and tasks work on them.

python -m tests.wire.test_fast PORT DB
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp_types import TextContent

from harness.processes import environment
from harness.rpc import MODERN
from harness.serving import ServerProcess, web_server
from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task

FAST = Path(sys.prefix) / "fast"
"""Where `make setup` puts it: servers of the other tests must not find it."""


async def _served_by(url: str) -> str:
    """What a task says that ran there, asked for its result in a request of its own."""
    # Its era is named: a client that probes for it on a busy machine may give up and be an older one.
    async with Client(url, extensions=[TasksClient()], mode=MODERN) as client:
        handle = await start_task(client, "served_by", {})
        assert isinstance(handle, TaskHandle)
        [content] = (await handle.result()).content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no uvloop for Windows")
async def test_with_the_extra_tasks_are_served_on_uvloop_and_httptools(tmp_path: Path) -> None:
    assert (FAST / "uvloop").is_dir(), f"{FAST} is made by `make setup`"
    expected = {FAST: "uvloop uvicorn.protocols.http.httptools_impl", None: "asyncio uvicorn.protocols.http.h11_impl"}
    for folder, parts in expected.items():
        env = environment(*([folder] if folder else []))
        file = tmp_path / f"{parts[:4]}.db"
        with ServerProcess("tests.wire.test_fast", "{port}", file, fork=False, env=env, polite=True) as server:
            assert await _served_by(server.url) == parts


def main(port: int, db: str) -> None:
    tasks = Tasks(f"sqlite:///{db}")
    server = MCPServer("served", **tasks.wiring(), log_level="WARNING")

    @server.tool()
    @tasks.task()
    async def served_by() -> str:
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return f"{loop} {getattr(web.config.http_protocol_class, '__module__', None)}"

    web = web_server(server.streamable_http_app(), port=port)
    web.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
