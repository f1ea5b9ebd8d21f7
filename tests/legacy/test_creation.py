"""Calls with `params.task` on the 2025-11-25 wire: what becomes a task, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ListToolsResult, PaginatedRequestParams, Tool, ToolExecution
from pydantic import BaseModel, ValidationError

from harness.http import HttpWire, initialize, serving
from harness.lowlevel import build_lowlevel
from harness.rpc import EVERYTHING, INVALID_PARAMS, METHOD_NOT_FOUND, Tasking, text_of
from harness.server import QUICK, Desk, build
from harness.stdio import stdio_process
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.model import TaskRequest
from mcp_tasks.stores.memory import MemoryStore
from tests.legacy.tasking import ASKABLE, OldTasks, StdioSession, over_http, over_stdio

pytestmark = pytest.mark.anyio

DAY_MS = 24 * 60 * 60 * 1000
WITH_LIST: dict[str, Any] = {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}


@asynccontextmanager
async def served(
    store: MemoryStore | None = None, desk: Desk | None = None, **options: Any
) -> AsyncGenerator[HttpWire]:
    async with serving(build(Tasks(store or MemoryStore(), settings=QUICK, **options), desk)) as wire:
        yield wire


async def request_of(store: MemoryStore, task_id: str) -> TaskRequest:
    request = await store.request(task_id)
    assert request is not None
    return request


# What is declared


@pytest.mark.parametrize("json_response", [False, True], ids=["streams", "json"])
async def test_the_handshake_declares_what_can_be_done_with_tasks(json_response: bool) -> None:
    async with serving(build(Tasks("memory://", settings=QUICK)), json_response=json_response) as wire:
        _, hello = await initialize(wire, ASKABLE)
    assert hello["capabilities"]["tasks"] == WITH_LIST


async def test_the_handshake_over_pipes_declares_the_same() -> None:
    async with stdio_process("--store", "memory://") as wire:
        old, hello = await over_stdio(wire)
        assert hello["capabilities"]["tasks"] == WITH_LIST
        task = await old.create("echo", {"value": "over pipes"})
        assert text_of(await old.result(task["taskId"])) == "over pipes"
        assert await old.listed() == [task["taskId"]]


async def test_tools_say_whether_they_can_be_tasks() -> None:
    async with served() as wire:
        old = await over_http(wire)
        tools = {tool["name"]: tool for tool in (await old.ask("tools/list")).result["tools"]}
    assert tools["must"]["execution"] == {"taskSupport": "required"}
    assert tools["echo"]["execution"] == {"taskSupport": "optional"}
    # Left out, it means forbidden.
    assert "execution" not in tools["greet"]
    assert "execution" not in tools["never"]


async def test_tools_of_a_low_level_server_say_it_too() -> None:
    async with serving(build_lowlevel(Tasks("memory://", settings=QUICK))) as wire:
        old = await over_http(wire)
        tools = {tool["name"]: tool.get("execution") for tool in (await old.ask("tools/list")).result["tools"]}
        assert (tools["echo"], tools["greet"]) == ({"taskSupport": "optional"}, None)
        task = await old.create("echo", {"value": "low"})
        assert "low" in text_of(await old.result(task["taskId"]))


async def test_every_page_says_it_and_what_a_listing_says_itself_holds_only_where_it_is_true() -> None:
    async def list_tools(ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        boast = ToolExecution(task_support="required")
        pages = [
            ListToolsResult(
                tools=[Tool(name="plain", input_schema={"type": "object"}, execution=boast)], next_cursor="2"
            ),
            ListToolsResult(tools=[Tool(name="marked", input_schema={"type": "object"}, execution=boast)]),
        ]
        return pages[params is not None and params.cursor == "2"]

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[])

    tasks = Tasks("memory://", settings=QUICK)
    server: Server[Any] = Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)
    tasks.mark("marked")
    tasks.attach(server)
    async with serving(server) as wire:
        old = await over_http(wire)
        first, second = (await old.ask("tools/list")).result, (await old.ask("tools/list", {"cursor": "2"})).result
    assert (first["nextCursor"], first["tools"][0]["execution"]) == ("2", {"taskSupport": "forbidden"})
    assert second["tools"][0]["execution"] == {"taskSupport": "optional"}


async def test_a_tool_that_is_added_later_says_it_too() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = build(tasks)
    async with serving(server) as wire:
        old = await over_http(wire)

        @server.tool()
        @tasks.task()
        def latecomer() -> str:
            """Added while the server runs."""
            return "late"

        tools = {tool["name"]: tool.get("execution") for tool in (await old.ask("tools/list")).result["tools"]}
        assert tools["latecomer"] == {"taskSupport": "optional"}
        assert (await old.create("latecomer"))["status"] == "working"


# What becomes a task


async def test_a_call_with_the_task_param_is_answered_with_a_working_task() -> None:
    async with served(desk=(desk := Desk())) as wire:
        old = await over_http(wire)
        reply = await old.try_create("gated", ttl=60_000)
        assert list(reply.result) == ["task"]
        assert reply.result["task"]["status"] == "working"
        assert (reply.result["task"]["ttl"], "statusMessage" in reply.result["task"]) == (60_000, False)
        desk.gate.set()
        assert text_of(await old.result(reply.result["task"]["taskId"])) == "through"


async def test_a_call_without_it_is_a_plain_call() -> None:
    store = MemoryStore()
    async with served(store) as wire:
        old = await over_http(wire)
        for params in ({}, {"task": None}):
            reply = await old.ask("tools/call", {"name": "echo", "arguments": {"value": "plain"}, **params})
            assert text_of(reply.result) == "plain"
    assert await all_tasks(store) == []


@pytest.mark.parametrize("tool", ["echo", "fails", "ask_name", "ask_before", "ask_by_returning"])
async def test_a_task_begins_as_working_however_soon_its_tool_ends_or_asks(tool: str) -> None:
    async with served(grace=timedelta(seconds=20)) as wire:
        old = await over_http(wire)
        task = await old.create(tool, {"value": 1} if tool == "echo" else {})
        assert task["status"] == "working"
        seen = await old.until(task["taskId"], "completed", "failed", "input_required")
        assert seen["taskId"] == task["taskId"]


async def test_an_immediate_response_goes_with_the_task() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = build(tasks)

    @server.tool()
    @tasks.task(immediate_response="It will take a while. Do something else meanwhile.")
    def slow() -> str:
        """Slow."""
        return "done"

    async with serving(server) as wire:
        old = await over_http(wire)
        created = (await old.try_create("slow")).result
        key = "io.modelcontextprotocol/model-immediate-response"
        assert created["_meta"] == {key: "It will take a while. Do something else meanwhile."}
        assert "_meta" not in (await old.get(created["task"]["taskId"]))


async def test_a_run_knows_its_caller_from_the_handshake_and_nothing_of_the_task_param() -> None:
    store, desk = MemoryStore(), Desk()
    async with served(store, desk) as wire:
        old = await over_http(wire)
        meta = {"progressToken": "p", "mine": 1, "io.modelcontextprotocol/related-task": {"taskId": "another"}}
        call = {"name": "introspect", "arguments": {}, "task": {"ttl": 5000}, "_meta": meta}
        task = (await old.ask("tools/call", call)).result["task"]
        await old.result(task["taskId"])
        request = await request_of(store, task["taskId"])
    [seen] = desk.seen
    assert (seen["version"], seen["meta"]) == ("2025-11-25", {"mine": 1})
    assert request.client_info == {"name": "raw", "version": "1"}
    assert request.client_capabilities == ASKABLE
    assert (request.method, request.name, request.arguments, request.meta) == (
        "tools/call",
        "introspect",
        {},
        {"mine": 1},
    )


# How long it is kept


@pytest.mark.parametrize(
    ("ttl", "kept"),
    [
        ({}, DAY_MS),
        ({"ttl": 60_000}, 60_000),
        ({"ttl": 0}, 0),
        ({"ttl": 1500.5}, 1501),
        ({"ttl": 90 * DAY_MS}, 30 * DAY_MS),
        ({"ttl": 10**300}, 30 * DAY_MS),
        ({"ttl": None}, 30 * DAY_MS),
    ],
    ids=repr,
)
async def test_the_ttl_is_as_asked_for_up_to_a_maximum(ttl: dict[str, Any], kept: int) -> None:
    async with served() as wire:
        old = await over_http(wire)
        task = await old.create("gated", **ttl)
        # Renewed in steps of half of it while the task runs.
        assert kept <= task["ttl"] <= kept + max(kept // 2, 1000)


@pytest.mark.parametrize("options", [{}, {"default_ttl": timedelta(hours=1)}, {"default_ttl": None}], ids=repr)
async def test_no_call_is_granted_more_than_the_authors_maximum(options: dict[str, Any]) -> None:
    tasks = Tasks("memory://", settings=QUICK, max_ttl=timedelta(minutes=1), **options)
    server: MCPServer[Any] = build(tasks)

    @server.tool()
    @tasks.task(ttl=None)
    def for_good() -> str:
        """Kept for good."""
        return "kept"

    @server.tool()
    @tasks.task(ttl=timedelta(seconds=5))
    def briefly() -> str:
        """Kept for a moment."""
        return "gone soon"

    async with serving(server) as wire:
        old = await over_http(wire)
        for tool in ("for_good", "gated"):
            wishes: list[dict[str, Any]] = [{}, {"ttl": None}, {"ttl": 90_000}, {"ttl": 10**9}]
            for wish in wishes:
                assert (await old.create(tool, **wish))["ttl"] == 60_000
            assert (await old.create(tool, ttl=2000))["ttl"] == 2000
        assert (await old.create("briefly"))["ttl"] == 5000
        assert (await old.create("briefly", ttl=10**6))["ttl"] == 60_000
        # A caller of the newest era cannot ask for a time, and gets the same.
        reply = await Tasking(wire, EVERYTHING).ask("tools/call", {"name": "gated", "arguments": {}})
        assert reply.result["ttlMs"] == 60_000


# What is refused


@pytest.mark.parametrize(
    "task",
    [7, "soon", [], True, {"ttl": "soon"}, {"ttl": -1}, {"ttl": True}, {"ttl": []}, {"ttl": {}}, {"ttl": 10**400}],
    ids=lambda task: repr(task)[:20],
)
async def test_a_malformed_task_param_is_refused(task: Any) -> None:
    store = MemoryStore()
    async with served(store) as wire:
        old = await over_http(wire)
        for tool in ("echo", "greet"):
            reply = await old.ask("tools/call", {"name": tool, "arguments": {"value": 1}, "task": task})
            assert reply.code == INVALID_PARAMS
            assert "params.task" in reply.error["message"]
    assert await all_tasks(store) == []


@pytest.mark.parametrize("tool", ["greet", "never"])
async def test_a_tool_that_is_never_a_task_cannot_be_called_as_one(tool: str) -> None:
    store = MemoryStore()
    async with served(store) as wire:
        old = await over_http(wire)
        reply = await old.try_create(tool, {"name": "Ada"})
        assert (reply.code, tool in reply.error["message"]) == (METHOD_NOT_FOUND, True)
    assert await all_tasks(store) == []


async def test_a_tool_that_is_always_a_task_cannot_be_called_without() -> None:
    async with served() as wire:
        old = await over_http(wire)
        reply = await old.ask("tools/call", {"name": "must", "arguments": {}})
        assert reply.code == METHOD_NOT_FOUND
        assert reply.error["message"] == "Tool 'must' can only be called as a task: add params.task"
        assert text_of(await old.result((await old.create("must"))["taskId"])) == "as a task"


async def test_a_tool_that_is_not_there_is_refused_as_in_a_plain_call() -> None:
    async with served() as wire:
        old = await over_http(wire)
        plain = await old.ask("tools/call", {"name": "nope", "arguments": {}})
        assert {**(await old.try_create("nope")).message, "id": 0} == {**plain.message, "id": 0}


@pytest.mark.parametrize("marked", ["by function", "by name"])
async def test_arguments_that_the_tool_does_not_take_are_refused_and_there_is_no_task(marked: str) -> None:
    store = MemoryStore()
    tasks = Tasks(store, settings=QUICK)
    server: MCPServer[Any] = build(tasks)

    def add(left: int, right: int = 0) -> str:
        """Add."""
        return str(left + right)

    server.add_tool(tasks.task()(add) if marked == "by function" else add)
    if marked == "by name":
        tasks.mark("add")
    async with serving(server) as wire:
        old = await over_http(wire)
        for arguments in ({}, {"left": "many"}, {"left": None}):
            reply = await old.try_create("add", arguments)
            assert (reply.code, "left" in reply.error["message"]) == (INVALID_PARAMS, True), arguments
        assert await all_tasks(store, server.name) == []
        # The SDK takes more than the schema says, in a task as in a plain call.
        task = await old.create("add", {"left": "7", "right": 1})
        assert text_of(await old.result(task["taskId"])) == "8"


@pytest.mark.parametrize("marked", ["by name", "whole server"])
async def test_a_tool_that_was_entered_keeps_its_task_whatever_its_arguments_look_like(marked: str) -> None:
    whole = marked == "whole server"
    tasks = Tasks(MemoryStore(), settings=QUICK, default_mode="optional" if whole else "forbidden")
    server: MCPServer[Any] = build(tasks)
    paid: list[int] = []

    class Receipt(BaseModel):
        total: int

    def pay(amount: int) -> str:
        """Pay, and fail then."""
        paid.append(amount)
        try:
            return str(Receipt.model_validate({"total": "none"}))
        except ValidationError as exc:
            raise ToolError(str(exc)) from exc

    server.add_tool(pay)
    if marked == "by name":
        tasks.mark("pay")
    async with serving(server) as wire:
        old = await over_http(wire)
        task = await old.create("pay", {"amount": "7"})
        assert (await old.until(task["taskId"], "failed"))["status"] == "failed"
        result = await old.result(task["taskId"])
        assert (result["isError"], "1 validation error for Receipt" in text_of(result)) == (True, True)
    assert paid == [7]


@pytest.mark.parametrize("params", [{}, {"name": 7}, {"name": "echo", "arguments": []}, {"name": "echo", "_meta": 7}])
async def test_malformed_params_are_refused_as_in_a_plain_call(params: dict[str, Any]) -> None:
    async with served() as wire:
        old = await over_http(wire)
        plain = await old.ask("tools/call", params)
        asked = await old.ask("tools/call", {**params, "task": {}})
        assert (plain.code, asked.code) == (INVALID_PARAMS, INVALID_PARAMS)


async def test_where_a_method_has_no_tasks_the_param_is_ignored() -> None:
    store = MemoryStore()
    async with served(store) as wire:
        old = await over_http(wire)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("prompts/get", {"name": "introduce", "arguments": {"person": "Ada"}}),
            ("resources/read", {"uri": "memo://greeting"}),
        ]
        for method, params in calls:
            plain = (await old.ask(method, params)).result
            assert (await old.ask(method, {**params, "task": {"ttl": 5}})).result == plain
    assert await all_tasks(store) == []


async def test_nothing_is_served_before_the_handshake() -> None:
    async with stdio_process("--store", "memory://") as wire:
        early = OldTasks(StdioSession(wire))
        assert (await early.try_create("echo", {"value": 1})).code == INVALID_PARAMS
        for method in ("tasks/get", "tasks/cancel"):
            assert (await early.ask(method, {"taskId": "any"})).code == INVALID_PARAMS
        for method in ("tasks/result", "tasks/list"):
            assert (await early.ask(method, {"taskId": "any"})).code == METHOD_NOT_FOUND
        old, _ = await over_stdio(wire)
        assert await old.listed() == []
