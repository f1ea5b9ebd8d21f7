"""The routing headers of Streamable HTTP on the tasks methods."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from harness.http import HttpWire, modern_headers, serving
from harness.rpc import HEADER_MISMATCH, Reply, Tasking, request
from harness.server import QUICK, build
from mcp_tasks import Tasks

pytestmark = pytest.mark.anyio

METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


def _about(method: str, task_id: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    return request(method, {"taskId": task_id, **answers})


async def _named(wire: HttpWire, message: Mapping[str, Any], *names: str) -> Reply:
    """Send a request with these values of Mcp-Name, however many they are."""
    headers = [header for header in modern_headers(message) if header[0] != "mcp-name"]
    return await wire.post(json.dumps(message), [*headers, *(("mcp-name", name) for name in names)])


def _encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("method", METHODS)
async def test_a_name_that_is_not_the_tasks_is_a_header_mismatch(client: Tasking, wire: HttpWire, method: str) -> None:
    task_id = await client.create("gated")
    other = await client.create("gated")
    for name in (other, "", task_id.upper(), f"{task_id}x", _encoded(other)):
        reply = await _named(wire, _about(method, task_id), name)
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("method", METHODS)
async def test_an_encoded_name_is_decoded_before_it_is_compared(client: Tasking, wire: HttpWire, method: str) -> None:
    task_id = await client.create("gated")
    assert (await _named(wire, _about(method, task_id), _encoded(task_id))).result["resultType"] == "complete"


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("name", ["=?base64?***?=", "=?base64?/w==?=", "=?base64??="])
async def test_a_name_that_cannot_be_decoded_is_a_header_mismatch(client: Tasking, wire: HttpWire, name: str) -> None:
    reply = await _named(wire, _about("tasks/get", await client.create("gated")), name)
    assert (reply.status, reply.code) == (400, HEADER_MISMATCH)


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("method", METHODS)
async def test_a_missing_name_is_accepted_unless_the_author_is_strict(
    client: Tasking, wire: HttpWire, method: str
) -> None:
    assert (await _named(wire, _about(method, await client.create("gated")))).result["resultType"] == "complete"
    async with serving(build(Tasks("memory://", require_name_header=True, settings=QUICK))) as strict:
        task_id = await Tasking(strict).create("gated")
        reply = await _named(strict, _about(method, task_id))
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
        assert "missing" in reply.error["message"]
        assert (await _named(strict, _about(method, task_id), task_id)).result["resultType"] == "complete"


@pytest.mark.requirement("headers/name")
async def test_a_name_is_refused_if_it_is_there_twice(client: Tasking, wire: HttpWire) -> None:
    task_id = await client.create("gated")
    for names in ((task_id, task_id), (task_id, "other")):
        reply = await _named(wire, _about("tasks/get", task_id), *names)
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)


@pytest.mark.requirement("headers/method")
@pytest.mark.parametrize("sent", ["tasks/cancel", "tools/call", "TASKS/GET", ""])
async def test_a_method_header_that_is_not_the_method_is_a_header_mismatch(
    client: Tasking, wire: HttpWire, sent: str
) -> None:
    message = _about("tasks/get", await client.create("gated"))
    headers = [(key, sent if key == "mcp-method" else value) for key, value in modern_headers(message)]
    reply = await wire.post(json.dumps(message), headers)
    assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
