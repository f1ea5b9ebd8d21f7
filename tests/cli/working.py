"""A worker process, and the half that serves beside it."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from signal import Signals
from typing import IO, Any, TypeVar

import anyio
import anyio.to_thread
from mcp.server import MCPServer

from harness.forking import Forked
from harness.official import in_memory
from harness.rpc import Tasking
from mcp_tasks import Tasks
from tests.cli.farm import SETTINGS, build
from tests.cli.running import LIMIT, Cli, until

T = TypeVar("T")

SPEC = "tests.cli.farm:make()"


class WorkerProcess:
    def __init__(self, process: Forked, stderr: IO[bytes]) -> None:
        self._process = process
        self._stderr = stderr

    @property
    def said(self) -> str:
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode()

    async def says(self, pattern: str) -> re.Match[str]:
        said = await in_time(lambda: self.said, lambda said: re.search(pattern, said))
        found = re.search(pattern, said)
        assert found is not None
        return found

    def send(self, number: Signals) -> None:
        self._process.send_signal(number)

    async def ends(self) -> int:
        return await anyio.to_thread.run_sync(self._process.wait, LIMIT)

    async def health(self) -> HealthPages:
        return HealthPages(int((await self.says(r"http://127\.0\.0\.1:(\d+)/ready"))[1]))


class HealthPages:
    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def json(self, path: str) -> tuple[int, Any]:
        status, body = self.get(path)
        return status, json.loads(body)

    async def say(self, state: str) -> None:
        await in_time(lambda: self.json("/ready"), lambda said: said[1]["state"] == state)

    async def ready(self, wanted: bool) -> None:
        await in_time(lambda: self.json("/ready"), lambda said: said[0] == (200 if wanted else 503))


async def in_time(look: Callable[[], T], wanted: Callable[[T], object]) -> T:
    """What there is to see, once it is the wanted thing, while the server in this process goes on."""
    return await anyio.to_thread.run_sync(until, look, wanted)


@contextmanager
def working(cli: Cli, *options: str, spec: str = SPEC) -> Generator[WorkerProcess]:
    with tempfile.TemporaryFile() as err, open(os.devnull, "r+b") as nothing:
        started = cli.begin(["worker", spec, *options], [nothing.fileno(), nothing.fileno(), err.fileno()])
        try:
            yield WorkerProcess(started, err)
        finally:
            started.kill()
            started.wait()


@asynccontextmanager
async def serving_only(url: str, build: Callable[[Tasks], MCPServer[Any]] = build) -> AsyncGenerator[Tasking]:
    """A client of the half that serves, in this process."""
    server = build(Tasks(url, settings=SETTINGS, runs_tools=False))
    async with in_memory(server) as wire:
        yield Tasking(wire)


async def is_there(file: Path) -> None:
    await in_time(lambda: [each.name for each in file.parent.iterdir()], lambda names: file.name in names)
