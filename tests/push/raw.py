"""Listen streams on bare sockets: cheap enough for a thousand, and slow enough on demand."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio

from harness.http import modern_headers
from harness.rpc import PATIENCE, loads

READ_LIMIT = 2**26


class RawStream:
    """The answer to one POST, event by event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.received = 0
        """Bytes that were read so far."""

    async def frame(self) -> dict[str, Any]:
        """The next message. An event is one line of one chunk, as the server writes them."""
        while True:
            line = await self._reader.readline()
            assert line, "the stream ended"
            self.received += len(line)
            if line.startswith(b"data:"):
                return loads(line.removeprefix(b"data:"))

    async def until(self, status: str) -> list[dict[str, Any]]:
        """The frames up to the first state with this status."""
        frames = [await self.frame()]
        while frames[-1]["params"].get("status") != status:
            frames.append(await self.frame())
        return frames

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@asynccontextmanager
async def raw_listening(
    url: str, message: Mapping[str, Any], *, receive_buffer: int | None = None
) -> AsyncGenerator[RawStream]:
    """A stream on a connection of its own. With a small buffer what is not read soon stays with the server."""
    stream = await open_raw(url, message, receive_buffer=receive_buffer)
    try:
        yield stream
    finally:
        stream.close()


async def open_raw(url: str, message: Mapping[str, Any], *, receive_buffer: int | None = None) -> RawStream:
    """The same, to be closed by the caller."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connection, (where.hostname, where.port))
    limit = READ_LIMIT if receive_buffer is None else receive_buffer
    with anyio.fail_after(PATIENCE):
        reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
        writer.write(_post(where.path, where.netloc, message))
        await writer.drain()
    return RawStream(_Patient(reader) if receive_buffer is not None else reader, writer)


class _Patient(asyncio.StreamReader):
    """Lines of any length from a reader that itself holds little."""

    def __init__(self, inner: asyncio.StreamReader) -> None:
        self._inner = inner

    async def readline(self) -> bytes:
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            try:
                parts.append(await self._inner.readuntil(b"\n"))
            except asyncio.LimitOverrunError as exc:
                parts.append(await self._inner.readexactly(exc.consumed))
            except asyncio.IncompleteReadError as exc:
                return b"".join(parts) + exc.partial
        return b"".join(parts)


def _post(path: str, host: str, message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    headers = [
        ("host", host),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("content-length", str(len(body))),
        *modern_headers(message),
    ]
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def allow_open_files(wanted: int) -> bool:
    """Raise the limit of open files as far as this process may; whether it is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and (hard == resource.RLIM_INFINITY or hard >= wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft == resource.RLIM_INFINITY or soft >= wanted
