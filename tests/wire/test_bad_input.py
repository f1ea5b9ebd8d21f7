"""Whatever comes in, the caller is told what is wrong with it, and the server goes on serving."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from harness.http import HttpWire, http_client, modern_headers
from harness.rpc import (
    EVERYTHING,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    Tasking,
    accept,
    legacy_request,
    request,
    text_of,
)
from harness.stdio import StdioWire, stdio_process
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.wire.conftest import HttpProcesses

pytestmark = pytest.mark.anyio

MODERN_HEADERS = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tasks/get")]
FITS = 2**20 - 1024
"""Bytes that the arguments of a call may have, and a few less."""

BODY_LIMIT = 4 * 2**20

UNREADABLE = {
    "nothing": b"",
    "no json": b"tasks, please",
    "a half": b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{',
    "invalid utf-8": b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"\xff\xfe"}}',
    "100,000 levels": b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
}
"""Lines that no JSON parser takes."""

NO_REQUEST = {
    "a batch": b"[]",
    "a string": b'"tasks/get"',
    "null": b"null",
    "no method": b'{"jsonrpc":"2.0","id":1}',
    "a method that is no string": b'{"jsonrpc":"2.0","id":1,"method":7}',
    "an id that is no id": b'{"jsonrpc":"2.0","id":{},"method":"tasks/get"}',
    "another protocol": b'{"jsonrpc":"1.0","id":1,"method":"tasks/get"}',
    "params that are no object": b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":[]}',
}
"""JSON that is no JSON-RPC request."""

WRONG: dict[str, tuple[str, Any]] = {
    "get: nothing": ("tasks/get", {}),
    "get: null": ("tasks/get", {"taskId": None}),
    "get: a number": ("tasks/get", {"taskId": 7}),
    "get: a huge number": ("tasks/get", {"taskId": 10**400}),
    "get: a list": ("tasks/get", {"taskId": ["a"]}),
    "get: the python name": ("tasks/get", {"task_id": "a"}),
    "get: unknown": ("tasks/get", {"taskId": "nope"}),
    "get: a megabyte": ("tasks/get", {"taskId": "x" * 2**20}),
    "get: nul": ("tasks/get", {"taskId": "a\0b"}),
    "get: not ascii": ("tasks/get", {"taskId": "tâche"}),
    "cancel: nothing": ("tasks/cancel", {}),
    "cancel: a boolean": ("tasks/cancel", {"taskId": True}),
    "cancel: unknown": ("tasks/cancel", {"taskId": "nope"}),
    "cancel: a megabyte": ("tasks/cancel", {"taskId": "x" * 2**20}),
    "update: nothing": ("tasks/update", {}),
    "update: no answers": ("tasks/update", {"taskId": "nope"}),
    "update: null answers": ("tasks/update", {"taskId": "nope", "inputResponses": None}),
    "update: a list of answers": ("tasks/update", {"taskId": "nope", "inputResponses": []}),
    "update: a text of answers": ("tasks/update", {"taskId": "nope", "inputResponses": "yes"}),
    "update: unknown": ("tasks/update", {"taskId": "nope", "inputResponses": {}}),
    "update: a megabyte": ("tasks/update", {"taskId": "x" * 2**20, "inputResponses": {}}),
    "call: nothing": ("tools/call", {}),
    "call: listed arguments": ("tools/call", {"name": "echo", "arguments": [1]}),
    "call: a text of arguments": ("tools/call", {"name": "echo", "arguments": "1"}),
    "call: listed answers": ("tools/call", {"name": "echo", "arguments": {"value": 1}, "inputResponses": []}),
}
"""Requests that are refused as invalid params on every transport."""

WRONG_META: dict[str, Any] = {
    "none": {},
    "null": {"_meta": None},
    "a list": {"_meta": []},
    "no capabilities": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}},
}
"""Envelopes that are none."""


async def _still_serves(client: Tasking) -> None:
    assert text_of((await client.finish("echo", value="alive"))["result"]) == "alive"


# Over HTTP


@pytest.fixture(scope="module")
async def wire(http_processes: HttpProcesses, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWire]:
    """A way to a server process that keeps its tasks in a file."""
    file = tmp_path_factory.mktemp("bad-input") / "tasks.db"
    async with http_client() as http:
        yield HttpWire(http_processes.url("--store", f"sqlite:///{file}"), http)


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    """A client of that server."""
    return Tasking(wire, EVERYTHING)


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
async def test_http_a_body_that_cannot_be_read_is_a_parse_error(wire: HttpWire, client: Tasking, body: bytes) -> None:
    reply = await wire.post(body, MODERN_HEADERS)
    assert (reply.status, reply.code) == (400, PARSE_ERROR)
    assert reply.message["id"] is None
    await _still_serves(client)


@pytest.mark.parametrize("body", NO_REQUEST.values(), ids=NO_REQUEST)
async def test_http_a_body_that_is_no_request_is_an_invalid_request(
    wire: HttpWire, client: Tasking, body: bytes
) -> None:
    reply = await wire.post(body, MODERN_HEADERS)
    assert (reply.status, reply.code) == (400, INVALID_REQUEST)
    await _still_serves(client)


@pytest.mark.parametrize(("method", "params"), WRONG.values(), ids=WRONG)
async def test_http_params_that_do_not_fit_are_invalid_params(
    wire: HttpWire, client: Tasking, method: str, params: dict[str, Any]
) -> None:
    message = request(method, params, capabilities=EVERYTHING)
    headers = [(key, value) for key, value in modern_headers(message) if key != "mcp-name" or method == "tools/call"]
    reply = await wire.post(json.dumps(message), headers)
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    assert reply.error["message"]
    assert len(json.dumps(reply.message)) < 1000
    await _still_serves(client)


@pytest.mark.parametrize("params", WRONG_META.values(), ids=WRONG_META)
async def test_http_an_envelope_that_does_not_fit_is_refused(
    wire: HttpWire, client: Tasking, params: dict[str, Any]
) -> None:
    message = legacy_request("tasks/get", {"taskId": "nope", **params})
    reply = await wire.post(json.dumps(message), MODERN_HEADERS)
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    await _still_serves(client)


@pytest.mark.parametrize("capabilities", [None, "all", [], {"extensions": "all"}, {"extensions": []}], ids=repr)
async def test_http_capabilities_that_do_not_fit_declare_nothing(
    wire: HttpWire, client: Tasking, capabilities: Any
) -> None:
    task_id = await client.create("gated")
    message = request("tasks/get", {"taskId": task_id})
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
    reply = await wire.post(json.dumps(message), modern_headers(message))
    assert reply.status == 400
    assert reply.code in (INVALID_PARAMS, MISSING_CAPABILITY)
    await _still_serves(client)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_http_an_id_with_half_a_character_is_an_unknown_task(
    wire: HttpWire, client: Tasking, method: str
) -> None:
    message = request(method, {"taskId": "\ud800", "inputResponses": {"\udfff": None}}, capabilities=EVERYTHING)
    reply = await wire.post(json.dumps(message), [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)])
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    await _still_serves(client)


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "1" * 5000], ids=lambda t: t[:9]
)
async def test_http_a_number_that_is_none_is_taken_or_refused_and_never_sent_on_as_json(
    wire: HttpWire, client: Tasking, literal: str
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": "@"}}, capabilities=EVERYTHING)
    reply = await wire.post(json.dumps(call).replace('"@"', literal), modern_headers(call))
    if "error" in reply.message:
        assert (reply.status, reply.code) == (400, PARSE_ERROR)
    else:
        # `get` reads strictly: a NaN in the answer would fail it.
        await client.until(reply.result["taskId"], "completed")
    wrong_id = request("tasks/get", {"taskId": "@"}, capabilities=EVERYTHING)
    headers = [header for header in modern_headers(wrong_id) if header[0] != "mcp-name"]
    assert (await wire.post(json.dumps(wrong_id).replace('"@"', literal), headers)).status == 400
    await _still_serves(client)


@pytest.mark.parametrize("depth", [1, 32, 63])
async def test_http_deep_arguments_that_can_be_read_are_kept_and_given_to_the_tool(
    wire: HttpWire, client: Tasking, depth: int
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": "@"}}, capabilities=EVERYTHING)
    nested = "[" * depth + "]" * depth
    reply = await wire.post(json.dumps(call).replace('"@"', nested), modern_headers(call))
    done = await client.until(reply.result["taskId"], "completed")
    assert text_of(done["result"]) == nested
    await _still_serves(client)


async def test_http_a_body_over_the_limit_is_too_large_and_one_below_it_is_served(
    wire: HttpWire, client: Tasking
) -> None:
    call = request("tools/call", {"name": "echo", "arguments": {"value": ""}}, capabilities=EVERYTHING)
    room = BODY_LIMIT - len(json.dumps(call))
    call["params"]["arguments"]["value"] = "x" * (room + 1)
    assert (await wire.raw_post(json.dumps(call), modern_headers(call))).status_code == 413
    # Below the SDK's limit ours is met, which answers in words.
    call["params"]["arguments"]["value"] = "x" * room
    assert (await wire.post(json.dumps(call), modern_headers(call))).code == LIMIT_EXCEEDED
    call["params"]["arguments"]["value"] = "x" * FITS
    reply = await wire.post(json.dumps(call), modern_headers(call))
    done = await client.until(reply.result["taskId"], "completed")
    assert len(text_of(done["result"])) == FITS
    await _still_serves(client)


@pytest.mark.parametrize("name", ["mcp-name", "mcp-method", "mcp-protocol-version"])
async def test_http_a_routing_header_that_is_there_twice_is_a_header_mismatch(
    wire: HttpWire, client: Tasking, name: str
) -> None:
    message = request("tasks/get", {"taskId": await client.create("gated")}, capabilities=EVERYTHING)
    headers = modern_headers(message)
    reply = await wire.post(json.dumps(message), [*headers, *(header for header in headers if header[0] == name)])
    assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
    await _still_serves(client)


async def test_http_another_content_type_another_verb_and_an_unwanted_answer_are_refused(
    wire: HttpWire, client: Tasking
) -> None:
    body = json.dumps(request("tasks/get", {"taskId": "nope"}))
    version = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tasks/get", "accept": "application/json"}
    typed = {**version, "content-type": "text/plain", "accept": "application/json, text/event-stream"}
    assert (await wire.client.post(wire.url, content=body, headers=typed)).status_code == 400
    unwanted = {**version, "content-type": "application/json", "accept": "image/png"}
    assert (await wire.client.post(wire.url, content=body, headers=unwanted)).status_code == 406
    assert (await wire.client.get(wire.url, headers=version)).status_code == 405
    await _still_serves(client)


async def test_http_ten_thousand_answers_that_nobody_asked_for_are_ignored(client: Tasking) -> None:
    task_id = await client.create("ask_name")
    asked = await client.until(task_id, "input_required")
    unasked = {f"key-{number}": accept(name="Eve") for number in range(10_000)}
    assert (await client.update(task_id, **unasked))["resultType"] == "complete"
    assert (await client.get(task_id))["inputRequests"] == asked["inputRequests"]
    await client.update(task_id, **unasked, **{"elicitation-1": accept(name="Ada")})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


async def test_http_an_unknown_method_is_not_found(client: Tasking) -> None:
    for method in ("tasks/", "tasks/gets", "tasks/get/", "TASKS/GET", "x" * 10_000):
        reply = await client.ask(method, {"taskId": "nope"})
        assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)


# Over stdio


@pytest.fixture(scope="module")
async def pipes() -> AsyncGenerator[StdioWire]:
    """A way to a server process over its pipes, opened in the newer era."""
    async with stdio_process() as wire:
        await _still_serves(Tasking(wire, EVERYTHING))
        yield wire


@pytest.mark.parametrize("line", [*UNREADABLE.values(), *NO_REQUEST.values()], ids=[*UNREADABLE, *NO_REQUEST])
async def test_stdio_a_line_that_is_no_request_does_not_disturb_the_others(pipes: StdioWire, line: bytes) -> None:
    """The SDK answers nothing to a line that it cannot take for a message; what it does answer is an error."""
    before = len(pipes.others)
    await pipes.write(line)
    await _still_serves(Tasking(pipes, EVERYTHING))
    assert all("error" in message for message in pipes.others[before:])


@pytest.mark.parametrize(("method", "params"), WRONG.values(), ids=WRONG)
async def test_stdio_params_that_do_not_fit_are_invalid_params(
    pipes: StdioWire, method: str, params: dict[str, Any]
) -> None:
    client = Tasking(pipes, EVERYTHING)
    reply = await client.ask(method, params)
    assert reply.code == INVALID_PARAMS
    assert len(json.dumps(reply.message)) < 1000
    await _still_serves(client)


@pytest.mark.parametrize("params", WRONG_META.values(), ids=WRONG_META)
async def test_stdio_an_envelope_that_does_not_fit_is_refused(pipes: StdioWire, params: dict[str, Any]) -> None:
    message = legacy_request("tasks/get", {"taskId": "nope", **params}, "mine")
    assert (await pipes.send(message)).code == INVALID_PARAMS
    await _still_serves(Tasking(pipes, EVERYTHING))


async def test_stdio_a_line_of_many_megabytes_is_refused_and_one_of_a_megabyte_served(pipes: StdioWire) -> None:
    client = Tasking(pipes, EVERYTHING)
    # More than HTTP takes.
    large = {"name": "echo", "arguments": {"value": "x" * (BODY_LIMIT * 3 // 2)}}
    assert (await client.ask("tools/call", large)).code == LIMIT_EXCEEDED
    assert len(text_of((await client.finish("echo", value="x" * FITS))["result"])) == FITS


async def test_stdio_ten_thousand_answers_that_nobody_asked_for_are_ignored(pipes: StdioWire) -> None:
    client = Tasking(pipes, EVERYTHING)
    task_id = await client.create("ask_name")
    await client.until(task_id, "input_required")
    unasked = {f"key-{number}": None for number in range(10_000)}
    await client.update(task_id, **unasked, **{"elicitation-1": accept(name="Ada")})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


async def test_stdio_half_a_character_and_no_number_do_not_disturb_the_others(pipes: StdioWire) -> None:
    for literal in ('"\\ud800"', "NaN", "1" * 5000):
        message = request("tasks/get", {"taskId": "@"}, capabilities=EVERYTHING)
        await pipes.write(json.dumps(message).replace('"@"', literal))
        await _still_serves(Tasking(pipes, EVERYTHING))
    assert all("error" in message for message in pipes.others)
