"""Prompts, resources and resource templates as tasks on the 2025-11-25 wire, where document 004 has them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from mcp import Client
from mcp.server import MCPServer

from harness.http import initialize, serving
from harness.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, Reply
from mcp_tasks import Tasks
from tests.legacy.tasking import ASKABLE, RELATED, OldTasks, over_http
from tests.local.serving import LIMIT, QUICK, new_office

pytestmark = pytest.mark.anyio


async def create(old: OldTasks, method: str, params: Mapping[str, Any], **task: Any) -> dict[str, Any]:
    """The task of a request that asks for one."""
    return (await old.ask(method, {**params, "task": task})).result["task"]


@pytest.mark.requirement("local/prompts-and-resources-offered")
async def test_the_handshake_names_them_where_something_is_marked() -> None:
    async with serving(new_office().server) as wire:
        _, hello = await initialize(wire, ASKABLE)
        assert hello["capabilities"]["tasks"]["requests"] == {
            "tools": {"call": {}},
            "prompts": {"get": {}},
            "resources": {"read": {}},
        }


@pytest.mark.requirement("local/prompts-and-resources-offered")
async def test_the_handshake_names_only_tools_where_nothing_else_is_marked() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("tools only", **tasks.wiring())
    server.prompt(name="hello")(lambda: "hello")
    async with serving(server) as wire:
        _, hello = await initialize(wire, ASKABLE)
        assert hello["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        # 2025-11-25: what was not declared is processed as if it were not there.
        old = await over_http(wire)
        answered = await old.ask("prompts/get", {"name": "hello", "task": {}})
        assert "messages" in answered.result


@pytest.mark.requirement("local/prompt-task")
async def test_a_prompt_is_got_as_a_task() -> None:
    async with serving(new_office().server) as wire:
        old = await over_http(wire)
        plain = (await old.ask("prompts/get", {"name": "echo", "arguments": {"title": "v1"}})).result
        task = await create(old, "prompts/get", {"name": "echo", "arguments": {"title": "v1"}}, ttl=5000)
        assert (task["status"], task["ttl"]) == ("working", 5000)
        result = await old.result(task["taskId"])
        assert result == {**plain, "_meta": {RELATED: {"taskId": task["taskId"]}}}
        assert (await old.get(task["taskId"]))["status"] == "completed"
        assert await old.listed() == [task["taskId"]]


@pytest.mark.requirement("local/resource-task")
@pytest.mark.parametrize("uri", ["memo://echo", "memo://monday/notes"], ids=["resource", "template"])
async def test_a_resource_is_read_as_a_task(uri: str) -> None:
    async with serving(new_office().server) as wire:
        old = await over_http(wire)
        plain = (await old.ask("resources/read", {"uri": uri})).result
        task = await create(old, "resources/read", {"uri": uri})
        result = await old.result(task["taskId"])
        assert result == {**plain, "_meta": {RELATED: {"taskId": task["taskId"]}}}


@pytest.mark.requirement("local/outcome-raised", "local/error-related-task")
@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "broken_prompt"}), ("resources/read", {"uri": "memo://broken"})],
)
async def test_an_error_is_that_of_the_plain_request(method: str, params: dict[str, Any]) -> None:
    async with serving(new_office().server) as wire:
        old = await over_http(wire)
        plain = (await old.ask(method, params)).error
        task = await create(old, method, params)
        error = (await old.ask("tasks/result", {"taskId": task["taskId"]})).error
        assert (error["code"], error["message"]) == (plain["code"], plain["message"])
        assert error["data"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
        assert (await old.get(task["taskId"]))["status"] == "failed"


@pytest.mark.requirement("local/modes")
@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("prompts/get", {"name": "plain_prompt"}, METHOD_NOT_FOUND),
        ("resources/read", {"uri": "memo://plain"}, METHOD_NOT_FOUND),
        ("prompts/get", {"name": "echo"}, INVALID_PARAMS),
        ("prompts/get", {"name": "echo", "arguments": {"title": 7}}, INVALID_PARAMS),
    ],
)
async def test_what_cannot_be_a_task_is_refused(method: str, params: dict[str, Any], code: int) -> None:
    async with serving(new_office().server) as wire:
        old = await over_http(wire)
        refused = await old.ask(method, {**params, "task": {}})
        assert refused.error["code"] == code
        assert await old.listed() == []


@pytest.mark.requirement("local/modes")
async def test_what_must_be_a_task_is_refused_without_and_plain_where_there_are_none() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = MCPServer("must", **tasks.wiring())
    server.prompt(name="must")(lambda: "hello")
    server.resource("memo://must", name="must")(lambda: "hello")
    tasks.mark("must", kind="prompt", mode="required", ttl=timedelta(minutes=1))
    tasks.mark("memo://must", kind="resource", mode="required")
    async with serving(server) as wire:
        old = await over_http(wire)
        for method, params in (("prompts/get", {"name": "must"}), ("resources/read", {"uri": "memo://must"})):
            assert (await old.ask(method, params)).error["code"] == METHOD_NOT_FOUND
            task = await create(old, method, params)
            assert await old.result(task["taskId"])
    async with Client(server) as modern:
        # There they can be no tasks at all, and every host gets an answer.
        assert (await modern.get_prompt("must")).messages
        assert (await modern.read_resource("memo://must")).contents


async def test_a_prompt_that_is_not_there_is_for_the_server_to_say() -> None:
    async with serving(new_office().server) as wire:
        old = await over_http(wire)
        plain: Reply = await old.ask("prompts/get", {"name": "nothing"})
        asked: Reply = await old.ask("prompts/get", {"name": "nothing", "task": {}})
        assert asked.error == plain.error


@pytest.mark.requirement("local/session-scope")
async def test_a_session_scopes_the_list_and_owns_nothing() -> None:
    office = new_office()
    async with serving(office.server) as wire:
        old = await over_http(wire)
        task = await office.tasks.start("report", {"id": 1}, session="another")
        others = await office.tasks.start("report", {"id": 1}, owner="alice")
        await task.wait(LIMIT)
        assert await old.listed() == []
        assert (await old.get(task.id))["status"] == "completed"
        assert await old.listed() == [task.id]
        unknown = (await old.ask("tasks/get", {"taskId": "nothing"})).error
        assert (await old.ask("tasks/get", {"taskId": others.id})).error == unknown


async def test_a_task_of_this_wire_is_seen_in_the_process_and_the_other_way_round() -> None:
    office = new_office()
    async with serving(office.server) as wire:
        old = await over_http(wire)
        task = await create(old, "prompts/get", {"name": "echo", "arguments": {"title": "v1"}})
        local = office.tasks.handle(task["taskId"])
        assert (await local.wait(LIMIT)).messages
        assert (await local.fetch()).session is not None
        broken = await office.tasks.start("broken")
        assert (await old.result(broken.id))["isError"]
        seen = await old.get(broken.id)
        assert (seen["status"], seen["statusMessage"]) == ("failed", (await broken.fetch()).message)
