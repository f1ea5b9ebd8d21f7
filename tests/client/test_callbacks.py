"""How much a server may have the callbacks of a client do."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import pytest
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import ElicitRequestParams, ElicitResult, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import InvalidOption, QuestionUnanswered, TasksClient, reconnecting_http, resume_task
from mcp_tasks.client.wire import QuestionLimit, Wire
from tests.client.connecting import connect
from tests.client.peer import TASK_ID, Peer, asking, completed

pytestmark = pytest.mark.anyio

ACK = {"resultType": "complete"}


class Busy:
    """Somebody who counts how many questions are worked on at a time, and answers when `ready`."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.asked = 0
        self.ready = asyncio.Event()

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.ready.wait()
        finally:
            self.now -= 1
        return ElicitResult(action="decline")


async def test_four_callbacks_work_at_a_time_for_all_tasks_of_a_client(peer: Peer, peer_url: str) -> None:
    busy = Busy()
    peer.on("tasks/get", asking(*(f"q{number}" for number in range(40))))
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=busy) as client, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(client.call_tool, "x")
        await eventually(lambda: busy.now == 4)
        # The others have seen all of their questions by now, and wait for their turns.
        await anyio.wait_all_tasks_blocked()
        assert busy.most == busy.asked == 4
        busy.ready.set()
        await eventually(lambda: busy.asked == 80)
        peer.on("tasks/get", completed())
    assert busy.most == 4


async def test_a_task_that_asks_without_end_is_left(peer: Peer, peer_url: str) -> None:
    busy = Busy()
    busy.ready.set()
    peer.on("tasks/get", asking(*(f"q{number}" for number in range(2_000))))
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=busy) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="at most 100 questions"):
            await client.call_tool("x", {})
        assert busy.asked <= 100
        # Nor is it asked on for who comes back to it.
        with anyio.fail_after(PATIENCE), pytest.raises(QuestionUnanswered, match="max_callbacks_per_task"):
            await resume_task(client, TASK_ID).result()
    assert busy.asked <= 100
    assert busy.most <= 4


async def test_both_limits_are_the_authors_to_set(peer: Peer, peer_url: str) -> None:
    busy = Busy()
    busy.ready.set()
    peer.on("tasks/get", asking("a", "b", "c"), asking("a", "b", "c"), completed())
    peer.on("tasks/update", ACK)
    async with connect(peer_url, person=busy, max_callbacks=1, max_callbacks_per_task=3) as client:
        with anyio.fail_after(PATIENCE):
            await client.call_tool("x", {})
    assert (busy.asked, busy.most) == (3, 1)
    with pytest.raises(InvalidOption, match="max_callbacks"):
        TasksClient(max_callbacks=0)


async def test_an_answer_that_asks_thousands_of_questions_is_an_error(peer: Peer, peer_url: str) -> None:
    busy = Busy()
    busy.ready.set()
    questions = asking(*(f"q{number}" for number in range(2_000)))["inputRequests"]
    peer.on("tools/call", {"resultType": "input_required", "inputRequests": questions})
    async with connect(reconnecting_http(peer_url), person=busy) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="2000 questions in one answer"):
            await client.call_tool("x", {})
    assert busy.asked == 0


async def test_requests_of_a_server_wait_for_their_turns() -> None:
    to_wire, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
    to_server, from_wire = anyio.create_memory_object_stream[SessionMessage](math.inf)
    wire = Wire(from_server, to_server)
    limit = QuestionLimit(wire)
    wire.add(limit)
    wire.start()
    shown, sent = wire.streams
    for number in range(2_000):
        await to_wire.send(SessionMessage(asks(number)))
    for number in (40, 41):
        params = {"requestId": number}
        await to_wire.send(
            SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params))
        )
    got = [await received(shown) for _ in range(32)]
    assert got == list(range(32))
    with anyio.move_on_after(0.05) as waited:
        await received(shown)
    assert waited.cancelled_caught
    refused = {(await from_wire.receive()).message.id for _ in range(2_000 - 32 - 1_000)}  # type: ignore[union-attr]
    assert refused == set(range(1_032, 2_000))
    for number in range(32):
        await sent.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
    assert [await received(shown) for _ in range(32)] == [*range(32, 40), *range(42, 66)]
    await wire.close()
    await wire.drop()
    to_wire.close()
    from_wire.close()


def asks(number: int) -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=number, method="elicitation/create", params={})


async def received(stream: Any) -> Any:
    with anyio.fail_after(PATIENCE):
        return (await stream.receive()).message.id
