"""A server in a process of its own, and bare connections to it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from harness.http import modern_headers
from harness.rpc import PATIENCE, request
from harness.serving import ServerProcess


class Target(ServerProcess):
    """The furnished server in a process of its own."""

    def __init__(self) -> None:
        super().__init__("harness.furnished", "http", "--fd", "{fd}", "--json")

    @property
    def memory(self) -> int:
        """Bytes of memory that it has now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


@contextmanager
def target() -> Generator[Target]:
    """Such a server, which is to be there still when the block ends."""
    with Target() as server:
        yield server
        assert server.process.poll() is None, f"the server ended with {server.process.returncode}"


def as_bytes(url: str, message: Mapping[str, Any], body: bytes | None = None) -> bytes:
    """A request as it goes over a socket."""
    content = json.dumps(message).encode() if body is None else body
    lines = [("host", urlsplit(url).netloc), ("content-type", "application/json"), *modern_headers(message)]
    lines += [("accept", "application/json, text/event-stream"), ("content-length", str(len(content)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + content


class Line:
    """A bare connection."""

    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.url = url
        self.reader = reader
        self.writer = writer

    async def ask(self, message: Mapping[str, Any], body: bytes | None = None) -> dict[str, Any]:
        """Send a request and give the message in its answer."""
        self.writer.write(as_bytes(self.url, message, body))
        with anyio.fail_after(PATIENCE):
            return await self.answer()

    async def ask_all(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send requests one behind the other, and give the messages in their answers."""
        self.writer.write(b"".join(as_bytes(self.url, message) for message in messages))
        with anyio.fail_after(PATIENCE):
            return [await self.answer() for _ in messages]

    async def answer(self) -> dict[str, Any]:
        """The message in the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(line[15:] for line in head.split("\r\n") if line.startswith("content-length:"))
        return json.loads(await self.reader.readexactly(int(length)))


@asynccontextmanager
async def line(url: str, *, receive_buffer: int | None = None) -> AsyncGenerator[Line]:
    """A connection while the block lasts."""
    address = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**26)
    try:
        yield Line(url, reader, writer)
    finally:
        writer.transport.abort()


async def is_served(url: str, times: int = 5) -> None:
    """Fail unless somebody else is served as before: a task is made, and read when it has ended."""
    async with line(url) as other:
        for _ in range(times):
            word = secrets.token_hex(4)
            made = await other.ask(request("tools/call", {"name": "echo", "arguments": {"value": word}}))
            seen: dict[str, Any] = {"status": "working"}
            with anyio.fail_after(PATIENCE):
                while seen["status"] == "working":
                    seen = (await other.ask(request("tasks/get", {"taskId": made["result"]["taskId"]})))["result"]
            assert word in json.dumps(seen["result"])
