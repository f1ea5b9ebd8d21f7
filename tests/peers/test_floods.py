"""Floods of a real server process: other clients are served meanwhile, and the process grows by little."""

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

from harness.http import HttpWire, http_client, modern_headers
from harness.rpc import PATIENCE, Tasking, request
from harness.serving import ServerProcess
from harness.thoroughness import examples
from harness.waiting import eventually
from mcp_tasks.protocol.shapes import PROGRESS_META_KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
GROWTH = 24 * MIB
"""Bytes by which a process may grow in a flood, with room for what its allocator keeps."""


class Target(ServerProcess):
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


@asynccontextmanager
async def line(
    url: str, *, receive_buffer: int | None = None
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**26)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_served(url: str, times: int = 5) -> None:
    """Fail unless another client is served as before: it creates a task and reads its result."""
    async with http_client() as http:
        other = Tasking(HttpWire(url, http))
        for _ in range(times):
            word = secrets.token_hex(4)
            assert word in json.dumps(await other.finish("echo", value=word))


@pytest.fixture(scope="module")
def server() -> Generator[Target]:
    """One server for all tests, so that the rest of one flood is there in the next."""
    with Target() as process:
        yield process
        assert process.process.poll() is None, f"the server ended with {process.process.returncode}"
        assert "Traceback" not in process.output, process.output[-4_000:]


async def flood(server: Target, messages: Sequence[Mapping[str, Any]]) -> set[int]:
    """Send messages that are refused, four at a time; gives the error codes of the answers."""
    codes: set[int] = set()

    async def send(mine: Sequence[Mapping[str, Any]]) -> None:
        async with http_client() as http:
            for message in mine:
                codes.add((await HttpWire(server.url, http).send(message)).code)

    async with anyio.create_task_group() as group:
        for part in range(4):
            group.start_soon(send, messages[part::4])
    return codes


def unknown_ids(count: int) -> list[Mapping[str, Any]]:
    """Requests about tasks that do not exist, each from a client of another name."""
    made: list[Mapping[str, Any]] = []
    for number in range(count):
        name = secrets.token_urlsafe(20)
        info = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
        method = ("tasks/get", "tasks/cancel", "tasks/update")[number % 3]
        params: dict[str, Any] = {"taskId": name, "inputResponses": {name: {}}}
        made.append(request(method, params, meta=info if number % 2 else None))
    return made


async def test_unknown_ids_are_not_remembered(server: Target) -> None:
    await is_served(server.url)
    await flood(server, unknown_ids(150))
    before = server.memory
    assert await flood(server, unknown_ids(examples(600))) == {-32602}
    # A few bytes for each id are fine. A record of each in a cache is not.
    assert server.memory - before < GROWTH / 4
    await is_served(server.url)


async def test_requests_that_come_a_byte_at_a_time_delay_no_other_client(server: Target) -> None:
    whole = as_bytes(server.url, request("tasks/get", {"taskId": "x" * 100}))
    at = [0, len(whole) - 100]
    before = server.memory
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(line(server.url)) for _ in range(100)]
        for number, (_, writer) in enumerate(slow):
            # Half of them are in their headers, and half in their bodies.
            writer.write(whole[: at[number % 2]])
        for byte in range(90):
            for number, (_, writer) in enumerate(slow):
                start = at[number % 2] + byte
                writer.write(whole[start : start + 1])
            if byte % 30 == 0:
                await is_served(server.url, times=1)
        assert server.memory - before < GROWTH
        # A request that is complete at last is answered like any other.
        reader, writer = slow[1]
        writer.write(whole[at[1] + 90 :])
        with anyio.fail_after(PATIENCE):
            assert b"-32602" in await reader.readuntil(b"}}")
    # The others have left in the middle, and the server must log no traceback for them.
    await is_served(server.url)


async def test_listeners_that_never_read_cost_little_and_delay_no_other_client(server: Target) -> None:
    async with AsyncExitStack() as stack, http_client() as http:
        client = Tasking(HttpWire(server.url, http))
        task_id = await client.create("progressing", steps=150, total=150, message="x" * 50_000)
        before = server.memory
        listening = as_bytes(server.url, request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}))
        for _ in range(40):
            reader, writer = await stack.enter_async_context(line(server.url, receive_buffer=4_096))
            writer.write(listening)
            with anyio.fail_after(PATIENCE):
                await reader.readuntil(b"\r\n\r\n")

        async def is_done() -> bool:
            return (await client.get(task_id)).get("_meta", {}).get(PROGRESS_META_KEY, {}).get("progress") == 150

        await eventually(is_done)
        await is_served(server.url)
        # All states of all listeners would be 300 MB.
        assert server.memory - before < 3 * GROWTH
        await client.cancel(task_id)
