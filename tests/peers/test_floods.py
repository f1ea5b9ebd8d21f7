"""Bad peers at the door of a real process: others are served meanwhile, and what it costs is bounded."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from harness.http import modern_headers
from harness.rpc import PATIENCE, request
from harness.serving import ServerProcess
from harness.thoroughness import examples
from mcp_tasks.protocol.shapes import PROGRESS_META_KEY
from tests.push.raw import allow_open_files

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
GROWTH = 24 * MIB
"""Bytes that a process may have more of after a flood, with room for what its allocator keeps."""


class Target(ServerProcess):
    """The furnished server in a process of its own."""

    def __init__(self) -> None:
        super().__init__("harness.furnished", "http", "--fd", "{fd}", "--json")

    @property
    def memory(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def as_bytes(url: str, message: Mapping[str, Any]) -> bytes:
    content = json.dumps(message).encode()
    lines = [("host", urlsplit(url).netloc), ("content-type", "application/json"), *modern_headers(message)]
    lines += [("accept", "application/json, text/event-stream"), ("content-length", str(len(content)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + content


class Line:
    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.url = url
        self.reader = reader
        self.writer = writer

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and give the message in its answer."""
        self.writer.write(as_bytes(self.url, message))
        with anyio.fail_after(PATIENCE):
            return await self.answer()

    async def ask_all(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send requests one behind the other, and give the messages in their answers."""
        self.writer.write(b"".join(as_bytes(self.url, message) for message in messages))
        with anyio.fail_after(PATIENCE):
            return [await self.answer() for _ in messages]

    async def answer(self) -> dict[str, Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(line[15:] for line in head.split("\r\n") if line.startswith("content-length:"))
        return json.loads(await self.reader.readexactly(int(length)))


@asynccontextmanager
async def line(url: str, *, receive_buffer: int | None = None) -> AsyncGenerator[Line]:
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


@pytest.fixture(scope="module")
def server() -> Generator[Target]:
    """One server for all: what one flood leaves behind is there when the next one comes."""
    assert allow_open_files(1_000)
    with Target() as process:
        yield process
        assert process.process.poll() is None, f"the server ended with {process.process.returncode}"
        assert "Traceback" not in process.output, process.output[-4_000:]


async def flood(server: Target, messages: Sequence[Mapping[str, Any]]) -> set[int | None]:
    """Send messages over four connections; which error codes came back, None for a result."""
    codes: set[int | None] = set()

    async def send(mine: Sequence[Mapping[str, Any]]) -> None:
        async with line(server.url) as one:
            for start in range(0, len(mine), 50):
                for answer in await one.ask_all(mine[start : start + 50]):
                    codes.add(answer["error"]["code"] if "error" in answer else None)

    async with anyio.create_task_group() as group:
        for part in range(4):
            group.start_soon(send, messages[part::4])
    return codes


def unknown_ids(count: int) -> list[Mapping[str, Any]]:
    """Requests about tasks that do not exist, each from a client that calls itself something else."""
    made: list[Mapping[str, Any]] = []
    for number in range(count):
        name = secrets.token_urlsafe(20)
        info = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
        method = ("tasks/get", "tasks/cancel", "tasks/update")[number % 3]
        params: dict[str, Any] = {"taskId": name, "inputResponses": {name: {}}}
        made.append(request(method, params, meta=info if number % 2 else None))
    return made


async def test_ids_that_nobody_knows_are_not_remembered(server: Target) -> None:
    await is_served(server.url)
    await flood(server, unknown_ids(150))
    before = server.memory
    assert await flood(server, unknown_ids(examples(600))) == {-32602}
    # A few bytes for each id would be all right. A record of each in some cache would not.
    assert server.memory - before < GROWTH / 4
    await is_served(server.url)


async def test_requests_that_come_a_byte_at_a_time_hold_up_nobody(server: Target) -> None:
    whole = as_bytes(server.url, request("tasks/get", {"taskId": "x" * 100}))
    at = [0, len(whole) - 100]
    before = server.memory
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(line(server.url)) for _ in range(100)]
        for number, one in enumerate(slow):
            # Half of them are in their headers, and half in their bodies.
            one.writer.write(whole[: at[number % 2]])
        for byte in range(90):
            for number, one in enumerate(slow):
                start = at[number % 2] + byte
                one.writer.write(whole[start : start + 1])
            if byte % 30 == 0:
                await is_served(server.url, times=1)
        assert server.memory - before < GROWTH
        # One that gets to its end is answered like any other.
        slow[1].writer.write(whole[at[1] + 90 :])
        with anyio.fail_after(PATIENCE):
            assert (await slow[1].answer())["error"]["code"] == -32602
    # The others have left in the middle: at the end the server has no traceback to show.
    await is_served(server.url)


async def listeners(server: Target, stack: AsyncExitStack, count: int, ids: list[str]) -> AsyncGenerator[Line]:
    message = request("subscriptions/listen", {"notifications": {"taskIds": ids}})
    for _ in range(count):
        one = await stack.enter_async_context(line(server.url, receive_buffer=4_096))
        one.writer.write(as_bytes(server.url, message))
        yield one


async def test_listeners_that_never_read_cost_little_and_hold_up_nobody(server: Target) -> None:
    said = "x" * 50_000
    arguments = {"steps": 150, "total": 150, "message": said}
    async with AsyncExitStack() as stack, line(server.url) as one:
        made = await one.ask(request("tools/call", {"name": "progressing", "arguments": arguments}))
        task_id = made["result"]["taskId"]
        before = server.memory
        async for each in listeners(server, stack, 40, [task_id]):
            with anyio.fail_after(PATIENCE):
                await each.reader.readuntil(b"\r\n\r\n")
        with anyio.fail_after(PATIENCE):
            done: Any = None
            while done != 150:
                seen = (await one.ask(request("tasks/get", {"taskId": task_id})))["result"]
                done = seen.get("_meta", {}).get(PROGRESS_META_KEY, {}).get("progress")
        await is_served(server.url)
        # All states of all listeners would be 300 MB.
        assert server.memory - before < 3 * GROWTH
        await one.ask(request("tasks/cancel", {"taskId": task_id}))
