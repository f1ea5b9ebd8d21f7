"""Tasks of 2025-11-25: what is promised, answered and listed, and what `tasks/result` gives."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool, ToolExecution
from pydantic import BaseModel, ValidationError

from harness.http import HttpWire, serving
from harness.older import IMMEDIATE, RELATED, HttpClient, OlderClient, http_session
from harness.rpc import (
    EVERYTHING,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    PATIENCE,
    Tasking,
    accept,
    legacy_request,
    text_of,
)
from harness.server import QUICK, UNPACED, Desk
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.spec.calling import Caller
from tests.spec.furnished import furnished

DECLARED: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TASK_FIELDS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BY_ID = ("tasks/get", "tasks/result", "tasks/cancel")
REQUEST_CANCELLED = -32800


def served(tasks: Tasks, desk: Desk | None = None) -> AbstractAsyncContextManager[HttpWire]:
    return serving(furnished(tasks, desk))


# Promised


@pytest.mark.requirement(
    "older/capability",
    "older/list-capability",
    "older/cancel-capability",
    "older/create-result",
    "older/create-has-no-outcome",
    "older/poll-interval",
    "older/tool-support",
    "older/forbidden-tool",
    "older/required-tool",
    "older/requires-augmentation",
    "older/requires-tasks",
)
async def test_on_each_transport_the_handshake_and_the_list_of_tools_say_what_can_be_a_task(
    everywhere: OlderClient,
) -> None:
    assert everywhere.server["protocolVersion"] == "2025-11-25"
    assert everywhere.capabilities["tasks"] == DECLARED
    tools = {tool["name"]: tool.get("execution") for tool in (await everywhere.ask("tools/list")).result["tools"]}
    assert (tools["echo"], tools["must"]) == ({"taskSupport": "optional"}, {"taskSupport": "required"})
    # Left out, it means forbidden.
    assert (tools["greet"], tools["never"]) == (None, None)
    for tool in ("never", "greet"):
        refused = await everywhere.call(tool, {"name": "Ada"}, task={})
        assert (refused.code, tool in refused.error["message"]) == (METHOD_NOT_FOUND, True)
    refused = await everywhere.call("must")
    assert refused.code == METHOD_NOT_FOUND
    assert refused.error["message"] == "Tool 'must' can only be called as a task: add params.task"
    created = (await everywhere.call("must", task={})).result
    assert created.keys() - {"_meta"} == {"task"}
    assert created["task"].keys() == TASK_FIELDS
    assert created["task"]["pollInterval"] > 0
    assert text_of((await everywhere.result(created["task"]["taskId"])).result) == "as a task"


@pytest.mark.requirement("older/optional-tool")
async def test_a_tool_that_may_be_a_task_is_what_the_client_asks_for(older: HttpClient, store: MemoryStore) -> None:
    for params in ({}, {"task": None}):
        assert text_of((await older.call("echo", {"value": "plain"}, **params)).result) == "plain"
    assert await all_tasks(store) == []
    assert (await older.create("echo", value="task"))["status"] == "working"


async def test_every_page_of_tools_says_it_and_what_a_listing_says_itself_holds_only_where_it_is_true() -> None:
    boast = ToolExecution(task_support="required")

    async def list_tools(ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        plain, marked = (Tool(name=name, input_schema={"type": "object"}, execution=boast) for name in ("a", "b"))
        is_second = params is not None and params.cursor == "2"
        return ListToolsResult(tools=[marked]) if is_second else ListToolsResult(tools=[plain], next_cursor="2")

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="low")])

    tasks = Tasks("memory://", settings=QUICK)
    server: Server[Any] = Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)
    tasks.mark("b")
    tasks.attach(server)
    async with serving(server) as wire, http_session(wire) as older:
        first, second = [(await older.ask("tools/list", page)).result for page in ({}, {"cursor": "2"})]
        assert (first["nextCursor"], first["tools"][0]["execution"]) == ("2", {"taskSupport": "forbidden"})
        assert second["tools"][0]["execution"] == {"taskSupport": "optional"}
        assert text_of((await older.result(await older.start("b"))).result) == "low"


@pytest.mark.requirement("older/undeclared-types", "older/exhaustive")
async def test_the_task_parameter_of_other_requests_is_ignored(older: HttpClient, store: MemoryStore) -> None:
    requests: dict[str, dict[str, Any]] = {
        "prompts/get": {"name": "introduce", "arguments": {"person": "Ada"}},
        "resources/read": {"uri": "memo://greeting"},
        "tools/list": {},
        "resources/list": {},
    }
    for method, params in requests.items():
        plain = (await older.ask(method, params)).result
        for task in ({"ttl": 1000}, 7, None):
            assert (await older.ask(method, {**params, "task": task})).result == plain
    assert await all_tasks(store) == []


@pytest.mark.requirement("older/no-other-methods")
async def test_methods_that_the_version_does_not_have_are_not_found(older: HttpClient) -> None:
    task_id = await older.start("ask_name")
    for method in ("tasks/update", "tasks/sendInput", "tasks/delete", "subscriptions/listen"):
        assert (await older.ask(method, {"taskId": task_id, "inputResponses": {}})).code == METHOD_NOT_FOUND


# Answered


@pytest.mark.requirement("older/create-soon", "older/begins-working")
async def test_a_call_is_answered_with_a_working_task_however_soon_its_tool_ends_or_asks(desk: Desk) -> None:
    # A grace is for the newer version: here the client has asked for a task.
    tasks = Tasks("memory://", grace=timedelta(seconds=PATIENCE), settings=QUICK)
    async with served(tasks, desk) as wire, http_session(wire) as older:
        created = await older.create("gated", task={"taskId": "mine"})
        assert (created["status"], created["taskId"] != "mine") == ("working", True)
        assert not desk.stopped.is_set()
        asking = ("ask_name", "ask_both", "ask_model", "ask_roots", "ask_by_returning", "ask_before")
        for tool in ("nothing", "fails", "breaks", *asking):
            created = await older.create(tool)
            assert created["status"] == "working"
            await older.until(created["taskId"], *(["input_required"] if tool in asking else ["completed", "failed"]))


@pytest.mark.requirement("older/created-at", "older/last-updated-at", "older/ttl-on-the-wire")
async def test_every_answer_about_a_task_has_its_times(listener: HttpClient) -> None:
    created = await listener.create("gated", task={"ttl": HOUR_MS})
    task_id = created["taskId"]
    got = await listener.get(task_id)
    [listed] = await listener.listed()
    cancelled = await listener.cancel(task_id)
    told = (await listener.status(task_id, "cancelled")).params
    for task in (created, got, listed, cancelled, told):
        began, changed = (datetime.fromisoformat(task[key]) for key in ("createdAt", "lastUpdatedAt"))
        assert began.utcoffset() == changed.utcoffset() == timedelta(0)
        assert began <= changed
        assert task["createdAt"] == created["createdAt"]
        assert task["ttl"] >= HOUR_MS
    assert told["lastUpdatedAt"] == cancelled["lastUpdatedAt"]


@pytest.mark.requirement("older/no-related-task-in-results", "older/task-id-is-the-truth")
async def test_the_task_id_counts_and_not_what_the_meta_says_and_answers_do_not_name_it_twice(
    older: HttpClient,
) -> None:
    wanted, other = await older.start("gated"), await older.start("gated")
    nonsense: tuple[Any, ...] = ({"taskId": other}, 7, {}, None)
    for related in nonsense:
        reply = await older.ask("tasks/get", {"taskId": wanted, "_meta": {RELATED: related}})
        assert (reply.result["taskId"], "_meta" in reply.result) == (wanted, False)
    lie = {"taskId": wanted, "_meta": {RELATED: {"taskId": other}}}
    for reply in (await older.ask("tasks/cancel", lie), await older.ask("tasks/list", lie)):
        assert RELATED not in reply.result.get("_meta", {})
    assert (await older.get(wanted))["status"] == "cancelled"
    assert (await older.get(other))["status"] == "working"
    assert (await older.ask("tasks/result", lie)).error["data"]["_meta"][RELATED] == {"taskId": wanted}


@pytest.mark.requirement("older/ttl-asked-for", "older/ttl-may-be-overridden", "older/ttl-has-a-maximum")
async def test_the_ttl_is_as_asked_for_up_to_the_authors_maximum(older: HttpClient) -> None:
    asked = {60_000: 60_000, 0: 0, 1500.5: 1501, 90 * DAY_MS: 30 * DAY_MS, 1e300: 30 * DAY_MS, None: 30 * DAY_MS}
    for ttl, kept in [({}, DAY_MS), *(({"ttl": ttl}, kept) for ttl, kept in asked.items())]:
        task = await older.create("gated", task=ttl)
        assert isinstance(task["ttl"], int)
        # Renewed in steps of half of it while the task runs.
        assert kept <= task["ttl"] <= kept + max(kept // 2, 1000)
        assert (await older.get(task["taskId"]))["status"] == "working"


@pytest.mark.requirement("older/ttl-has-a-maximum")
@pytest.mark.parametrize("options", [{}, {"default_ttl": timedelta(hours=1)}, {"default_ttl": None}], ids=repr)
async def test_no_call_is_granted_more_than_the_authors_maximum(options: dict[str, Any]) -> None:
    tasks = Tasks("memory://", settings=QUICK, max_ttl=timedelta(minutes=1), **options)
    async with served(tasks) as wire, http_session(wire) as older:
        tasks.mark("must", ttl=None)
        tasks.mark("fails", ttl=timedelta(seconds=5))
        for tool in ("must", "gated"):
            wishes: list[dict[str, Any]] = [{}, {"ttl": None}, {"ttl": 90_000}, {"ttl": 10**9}]
            assert {(await older.create(tool, task=wish))["ttl"] for wish in wishes} == {60_000}
            assert (await older.create(tool, task={"ttl": 2000}))["ttl"] == 2000
        assert (await older.create("fails"))["ttl"] == 5000
        assert (await older.create("fails", task={"ttl": 10**6}))["ttl"] == 60_000
        # A caller of the newest version cannot ask for a time, and gets the same.
        assert (await Tasking(wire, EVERYTHING).call("gated"))["ttlMs"] == 60_000


@pytest.mark.requirement("older/ttl-asked-for", "older/ttl-on-the-wire", "older/ttl-elapsed")
async def test_the_ttl_that_was_asked_for_counts_from_the_end() -> None:
    clock, desk = FakeClock(datetime(2026, 1, 1, tzinfo=UTC)), Desk()
    async with served(Tasks("memory://", clock=clock, settings=QUICK), desk) as way, http_session(way) as older:
        created = await older.create("gated", task={"ttl": HOUR_MS})
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        clock.advance(timedelta(hours=5))
        # Five times what was asked for, and it works: so the ttl on the wire has grown with it.
        assert 5.5 * HOUR_MS <= (await older.get(created["taskId"]))["ttl"] <= 6.5 * HOUR_MS
        desk.gate.set()
        assert (await older.until(created["taskId"], "completed"))["ttl"] == 6 * HOUR_MS
        clock.advance(timedelta(minutes=59))
        assert text_of((await older.result(created["taskId"])).result) == "through"
        clock.advance(timedelta(minutes=2))
        for method in BY_ID:
            assert (await older.ask(method, {"taskId": created["taskId"]})).code == INVALID_PARAMS
        assert await older.listed() == []


@pytest.mark.requirement("older/immediate-response")
async def test_what_the_model_may_be_told_at_once_is_in_the_meta_of_the_created_task(desk: Desk) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = furnished(tasks, desk)

    async def render() -> str:
        return "done"

    async with serving(server) as way, http_session(way) as older:
        # Added while the server runs: the list of tools has it as well.
        server.add_tool(tasks.task(immediate_response="Rendering has begun.")(render))
        tools = {tool["name"]: tool.get("execution") for tool in (await older.ask("tools/list")).result["tools"]}
        assert tools["render"] == {"taskSupport": "optional"}
        created = (await older.call("render", task={})).result
        assert created["_meta"] == {IMMEDIATE: "Rendering has begun."}
        assert "_meta" not in await older.get(created["task"]["taskId"])
        assert IMMEDIATE not in (await older.result(created["task"]["taskId"])).result["_meta"]
        assert "_meta" not in (await older.call("gated", task={})).result


@pytest.mark.requirement("older/transitions")
async def test_a_task_goes_only_where_the_protocol_lets_it(listener: HttpClient) -> None:
    task_id = await listener.start("ask_again")
    for number in range(3):
        question = await listener.question(task_id, after=len(listener.arrived) if number else 0)
        await listener.answer(question, {"action": "accept", "content": {"name": f"n{number}"}})
    await listener.until(task_id, "completed")
    await listener.status(task_id, "completed")
    told = [one.params["status"] for one in listener.arrived if one.method == "notifications/tasks/status"]
    changes = {(before, now) for before, now in pairwise(["working", *told]) if before != now}
    assert changes <= {("working", "input_required"), ("input_required", "working"), ("working", "completed")} | {
        ("input_required", "completed")
    }
    assert told[-1] == "completed"


@pytest.mark.requirement("older/cancelled-may-be-deleted", "older/no-related-task-in-results")
async def test_the_answer_to_a_cancellation_is_the_cancelled_task_which_is_kept_as_long_as_any_other(
    older: HttpClient,
) -> None:
    for tool in ("gated", "ask_model", "stubborn"):
        task_id = await older.start(tool, task={"ttl": 60_000})
        task = await older.cancel(task_id)
        assert (task["taskId"], task["status"], "_meta" in task) == (task_id, "cancelled", False)
        assert task["ttl"] >= 60_000
        got = await older.get(task_id)
        assert [got[key] for key in ("status", "lastUpdatedAt", "ttl")] == [
            task[key] for key in ("status", "lastUpdatedAt", "ttl")
        ]
        assert task_id in [listed["taskId"] for listed in await older.listed()]


# Refused


@pytest.mark.requirement("older/task-param")
async def test_what_is_malformed_or_not_there_is_refused_and_makes_no_task(
    older: HttpClient, store: MemoryStore
) -> None:
    malformed: list[Any] = [7, "soon", [], True]
    ttls: list[Any] = ["soon", -1, True, [], {}, 10**400]
    for task in [*malformed, *({"ttl": ttl} for ttl in ttls)]:
        for tool in ("echo", "greet"):
            reply = await older.call(tool, {"value": 1}, task=task)
            assert (reply.code, "params.task" in reply.error["message"]) == (INVALID_PARAMS, True)
    odd: list[dict[str, Any]] = [{}, {"name": 7}, {"name": "echo", "arguments": []}, {"name": "echo", "_meta": 7}]
    for params in odd:
        assert (await older.ask("tools/call", params)).code == INVALID_PARAMS
        assert (await older.ask("tools/call", {**params, "task": {}})).code == INVALID_PARAMS
    plain, asked = await older.call("nope"), await older.call("nope", task={})
    assert {**asked.message, "id": 0} == {**plain.message, "id": 0}
    assert await all_tasks(store) == []


@pytest.mark.requirement("older/task-param")
async def test_arguments_that_the_tool_does_not_take_make_no_task_and_what_the_sdk_takes_does(
    older: HttpClient, store: MemoryStore
) -> None:
    for arguments in ({}, {"x": "far away"}, {"x": None}):
        reply = await older.call("point", arguments, task={})
        assert (reply.code, "x" in reply.error["message"]) == (INVALID_PARAMS, True), arguments
    assert await all_tasks(store) == []
    # The SDK takes more than the schema says, in a task as in a plain call.
    assert (await older.result(await older.start("point", x="7"))).result["structuredContent"] == {"x": 7.0, "y": None}


@pytest.mark.parametrize("marked", ["by name", "whole server"])
async def test_a_tool_that_was_entered_keeps_its_task_whatever_its_failure_looks_like(marked: str) -> None:
    tasks = Tasks("memory://", settings=QUICK, default_mode="optional" if marked == "whole server" else "forbidden")
    server: MCPServer[Any] = MCPServer("paying", **tasks.wiring(), log_level="CRITICAL")
    paid: list[int] = []

    class Receipt(BaseModel):
        total: int

    @server.tool()
    def pay(amount: int) -> str:
        paid.append(amount)
        try:
            return str(Receipt.model_validate({"total": "none"}))
        except ValidationError as exc:
            raise ToolError(str(exc)) from exc

    if marked == "by name":
        tasks.mark("pay")
    async with serving(server) as wire, http_session(wire) as older:
        for arguments in ({}, {"amount": "much"}):
            refused = await older.call("pay", arguments, task={})
            assert (refused.code, "amount" in refused.error["message"]) == (INVALID_PARAMS, True)
        assert await older.listed() == []
        task_id = await older.start("pay", amount="7")
        assert (await older.until(task_id, "failed"))["status"] == "failed"
        result = (await older.result(task_id)).result
        assert (result["isError"], "1 validation error for Receipt" in text_of(result)) == (True, True)
    assert paid == [7]


# The result


@pytest.mark.requirement("older/result-blocks", "older/result-of-final", "older/may-disconnect")
async def test_a_result_is_waited_for_by_many_who_may_leave_and_ask_again(older: HttpClient, desk: Desk) -> None:
    task_id = await older.start("gated")
    waiting = [older.begin_result(task_id) for _ in range(5)]
    # Others are served meanwhile, this very task included: a wait holds up nobody.
    for _ in range(3):
        assert (await older.get(task_id))["status"] == "working"
    assert not any(one.answered for one in waiting)
    await waiting.pop().leave()
    withdrawn = waiting.pop()
    await older.notify("notifications/cancelled", {"requestId": withdrawn.request_id, "reason": "no more time"})
    assert (await older.get(task_id))["status"] == "working"
    desk.gate.set()
    assert {text_of((await one.reply()).result) for one in waiting} == {"through"}
    first = (await older.result(task_id)).result
    async with http_session(older.wire) as other:
        assert (await other.result(task_id)).result == first


@pytest.mark.requirement("older/result-of-final", "older/result-has-related-task", "older/result-blocks")
async def test_a_cancelled_task_has_an_error_as_its_result(everywhere: OlderClient) -> None:
    for tool in ("gated", "ask_name"):
        task_id = await everywhere.start(tool)
        waiting = everywhere.begin_result(task_id)
        await everywhere.get(task_id)
        assert not waiting.answered
        await everywhere.cancel(task_id)
        for reply in (await waiting.reply(), await everywhere.result(task_id)):
            assert reply.error == {
                "code": REQUEST_CANCELLED,
                "message": "The task was cancelled: Cancelled by the client",
                "data": {"_meta": {RELATED: {"taskId": task_id}}},
            }


async def test_a_request_for_a_result_that_is_cancelled_is_told_from_a_task_that_is(older: HttpClient) -> None:
    task_id = await older.start("ask_name")
    waiting = older.begin_result(task_id)
    await older.question(task_id)
    await older.notify("notifications/cancelled", {"requestId": waiting.request_id})
    assert (await waiting.reply()).error == {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
    assert (await older.get(task_id))["status"] != "cancelled"


@pytest.mark.requirement("older/cancelled-notification")
async def test_the_cancelled_notification_does_not_cancel_a_task(older: HttpClient, desk: Desk) -> None:
    call = older.begin("tools/call", {"name": "gated", "arguments": {}, "task": {}})
    task_id = (await call.reply()).result["task"]["taskId"]
    await older.notify("notifications/cancelled", {"requestId": call.request_id})
    desk.gate.set()
    assert (await older.until(task_id, "completed"))["status"] == "completed"


async def test_a_long_text_of_an_error_is_shortened_in_the_status_and_whole_in_the_result() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = furnished(tasks)

    @server.tool()
    @tasks.task()
    def wordy() -> str:
        raise ToolError("no " * 10_000)

    async with serving(server) as wire, http_session(wire) as older:
        task_id = await older.start("wordy")
        said = (await older.until(task_id, "failed"))["statusMessage"]
        assert len(said.encode()) <= 4 * 1024
        assert said.endswith("…")
        assert "no " * 10_000 in text_of((await older.result(task_id)).result)


# Streamable HTTP


@pytest.mark.requirement("older/get-opens-no-stream", "older/streamable-http")
@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
async def test_a_poll_opens_no_stream(*, json_response: bool) -> None:
    server = furnished(Tasks("memory://", settings=QUICK))
    async with serving(server, json_response=json_response) as way, http_session(way) as older:
        task_id = await older.start("gated")
        kinds = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
        for wanted, status in ((task_id, "result"), ("unknown", "error")):
            body = json.dumps(legacy_request("tasks/get", {"taskId": wanted}))
            response = await way.client.post(way.url, content=body, headers=[*older.headers(), *kinds])
            assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
            assert status in response.json()


@pytest.mark.requirement("older/may-disconnect", "older/streamable-http", "older/outlives-its-session")
async def test_a_task_outlives_the_streams_and_the_session_that_made_it(older: HttpClient, desk: Desk) -> None:
    async with http_session(older.wire) as first, first.listening():
        task_id = await first.start("gated")
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        for _ in range(5):
            poll = first.begin("tasks/get", {"taskId": task_id})
            await asyncio.sleep(0)
            await poll.leave()
        ended = await first.wire.client.delete(first.wire.url, headers=first.headers())
        assert ended.status_code == 200
    assert (await older.get(task_id))["status"] == "working"
    desk.gate.set()
    assert text_of((await older.result(task_id)).result) == "through"


# Without sessions


@pytest.mark.requirement("older/list-capability", "older/cancel-capability")
@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
async def test_without_sessions_tasks_work_by_id_and_nothing_is_listed(desk: Desk, *, json_response: bool) -> None:
    server = furnished(Tasks("memory://", settings=QUICK), desk)
    async with (
        serving(server, stateless=True, json_response=json_response) as way,
        http_session(way) as one,
        http_session(way) as other,
    ):
        assert one.session_id is None
        assert one.capabilities["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        tools = {tool["name"]: tool.get("execution") for tool in (await one.ask("tools/list")).result["tools"]}
        assert tools["must"] == {"taskSupport": "required"}
        task_id, cancelled = await one.start("gated"), await one.start("gated")
        assert (await other.get(task_id))["status"] == "working"
        assert (await other.cancel(cancelled))["status"] == "cancelled"
        desk.gate.set()
        assert text_of((await other.result(task_id)).result) == "through"
        assert (await one.ask("tasks/list")).code == METHOD_NOT_FOUND


@pytest.mark.requirement("older/stateless-questions")
async def test_without_sessions_a_tool_that_asks_is_told_that_it_cannot() -> None:
    server = furnished(Tasks("memory://", settings=QUICK))
    async with serving(server, stateless=True) as way, http_session(way) as session:
        told = text_of((await session.result(await session.start("insist"))).result)
        assert "this server is stateless" in told
        for tool in ("ask_name", "ask_by_returning"):
            failed = await session.until(await session.start(tool), "failed")
            # The client may have declared anything; it is not what is missing.
            assert "this server is stateless" in failed["statusMessage"]
            assert "did not declare" not in failed["statusMessage"]


PAGE = 50
MODERN_WORDS = ("resultType", "ttlMs", "pollIntervalMs", "inputRequests", "io.modelcontextprotocol/serverInfo")
OLD_WORDS = (RELATED, '"ttl"', '"pollInterval"', '"execution"', '"task"')


async def ids(client: HttpClient) -> list[str]:
    return [task["taskId"] for task in await client.listed()]


@pytest.mark.requirement("older/pages", "older/next-cursor", "older/listed-as-got")
async def test_many_tasks_come_in_pages_each_task_once_adopted_ones_after_the_own(older: HttpClient) -> None:
    assert (await older.ask("tasks/list")).result.keys() - {"_meta"} == {"tasks"}
    made = [await older.start("echo", value=number) for number in range(PAGE)]
    # As many as just fit.
    assert "nextCursor" not in (await older.ask("tasks/list")).result
    made += [await older.start("echo", value=number) for number in range(3)]
    first = (await older.ask("tasks/list")).result
    second = (await older.ask("tasks/list", {"cursor": first["nextCursor"]})).result
    assert (len(first["tasks"]), len(second["tasks"]), "nextCursor" in second) == (PAGE, 3, False)
    assert await ids(older) == made
    async with http_session(older.wire) as other:
        own = await other.start("gated")
        for task_id in made:
            await other.get(task_id)
        assert len((await other.ask("tasks/list")).result["tasks"]) == PAGE
        assert await ids(other) == [own, *made]


@pytest.mark.requirement("older/listed-as-got", "older/no-related-task-in-results")
async def test_a_listed_task_is_the_task_that_get_shows(older: HttpClient) -> None:
    running, failed = await older.start("gated"), await older.start("fails")
    await older.until(failed, "failed")
    listed = {task["taskId"]: task for task in await older.listed()}
    assert listed.keys() == {running, failed}
    for task_id, task in listed.items():
        assert {**await older.get(task_id), "ttl": 0, "pollInterval": 0} == {**task, "ttl": 0, "pollInterval": 0}
        assert "_meta" not in task


@pytest.mark.requirement("older/listed-as-got")
async def test_a_task_of_another_session_or_era_is_listed_once_it_was_found(older: HttpClient, wire: HttpWire) -> None:
    modern = Tasking(wire, EVERYTHING)
    for method, tool in (("tasks/get", "gated"), ("tasks/result", "must"), ("tasks/cancel", "gated")):
        async with http_session(wire) as other:
            own = await other.start("gated")
            found = [await older.start(tool), await modern.create(tool)]
            for task_id in found:
                assert task_id not in await ids(other)
                assert (await other.ask(method, {"taskId": task_id})).result
            assert (await other.ask(method, {"taskId": "unknown"})).code == INVALID_PARAMS
            # Again, and they are still there once.
            await other.get(found[0])
            assert await ids(other) == [own, *found]


@pytest.mark.parametrize("gone", [PAGE - 1, PAGE], ids=["last shown", "next"])
async def test_a_task_that_expires_between_two_pages_takes_no_other_with_it(gone: int) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    server = furnished(Tasks("memory://", clock=clock, settings=QUICK, limits=UNPACED))
    async with serving(server) as wire, http_session(wire) as one, http_session(wire) as other:
        made: list[str] = []
        for n in range(PAGE + 3):
            made.append(await one.start("echo", value=n, task={"ttl": 1_000 if n in (3, gone) else 3_600_000}))
            await one.until(made[-1], "completed")
            await other.get(made[-1])
        first = (await other.ask("tasks/list")).result
        assert [task["taskId"] for task in first["tasks"]] == made[:PAGE]
        clock.advance(timedelta(minutes=1))
        second = (await other.ask("tasks/list", {"cursor": first["nextCursor"]})).result
        expected = [task_id for n, task_id in enumerate(made) if n >= PAGE and n != gone]
        assert [task["taskId"] for task in second["tasks"]] == expected
        assert "nextCursor" not in second
        # Once more, now that the session has forgotten what is gone.
        assert (await other.ask("tasks/list", {"cursor": first["nextCursor"]})).result == second


NO_CURSORS: list[Any] = [
    *(7, {}, [], True, "", "nope", "0", "-1", "\u0000", "☃", "eyJhIjoxfQ==", "A" * 100_000),
    *(
        base64.urlsafe_b64encode(text).decode()
        for text in (b"", b"x1", b"s", b"snope", b"a", b"a-1", b"a1", b"a" + b"9" * 5000, b"a\xff")
    ),
]


@pytest.mark.requirement("older/bad-cursor")
async def test_a_cursor_that_is_none_of_ours_is_an_invalid_param(older: HttpClient, guarded: HttpWire) -> None:
    await older.start("gated")
    async with http_session(guarded.as_user("alice")) as alice:
        await alice.start("gated")
        for cursor in NO_CURSORS:
            for client in (older, alice):
                assert (await client.ask("tasks/list", {"cursor": cursor})).code == INVALID_PARAMS, cursor


@pytest.mark.requirement("older/list-is-own", "older/bad-cursor", "older/list-capability")
async def test_a_list_has_only_the_tasks_of_its_owner_in_each_session(guarded: HttpWire) -> None:
    async with (
        http_session(guarded.as_user("alice")) as alice,
        http_session(guarded.as_user("alice-2")) as again,
        http_session(guarded.as_user("bob")) as bob,
    ):
        assert "list" in alice.capabilities["tasks"]
        made = [await client.start("gated") for client in (alice, again)]
        modern = Tasking(guarded.as_user("alice-3"), EVERYTHING)
        made.append(await modern.create("gated"))
        bobs = await bob.start("gated")
        assert await ids(alice) == await ids(again) == made
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await bob.ask(method, {"taskId": made[0]})).code == INVALID_PARAMS
        assert await ids(bob) == [bobs]
        for number in range(PAGE):
            await alice.start("echo", value=number)
        cursor = (await alice.ask("tasks/list")).result["nextCursor"]
        stolen = (await bob.ask("tasks/list", {"cursor": cursor})).message
        shown: list[dict[str, Any]] = stolen["result"]["tasks"] if "result" in stolen else []
        assert {task["taskId"] for task in shown} <= {bobs}


async def test_a_task_of_which_nobody_was_told_yet_is_not_listed(desk: Desk) -> None:
    tasks = Tasks("memory://", grace=timedelta(seconds=PATIENCE), settings=QUICK)
    async with serving(furnished(tasks, desk, guarded=True)) as wire, http_session(wire.as_user("alice")) as older:
        call = asyncio.create_task(Tasking(wire.as_user("alice"), EVERYTHING).call("gated"))
        await desk.started.wait()
        assert await older.listed() == []
        desk.gate.set()
        assert text_of(await call) == "through"


# Both versions on one endpoint


@asynccontextmanager
async def _both(*, guarded: bool) -> AsyncGenerator[tuple[HttpClient, Tasking, HttpWire]]:
    """A client of each version for the same owner, or for nobody."""
    async with serving(furnished(Tasks("memory://", settings=QUICK), guarded=guarded)) as wire:
        one, other = (wire.as_user("alice"), wire.as_user("alice-2")) if guarded else (wire, wire)
        async with http_session(one) as session:
            yield session, Tasking(other, EVERYTHING), wire


@pytest.mark.requirement(
    "older/apart",
    "older/failed",
    "status/failed-is-for-protocol-errors",
    "older/bound-to-its-owner",
    "older/reject-others",
)
@pytest.mark.parametrize("guarded", [False, True], ids=["nobody", "an owner"])
async def test_a_task_of_one_era_is_seen_fetched_and_cancelled_in_the_other_in_its_own_words(*, guarded: bool) -> None:
    async with _both(guarded=guarded) as (older, modern, wire):
        ends = {"must": ("completed", "completed"), "fails": ("failed", "completed"), "breaks": ("failed", "failed")}
        for tool, (in_older, in_modern) in ends.items():
            for task_id in (await modern.create(tool), await older.start(tool, task={"ttl": 60_000})):
                shown = await modern.until(task_id, in_modern)
                assert not [word for word in OLD_WORDS if word in json.dumps(shown)]
                assert shown["ttlMs"] >= 60_000
                assert (await older.get(task_id))["status"] == in_older
                reply = await older.result(task_id)
                assert not [word for word in MODERN_WORDS if word in json.dumps(reply.message)]
                assert await Caller(older).outcome(task_id)
        of_modern, of_older = await modern.create("gated"), await older.start("gated")
        stranger = wire.as_user("bob") if guarded else wire
        async with http_session(stranger) as other:
            for task_id in (of_modern, of_older):
                for client in (other, Tasking(stranger, EVERYTHING)):
                    reply = await client.ask("tasks/get", {"taskId": task_id})
                    assert reply.message.get("error", {}).get("code") == (INVALID_PARAMS if guarded else None)
        assert (await older.cancel(of_modern))["status"] == "cancelled"
        await modern.cancel(of_older)
        assert (await modern.get(of_modern))["status"] == "cancelled"
        assert (await older.get(of_older))["status"] == "cancelled"
        asking = await older.start("ask_name")
        [key] = (await modern.until(asking, "input_required"))["inputRequests"]
        await modern.update(asking, **{key: accept(name="Ada")})
        assert text_of((await older.result(asking)).result) == "Hello, Ada!"


@pytest.mark.requirement("eras/legacy-tasks-stay-reachable")
async def test_a_client_on_the_newer_wire_without_the_extension_is_told_to_declare_it(
    client: Tasking, older: HttpClient
) -> None:
    task_id = await older.start("gated")
    for method in ("tasks/get", "tasks/cancel"):
        assert (await client.declaring(NOTHING).ask(method, {"taskId": task_id})).code == MISSING_CAPABILITY
    # Its tasks are not lost to it: the wire that made them still has them, and so has a client that declares.
    assert (await older.get(task_id))["status"] == "working"
    assert (await client.get(task_id))["status"] == "working"
