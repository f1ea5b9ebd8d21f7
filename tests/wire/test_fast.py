"""The extra `fast`: where it is installed, uvicorn takes both of its parts by itself, and tasks work on them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp_types import TextContent

from harness.processes import environment
from harness.rpc import MODERN
from harness.serving import ServerProcess
from mcp_tasks.client import TaskHandle, TasksClient, start_task

FAST = Path(sys.prefix) / "fast"
"""Where `make setup` puts it: servers of the other tests must not find it."""


def _served(db: Path, *path: Path) -> ServerProcess:
    """A process that serves, with these folders before all others in its path."""
    return ServerProcess("tests.wire.served", "{port}", db, fork=False, env=environment(*path), polite=True)


async def _served_by(url: str) -> str:
    """What a task says that ran there, asked for its result in a request of its own."""
    # Its era is named: a client that probes for it on a busy machine may give up and be an older one.
    async with Client(url, extensions=[TasksClient()], mode=MODERN) as client:
        handle = await start_task(client, "served_by", {})
        assert isinstance(handle, TaskHandle)
        [content] = (await handle.result()).content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.skipif(os.name == "nt", reason="there is no uvloop for Windows")
@pytest.mark.anyio
async def test_with_the_extra_tasks_are_served_on_uvloop_and_httptools(tmp_path: Path) -> None:
    assert (FAST / "uvloop").is_dir(), f"{FAST} is made by `make setup`"
    with _served(tmp_path / "fast.db", FAST) as fast, _served(tmp_path / "stock.db") as stock:
        assert await _served_by(fast.url) == "uvloop uvicorn.protocols.http.httptools_impl"
        assert await _served_by(stock.url) == "asyncio uvicorn.protocols.http.h11_impl"
