"""What `tools/list` shows to whom."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mcp.server import Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

from harness.http import initialize, serving
from harness.rpc import TASKS, request
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback, Host
from mcp_tasks.fallback.service import widened
from tests.fallback.rendering import MODERN, MODES, SOON, Farm, chat, handle_of, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

either_mode = pytest.mark.parametrize("mode", MODES)
WAYS = Fallback(wait=SOON, legs=1)
INLINE = replace(WAYS, modern=False, older=False)
COMPANIONS = ["task_status", "task_cancel"]
OWN = ["render", "publish", "fails", "plain"]
PUBLIC: Mapping[Any, CacheHint] = {"tools/list": CacheHint(ttl_ms=60_000, scope="public")}


async def listed(farm: Farm, mode: str, **options: Any) -> list[Tool]:
    """The tools that a client without tasks sees."""
    async with chat(farm.server, mode, **options) as client:
        return (await client.list_tools()).tools


async def answered(farm: Farm, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `tools/list` on the newest wire, as it came."""
    async with serving(farm.server) as wire:
        return (await wire.send(request("tools/list", capabilities=capabilities))).result


def names_of(tools: list[Tool]) -> list[str]:
    return [tool.name for tool in tools]


def is_wider(tool: Tool) -> bool:
    """Whether the schema of the tool allows a handle."""
    schema = tool.output_schema or {}
    return len(schema.get("anyOf", [])) == 2 and "taskId" in schema["anyOf"][1]["properties"]


@either_mode
async def test_a_caller_without_tasks_sees_the_companions_and_wider_schemas(mode: str) -> None:
    tools = await listed(Farm(), mode)
    assert names_of(tools) == [*OWN, *COMPANIONS]
    assert [is_wider(tool) for tool in tools] == [True, True, True, False, False, False]


async def test_a_caller_with_tasks_sees_what_it_always_saw() -> None:
    before = await answered(Farm(ways=INLINE), TASKS)
    assert json.dumps(await answered(Farm(), TASKS)) == json.dumps(before)
    assert [tool["name"] for tool in before["tools"]] == OWN


async def test_the_older_wire_shows_the_same_but_for_hosts_that_ask_for_tasks() -> None:
    farm = Farm(options={"hosts": {"asker": Host(asks_for_tasks=True)}})
    tools = await listed(farm, "legacy", name="asker")
    assert names_of(tools) == OWN
    assert [is_wider(tool) for tool in tools] == [True, True, True, False]
    # Without declaring tasks it gets none on the newest wire, whatever it does elsewhere.
    assert names_of(await listed(farm, MODERN, name="asker")) == [*OWN, *COMPANIONS]


async def test_a_host_that_asks_for_tasks_has_companions_in_versions_without_any() -> None:
    farm = Farm(options={"hosts": {"raw": Host(asks_for_tasks=True)}})
    async with serving(farm.server) as wire:
        for version, seen in (("2025-11-25", OWN), ("2025-06-18", [*OWN, *COMPANIONS])):
            session, _ = await initialize(wire, {}, version)
            tools = (await session.ask("tools/list")).result["tools"]
            assert [tool["name"] for tool in tools] == seen


@either_mode
@pytest.mark.parametrize("who", ["chat", "asker"])
async def test_always_is_for_everybody(mode: str, who: str) -> None:
    farm = Farm(options={"companions": "always", "hosts": {"asker": Host(asks_for_tasks=True)}})
    assert names_of(await listed(farm, mode, name=who)) == [*OWN, *COMPANIONS]


async def test_always_is_for_callers_with_tasks_and_servers_without_need_too() -> None:
    with_tasks = await answered(Farm(options={"companions": "always"}), TASKS)
    assert [tool["name"] for tool in with_tasks["tools"]] == [*OWN, *COMPANIONS]
    assert "anyOf" not in with_tasks["tools"][0]["outputSchema"]
    no_need = await answered(Farm(ways=INLINE, options={"companions": "always"}), {})
    assert [tool["name"] for tool in no_need["tools"]] == [*OWN, *COMPANIONS]


@either_mode
async def test_never_is_for_nobody_and_the_schemas_are_wider_all_the_same(mode: str) -> None:
    tools = await listed(Farm(options={"companions": "never"}), mode)
    assert names_of(tools) == OWN
    assert is_wider(tools[0])


@either_mode
async def test_where_all_calls_are_plain_nothing_is_different(mode: str) -> None:
    tools = await listed(Farm(ways=INLINE), mode)
    assert names_of(tools) == OWN
    assert not any(map(is_wider, tools))


@pytest.mark.parametrize(("mode", "is_different"), [(MODERN, True), ("legacy", False)])
async def test_what_holds_for_one_wire_is_shown_on_that_alone(mode: str, is_different: bool) -> None:
    tools = await listed(Farm(ways=replace(WAYS, older=False)), mode)
    assert ("task_status" in names_of(tools), is_wider(tools[0])) == (is_different, is_different)


@either_mode
async def test_where_no_word_is_given_before_the_end_there_are_no_companions(mode: str) -> None:
    # The schemas allow it: the server may have to stop before the end.
    tools = await listed(Farm(ways=replace(WAYS, handle=False)), mode)
    assert names_of(tools) == OWN
    assert is_wider(tools[0])


@either_mode
async def test_a_tool_whose_calls_stay_plain_keeps_its_schema(mode: str) -> None:
    farm = Farm()
    farm.tasks.mark("render", fallback="inline")
    farm.tasks.mark("fails", mode="required")
    tools = await listed(farm, mode)
    assert [tool.name for tool in tools if is_wider(tool)] == ["publish"]


@either_mode
async def test_a_model_is_offered_to_answer_where_the_author_of_some_tool_allows_it(mode: str) -> None:
    farm = Farm()
    farm.tasks.mark("publish", fallback=replace(WAYS, model_may_answer=True))
    tools = {tool.name: tool for tool in await listed(farm, mode)}
    assert list(tools)[4:] == [*COMPANIONS, "task_answer"]
    assert tools["task_answer"].input_schema["required"] == ["task_id", "action"]


@either_mode
async def test_the_companions_say_what_they_do(mode: str) -> None:
    farm = Farm(ways=replace(WAYS, model_may_answer=True), options={"companion_prefix": "farm_"})
    tools = {tool.name: tool for tool in await listed(farm, mode)}
    hints = {
        name: tools[name].annotations.model_dump(exclude_none=True, exclude={"title"})  # pyright: ignore[reportOptionalMemberAccess]
        for name in ("farm_task_status", "farm_task_cancel", "farm_task_answer")
    }
    assert hints == {
        "farm_task_status": {
            "read_only_hint": True,
            "destructive_hint": False,
            "idempotent_hint": True,
            "open_world_hint": False,
        },
        "farm_task_cancel": {
            "read_only_hint": False,
            "destructive_hint": True,
            "idempotent_hint": True,
            "open_world_hint": False,
        },
        "farm_task_answer": {
            "read_only_hint": False,
            "destructive_hint": True,
            "idempotent_hint": False,
            "open_world_hint": True,
        },
    }
    for name in hints:
        assert tools[name].title
        assert tools[name].output_schema is None
        assert " task_" not in (tools[name].description or "").replace("task_id", "")


# Caches


async def test_a_listing_that_varies_is_private_to_those_it_was_made_for() -> None:
    nothing: Mapping[str, Any] = {}
    for capabilities in (nothing, TASKS):
        result = await answered(Farm(cache_hints=PUBLIC), capabilities)
        assert (result["cacheScope"], result["ttlMs"]) == ("private", 60_000)


async def test_a_listing_that_is_the_same_for_everybody_stays_public() -> None:
    for farm in (Farm(ways=INLINE, cache_hints=PUBLIC), Farm(ways=replace(WAYS, modern=False), cache_hints=PUBLIC)):
        assert (await answered(farm, {}))["cacheScope"] == "public"


# Pages


def paged(tasks: Tasks) -> Server[Any]:
    """A low-level server that lists a tool a page; the one that may become a task is on the first."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [Tool(name=name, input_schema={"type": "object"}, output_schema=schema) for name in ("long", "short")]

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        page = int((params and params.cursor) or 0)
        return ListToolsResult(tools=[tools[page]], next_cursor="1" if page == 0 else None)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[Any] = Server("paged", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    tasks.mark("long")
    tasks.attach(server)
    return server


@either_mode
async def test_the_companions_are_on_the_last_page(mode: str) -> None:
    server = paged(Tasks("memory://", settings=QUICK, fallback=WAYS))
    async with chat(server, mode) as client:
        first = await client.list_tools()
        last = await client.list_tools(cursor=first.next_cursor)
    assert names_of(first.tools) == ["long"]
    assert first.tools[0].output_schema == widened({"type": "object", "properties": {"a": {"type": "string"}}})
    assert names_of(last.tools) == ["short", *COMPANIONS]
    assert not is_wider(last.tools[0])


@either_mode
async def test_a_tool_of_the_same_name_that_came_later_is_not_listed_twice(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    farm = Farm()
    async with chat(farm.server, mode, cache=None) as client:

        @farm.server.tool()
        async def task_status() -> str:
            return "the server's own"

        del task_status
        with caplog.at_level(logging.ERROR, "mcp_tasks"):
            for _ in range(2):
                assert sorted(names_of((await client.list_tools()).tools)) == sorted([*OWN, *COMPANIONS])
    [said] = [record.getMessage() for record in caplog.records]
    assert "companion_prefix" in said


async def test_a_longer_wait_changes_nothing_of_a_listing() -> None:
    # Listings are compared by clients: equal ones must be equal.
    assert await answered(Farm(), {}) == await answered(Farm(ways=replace(WAYS, wait=timedelta(seconds=9))), {})


# Tools that are not known when the server starts


@either_mode
async def test_a_tool_that_is_marked_while_the_server_runs_has_companions_at_once(mode: str) -> None:
    farm = Farm(ways=INLINE)
    async with chat(farm.server, mode, cache=None) as client:
        farm.tasks.mark("render", fallback=WAYS)
        task_id = await handle_of(client)
        farm.tasks.mark("publish", fallback=WAYS)
        # Whatever is called first: nothing has looked at the tools since.
        status = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0})
        assert "is still running" in text_of(status)
        assert names_of((await client.list_tools()).tools) == [*OWN, *COMPANIONS]


@either_mode
@pytest.mark.parametrize("options", [{}, {"default_mode": "optional"}])
async def test_a_server_that_lists_no_tools_has_companions_for_those_it_is_known_by(
    mode: str, options: dict[str, Any]
) -> None:
    gate = asyncio.Event()

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[])

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        await gate.wait()
        return CallToolResult(content=[TextContent(type="text", text="done")])

    tasks = Tasks("memory://", settings=QUICK, fallback=WAYS, **options)
    server: Server[Any] = Server("silent", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    if not options:
        tasks.mark("long")
    tasks.attach(server)
    async with chat(server, mode) as client:
        task_id = await handle_of(client, "long")
        gate.set()
        got = await client.call_tool("task_status", {"task_id": task_id})
        assert text_of(got) == "done"
        assert names_of((await client.list_tools()).tools) == COMPANIONS
