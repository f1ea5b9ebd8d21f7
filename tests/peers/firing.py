"""A server in a process of its own, with a log that is read afterwards, and bare connections to it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from harness.forking import fork
from harness.http import modern_headers
from harness.processes import ENVIRONMENT
from harness.rpc import PATIENCE, request


class Target:
    """The server process.

    Attributes:
        log: What it has written to its standard error.
    """

    def __init__(self, url: str, pid: int, log: Path) -> None:
        self.url = url
        self.pid = pid
        self._log = log

    @property
    def memory(self) -> int:
        """Bytes of memory that it has now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def target() -> Generator[Target]:
    """The furnished server in a process of its own while the block lasts."""
    with socket.socket() as listener, tempfile.NamedTemporaryFile(suffix=".log") as log:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1_000)
        listener.set_inheritable(True)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        number = listener.fileno()
        arguments = ("http", "--fd", str(number), "--json")
        process = fork("harness.furnished", *arguments, env=ENVIRONMENT, stderr=log.file, pass_fds=[number])
        try:
            yield Target(url, process.pid, Path(log.name))
            assert process.poll() is None, f"the server ended with {process.returncode}"
        finally:
            process.kill()
            process.wait()


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
