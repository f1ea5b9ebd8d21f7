"""Which calls become tasks, and whose they are: the author's choices, and what a caller sees of them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from mcp.server import Server
from mcp_types import CallToolRequestParams, ListToolsResult, Tool

from harness.http import serving
from harness.official import in_memory
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    MODERN,
    NOTHING,
    PATIENCE,
    Tasking,
    accept,
    request,
    text_of,
)
from harness.server import QUICK, Desk, build
from harness.stored import all_tasks
from mcp_tasks import TaskMode, Tasks
from mcp_tasks.server import Caller
from mcp_tasks.stores.memory import MemoryStore
from tests.wire.servers import kind_of, server_of, where

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=PATIENCE)


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (None, {"unmarked": "complete", "optional": "task", "required": "task", "forbidden": "complete"}),
        (True, {"unmarked": "task", "optional": "task", "required": "task", "forbidden": "complete"}),
        (False, {"unmarked": "complete", "optional": "complete", "required": "task", "forbidden": "complete"}),
    ],
    ids=["no rule", "a rule that agrees", "a rule that declines"],
)
async def test_mode_and_rule_decide_together_and_only_for_clients_that_declare(
    augment: bool | None, expected: dict[str, str]
) -> None:
    seen: list[Any] = []

    def rule(params: CallToolRequestParams) -> bool:
        seen.append(params.arguments)
        return augment is True

    # Without it, calls of clients that do not declare are answered by a task that they do not see.
    tasks = Tasks("memory://", augment=None if augment is None else rule, settings=QUICK, fallback="inline")
    modes: dict[str, TaskMode | None] = {
        "unmarked": None,
        "optional": "optional",
        "required": "required",
        "forbidden": "forbidden",
    }
    server = server_of(tasks)
    for name, mode in modes.items():
        server.add_tool(where, name=name)
        if mode is not None:
            tasks.mark(name, mode=mode)
    async with serving(server) as wire:
        client, plain = Tasking(wire), Tasking(wire, NOTHING)
        assert {tool: await kind_of(client, tool) for tool in expected} == expected
        assert await kind_of(plain, "required") == str(MISSING_CAPABILITY)
        for tool in ("unmarked", "optional", "forbidden"):
            assert text_of(await plain.call(tool)) == "in a call"
    assert seen == ([] if augment is None else [{}] * len(seen))
    assert bool(seen) == (augment is not None)


# What a tool may do


async def test_a_tool_in_a_plain_call_has_no_task() -> None:
    desk = Desk()
    async with serving(build(Tasks("memory://", settings=QUICK, fallback="inline"), desk)) as wire:
        await Tasking(wire, NOTHING).call("introspect")
    [seen] = desk.seen
    assert (seen["task"], seen["owner"], seen["attempt"]) == (None, None, 1)


async def test_tools_that_only_wait_for_an_answer_leave_room_for_others() -> None:
    async with serving(build(Tasks("memory://", concurrency=1, settings=QUICK))) as wire:
        client = Tasking(wire, EVERYTHING)
        asking = [await client.create("ask_name") for _ in range(3)]
        for task_id in asking:
            await client.until(task_id, "input_required")
        assert text_of((await client.finish("echo", value="room"))["result"]) == "room"
        for task_id in asking:
            await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
            assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


async def test_a_tool_that_runs_too_long_fails_and_says_so() -> None:
    tasks, desk = Tasks("memory://", settings=QUICK), Desk()
    server = build(tasks, desk)
    tasks.mark("gated", max_runtime=timedelta(milliseconds=20))
    async with serving(server) as wire:
        client = Tasking(wire)
        task = await client.until(await client.create("gated"), "failed")
    assert task["error"]["data"] == {"reason": "max_runtime"}
    assert "0.02 s" in task["statusMessage"]
    assert desk.stopped.is_set()


async def test_a_handler_that_returns_a_task_by_itself_is_an_error_that_names_the_tool_and_the_extension() -> None:
    times = dict.fromkeys(("createdAt", "lastUpdatedAt"), "2026-07-28T10:30:00Z")
    stray = {"resultType": "task", "taskId": "x", "status": "working", "ttlMs": None, **times}

    async def call_tool(ctx: Any, params: Any) -> Any:
        return stray

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="stray", input_schema={"type": "object"})])

    server: Server[Any] = Server("stray", on_call_tool=call_tool, on_list_tools=list_tools)
    Tasks("memory://").attach(server)
    async with in_memory(server, declares=False) as wire:
        refused = await Tasking(wire, NOTHING).ask("tools/call", {"name": "stray", "arguments": {}})
    assert refused.code == INTERNAL_ERROR
    said = "Tool 'stray' returned a CreateTaskResult, and the client did not declare the extension"
    assert refused.error["message"].startswith(said)


# Whom a task belongs to, by a rule of the author's; `tests/trust` has what follows from it


async def test_the_rule_sees_the_caller_whole() -> None:
    callers: list[Caller] = []

    def rule(caller: Caller) -> str | None:
        callers.append(caller)
        return "everybody"

    async with serving(build(Tasks("memory://", settings=QUICK, principal=rule))) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("ask_name")
        await client.get(task_id)
    created, looked = callers
    assert (created.protocol_version, created.principal) == (MODERN, None)
    assert created.client_info == {"name": "raw", "version": "1"}
    assert created.capabilities == EVERYTHING
    assert (created.headers["mcp-name"], looked.headers["mcp-name"]) == ("ask_name", task_id)


async def a_name() -> str:
    return "alice"


@pytest.mark.filterwarnings("error")
async def test_a_rule_that_returns_no_name_is_reported_and_nothing_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, returned = MemoryStore(), list[Callable[[], Any]]([lambda: "alice"])
    tasks = Tasks(store, settings=QUICK, principal=lambda _: returned[0]())
    async with serving(build(tasks, Desk())) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("tools/call", {"name": "gated", "arguments": {}}),
            ("tasks/get", {"taskId": task_id}),
            ("tasks/cancel", {"taskId": task_id}),
            ("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}),
        ]
        for returned[0] in (lambda: 7, lambda: b"alice", a_name):
            for method, params in calls:
                caplog.clear()
                reply = await wire.send(request(method, params, capabilities=EVERYTHING))
                assert reply.code == INTERNAL_ERROR, method
                assert "This server cannot tell whose tasks yours are" in reply.error["message"]
                said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
                [line] = [line for line in said if "principal=" in line]
                assert "a str or None" in line
        gc.collect()
        returned[0] = lambda: "alice"
        assert (await client.get(task_id))["status"] == "working"
        assert [task.id for task in await all_tasks(store)] == [task_id]
