"""What came back for a raw request is told exactly, and so is that nothing did."""

import io
import json

import anyio
import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from harness.rpc import error_response
from mcp_tasks.cli.raw import HttpConnection, PipeConnection, Silence
from mcp_tasks.client.wire import reply_to, request_message
from tests.unit.virtual_time import SIMULATED

pytestmark = [pytest.mark.parametrize("anyio_backend", [SIMULATED])]

ASKED: JSONRPCRequest = request_message(1, "tasks/get", {"taskId": "a"})


async def test_a_refusal_over_http_comes_with_its_status_and_in_a_few_words() -> None:
    def handle(request: httpx2.Request) -> httpx2.Response:
        assert json.loads(request.content)["method"] == "tasks/get"
        assert request.headers["mcp-name"] == "a"
        return httpx2.Response(400, json=error_response(1, -32602, "unknown task"))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
        connection = HttpConnection("http://server/mcp", client)
        reply = await connection.ask(ASKED, {"mcp-name": "a"})
    assert (reply.status, reply.code, reply.result, connection.stray) == (400, -32602, None, "")
    assert reply.summary == "error -32602 (unknown task) with HTTP 400"


async def test_a_connection_that_breaks_is_silence() -> None:
    def handle(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("cut")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
        with pytest.raises(Silence, match="the connection broke: cut"):
            await HttpConnection("http://server/mcp", client).ask(ASKED, {})


async def test_a_request_through_pipes_that_is_not_answered_in_time_is_taken_back() -> None:
    to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](9)
    write, from_client = anyio.create_memory_object_stream[SessionMessage](9)
    with to_client, read, write, from_client:
        connection = PipeConnection(read, write, io.StringIO())
        # The first sign of life; what is waited for by then may still take as long as a start does.
        to_client.send_nowait(SessionMessage(reply_to(77, {})))
        with pytest.raises(Silence, match="no answer within 60 s"):
            await connection.ask(ASKED, {})
        assert (await from_client.receive()).message == ASKED
        taken_back = (await from_client.receive()).message
        assert isinstance(taken_back, JSONRPCNotification)
        assert taken_back.method == "notifications/cancelled"
        to_client.send_nowait(SessionMessage(reply_to(1, {"resultType": "complete"})))
        assert (await connection.ask(ASKED, {})).result == {"resultType": "complete"}
