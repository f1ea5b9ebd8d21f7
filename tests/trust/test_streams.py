"""Streams end with the token that opened them, or after so long, on every door, and who listens loses nothing by it.

Clients that ask and do not read: what is kept for them is bounded, and they are given up.
"""

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

from harness.http import HttpWire, http_client, modern_headers, serving_app
from harness.older import RELATED, HttpClient, http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, legacy_request, request
from harness.waiting import eventually
from mcp_tasks import Limits
from mcp_tasks.errors import TaskWasCancelled
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED, RESULT_INTERRUPTED
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.client.connecting import begin, connect
from tests.conformance.everything_server import MemoryEvents
from tests.trust.guarded import MIB, build, guarded, new_tasks


def soon() -> int:
    """A second in which a token expires that is still valid when it is first used, on a busy machine as well."""
    return int(time.time()) + 2


async def until_end(wire: HttpWire, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that comes on a stream, once it has ended by itself."""
    message = request("subscriptions/listen", {"notifications": wanted})
    with anyio.fail_after(PATIENCE):
        async with wire.stream(message) as messages:
            return [each async for each in messages]


async def own_stream(session: HttpClient) -> None:
    """Open the stream of a session, and return when it has ended by itself."""
    wire, headers = session.wire, [*session.headers(), ("accept", "text/event-stream")]
    with anyio.fail_after(PATIENCE):
        async with wire.client.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as response:
            assert response.status_code == 200
            await response.aread()


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_ends_with_the_token_that_opened_it(short_way: bool) -> None:
    async with guarded(short_way=short_way) as (wire, tasks):
        task_id = await Tasking(wire.as_user("ada"), EVERYTHING).create("gated")
        expires = soon()
        mine = wire.as_user(f"ada!{expires}")
        named = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        async with mine.stream(named) as left:
            # One that leaves before the end does not keep the others, nor does one about something else.
            await anext(left)
            ends = asyncio.create_task(until_end(mine, {"taskIds": [task_id]}))
            others = asyncio.create_task(until_end(mine, {"toolsListChanged": True}))
        (first, state, last), about_tools = await ends, await others
        assert time.time() >= expires
        assert [each.get("method") for each in about_tools] == ["notifications/subscriptions/acknowledged", None]
        assert first["params"]["notifications"]["taskIds"] == [task_id]
        assert state["params"]["status"] == "working"
        # A result is how a stream ends gracefully: the client may come back.
        assert last["result"]["resultType"] == "complete"
        assert tasks.short_way.answered["subscriptions/listen"] == 2 * int(short_way)
        # The SDK lets in no token that has expired.
        assert (await wire.as_user(f"ada!{expires - 1}").send(request("tasks/get", {"taskId": "x"}))).status == 401


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_lasts_no_longer_than_any_may(short_way: bool) -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(short_way=short_way, limits=limits) as (wire, _):
        task_id = await Tasking(wire.as_user("ada"), EVERYTHING).create("gated")
        *_, last = await until_end(wire.as_user("ada"), {"taskIds": [task_id]})
        assert last["result"]["resultType"] == "complete"


async def test_a_wait_for_a_result_of_the_older_era_ends_with_its_token() -> None:
    async with guarded() as (wire, _), http_session(wire.as_user("ada")) as ada:
        task_id = await ada.start("gated")
        ada.wire = wire.as_user(f"ada!{soon()}")
        with anyio.fail_after(PATIENCE):
            reply = await ada.result(task_id)
        assert reply.code == RESULT_INTERRUPTED
        assert reply.error["data"] == {"reason": "token_expired", "_meta": {RELATED: {"taskId": task_id}}}
        ada.wire = wire.as_user("ada")
        assert (await ada.get(task_id))["status"] == "working"


async def test_a_sessions_own_stream_ends_with_its_token() -> None:
    async with guarded() as (wire, _), http_session(wire.as_user("ada")) as ada:
        ada.wire = wire.as_user(f"ada!{soon()}")
        await own_stream(ada)
        # And may be opened anew with a token that is valid.
        ada.wire = wire.as_user("ada")
        async with ada.listening():
            task_id = await ada.start("ask")
            await ada.question(task_id)


async def test_in_the_older_era_a_sessions_stream_lasts_no_longer_than_one_may_and_a_result_is_waited_for() -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(limits=limits) as (wire, _), http_session(wire.as_user("ada")) as ada:
        task_id = await ada.start("gated")
        waiting = ada.begin_result(task_id)
        await own_stream(ada)
        # That stream began later, and is over.
        assert not waiting.answered
        await ada.cancel(task_id)
        assert (await waiting.reply()).code == REQUEST_CANCELLED


async def test_a_result_on_a_stream_that_can_be_resumed_outlasts_the_token_that_it_was_asked_for_with() -> None:
    tasks = new_tasks()
    app = build(tasks, auth=True).streamable_http_app(event_store=MemoryEvents())
    async with serving_app(app) as base, http_client() as http:
        wire = HttpWire(f"{base}/mcp", http)
        async with http_session(wire.as_user("ada")) as ada:
            task_id = await ada.start("gated")
            short = wire.as_user(f"ada!{soon()}")
            message = legacy_request("tasks/result", {"taskId": task_id})
            ada.wire = short
            headers = [*ada.headers(), ("accept", "application/json, text/event-stream")]
            with anyio.fail_after(PATIENCE):
                async with http.stream("POST", wire.url, json=message, headers=headers, timeout=PATIENCE) as cut:
                    text = (await cut.aread()).decode()
            # The event that a client resumes from, and no answer.
            (last,) = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("id:")]
            assert "result" not in text
            assert "error" not in text
            ada.wire = wire.as_user("ada")
            headers = [*ada.headers(), ("accept", "text/event-stream"), ("last-event-id", last)]
            with anyio.fail_after(PATIENCE):
                async with http.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as resumed:
                    await ada.cancel(task_id)
                    said = (line[5:] async for line in resumed.aiter_lines() if line.startswith("data:"))
                    answer = json.loads(await anext(data async for data in said if data.strip()))
            assert answer["id"] == message["id"]
            assert answer["error"]["code"] == REQUEST_CANCELLED


# Our client


async def test_our_client_comes_back_when_its_stream_ends_and_misses_nothing() -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(auth=False, limits=limits) as (wire, tasks), connect(wire.url) as client:
        handle = await begin(client, "gated")
        waiting = asyncio.create_task(handle.result())
        await eventually(lambda: tasks.short_way.answered["subscriptions/listen"] >= 2)
        with anyio.fail_after(PATIENCE):
            await tasks.handle(handle.id).cancel("enough")
            with pytest.raises(TaskWasCancelled, match="enough"):
                await waiting


# Clients that do not read

SIZE: Final = 4 * MIB
"""Of a tool's text, which is in its result twice."""

BUFFERS: Final = 4 * MIB
"""What may be on its way in the buffers of two sockets."""

QUICK: Final = timedelta(seconds=1)


@asynccontextmanager
async def deaf(
    wire: HttpWire, method: str, headers: Mapping[str, str], body: str = ""
) -> AsyncGenerator[asyncio.StreamReader]:
    """What comes for a request, on a connection of its own that takes no more than it is told to read."""
    where = urlsplit(wire.url)
    connection = socket.socket()
    connection.setblocking(False)
    # The smallest buffer that there is.
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
        yield reader
    finally:
        writer.close()


async def begun(answer: asyncio.StreamReader) -> None:
    """Return when a part of a large answer is there."""
    with anyio.fail_after(PATIENCE):
        await answer.readexactly(2_000)


async def rest(answer: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes the connection."""
    with anyio.fail_after(PATIENCE):
        return await answer.read()


def limits(**wanted: Any) -> Limits:
    """Limits that let large results be made at any pace."""
    usual: dict[str, Any] = {"result_bytes": 4 * SIZE, "owner_creates": None, "owner_requests": None}
    return Limits(**(usual | wanted))


def deaf_post(wire: HttpWire, message: Mapping[str, Any]) -> Any:
    """The same with a request of the newest version."""
    return deaf(wire, "POST", dict(modern_headers(message)), json.dumps(message))


async def large(wire: HttpWire) -> tuple[Tasking, str]:
    ada = Tasking(wire.as_user("ada"), EVERYTHING)
    task_id = await ada.create("echo", size=SIZE)
    await ada.until(task_id, "completed")
    return ada, task_id


async def until(ada: Tasking, task_id: str, member: str) -> Any:
    """The error once as much as may be is on its way; or the result once there is room again."""

    async def look() -> Any:
        return (await ada.ask("tasks/get", {"taskId": task_id})).message.get(member)

    return await eventually(look)


async def until_refused(ada: Tasking, task_id: str) -> Mapping[str, Any]:
    error = await until(ada, task_id, "error")
    assert error["code"] == LIMIT_EXCEEDED
    return error["data"]


def poll(task_id: str) -> dict[str, Any]:
    return request("tasks/get", {"taskId": task_id}, capabilities=EVERYTHING)


@pytest.mark.parametrize("kind", ["short way", "SDK", "older result", "plain call"])
async def test_what_an_owner_has_not_read_is_bounded_and_who_does_not_read_is_given_up(kind: str) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE, read_wait=QUICK)
    options: dict[str, Any] = {"fallback": "inline"} if kind == "plain call" else {"short_way": kind == "short way"}
    async with guarded(limits=wanted, **options) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        call = request("tools/call", {"name": "echo", "arguments": {"size": SIZE}}, capabilities={})
        older = json.dumps(legacy_request("tasks/result", {"taskId": task_id}))
        mine = wire.as_user("ada")
        if kind == "older result":
            unread = deaf(mine, "POST", dict(session.headers()), older)
        else:
            unread = deaf_post(mine, call if kind == "plain call" else poll(task_id))
        async with unread as connection:
            await begun(connection)
            assert (await until_refused(ada, task_id))["limit"] == "owner_unread_bytes"
            # It is still there, and has still not read anything.
            await until(ada, task_id, "result")
            assert len(await rest(connection)) < BUFFERS
        assert (await session.result(task_id)).result["content"] == [{"type": "text", "text": "x" * SIZE}]


async def test_while_there_is_no_room_nothing_large_is_made_for_its_owner_and_others_are_served() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(limits=wanted) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        bob = Tasking(wire.as_user("bob"), EVERYTHING)
        his = (await bob.finish("echo", size=SIZE))["taskId"]
        small = await ada.create("echo")
        async with deaf_post(wire.as_user("ada"), poll(task_id)) as connection:
            await begun(connection)
            await until_refused(ada, task_id)
            # What is small is read at once, and others have nothing to do with it.
            await ada.until(small, "completed")
            assert (await bob.ask("tasks/get", {"taskId": his})).result["status"] == "completed"
            assert (await session.result(task_id)).error["data"]["limit"] == "owner_unread_bytes"
            # A caller without tasks is told to come back: its tool has run, and the call has not failed.
            plain = Tasking(wire.as_user("ada"), {})
            assert "cannot be read right now" in json.dumps(await plain.call("task_status", task_id=task_id))
            told = await plain.call("echo", size=SIZE)
            assert (told["resultType"], "inputRequests" in told) == ("input_required", False)
        await until(ada, task_id, "result")


async def test_a_large_answer_of_any_tool_counts_and_what_nobody_has_read_is_bounded_in_all() -> None:
    async with guarded(limits=limits(unread_bytes=3 * SIZE), fallback="inline") as (wire, _):
        ada, task_id = await large(wire)
        call = request("tools/call", {"name": "echo", "arguments": {"size": SIZE}}, capabilities={})
        async with deaf_post(wire.as_user("ada"), poll(task_id)) as connection:
            await begun(connection)
            assert (await until_refused(ada, task_id))["limit"] == "unread_bytes"
            refused = await wire.as_user("bob").raw_post(json.dumps(call), modern_headers(call))
            assert (refused.status_code, refused.json()["error"]["data"]["limit"]) == (503, "unread_bytes")
        await until(ada, task_id, "result")


async def test_an_answer_waits_a_moment_for_room() -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE, read_wait=QUICK)
    async with guarded(limits=wanted) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada, task_id = await large(wire)
        async with deaf_post(wire.as_user("ada"), poll(task_id)) as connection:
            await begun(connection)
            await until_refused(ada, task_id)
            told = (await session.ask("tools/call", {"name": "echo", "arguments": {"size": SIZE}})).result
            assert told["content"] == [{"type": "text", "text": "x" * SIZE}]


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
        opened: list[bool] = []

        async def may_open() -> bool:
            async with wire.as_user("ada").stream(other) as messages:
                # A refusal is no stream.
                opened.append(await anext(messages, None) is not None)
            return opened[-1]

        async with deaf_post(wire.as_user("ada"), listen) as connection:
            await begun(connection)
            await eventually(may_open)
            assert len(await rest(connection)) < BUFFERS
        # It was refused for the number of streams before.
        assert opened[0] is False


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_state_for_which_there_is_no_room_ends_its_stream(short_way: bool) -> None:
    wanted = limits(owner_unread_bytes=3 * SIZE)
    async with guarded(short_way=short_way, limits=wanted) as (wire, _):
        ada, task_id = await large(wire)
        listen = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        async with deaf_post(wire.as_user("ada"), poll(task_id)) as connection:
            await begun(connection)
            await until_refused(ada, task_id)
            with anyio.fail_after(PATIENCE):
                async with wire.as_user("ada").stream(listen) as messages:
                    told = [each async for each in messages]
            # As when the server stops: its client opens another, and is told then.
            assert [each.get("method") for each in told] == ["notifications/subscriptions/acknowledged", None]
            assert told[-1]["result"]["resultType"] == "complete"
        await until(ada, task_id, "result")
        with anyio.fail_after(PATIENCE):
            async with wire.as_user("ada").stream(listen) as messages:
                state = await anext(each async for each in messages if each.get("method") == "notifications/tasks")
        assert state["params"]["status"] == "completed"


async def test_a_sessions_own_stream_that_is_not_read_is_closed() -> None:
    async with guarded(limits=limits(read_wait=QUICK)) as (wire, _), http_session(wire.as_user("ada")) as session:
        headers = {**dict(session.headers()), "accept": "text/event-stream"}

        async def can_listen() -> bool:
            stream = session.wire.client.stream("GET", session.wire.url, headers=headers, timeout=PATIENCE)
            async with stream as response:
                return response.status_code == 200

        async with deaf(wire.as_user("ada"), "GET", headers) as connection:
            for _ in range(40):
                await session.start("ask", size=200_000)
            # The SDK lets a session have one such stream: another can be opened when this one is closed.
            await eventually(can_listen)
            assert len(await rest(connection)) < 2 * BUFFERS
