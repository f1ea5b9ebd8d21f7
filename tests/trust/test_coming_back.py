"""Our client, at a server that says when to come back: it waits and goes on, and nobody has to know."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from harness.http import http_client
from mcp_tasks import Limits
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.client.backend import MAX_IDS_PER_STREAM, get_task, is_transient, retry_after
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.trust.limited import limited

pytestmark = pytest.mark.anyio


async def test_a_client_that_asks_too_often_is_put_off_and_gets_its_answers() -> None:
    async with limited(Limits(owner_requests=5, owner_creates=None)) as server, http_client() as http:
        http.headers["authorization"] = "Bearer alice"
        transport = streamable_http_client(server.wire.url, http_client=http)
        async with Client(transport, extensions=[TasksClient()]) as client:
            task = await start_task(client, "gated")
            assert isinstance(task, TaskHandle)
            # Twenty at once: five are answered, five a little later, and ten are told to come back.
            with anyio.fail_after(60):
                seen = await asyncio.gather(*(get_task(client.session, task.id) for _ in range(20)))
            assert {each.id for each in seen} == {task.id}
            server.gate.set()
            result = await task.result(timeout=60)
            assert not result.is_error


@pytest.mark.parametrize(
    ("code", "data", "seconds"),
    [
        (LIMIT_EXCEEDED, {"retryAfterMs": 1_500}, 1.5),
        (LIMIT_EXCEEDED, {"retryAfterMs": -5}, 0.0),
        (LIMIT_EXCEEDED, {"retryAfterMs": "soon"}, None),
        (LIMIT_EXCEEDED, {"retryAfterMs": True}, None),
        (LIMIT_EXCEEDED, {"limit": "argument_bytes"}, None),
        (LIMIT_EXCEEDED, None, None),
        (-32602, {"retryAfterMs": 1_500}, None),
    ],
)
def test_when_to_come_back_is_said_by_a_number_and_with_one_code(code: int, data: Any, seconds: float | None) -> None:
    error = MCPError(code, "no", data)
    assert retry_after(error) == seconds
    assert is_transient(error) is (seconds is not None)


def test_a_client_names_no_more_tasks_in_a_stream_than_servers_take() -> None:
    assert Limits().stream_tasks >= MAX_IDS_PER_STREAM
