"""The extension beside the experimental tasks of 2025-11-25."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from harness.http import HttpWire, initialize
from harness.rpc import EXTENSION, LEGACY, METHOD_NOT_FOUND, MISSING_CAPABILITY, TASKS, Tasking, request, text_of
from harness.schema import check_legacy_result
from harness.stored import all_tasks
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

LEGACY_TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}


@pytest.mark.requirement("eras/extension-means-nothing-before")
async def test_a_legacy_client_that_declares_the_extension_gets_plain_results(
    wire: HttpWire, store: MemoryStore
) -> None:
    session, _ = await initialize(wire, TASKS)
    declared = {"io.modelcontextprotocol/clientCapabilities": dict(TASKS)}
    for meta in ({}, declared):
        reply = await session.ask("tools/call", {"name": "echo", "arguments": {"value": "plain"}, "_meta": meta})
        check_legacy_result("CallToolResult", reply.result)
        assert text_of(reply.result) == "plain"
        assert "resultType" not in reply.result
    assert await all_tasks(store) == []


@pytest.mark.requirement("eras/extension-means-nothing-before")
@pytest.mark.parametrize("params", [{}, {"taskId": 7}], ids=["well-formed", "malformed"])
async def test_the_methods_of_the_extension_alone_do_not_exist_for_a_legacy_client(
    client: Tasking, wire: HttpWire, params: dict[str, Any]
) -> None:
    task_id = await client.create("gated")
    session, _ = await initialize(wire, TASKS)
    reply = await session.ask("tasks/update", {"taskId": task_id, "inputResponses": {}, **params})
    assert reply.code == METHOD_NOT_FOUND
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("eras/extension-means-nothing-before")
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
    reply = await session.ask("tools/call", {"name": "echo", "arguments": {"value": "plain"}, "task": {"ttl": 1}})
    assert text_of(reply.result) == "plain"
    assert (await session.ask("tools/call", {"name": "must", "arguments": {}})).code == METHOD_NOT_FOUND
    assert [task.id for task in await all_tasks(store)] == [task_id]
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("eras/legacy-capability-is-no-declaration")
async def test_the_legacy_capability_does_not_declare_the_extension(client: Tasking) -> None:
    old = client.declaring(LEGACY_TASKS)
    assert (await old.call("echo", value=1))["resultType"] == "complete"
    assert (await old.ask("tools/call", {"name": "must", "arguments": {}})).code == MISSING_CAPABILITY
    assert (await old.ask("tasks/get", {"taskId": await client.create("gated")})).code == MISSING_CAPABILITY


@pytest.mark.requirement("eras/no-tasks-result")
@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_the_removed_methods_are_not_found_whatever_their_params(client: Tasking, method: str) -> None:
    for params in ({}, {"taskId": "nope"}, {"taskId": 7}, {"cursor": "x"}):
        reply = await client.ask(method, params)
        assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)


@pytest.mark.requirement("eras/task-param-is-ignored")
async def test_the_task_parameter_changes_nothing(client: Tasking, wire: HttpWire, store: MemoryStore) -> None:
    call = {"name": "echo", "arguments": {"value": 1}, "task": {"ttl": 1}}
    created = (await client.ask("tools/call", call)).result
    assert created["resultType"] == "task"
    assert created["ttlMs"] > 1
    plain = await wire.send(request("tools/call", call, capabilities={}))
    assert plain.result["resultType"] == "complete"
    unmarked = {"name": "greet", "arguments": {"name": "Ada"}, "task": {}}
    assert (await client.ask("tools/call", unmarked)).result["resultType"] == "complete"
    assert len(await all_tasks(store)) == 1


@pytest.mark.requirement("eras/task-param-is-ignored")
@pytest.mark.parametrize("task", [None, 7, "soon", [], {"ttl": "soon"}], ids=repr)
async def test_a_malformed_task_parameter_changes_nothing_either(client: Tasking, task: Any) -> None:
    call = {"name": "echo", "arguments": {"value": 1}, "task": task}
    assert (await client.ask("tools/call", call)).result["resultType"] == "task"


@pytest.mark.requirement("eras/migrated", "eras/no-legacy-capabilities")
async def test_no_legacy_capability_is_advertised_beside_the_extension(client: Tasking) -> None:
    capabilities = (await client.ask("server/discover")).result["capabilities"]
    assert EXTENSION in capabilities["extensions"]
    assert "tasks" not in capabilities
    tools = (await client.ask("tools/list")).result["tools"]
    assert [tool["name"] for tool in tools if "execution" in tool] == []
