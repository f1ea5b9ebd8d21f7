"""Clients that ask and do not read: what is kept for them is bounded, and they are given up."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import pytest

from harness.http import HttpWire, modern_headers
from harness.older import http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, legacy_request, request
from mcp_tasks import Limits
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.trust.guarded import MIB, guarded

pytestmark = pytest.mark.anyio

SIZE: Final = 8 * MIB
"""Of a tool's text, which is in its result twice."""

BUFFERS: Final = 4 * MIB
"""What may be on its way in the buffers of two sockets."""

QUICK: Final = timedelta(seconds=1)


class Deaf:
    """A connection whose client sends a request and reads only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def begun(self) -> None:
        """Return when a part of a large answer is there."""
        with anyio.fail_after(PATIENCE):
            await self._reader.readexactly(2_000)

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        with anyio.fail_after(PATIENCE):
            return await self._reader.read()


@asynccontextmanager
async def deaf(wire: HttpWire, method: str, headers: Mapping[str, str], body: str = "") -> AsyncGenerator[Deaf]:
    """A request on a connection of its own, with the smallest buffer that there is."""
    where = urlsplit(wire.url)
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    await asyncio.get_running_loop().sock_connect(connection, (where.hostname, where.port))
    # Beyond this it does not read by itself, either.
    reader, writer = await asyncio.open_connection(sock=connection, limit=4_096)
    all_headers = {
        "host": where.netloc,
        "authorization": f"Bearer {wire.token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "content-length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    writer.write(f"{method} {where.path} HTTP/1.1\r\n{head}\r\n{body}".encode())
    try:
        yield Deaf(reader, writer)
    finally:
        writer.close()


def limits(**wanted: Any) -> Limits:
    """Limits that let large results be made at any pace."""
    usual: dict[str, Any] = {"result_bytes": 4 * SIZE, "owner_creates": None, "owner_requests": None}
    return Limits(**(usual | wanted))


def deaf_post(wire: HttpWire, message: Mapping[str, Any]) -> Any:
    """The same with a request of the newest version."""
    return deaf(wire, "POST", dict(modern_headers(message)), json.dumps(message))


async def large(wire: HttpWire) -> tuple[Tasking, str]:
    """A task that has ended with a large result."""
    ada = Tasking(wire.as_user("ada"), EVERYTHING)
    task_id = await ada.create("echo", size=SIZE)
    await ada.until(task_id, "completed")
    return ada, task_id


async def until_refused(ada: Tasking, task_id: str) -> Mapping[str, Any]:
    """The error once as much as may be is on its way."""
    with anyio.fail_after(PATIENCE):
        while True:
            reply = await ada.ask("tasks/get", {"taskId": task_id})
            if "error" in reply.message:
                return reply.error
            await anyio.sleep(0.05)


async def until_answered(ada: Tasking, task_id: str) -> None:
    """Return when the task can be read again."""
    with anyio.fail_after(PATIENCE):
        while "error" in (await ada.ask("tasks/get", {"taskId": task_id})).message:  # noqa: ASYNC110 - nobody tells of it
            await anyio.sleep(0.1)


@pytest.mark.parametrize("short_way", [True, False])
async def test_what_an_owner_has_not_read_is_bounded_and_others_are_served(short_way: bool) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(short_way=short_way, limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        bob = Tasking(wire.as_user("bob"), EVERYTHING)
        his = await bob.create("echo", size=SIZE)
        await bob.until(his, "completed")
        small = await ada.create("echo")
        async with deaf_post(
            wire.as_user("ada"), request("tasks/get", {"taskId": task_id}, capabilities=EVERYTHING)
        ) as connection:
            await connection.begun()
            error = await until_refused(ada, task_id)
            assert (error["code"], error["data"]["limit"]) == (LIMIT_EXCEEDED, "owner_unread_bytes")
            # What is small is read at once, and others have nothing to do with it.
            await ada.until(small, "completed")
            assert (await bob.ask("tasks/get", {"taskId": his})).result["status"] == "completed"
        await until_answered(ada, task_id)


async def test_what_nobody_has_read_is_bounded_in_all() -> None:
    wanted = limits(unread_bytes=3 * SIZE)
    async with guarded(limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        async with deaf_post(
            wire.as_user("ada"), request("tasks/get", {"taskId": task_id}, capabilities=EVERYTHING)
        ) as connection:
            await connection.begun()
            assert (await until_refused(ada, task_id))["data"]["limit"] == "unread_bytes"
        await until_answered(ada, task_id)


async def test_a_result_of_the_older_era_counts_as_well() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(limits=wanted) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        message = json.dumps(legacy_request("tasks/result", {"taskId": task_id}))
        async with deaf(wire.as_user("ada"), "POST", dict(session.headers()), message) as connection:
            await connection.begun()
            assert (await until_refused(ada, task_id))["data"]["limit"] == "owner_unread_bytes"
            reply = await session.result(task_id)
            assert reply.error["data"]["limit"] == "owner_unread_bytes"


async def test_a_large_answer_of_any_tool_counts() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(limits=wanted, fallback="inline") as (wire, _):
        ada, task_id = await large(wire)
        call = request("tools/call", {"name": "echo", "arguments": {"size": SIZE}}, capabilities={})
        async with deaf_post(wire.as_user("ada"), call) as connection:
            await connection.begun()
            assert (await until_refused(ada, task_id))["data"]["limit"] == "owner_unread_bytes"
            refused = await wire.as_user("ada").raw_post(json.dumps(call), modern_headers(call))
            assert refused.status_code == 503
            assert refused.json()["error"]["data"]["limit"] == "owner_unread_bytes"


@pytest.mark.parametrize("tool", ["task_status", "echo"])
async def test_a_result_for_a_caller_without_tasks_is_not_made_until_there_is_room(tool: str) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        arguments = {"task_status": {"task_id": task_id}, "echo": {"size": SIZE}}[tool]
        call = request("tools/call", {"name": tool, "arguments": arguments}, capabilities={})
        async with deaf_post(wire.as_user("ada"), call) as connection:
            await connection.begun()
            await until_refused(ada, task_id)
            # The tool has run: its caller is told to come back, and not that the call failed.
            told = (await Tasking(wire.as_user("ada"), {}).ask("tools/call", call["params"])).result
            if tool == "task_status":
                assert "cannot be read right now" in json.dumps(told)
            else:
                assert told["resultType"] == "input_required"
                assert "inputRequests" not in told
        await until_answered(ada, task_id)


async def test_an_answer_waits_a_moment_for_room() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE, read_wait=QUICK)
    async with guarded(limits=wanted) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        message = json.dumps(legacy_request("tasks/result", {"taskId": task_id}))
        async with deaf(wire.as_user("ada"), "POST", dict(session.headers()), message) as connection:
            await connection.begun()
            await until_refused(ada, task_id)
            told = (await session.ask("tools/call", {"name": "echo", "arguments": {"size": SIZE}})).result
            assert told["content"] == [{"type": "text", "text": "x" * SIZE}]


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_client_that_does_not_read_its_answer_is_given_up(short_way: bool) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE, read_wait=QUICK)
    async with guarded(short_way=short_way, limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        poll = request("tasks/get", {"taskId": task_id}, capabilities=EVERYTHING)
        async with deaf_post(wire.as_user("ada"), poll) as connection:
            await connection.begun()
            await until_refused(ada, task_id)
            # It is still there, and has still not read anything.
            await until_answered(ada, task_id)
            assert len(await connection.rest()) < BUFFERS


@pytest.mark.parametrize("most", [1, None])
async def test_a_client_that_reads_gets_all_of_it(most: int | None) -> None:
    wanted = limits(owner_unread_bytes=most, unread_bytes=most, read_wait=None if most is None else QUICK)
    async with guarded(limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        result = (await ada.ask("tasks/get", {"taskId": task_id})).result["result"]
        assert result["content"] == [{"type": "text", "text": "x" * SIZE}]


# Streams


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_that_is_not_read_keeps_no_slot(short_way: bool) -> None:
    wanted = limits(owner_streams=1, read_wait=QUICK)
    async with guarded(short_way=short_way, limits=wanted) as (wire, _):
        _, task_id = await large(wire)
        listen = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        other = request("subscriptions/listen", {"notifications": {"taskIds": ["another"]}})
        expires = int(time.time()) + 2
        async with deaf_post(wire.as_user(f"ada!{expires}"), listen) as connection:
            await connection.begun()
            await until_opened(wire.as_user("ada"), other)
            assert len(await connection.rest()) < BUFFERS


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_state_for_which_there_is_no_room_ends_its_stream(short_way: bool) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(short_way=short_way, limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        listen = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        poll = request("tasks/get", {"taskId": task_id}, capabilities=EVERYTHING)
        async with deaf_post(wire.as_user("ada"), poll) as connection:
            await connection.begun()
            await until_refused(ada, task_id)
            with anyio.fail_after(PATIENCE):
                async with wire.as_user("ada").stream(listen) as messages:
                    told = [each async for each in messages]
            # As when the server stops: its client opens another, and is told then.
            assert [each.get("method") for each in told] == ["notifications/subscriptions/acknowledged", None]
            assert told[-1]["result"]["resultType"] == "complete"
        await until_answered(ada, task_id)
        async with wire.as_user("ada").stream(listen) as messages:
            with anyio.fail_after(PATIENCE):
                states = [each async for each in first_states(messages)]
        assert states[0]["params"]["status"] == "completed"


async def first_states(messages: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """The first state of a task."""
    async for message in messages:
        if message.get("method") == "notifications/tasks":
            yield message
            return


async def first_of(messages: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """The first message, if there is one."""
    async for message in messages:
        yield message
        return


async def until_opened(wire: HttpWire, message: Mapping[str, Any]) -> None:
    """Return when the stream is not refused for the number of streams any more, having been refused for it."""
    refused = 0
    with anyio.fail_after(PATIENCE):
        while True:
            async with wire.stream(message) as messages:
                # A refusal is no stream.
                if [each async for each in first_of(messages)]:
                    assert refused
                    return
            refused += 1
            await anyio.sleep(0.1)


async def test_a_sessions_own_stream_that_is_not_read_is_closed() -> None:
    async with guarded(limits=limits(read_wait=QUICK)) as (wire, _), http_session(wire.as_user("ada")) as session:
        headers = {**dict(session.headers()), "accept": "text/event-stream"}
        async with deaf(wire.as_user("ada"), "GET", headers) as connection:
            for _ in range(40):
                await session.start("ask", size=200_000)
            # The SDK lets a session have one such stream: another can be opened when this one is closed.
            with anyio.fail_after(PATIENCE):
                while not await can_listen(session.wire, headers):  # noqa: ASYNC110 - nobody tells of it
                    await anyio.sleep(0.1)
            assert len(await connection.rest()) < 2 * BUFFERS


async def can_listen(wire: HttpWire, headers: Mapping[str, str]) -> bool:
    """Whether the session may have a stream of its own now."""
    async with wire.client.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as response:
        return response.status_code == 200


async def test_a_session_goes_on_when_one_of_its_responses_was_given_up() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE, read_wait=QUICK)
    async with guarded(limits=wanted) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        message = json.dumps(legacy_request("tasks/result", {"taskId": task_id}))
        async with deaf(wire.as_user("ada"), "POST", dict(session.headers()), message) as connection:
            await connection.begun()
            await until_refused(ada, task_id)
            await until_answered(ada, task_id)
            assert len(await connection.rest()) < BUFFERS
        assert (await session.result(task_id)).result["content"] == [{"type": "text", "text": "x" * SIZE}]
