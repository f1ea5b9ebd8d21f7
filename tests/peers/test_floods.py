"""Bad peers at the door of a real process: others are served meanwhile, and what it costs is bounded."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from harness.rpc import EVERYTHING, NOTHING, PATIENCE, request
from harness.thoroughness import examples
from mcp_tasks.protocol.shapes import PROGRESS_META_KEY
from tests.peers.firing import Line, Target, as_bytes, is_served, line, target
from tests.peers.nasty import spoilt
from tests.push.raw import allow_open_files

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

MIB = 2**20
GROWTH = 24 * MIB
"""Bytes that a process may have more of after a flood, with room for what its allocator keeps."""


@pytest.fixture(scope="module")
def server() -> Generator[Target]:
    """One server for all: what one flood leaves behind is there when the next one comes."""
    assert allow_open_files(1_000)
    with target() as process:
        yield process
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


async def test_creates_and_updates_by_the_hundred_leave_others_served(server: Target) -> None:
    async with line(server.url) as one:
        asking = await one.ask(request("tools/call", {"name": "ask_name", "arguments": {}}, capabilities=EVERYTHING))
    creates = [request("tools/call", {"name": "echo", "arguments": {"value": number}}) for number in range(200)]
    answer = {"inputResponses": {"nobody asked": {"action": "accept", "content": {"name": "x" * 1_000}}}}
    updates = [request("tasks/update", {"taskId": asking["result"]["taskId"], **answer}) for _ in range(200)]
    mixed = [message for pair in zip(creates, updates, strict=True) for message in pair]
    before = server.memory
    async with anyio.create_task_group() as group:
        group.start_soon(flood, server, mixed)
        await is_served(server.url)
    assert server.memory - before < GROWTH


async def test_requests_that_come_a_byte_at_a_time_hold_up_nobody(server: Target) -> None:
    whole = as_bytes(server.url, request("tasks/get", {"taskId": "x" * 100}))
    before = server.memory
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(line(server.url)) for _ in range(200)]
        for at in range(40):
            for number, one in enumerate(slow):
                # Some are in their headers, and some in their bodies.
                start = 0 if number % 2 else len(whole) - 100
                one.writer.write(whole[:start] if at == 0 else b"")
                one.writer.write(whole[start + at : start + at + 1])
            if at % 20 == 0:
                await is_served(server.url, times=1)
        assert server.memory - before < 2 * GROWTH
        await is_served(server.url)
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


async def test_streams_that_are_opened_and_left_again_leave_nothing(server: Target) -> None:
    async def open_and_leave(times: int) -> None:
        for _ in range(times):
            async with AsyncExitStack() as stack:
                ids = [secrets.token_urlsafe(16) for _ in range(100)]
                async for each in listeners(server, stack, 5, ids):
                    with anyio.fail_after(PATIENCE):
                        await each.reader.readuntil(b"\r\n\r\n")

    await open_and_leave(10)
    before = server.memory
    await open_and_leave(examples(30))
    await is_served(server.url)
    assert server.memory - before < GROWTH / 2


async def test_spoilt_messages_over_a_real_socket_are_answered(server: Target) -> None:
    chance = random.Random(5)
    good = [
        request("tools/call", {"name": "echo", "arguments": {"value": [1]}}),
        request("tools/call", {"name": "echo", "arguments": {"value": [1]}}, capabilities=NOTHING),
        request("tasks/get", {"taskId": "x"}),
        request("tasks/update", {"taskId": "x", "inputResponses": {"q": {"action": "accept"}}}),
        request("server/discover"),
    ]
    async with line(server.url) as one:
        for _ in range(examples(150)):
            message = chance.choice(good)
            body = spoilt(chance, message) or b"x"
            one.writer.write(as_bytes(server.url, message, body))
            with anyio.fail_after(PATIENCE):
                head = (await one.reader.readuntil(b"\r\n\r\n")).lower()
                status = int(head.split()[1])
                length = next((int(row[15:]) for row in head.split(b"\r\n") if row.startswith(b"content-length:")), 0)
                await one.reader.readexactly(length)
            assert status < 500, (body[:500], head)
    await is_served(server.url)
