"""A worker process, and the half that serves beside it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from signal import Signals
from typing import IO, Any

import anyio
import anyio.to_thread
from mcp.server import MCPServer

from harness.official import in_memory
from harness.rpc import Tasking
from mcp_tasks import Tasks
from tests.cli.farm import SETTINGS, build
from tests.cli.running import LIMIT, Cli, Started

SPEC = "tests.cli.farm:make()"


class WorkerProcess:
    """`mcp-tasks worker` as a process."""

    def __init__(self, started: Started, stderr: IO[bytes]) -> None:
        self._started = started
        self._stderr = stderr

    @property
    def said(self) -> str:
        """What it has said so far."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode()

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""
        until = time.monotonic() + LIMIT
        while (found := re.search(pattern, self.said)) is None:
            assert time.monotonic() < until, self.said
            await anyio.sleep(0.02)
        return found

    def send(self, number: Signals) -> None:
        """Send it a signal."""
        self._started.send(number)

    async def ends(self) -> int:
        """Wait for its end; gives the exit code."""
        return await anyio.to_thread.run_sync(self._started.wait)

    async def health(self) -> HealthPages:
        """Its pages."""
        return HealthPages(int((await self.says(r"http://127\.0\.0\.1:(\d+)/ready"))[1]))


class HealthPages:
    """What a worker answers over HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[int, str]:
        """The status and the body of one page."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    async def say(self, state: str) -> None:
        """Wait until the worker says that it is in this state."""
        until = time.monotonic() + LIMIT
        while (said := self.json("/ready")[1])["state"] != state:
            assert time.monotonic() < until, said
            await anyio.sleep(0.02)

    async def ready(self, wanted: bool) -> None:
        """Wait until the worker says that it is ready, or that it is not."""
        until = time.monotonic() + LIMIT
        while (said := self.json("/ready"))[0] != (200 if wanted else 503):
            assert time.monotonic() < until, said
            await anyio.sleep(0.05)

    def json(self, path: str) -> tuple[int, Any]:
        """The same of a page that is JSON."""
        status, body = self.get(path)
        return status, json.loads(body)


@contextmanager
def working(cli: Cli, *options: str, spec: str = SPEC) -> Generator[WorkerProcess]:
    """A worker that is killed at the end of the block if it is still there."""
    with tempfile.TemporaryFile() as err, open(os.devnull, "r+b") as nothing:
        started = cli.begin(
            ["worker", spec, *options], [nothing.fileno(), nothing.fileno(), err.fileno()], terminal=False
        )
        try:
            yield WorkerProcess(started, err)
        finally:
            started.kill()


@asynccontextmanager
async def serving_only(url: str, build: Callable[[Tasks], MCPServer[Any]] = build) -> AsyncGenerator[Tasking]:
    """A client of the half that serves, in this process."""
    server = build(Tasks(url, settings=SETTINGS, runs_tools=False))
    async with in_memory(server) as wire:
        yield Tasking(wire)


async def is_there(file: Path) -> None:
    """Wait for a file."""
    until = time.monotonic() + LIMIT
    while not await anyio.Path(file).exists():
        assert time.monotonic() < until, f"{file} does not come"
        await anyio.sleep(0.02)
