"""The same life of a task over every transport, on both of the SDK's servers, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.http import HttpWire, http_client, initialize, serving
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import (
    EVERYTHING,
    INVALID_PARAMS,
    LEGACY,
    METHOD_NOT_FOUND,
    NOTHING,
    TASKS,
    Tasking,
    Wire,
    accept,
    hello,
    legacy_request,
    request,
    text_of,
)
from harness.schema import check_legacy_result
from harness.server import QUICK, build
from harness.stdio import StdioWire, stdio_process
from mcp_tasks import Tasks
from tests.wire.conftest import HttpProcesses

pytestmark = pytest.mark.anyio

HTTP_WAYS = {
    "http-sse": (),
    "http-json": ("--json",),
    "http-sse-lowlevel": ("--lowlevel",),
    "http-json-lowlevel": ("--json", "--lowlevel"),
}
STDIO_WAYS = {"stdio": (), "stdio-lowlevel": ("--lowlevel",)}
MEMORY_WAYS = ("memory", "memory-lowlevel")
ABOUT_A_TASK: dict[str, Any] = {"taskId": "nope", "inputResponses": {}}


@asynccontextmanager
async def _connected(way: str, processes: HttpProcesses) -> AsyncGenerator[Wire]:
    if way in HTTP_WAYS:
        async with http_client() as http:
            yield HttpWire(processes.url(*HTTP_WAYS[way]), http)
    elif way in STDIO_WAYS:
        async with stdio_process(*STDIO_WAYS[way]) as wire:
            yield wire
    else:
        tasks = Tasks("memory://", default_ttl=None, settings=QUICK)
        server = build_lowlevel(tasks) if "lowlevel" in way else build(tasks)
        async with in_memory(server, elicitation_callback=_unasked) as wire:
            yield wire


async def _unasked(context: Any, params: Any) -> Any:
    raise AssertionError("a task's questions are answered with tasks/update")


@pytest.fixture(scope="module", params=[*HTTP_WAYS, *STDIO_WAYS, *MEMORY_WAYS])
async def client(request: pytest.FixtureRequest, http_processes: HttpProcesses) -> AsyncGenerator[Tasking]:
    """A client of a server over one of the transports."""
    async with _connected(request.param, http_processes) as wire:
        yield Tasking(wire, EVERYTHING)


async def test_a_task_runs_to_its_end_and_has_its_result(client: Tasking) -> None:
    created = await client.call("echo", value="over the wire")
    assert created["resultType"] == "task"
    done = await client.until(created["taskId"], "completed")
    assert text_of(done["result"]) == "over the wire"
    assert done["result"]["resultType"] == "complete"


async def test_a_null_ttl_reaches_the_client(client: Tasking) -> None:
    created = await client.call("echo", value=1)
    assert created["ttlMs"] is None
    assert (await client.get(created["taskId"]))["ttlMs"] is None


async def test_a_question_goes_out_and_its_answer_comes_in(client: Tasking) -> None:
    task_id = await client.create("ask_name")
    asked = await client.until(task_id, "input_required")
    [(key, question)] = asked["inputRequests"].items()
    assert question["params"]["message"] == "What is your name?"
    ack = await client.update(task_id, **{key: accept(name="Ada")})
    assert ack.keys() <= {"resultType", "_meta"}
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


async def test_a_task_is_cancelled(client: Tasking) -> None:
    task_id = await client.create("ask_name")
    await client.until(task_id, "input_required")
    ack = await client.cancel(task_id)
    assert ack.keys() <= {"resultType", "_meta"}
    assert (await client.until(task_id, "cancelled"))["statusMessage"]


async def test_an_unmarked_tool_stays_a_plain_call(client: Tasking) -> None:
    result = await client.call("greet", name="Ada")
    assert result["resultType"] == "complete"
    assert text_of(result).startswith("Hello, Ada!")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_an_unknown_task_is_an_invalid_param(client: Tasking, method: str) -> None:
    reply = await client.ask(method, {"taskId": "nope", "inputResponses": {}})
    assert reply.code == INVALID_PARAMS


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_a_removed_method_is_not_found(client: Tasking, method: str) -> None:
    assert (await client.ask(method, {"taskId": "nope"})).code == METHOD_NOT_FOUND


@pytest.mark.parametrize("lowlevel", [False, True], ids=["mcpserver", "lowlevel"])
async def test_an_in_memory_client_that_declares_nothing_gets_plain_results(lowlevel: bool) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = build_lowlevel(tasks) if lowlevel else build(tasks)
    async with in_memory(server, declares=False) as wire:
        result = await Tasking(wire).call("echo", value="plain")
    assert result["resultType"] == "complete"
    assert text_of(result) == "plain"


# What only one transport has


@pytest.fixture(scope="module", params=[[], ["--json"]], ids=["sse", "json"])
def http_url(request: pytest.FixtureRequest, http_processes: HttpProcesses) -> tuple[str, bool]:
    """The address of a server process, and whether it answers with JSON only."""
    return http_processes.url(*request.param), bool(request.param)


async def test_answers_are_json_or_a_stream_as_the_server_was_told(http_url: tuple[str, bool]) -> None:
    url, json_only = http_url
    async with http_client() as http:
        wire = HttpWire(url, http)
        # Progress goes out before the result, so there is a stream if there may be one.
        call = request("tools/call", {"name": "logs", "arguments": {}}, capabilities=NOTHING, meta={"progressToken": 1})
        reply = await wire.send(call)
        assert text_of(reply.result) == "Good day."
        if json_only:
            assert reply.headers["content-type"] == "application/json"
            assert reply.notifications == ()
        else:
            assert reply.headers["content-type"] == "text/event-stream"
            assert [message["method"] for message in reply.notifications] == ["notifications/progress"]
        created = await wire.send(request("tools/call", {"name": "logs", "arguments": {}}, meta={"progressToken": 1}))
        assert created.result["resultType"] == "task"
        assert created.headers["content-type"] == "application/json"


async def test_a_legacy_session_over_http_has_a_task_only_where_it_asks_for_one(http_url: tuple[str, bool]) -> None:
    url, json_only = http_url
    async with http_client() as http:
        session, welcome = await initialize(HttpWire(url, http), {"extensions": {"io.modelcontextprotocol/tasks": {}}})
        assert welcome["protocolVersion"] == LEGACY
        assert welcome["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        check_legacy_result("InitializeResult", welcome)
        reply = await session.ask("tools/call", {"name": "echo", "arguments": {"value": "plain"}})
        check_legacy_result("CallToolResult", reply.result)
        assert text_of(reply.result) == "plain"
        expected = "application/json" if json_only else "text/event-stream"
        assert reply.headers["content-type"].startswith(expected)
        created = await session.ask("tools/call", {"name": "echo", "arguments": {"value": 1}, "task": {"ttl": 60_000}})
        check_legacy_result("CreateTaskResult", created.result)
        assert (await session.ask("tasks/update", ABOUT_A_TASK)).code == METHOD_NOT_FOUND


async def test_a_server_without_sessions_serves_tasks_and_legacy_calls_alike() -> None:
    server = build(Tasks("memory://", default_ttl=None, settings=QUICK))
    async with serving(server, stateless=True) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("ask_name")
        await client.until(task_id, "input_required")
        await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"
        call = legacy_request("tools/call", {"name": "echo", "arguments": {"value": "plain"}})
        plain = await wire.post(json.dumps(call), [("mcp-protocol-version", LEGACY)])
        check_legacy_result("CallToolResult", plain.result)
        assert text_of(plain.result) == "plain"
        assert "mcp-session-id" not in plain.headers


async def _legacy_handshake(wire: StdioWire) -> None:
    welcome = (await wire.send(legacy_request("initialize", hello(TASKS)))).result
    check_legacy_result("InitializeResult", welcome)
    assert welcome["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
    await wire.notify("notifications/initialized")


@pytest.mark.parametrize("arguments", STDIO_WAYS.values(), ids=STDIO_WAYS)
async def test_a_legacy_client_over_stdio_has_a_task_only_where_it_asks_for_one(arguments: tuple[str, ...]) -> None:
    async with stdio_process(*arguments) as wire:
        await _legacy_handshake(wire)
        call = {"name": "echo", "arguments": {"value": "plain"}}
        reply = await wire.send(legacy_request("tools/call", call))
        check_legacy_result("CallToolResult", reply.result)
        assert text_of(reply.result) == "plain"
        created = await wire.send(legacy_request("tools/call", {**call, "task": {"ttl": 60_000}}))
        check_legacy_result("CreateTaskResult", created.result)
        assert (await wire.send(legacy_request("tasks/update", ABOUT_A_TASK))).code == METHOD_NOT_FOUND


async def test_a_cancelled_notification_over_stdio_does_not_cancel_the_task_of_that_request() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        call = request("tools/call", {"name": "ask_name", "arguments": {}}, capabilities=EVERYTHING)
        task_id = (await wire.send(call)).result["taskId"]
        await wire.notify("notifications/cancelled", {"requestId": call["id"]})
        await client.until(task_id, "input_required")
        await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


async def test_nothing_but_json_rpc_is_written_to_standard_output() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        for tool in ("logs", "crashes", "fails", "grow"):
            await client.finish(tool)
    # Whatever is no JSON would have ended the reader of the pipe; whatever is no answer is here.
    assert wire.others == []
