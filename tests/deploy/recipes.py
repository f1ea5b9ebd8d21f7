"""The recipes of docs/deploy.md as they stand there: the files in a folder, the commands on a port of their own."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from harness.http import HttpWire, http_client
from harness.ports import base_url, free_port
from harness.processes import ENVIRONMENT, ROOT, kill, start
from harness.rpc import MODERN
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, start_task

PAGE = (ROOT / "docs" / "deploy.md").read_text()
TOOLS = Path(__file__).with_name("slow_things.py")
LIMIT = 60.0
"""Seconds for what must happen. Several processes start on a busy machine; only a failing test waits so long."""


def files() -> dict[str, str]:
    blocks = re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    return {name: text for text, name in blocks}


def commands() -> list[str]:
    return re.findall(r"^\$ (.*)$", PAGE, flags=re.MULTILINE)


class Site:
    def __init__(self, folder: Path, port: int, python: Path) -> None:
        self.folder = folder
        self.url = base_url(port)
        self.output = folder / "output.log"
        self._port = port
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        for name, text in files().items():
            (folder / name).write_text(text)
        (folder / "slow_things.py").write_text(TOOLS.read_text())

    async def start(self, command: str, *more: str, **changes: str) -> None:
        assert command in commands(), f"docs/deploy.md does not say: {command}"
        for old, new in changes.items():
            command = re.sub(rf"--{old} \S+", f"--{old} {new}", command)
        program, *arguments = shlex.split(command)
        where = ["--bind", f"127.0.0.1:{self._port}"] if program == "gunicorn" else ["--port", str(self._port)]
        self._launch([str(self._python), "-m", program, *arguments, *more, *where])
        await answers(self.url, self._is_alive)

    def _launch(self, command: Sequence[str]) -> None:
        # Workers are children of the command, and must not outlive the test whatever happens.
        self._process = start(command, cwd=self.folder, env=self._environment(), output=self.output, group=True)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(LIMIT)
        # uvicorn ends in order and then lets the signal have its way.
        assert code in (0, -signal.SIGTERM), f"exit code {code}:\n{self.output.read_text()}"

    def tell(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            kill(self._process)

    def let_go(self, *jobs: str) -> None:
        for job in jobs:
            (self.folder / f"{job}.end").touch()

    def runs(self, name: str) -> list[int]:
        log = self.folder / "runs.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [int(pid) for what, pid in lines if what == name]

    async def until(self, look: Callable[[], object], what: str) -> None:
        with anyio.move_on_after(LIMIT):
            while not look():  # noqa: ASYNC110 - it is other processes that are waited for
                await anyio.sleep(0.02)
            return
        raise AssertionError(f"not within {LIMIT:g} s: {what}\n{self.output.read_text()}")

    def _is_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended by itself:\n{self.output.read_text()}"

    def _environment(self) -> Mapping[str, str]:
        path = os.pathsep.join([str(self.folder), str(ROOT / "src")])
        key = "a key for tests, the same in every worker"
        # A home of its own, because gunicorn keeps a socket there.
        return {**ENVIRONMENT, "PYTHONPATH": path, "HOME": str(self.folder), "REQUEST_STATE_KEY": key}


@contextmanager
def site(folder: Path, python: Path | None = None) -> Generator[Site]:
    place = Site(folder, free_port(), python or Path(sys.executable))
    try:
        yield place
    finally:
        place.end()


async def answers(url: str, check: Callable[[], None]) -> None:
    """Wait until HTTP requests are answered. That a port is open says little: gunicorn opens it before its workers."""
    with anyio.fail_after(LIMIT):
        async with http_client() as http:
            while True:
                check()
                with suppress(httpx2.TransportError):
                    await http.get(url)
                    return
                await anyio.sleep(0.05)


async def ann(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ann"})


@asynccontextmanager
async def connected(url: str, *, mode: Any = MODERN) -> AsyncGenerator[Client]:
    """A client that connects anew for every request, so that any worker may answer it."""
    transport = reconnecting_http(url, headers={"Connection": "close"})
    async with Client(transport, extensions=[TasksClient()], elicitation_callback=ann, mode=mode) as client:
        yield client


@asynccontextmanager
async def wire(url: str) -> AsyncGenerator[HttpWire]:
    async with http_client() as client:
        yield HttpWire(url, client)


async def started(client: Client, tool: str, **arguments: Any) -> TaskHandle:
    handle = await start_task(client, tool, arguments)
    assert isinstance(handle, TaskHandle)
    return handle
