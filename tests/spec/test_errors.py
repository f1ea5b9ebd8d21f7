"""What a client is told when its request is wrong, when the server fails, and when the work does."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from harness.http import HttpWire, modern_headers, serving
from harness.lowlevel import build_lowlevel
from harness.rpc import (
    EXTENSION,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    Reply,
    Tasking,
    request,
    text_of,
)
from harness.server import CUSTOM_ERROR, QUICK, build
from mcp_tasks import Tasks
from mcp_tasks.testing.clock import FakeClock
from tests.spec.failing import with_each_failure
from tests.unit.running import UnreliableStore

pytestmark = pytest.mark.anyio

METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


async def _about(client: Tasking, method: str, task_id: Any) -> Reply:
    answers: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    return await client.ask(method, {"taskId": task_id, **answers})


@pytest.mark.requirement(
    "errors/get-unknown",
    "errors/update-and-cancel-unknown",
    "errors/clearly-invalid",
    "update/unknown-task",
    "cancel/unknown-task",
)
@pytest.mark.parametrize("method", METHODS)
async def test_a_task_that_is_not_there_is_an_invalid_param(client: Tasking, method: str) -> None:
    for task_id in ("", "nope", "task_AAAAAAAAAAAAAAAAAAAAAAAAAAA", "../../etc/passwd", "' OR 1=1"):
        reply = await _about(client, method, task_id)
        assert (reply.status, reply.code) == (400, INVALID_PARAMS)


@pytest.mark.requirement("errors/get-unknown", "errors/update-and-cancel-unknown")
@pytest.mark.parametrize("method", METHODS)
async def test_an_id_of_the_wrong_type_is_an_invalid_param(client: Tasking, method: str) -> None:
    wrong: tuple[Any, ...] = (None, 7, 7.5, True, [], {}, ["task_1"])
    for task_id in wrong:
        reply = await _about(client, method, task_id)
        assert (reply.status, reply.code) == (400, INVALID_PARAMS)


@pytest.mark.requirement("errors/get-unknown")
async def test_an_expired_task_is_not_there_any_more() -> None:
    clock = FakeClock()
    async with serving(build(Tasks("memory://", clock=clock, default_ttl_ms=60_000, settings=QUICK))) as wire:
        client = Tasking(wire)
        done = await client.finish("echo", value=1)
        clock.advance(timedelta(seconds=59))
        assert (await client.get(done["taskId"]))["status"] == "completed"
        clock.advance(timedelta(seconds=1))
        expired = await client.ask("tasks/get", {"taskId": done["taskId"]})
        unknown = await client.ask("tasks/get", {"taskId": "nope"})
    assert expired.error == unknown.error
    assert expired.code == INVALID_PARAMS


@pytest.mark.requirement("errors/internal")
@pytest.mark.parametrize("method", METHODS)
@with_each_failure
async def test_a_store_that_fails_is_an_internal_error_that_gives_nothing_away(method: str, failure: Exception) -> None:
    store = UnreliableStore()
    async with serving(build(Tasks(store, settings=QUICK))) as wire:
        client = Tasking(wire)
        done = await client.finish("echo", value=1)
        store.failure = failure
        reply = await _about(client, method, done["taskId"])
        assert (reply.status, reply.code) == (200, INTERNAL_ERROR)
        assert "secret" not in str(reply.message)
        store.failure = None
        assert (await client.get(done["taskId"]))["status"] == "completed"


@pytest.mark.requirement("errors/internal", "errors/error-is-that-error")
async def test_a_crash_that_the_server_does_not_catch_fails_the_task_and_gives_nothing_away() -> None:
    async with serving(build_lowlevel(Tasks("memory://", settings=QUICK))) as wire:
        client = Tasking(wire)
        plain = await client.declaring(NOTHING).ask("tools/call", {"name": "crashes", "arguments": {}})
        task = await client.until(await client.create("crashes"), "failed")
    assert task["error"] == plain.error
    assert task["error"]["code"] == INTERNAL_ERROR
    assert "secret" not in str(task)


@pytest.mark.requirement("errors/missing-capability")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("known", [True, False], ids=["known task", "unknown task"])
async def test_a_client_that_does_not_declare_the_extension_cannot_use_the_tasks_methods(
    client: Tasking, method: str, known: bool
) -> None:
    task_id = await client.create("gated") if known else "nope"
    reply = await _about(client.declaring(NOTHING), method, task_id)
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.requirement("errors/informative")
async def test_errors_say_what_is_wrong(client: Tasking) -> None:
    unknown = await _about(client, "tasks/get", "nope")
    assert "not found" in unknown.error["message"].lower()
    undeclared = await _about(client.declaring(NOTHING), "tasks/get", "nope")
    assert EXTENSION in undeclared.error["message"]
    task_id = await client.create("ask_name")
    await client.until(task_id, "input_required")
    answers = {"elicitation-1": {"action": "accept", "content": {"name": 3}}}
    misfit = await client.ask("tasks/update", {"taskId": task_id, "inputResponses": answers})
    assert "elicitation-1" in misfit.error["message"]
    assert "name" in misfit.error["message"]


@pytest.mark.requirement("errors/http-status", "errors/standard")
async def test_http_statuses_follow_the_kind_of_error(client: Tasking, wire: HttpWire) -> None:
    mismatch = request("tasks/get", {"taskId": "nope"})
    headers = [(key, "other" if key == "mcp-name" else value) for key, value in modern_headers(mismatch)]
    replies = {
        INVALID_PARAMS: [await _about(client, "tasks/get", "nope"), await client.ask("tasks/get")],
        MISSING_CAPABILITY: [await _about(client.declaring(NOTHING), "tasks/get", "nope")],
        METHOD_NOT_FOUND: [await client.ask("tasks/list"), await client.ask("tasks/frobnicate")],
        HEADER_MISMATCH: [await wire.post(json.dumps(mismatch), headers)],
    }
    for code, answers in replies.items():
        assert {reply.code for reply in answers} == {code}
        assert {reply.status for reply in answers} == {404 if code == METHOD_NOT_FOUND else 400}
    assert (await client.ask("tools/call", {"name": "echo", "arguments": {"value": 1}})).status == 200


@pytest.mark.requirement("errors/failed-has-a-message", "errors/failed-has-an-error", "errors/error-is-that-error")
async def test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error(client: Tasking) -> None:
    plain = await client.declaring(NOTHING).ask("tools/call", {"name": "breaks", "arguments": {}})
    task = await client.until(await client.create("breaks"), "failed")
    assert task["error"] == plain.error
    assert task["error"] == {"code": CUSTOM_ERROR, "message": "the protocol says no", "data": {"hint": "ask again"}}
    assert task["statusMessage"] == "the protocol says no"


@pytest.mark.requirement(
    "status/failed-is-for-protocol-errors", "errors/is-error-is-no-failure", "errors/is-error-completes"
)
@pytest.mark.parametrize("tool", ["fails", "crashes"])
async def test_a_tool_that_fails_as_tools_fail_completes_with_is_error(client: Tasking, tool: str) -> None:
    task = await client.finish(tool)
    assert task["result"]["isError"] is True
    assert "error" not in task
    if tool == "fails":
        assert "it did not work out" in text_of(task["result"])
