"""Servers of `tests.hosted.asking_server` in processes of their own."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from mcp import StdioServerParameters

from harness.forking import Forked, fork, piped
from harness.processes import ENVIRONMENT, ROOT
from mcp_tasks.client import ServerTransport, stdio_transport

SERVER = "tests.hosted.asking_server"


def over_stdio(*options: str) -> ServerTransport:
    """A server process at the other end of two pipes."""
    command, *arguments = piped(SERVER, "stdio", *options)
    return stdio_transport(StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT))


class HttpServer:
    """A server process behind HTTP, on a port that outlasts it."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._options = options
        self._process: Forked | None = None

    async def start(self) -> None:
        """Start it, and return when it listens."""
        self._spawn()
        with anyio.fail_after(30):
            while not await self._listens():  # noqa: ASYNC110 - nobody tells when a port is open
                await anyio.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _spawn(self) -> None:
        self._process = fork(SERVER, "http", str(self.port), *self._options, env=ENVIRONMENT)

    async def _listens(self) -> bool:
        try:
            await (await anyio.connect_tcp("127.0.0.1", self.port)).aclose()
        except OSError:
            return False
        return True


@asynccontextmanager
async def http_server(*options: str) -> AsyncGenerator[str]:
    """A server process behind HTTP while the block lasts; gives its URL."""
    server = HttpServer(*options)
    try:
        await server.start()
        yield server.url
    finally:
        server.kill()
