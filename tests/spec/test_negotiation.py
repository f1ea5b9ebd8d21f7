"""Who gets a task on 2026-07-28, and what the extension means beside the tasks of 2025-11-25."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from harness.http import HttpWire, initialize, modern_headers
from harness.rpc import (
    EXTENSION,
    LEGACY,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    TASKS,
    Tasking,
    accept,
    request,
    text_of,
)
from harness.schema import check_legacy_result
from harness.stored import all_tasks
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

LEGACY_TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
ECHO: dict[str, Any] = {"name": "echo", "arguments": {"value": "plain"}}
MUST: dict[str, Any] = {"name": "must", "arguments": {}}


@pytest.mark.requirement("negotiation/advertised", "eras/migrated", "eras/no-legacy-capabilities")
async def test_discover_names_the_extension_and_nothing_of_the_older_tasks(client: Tasking) -> None:
    capabilities = (await client.ask("server/discover")).result["capabilities"]
    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities
    tools = (await client.ask("tools/list")).result["tools"]
    assert [tool["name"] for tool in tools if "execution" in tool] == []


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_a_task_is_for_requests_that_declare_the_extension_whatever_was_declared_earlier(client: Tasking) -> None:
    assert (await client.call("echo", value=1))["resultType"] == "task"
    plain = await client.declaring(NOTHING).call("echo", value="plain")
    assert (plain["resultType"], text_of(plain)) == ("complete", "plain")
    assert (await client.call("echo", value=3))["resultType"] == "task"


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_a_declaration_that_is_not_an_object_is_none(wire: HttpWire) -> None:
    for declared in (None, True, [EXTENSION], {EXTENSION: None}, {EXTENSION: True}):
        message = request("tools/call", ECHO, capabilities={"extensions": declared})
        reply = await wire.post(json.dumps(message), modern_headers(message))
        assert reply.status == 400 or reply.result["resultType"] == "complete", declared


@pytest.mark.requirement(
    "negotiation/missing-capability", "eras/legacy-capability-is-no-declaration", "errors/missing-capability"
)
@pytest.mark.parametrize("declared", [NOTHING, LEGACY_TASKS], ids=["nothing", "older tasks"])
async def test_a_client_that_does_not_declare_the_extension_is_told_what_is_missing(
    client: Tasking, declared: dict[str, Any]
) -> None:
    other = client.declaring(declared)
    replies = [await other.ask("tools/call", MUST)]
    for task_id in (await client.create("gated"), "nope"):
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            replies.append(await other.ask(method, {"taskId": task_id, "inputResponses": {}}))
    for reply in replies:
        assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
        assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        assert EXTENSION in reply.error["message"]
    assert (await other.call("echo", value=1))["resultType"] == "complete"
    assert (await client.declaring(TASKS).call("must"))["resultType"] == "task"


@pytest.mark.requirement("results/nothing-else-is-marked")
async def test_only_a_created_task_has_the_result_type_task(client: Tasking) -> None:
    results = [
        (await client.ask("server/discover")).result,
        (await client.ask("tools/list")).result,
        await client.call("greet", name="Ada"),
        await client.call("never"),
        await client.call("ask_by_returning"),
    ]
    running, asking = await client.create("gated"), await client.create("ask_name")
    results += [await client.get(running), await client.until(asking, "input_required")]
    results.append(await client.update(asking, **{"elicitation-1": accept(name="Ada")}))
    done = await client.until(asking, "completed")
    failed = await client.until(await client.create("breaks"), "failed")
    results += [done, done["result"], failed, await client.cancel(running), await client.get(running)]
    assert {result["resultType"] for result in results} == {"complete", "input_required"}


@pytest.mark.requirement("eras/no-tasks-result")
async def test_the_removed_methods_are_not_found_whatever_their_params(client: Tasking) -> None:
    for method in ("tasks/result", "tasks/list"):
        for params in ({}, {"taskId": "nope"}, {"taskId": 7}, {"cursor": "x"}):
            reply = await client.ask(method, params)
            assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)


@pytest.mark.requirement("eras/task-param-is-ignored")
async def test_the_task_parameter_changes_nothing(client: Tasking, wire: HttpWire, store: MemoryStore) -> None:
    for number, task in enumerate(({"ttl": 1}, None, 7, "soon", [], {"ttl": "soon"}), start=1):
        call = {**ECHO, "task": task}
        created = (await client.ask("tools/call", call)).result
        assert (created["resultType"], created["ttlMs"] > 1) == ("task", True)
        assert (await wire.send(request("tools/call", call, capabilities={}))).result["resultType"] == "complete"
        unmarked = {"name": "greet", "arguments": {"name": "Ada"}, "task": task}
        assert (await client.ask("tools/call", unmarked)).result["resultType"] == "complete"
        assert len(await all_tasks(store)) == number


# Clients of earlier versions


@pytest.mark.requirement("eras/extension-means-nothing-before")
async def test_a_legacy_client_that_declares_the_extension_gets_plain_results(
    client: Tasking, wire: HttpWire, store: MemoryStore
) -> None:
    session, _ = await initialize(wire, TASKS)
    for meta in ({}, {"io.modelcontextprotocol/clientCapabilities": dict(TASKS)}):
        reply = await session.ask("tools/call", {**ECHO, "_meta": meta})
        check_legacy_result("CallToolResult", reply.result)
        assert text_of(reply.result) == "plain"
        assert "resultType" not in reply.result
    assert await all_tasks(store) == []
    task_id = await client.create("gated")
    for params in ({}, {"taskId": 7}):
        reply = await session.ask("tasks/update", {"taskId": task_id, "inputResponses": {}, **params})
        assert reply.code == METHOD_NOT_FOUND
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("eras/extension-means-nothing-before", "older/capability")
@pytest.mark.parametrize("version", [v for v in HANDSHAKE_PROTOCOL_VERSIONS if v != LEGACY])
async def test_versions_before_tasks_have_none(
    client: Tasking, wire: HttpWire, store: MemoryStore, version: str
) -> None:
    task_id = await client.create("gated")
    session, hello = await initialize(wire, {**TASKS, **LEGACY_TASKS}, version)
    assert hello["protocolVersion"] == version
    assert "tasks" not in hello["capabilities"]
    for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"):
        both: list[dict[str, Any]] = [{"taskId": task_id, "inputResponses": {}}, {"taskId": 7}]
        for params in both:
            assert (await session.ask(method, params)).code == METHOD_NOT_FOUND
    tools = (await session.ask("tools/list")).result["tools"]
    assert [tool["name"] for tool in tools if "execution" in tool] == []
    assert text_of((await session.ask("tools/call", {**ECHO, "task": {"ttl": 1}})).result) == "plain"
    assert (await session.ask("tools/call", MUST)).code == METHOD_NOT_FOUND
    assert [task.id for task in await all_tasks(store)] == [task_id]
    assert (await client.get(task_id))["status"] == "working"
