"""The extra `fast`: where it is installed, uvicorn takes both of its parts by itself, and tasks work on them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp_types import TextContent

from harness.rpc import MODERN
from mcp_tasks.client import TaskHandle, TasksClient, start_task

ROOT = Path(__file__).parents[2]
FAST = Path(sys.prefix) / "fast"
"""Where `make setup` puts it: servers of the other tests must not find it."""

STOP_LIMIT = 10.0


@contextmanager
def _served(db: Path, *path: Path) -> Generator[str]:
    """A process that serves, with these folders before all others in its path; gives its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.set_inheritable(True)
        port, number = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.wire.served", str(number), str(db)],
            cwd=ROOT,
            # What this process imports, so does the other.
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path])},
            pass_fds=[number],
        )
    try:
        yield f"http://127.0.0.1:{port}/mcp"
        assert process.poll() is None, f"the server ended by itself with {process.returncode}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        finally:
            process.kill()


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
        assert await _served_by(fast) == "uvloop uvicorn.protocols.http.httptools_impl"
        assert await _served_by(stock) == "asyncio uvicorn.protocols.http.h11_impl"
