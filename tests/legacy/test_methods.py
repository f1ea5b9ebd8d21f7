"""`tasks/get`, `tasks/result` and `tasks/cancel` on the 2025-11-25 wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

from harness.http import HttpWire, initialize, serving
from harness.rpc import INVALID_PARAMS, INVALID_REQUEST, PATIENCE, Reply, legacy_request, notification, text_of
from harness.schema import check_legacy_result
from harness.server import CUSTOM_ERROR, QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.legacy.shapes import plain_data
from mcp_tasks.model import TaskStatus
from mcp_tasks.model.json import LARGE
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.legacy.tasking import RELATED, OldTasks, over_http

pytestmark = pytest.mark.anyio

REQUEST_CANCELLED = -32800
ACCEPTED = "application/json, text/event-stream"


def add_odd_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    """Tools with everything that a result or an error can have."""

    @server.tool()
    @tasks.task()
    def rich() -> CallToolResult:
        """Several blocks, structured content and `_meta`."""
        return CallToolResult(
            content=[
                TextContent(type="text", text="☃", _meta={"block": 1, "nothing": None}),
                ImageContent(type="image", data="AAAA", mime_type="image/png"),
            ],
            structured_content={"deep": {"nothing": None, "list": [1, None]}},
            _meta={"own": {"a": None}, "nothing": None, RELATED: {"taskId": "a lie"}},
        )

    @server.tool()
    @tasks.task()
    def large() -> str:
        """More than is decoded on the event loop."""
        return "x" * LARGE * 2

    @server.tool()
    @tasks.task()
    def silent() -> CallToolResult:
        """An error without a word."""
        return CallToolResult(content=[], is_error=True)

    @server.tool()
    @tasks.task()
    def wordy() -> CallToolResult:
        """An error with very many."""
        return CallToolResult(content=[TextContent(type="text", text="no " * 10_000)], is_error=True)

    @server.tool()
    @tasks.task()
    def lacks() -> str:
        """Say of another client what is said of this one where a question cannot be asked."""
        raise MCPError(-32021, "the other server's client cannot", {"requiredCapabilities": {"sampling": {}}})

    odd: dict[str, Any] = {"texted": "text", "numbered": 0, "falsy": False, "odd_meta": {"_meta": 7, "a": 1}}
    for name, data in {"bare": None, "listed": [1, 2], **odd}.items():
        server.add_tool(tasks.task(name=name)(_raising(data)), name=name)


def _raising(data: Any) -> Any:
    def raises() -> str:
        """Fail with this data."""
        raise MCPError(code=CUSTOM_ERROR, message="", data=data)

    return raises


@asynccontextmanager
async def served(desk: Desk | None = None, **options: Any) -> AsyncGenerator[HttpWire]:
    tasks = Tasks(options.pop("store", None) or MemoryStore(), settings=QUICK, **options)
    server = build(tasks, desk)
    add_odd_tools(server, tasks)
    async with serving(server) as wire:
        yield wire


async def both_ways(old: OldTasks, tool: str, arguments: dict[str, Any]) -> tuple[Reply, str, Reply]:
    """The answer of a plain call, and the id and the result of a task for the same."""
    plain = await old.ask("tools/call", {"name": tool, "arguments": arguments})
    task_id = (await old.create(tool, arguments))["taskId"]
    return plain, task_id, await old.ask("tasks/result", {"taskId": task_id})


# tasks/result


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("echo", {"value": "x"}),
        ("point", {"x": 1}),
        ("fails", {}),
        ("crashes", {}),
        ("rich", {}),
        ("large", {}),
        ("silent", {}),
    ],
)
async def test_the_result_is_that_of_the_plain_call_and_says_whose_it_is(tool: str, arguments: dict[str, Any]) -> None:
    async with served() as wire:
        plain, task_id, result = await both_ways(await over_http(wire), tool, arguments)
    check_legacy_result("CallToolResult", result.result)
    meta = plain.result.get("_meta", {})
    assert result.result == {**plain.result, "_meta": {**meta, RELATED: {"taskId": task_id}}}


@pytest.mark.parametrize(
    ("tool", "data"),
    [
        ("breaks", {"hint": "ask again", "_meta": ...}),
        ("bare", {"_meta": ...}),
        ("lacks", {"requiredCapabilities": {"sampling": {}}, "_meta": ...}),
        ("listed", {"mcp-tasks/data": [1, 2], "_meta": ...}),
        ("texted", {"mcp-tasks/data": "text", "_meta": ...}),
        ("numbered", {"mcp-tasks/data": 0, "_meta": ...}),
        ("falsy", {"mcp-tasks/data": False, "_meta": ...}),
        ("odd_meta", {"mcp-tasks/data": {"_meta": 7, "a": 1}, "_meta": ...}),
    ],
)
async def test_the_error_is_that_of_the_plain_call_and_its_data_says_whose_it_is(
    tool: str, data: dict[str, Any]
) -> None:
    async with served() as wire:
        plain, task_id, result = await both_ways(await over_http(wire), tool, {})
    assert result.error == {**plain.error, "data": {**data, "_meta": {RELATED: {"taskId": task_id}}}}
    # Our client gives its caller the data of the tool.
    if "mcp-tasks/data" in data:
        assert plain_data(result.error["data"]) == plain.error["data"]


async def test_a_result_is_waited_for_and_can_be_had_again() -> None:
    async with served(desk := Desk()) as wire:
        old = await over_http(wire)
        task_id = (await old.create("gated"))["taskId"]
        results = [asyncio.create_task(old.result(task_id)) for _ in range(3)]
        assert (await old.get(task_id))["status"] == "working"
        await anyio.sleep(0.1)  # sleep: all three are at the server, and wait
        assert not any(result.done() for result in results)
        desk.gate.set()
        with anyio.fail_after(PATIENCE):
            assert [text_of(result) for result in await asyncio.gather(*results)] == ["through"] * 3
        assert text_of(await old.result(task_id)) == "through"


async def test_the_result_of_a_cancelled_task_is_an_error_that_says_so() -> None:
    async with served(desk := Desk()) as wire:
        old = await over_http(wire)
        task_id = (await old.create("gated"))["taskId"]
        waiting = asyncio.create_task(old.ask("tasks/result", {"taskId": task_id}))
        await desk.started.wait()
        await old.cancel(task_id)
        for reply in (await waiting, await old.ask("tasks/result", {"taskId": task_id})):
            assert reply.error == {
                "code": REQUEST_CANCELLED,
                "message": "The task was cancelled: Cancelled by the client",
                "data": {"_meta": {RELATED: {"taskId": task_id}}},
            }


# tasks/get


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("fails", "Error executing tool fails: it did not work out"),
        ("crashes", "Error executing tool crashes"),
        ("breaks", "the protocol says no"),
        ("silent", "The tool reported an error"),
        ("bare", "The request failed"),
    ],
)
async def test_an_error_of_either_kind_is_a_failed_task_that_says_why(tool: str, says: str) -> None:
    async with served() as wire:
        old = await over_http(wire)
        task_id = (await old.create(tool))["taskId"]
        task = await old.until(task_id, "failed")
        assert task["statusMessage"] == says
        [listed] = (await old.page())["tasks"]
        assert (listed["status"], listed["statusMessage"]) == ("failed", says)


async def test_a_long_text_of_an_error_is_shortened_in_the_status_and_whole_in_the_result() -> None:
    async with served() as wire:
        old = await over_http(wire)
        task_id = (await old.create("wordy"))["taskId"]
        said = (await old.until(task_id, "failed"))["statusMessage"]
        assert len(said.encode()) <= 4 * 1024
        assert said.endswith("…")
        assert len(text_of(await old.result(task_id))) == 30_000


async def test_a_running_task_never_expires_and_its_ttl_says_so() -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    async with served(desk := Desk(), clock=clock) as wire:
        old = await over_http(wire)
        task = await old.create("gated", ttl=10_000)
        clock.advance(timedelta(hours=5))
        seen = await old.get(task["taskId"])
        assert (seen["status"], seen["createdAt"]) == ("working", task["createdAt"])
        assert 5 * 3600_000 + 5_000 <= seen["ttl"] <= 5 * 3600_000 + 15_000
        desk.gate.set()
        ended = await old.until(task["taskId"], "completed")
        assert ended["ttl"] == 5 * 3600_000 + 10_000
        clock.advance(timedelta(seconds=9))
        assert text_of(await old.result(task["taskId"])) == "through"
        clock.advance(timedelta(seconds=2))
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await old.ask(method, {"taskId": task["taskId"]})).code == INVALID_PARAMS
        assert await old.listed() == []


async def test_progress_is_the_status_message_with_its_numbers_beside_it() -> None:
    async with served(desk := Desk()) as wire:
        old = await over_http(wire)
        task_id = (await old.create("progressing", {"steps": 2, "total": 3, "message": "two of three"}))["taskId"]
        await desk.started.wait()
        task = await old.get(task_id)
        assert task["statusMessage"] == "two of three"
        assert task["_meta"] == {"mcp-tasks/progress": {"progress": 2, "total": 3}}


async def test_related_task_metadata_is_ignored_in_requests_and_absent_from_answers() -> None:
    async with served(desk := Desk()) as wire:
        old = await over_http(wire)
        first, second = (await old.create("gated"))["taskId"], (await old.create("gated"))["taskId"]
        lie = {"taskId": first, "_meta": {RELATED: {"taskId": second}}}
        seen, cancelled = await old.ask("tasks/get", lie), await old.ask("tasks/cancel", lie)
        assert (seen.result["taskId"], cancelled.result["taskId"]) == (first, first)
        assert "_meta" not in seen.result
        assert "_meta" not in cancelled.result
        assert "_meta" not in await old.page()
        desk.gate.set()
        assert (await old.until(second, "completed"))["taskId"] == second


# tasks/cancel


async def test_a_cancelled_task_is_cancelled_before_the_answer_and_stays_so() -> None:
    store = MemoryStore()
    async with served(desk := Desk(), store=store) as wire:
        old = await over_http(wire)
        task_id = (await old.create("stubborn"))["taskId"]
        await desk.started.wait()
        task = await old.cancel(task_id)
        assert (task["status"], task["statusMessage"]) == ("cancelled", "Cancelled by the client")
        kept = await store.get(task_id)
        assert kept is not None
        assert kept.status is TaskStatus.CANCELLED
        with anyio.fail_after(PATIENCE):
            await desk.stopped.wait()
        desk.gate.set()
        assert (await old.get(task_id))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("tool", "status"), [("must", "completed"), ("fails", "failed"), ("breaks", "failed"), ("gated", "cancelled")]
)
async def test_a_task_that_has_ended_cannot_be_cancelled(tool: str, status: str) -> None:
    async with served() as wire:
        old = await over_http(wire)
        task_id = (await old.create(tool))["taskId"]
        if tool == "gated":
            await old.cancel(task_id)
        before = await old.until(task_id, status)
        reply = await old.ask("tasks/cancel", {"taskId": task_id})
        assert (reply.code, f"'{status}'" in reply.error["message"]) == (INVALID_PARAMS, True)
        assert await old.get(task_id) == before


# Ids


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{}, {"taskId": 7}, {"taskId": None}, {"taskId": "nope"}, {"taskId": "x" * 100_000}])
async def test_an_id_that_names_no_task_is_refused(method: str, params: dict[str, Any]) -> None:
    async with served() as wire:
        assert (await (await over_http(wire)).ask(method, params)).code == INVALID_PARAMS


async def test_a_header_that_names_tasks_is_none_of_this_era() -> None:
    async with served(require_name_header=True) as wire:
        old = await over_http(wire)
        assert text_of(await old.result((await old.create("must"))["taskId"])) == "as a task"


async def test_a_question_that_the_client_cannot_be_asked_fails_in_the_words_of_this_era() -> None:
    async with served() as wire:
        shy = OldTasks((await initialize(wire, {}))[0])
        task_id = (await shy.create("ask_name"))["taskId"]
        assert "elicitation capability" in (await shy.until(task_id, "failed"))["statusMessage"]
        reply = await shy.ask("tasks/result", {"taskId": task_id})
        assert (reply.code, reply.error["data"]) == (INVALID_REQUEST, {"_meta": {RELATED: {"taskId": task_id}}})


async def test_a_request_for_a_result_that_is_cancelled_is_told_from_a_task_that_is() -> None:
    async with served() as wire:
        session, _ = await initialize(wire, {"elicitation": {}})
        old = OldTasks(session)
        task_id = (await old.create("ask_name"))["taskId"]
        wanted, told = legacy_request("tasks/result", {"taskId": task_id}), list[Any]()

        async def cancel() -> None:
            params = {"requestId": wanted["id"]}
            withdrawn = notification("notifications/cancelled", params)
            await wire.raw_post(json.dumps(withdrawn), session.headers)

        async with (
            anyio.create_task_group() as group,
            wire.client.stream(
                "POST",
                wire.url,
                content=json.dumps(wanted),
                headers=[*session.headers, ("content-type", "application/json"), ("accept", ACCEPTED)],
            ) as response,
        ):
            lines = response.aiter_lines()
            group.start_soon(cancel)
            with anyio.fail_after(PATIENCE):
                told += [json.loads(line[5:]) async for line in lines if line.startswith("data: {")]
        assert told[-1]["error"] == {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
        assert (await old.get(task_id))["status"] != "cancelled"
        await old.cancel(task_id)
        error = (await old.ask("tasks/result", {"taskId": task_id})).error
        assert (error["code"], error["data"]) == (REQUEST_CANCELLED, {"_meta": {RELATED: {"taskId": task_id}}})
