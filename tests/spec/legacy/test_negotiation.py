"""What the handshake and `tools/list` promise, and what follows from it for a call."""

from __future__ import annotations

from typing import Any

import pytest

from harness.http import HttpWire
from harness.older import HttpClient, OlderClient, http_session
from harness.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, text_of
from harness.stored import all_tasks
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

DECLARED: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


@pytest.mark.requirement("older/capability", "older/list-capability", "older/cancel-capability")
async def test_the_handshake_declares_tasks_for_tool_calls(everywhere: OlderClient) -> None:
    assert everywhere.server["protocolVersion"] == "2025-11-25"
    assert everywhere.capabilities["tasks"] == DECLARED


@pytest.mark.requirement("older/capability")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_versions_without_tasks_hear_nothing_of_them(wire: HttpWire, store: MemoryStore, version: str) -> None:
    async with http_session(wire, version=version) as session:
        assert session.server["protocolVersion"] == version
        assert "tasks" not in session.capabilities
        tools = (await session.ask("tools/list")).result["tools"]
        assert [tool["name"] for tool in tools if "execution" in tool] == []
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
            assert (await session.ask(method, {"taskId": "x"})).code == METHOD_NOT_FOUND
        assert text_of((await session.call("echo", {"value": 1}, task={})).result) == "1"
    assert await all_tasks(store) == []


@pytest.mark.requirement("older/list-capability")
async def test_without_a_session_and_a_principal_there_is_no_list_and_none_is_declared(stateless: HttpWire) -> None:
    async with http_session(stateless) as session:
        assert session.session_id is None
        assert session.capabilities["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        await session.start("gated")
        assert (await session.ask("tasks/list")).code == METHOD_NOT_FOUND


@pytest.mark.requirement("older/list-capability", "older/cancel-capability")
async def test_without_sessions_tasks_work_by_id(stateless: HttpWire) -> None:
    async with http_session(stateless) as session, http_session(stateless) as other:
        task_id = await session.start("echo", value="by id")
        assert (await other.until(task_id, "completed"))["taskId"] == task_id
        assert text_of((await other.result(task_id)).result) == "by id"
        running = await session.start("gated")
        assert (await other.cancel(running))["status"] == "cancelled"


@pytest.mark.requirement("older/tool-support")
async def test_every_tool_says_whether_it_may_be_a_task(everywhere: OlderClient) -> None:
    tools = (await everywhere.ask("tools/list")).result["tools"]
    support = {tool["name"]: tool.get("execution", {}).get("taskSupport", "forbidden") for tool in tools}
    assert {support[name] for name in ("echo", "gated", "ask_name", "breaks")} == {"optional"}
    assert (support["must"], support["never"], support["greet"]) == ("required", "forbidden", "forbidden")


@pytest.mark.requirement("older/forbidden-tool")
async def test_a_tool_that_is_no_task_is_not_found_as_one(everywhere: OlderClient) -> None:
    for tool in ("never", "greet"):
        reply = await everywhere.call(tool, {"name": "Ada"}, task={})
        assert reply.code == METHOD_NOT_FOUND
        assert tool in reply.error["message"]


@pytest.mark.requirement("older/optional-tool")
async def test_a_tool_that_may_be_a_task_is_what_the_client_asks_for(client: HttpClient, store: MemoryStore) -> None:
    assert text_of((await client.call("echo", {"value": "plain"})).result) == "plain"
    assert await all_tasks(store) == []
    assert (await client.create("echo", value="task"))["status"] == "working"


@pytest.mark.requirement("older/required-tool", "older/requires-augmentation", "older/requires-tasks")
async def test_a_tool_that_must_be_a_task_is_not_found_otherwise(everywhere: OlderClient) -> None:
    reply = await everywhere.call("must")
    assert reply.code == METHOD_NOT_FOUND
    assert "must" in reply.error["message"]
    assert text_of((await everywhere.result(await everywhere.start("must"))).result) == "as a task"


@pytest.mark.requirement("older/undeclared-types", "older/exhaustive")
@pytest.mark.parametrize("task", [{}, {"ttl": 1000}, 7, None], ids=repr)
async def test_the_task_parameter_of_other_requests_is_ignored(
    client: HttpClient, store: MemoryStore, task: Any
) -> None:
    prompt = {"name": "introduce", "arguments": {"person": "Ada"}}
    for method, params in (
        ("prompts/get", prompt),
        ("resources/read", {"uri": "memo://greeting"}),
        ("tools/list", {}),
        ("resources/list", {}),
    ):
        plain = (await client.ask(method, params)).result
        assert (await client.ask(method, {**params, "task": task})).result == plain
    assert await all_tasks(store) == []


@pytest.mark.requirement("older/task-param")
@pytest.mark.parametrize("task", [7, "soon", [], {"ttl": "soon"}, {"ttl": -1}, {"ttl": True}, {"ttl": [1]}], ids=repr)
async def test_a_malformed_task_parameter_is_refused_and_runs_nothing(
    client: HttpClient, store: MemoryStore, task: Any
) -> None:
    assert (await client.call("echo", {"value": 1}, task=task)).code == INVALID_PARAMS
    assert await all_tasks(store) == []


@pytest.mark.requirement("older/task-param")
async def test_arguments_that_are_refused_make_no_task(client: HttpClient, store: MemoryStore) -> None:
    reply = await client.call("point", {"x": "far away"}, task={})
    assert reply.code == INVALID_PARAMS
    assert await all_tasks(store) == []
