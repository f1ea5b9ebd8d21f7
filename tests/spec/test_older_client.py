"""Our client on 2025-11-25: as the requestor of tasks, and as the receiver of them."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from harness.http import serving
from harness.older import FINAL, RELATED, http_session
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, PATIENCE, notification
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Limits, Tasks
from mcp_tasks.client import (
    Hosting,
    TaskHandle,
    TasksClient,
    TaskWasCancelled,
    UnknownTask,
    call_tool,
    list_tasks,
    reconnecting_http,
    start_task,
)
from mcp_tasks.errors import UsageError
from mcp_tasks.model.machine import TaskCreated
from mcp_tasks.runtime import TaskChange
from tests.client.connecting import Person, text
from tests.spec.furnished import furnished
from tests.spec.scripted import FORM, TASK_ID, Params, Push, Refused, Scripted, question, result, serving_script, task


@asynccontextmanager
async def _connected(script: Scripted, *, person: Any = None, tasks: bool = True) -> AsyncGenerator[Client]:
    extensions = [TasksClient()] if tasks else []
    async with serving_script(script) as url:
        transport = reconnecting_http(url)
        with anyio.fail_after(PATIENCE):
            async with Client(transport, mode="legacy", elicitation_callback=person, extensions=extensions) as client:
                yield client


async def _begun(client: Client, **options: Any) -> TaskHandle:
    handle = await start_task(client, "slow", {}, **options)
    assert isinstance(handle, TaskHandle)
    return handle


async def _for_ever(params: Params, push: Push) -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


NOT_OFFERED: dict[str, tuple[dict[str, Any] | None, str | None]] = {
    "nothing declared, required": (None, "required"),
    "nothing declared, optional": (None, "optional"),
    "no requests": ({"list": {}, "cancel": {}}, "required"),
    "no tools": ({"requests": {"sampling": {"createMessage": {}}}}, "optional"),
    "no call": ({"requests": {"tools": {}}}, "required"),
    "forbidden": ({"requests": {"tools": {"call": {}}}}, "forbidden"),
    "absent": ({"requests": {"tools": {"call": {}}}}, None),
}


@pytest.mark.requirement(
    "older-client/augments-declared",
    "older-client/no-tasks-no-attempt",
    "older-client/no-tools-call",
    "older-client/forbidden",
)
@pytest.mark.parametrize("case", NOT_OFFERED)
async def test_what_is_not_offered_as_a_task_is_called_plainly(case: str) -> None:
    declared, support = NOT_OFFERED[case]
    script = Scripted(tasks=declared, support={"slow": support})
    async with _connected(script) as client:
        assert text(await client.call_tool("slow", {})) == "plainly"
        assert text(await call_tool(client, "slow", {})) == "plainly"
        assert isinstance(await start_task(client, "slow", {}), CallToolResult)
    assert len(script.asked("tools/call")) == 3
    assert not any("task" in params for params in script.asked("tools/call"))


@pytest.mark.requirement("older-client/required", "older-client/optional", "older-client/exact-result")
@pytest.mark.parametrize(("support", "tasks"), [("required", True), ("optional", True), ("optional", False)])
async def test_a_tool_that_may_be_a_task_is_one_for_a_client_with_tasks(support: str, *, tasks: bool) -> None:
    script = Scripted(support={"slow": support})
    async with _connected(script, tasks=tasks) as client:
        results = [await client.call_tool("slow", {}), *([await call_tool(client, "slow", {})] if tasks else [])]
    for got in results:
        assert text(got) == ("done" if tasks else "plainly")
        assert got.structured_content == {"nothing": None, "list": [1, {"a": "b"}]}
        assert (got.meta or {})["example.com/own"] == 1
        assert not got.is_error
    assert {("task" in params) for params in script.asked("tools/call")} == {tasks}


@pytest.mark.requirement("older-client/ttl")
async def test_a_ttl_is_asked_for_in_milliseconds() -> None:
    script = Scripted()
    async with _connected(script) as client:
        await _begun(client, ttl=timedelta(minutes=1.5))
        await _begun(client)
    assert [params["task"] for params in script.asked("tools/call")] == [{"ttl": 90_000}, {}]


@pytest.mark.requirement("older-client/polls-on", "older-client/no-reliance")
@pytest.mark.parametrize("first", ["never comes", "fails"])
async def test_polls_make_up_for_a_result_that_does_not_come_and_notifications_that_are_never_sent(first: str) -> None:
    script, asked = Scripted(), 0

    async def stuck_at_first(params: Params, push: Push) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1 and first == "fails":
            raise Refused(INTERNAL_ERROR, "out of order")
        if asked == 1:
            await asyncio.Event().wait()
        return result()

    script.handlers["tasks/result"] = stuck_at_first
    script.on("tasks/get", task(), task(), task("completed"))
    async with _connected(script) as client:
        assert text(await call_tool(client, "slow", {})) == "done"
    assert len(script.asked("tasks/get")) >= 3


@pytest.mark.requirement("older-client/no-reliance")
async def test_a_notification_that_is_not_true_changes_nothing() -> None:
    script = Scripted()
    script.handlers["tasks/result"] = _for_ever
    script.on("tasks/get", task())
    async with _connected(script) as client:
        handle = await _begun(client)
        script.own_stream.put_nowait(notification("notifications/tasks/status", task("completed")))
        before = len(script.asked("tasks/get"))
        while len(script.asked("tasks/get")) < before + 3:
            assert not (await handle.status()).is_final


@pytest.mark.requirement(
    "older-client/result-at-input", "older-client/any-stream", "older-client/related-task-on-answers"
)
@pytest.mark.parametrize("stream", ["of the result", "of the session"])
@pytest.mark.parametrize("verb", ["plain", "call"])
async def test_a_task_that_asks_is_asked_for_its_result_and_its_question_answered(verb: str, stream: str) -> None:
    script, person = Scripted(), Person()

    async def asking(params: Params, push: Push) -> dict[str, Any]:
        (push if stream == "of the result" else script.own_stream.put_nowait)(question(1))
        await script.answer_to(1)
        script.on("tasks/get", task("completed"))
        return result()

    script.handlers["tasks/result"] = asking
    script.on("tasks/get", task(), task("input_required"))
    async with _connected(script, person=person) as client:
        called = client.call_tool("slow", {}) if verb == "plain" else call_tool(client, "slow", {})
        assert text(await called) == "done"
        answer = (await script.answer_to(1))["result"]
    assert (answer["action"], answer["content"]["name"]) == ("accept", "Ada")
    assert answer["_meta"][RELATED] == {"taskId": TASK_ID}
    assert person.asked == ["Name?"]


@pytest.mark.requirement("older-client/no-related-task")
async def test_requests_about_a_task_do_not_name_it_twice() -> None:
    script = Scripted()
    script.on("tasks/get", task(), task(), task("completed"))
    async with _connected(script) as client:
        handle = await _begun(client)
        await handle.result(PATIENCE)
        script.on("tasks/get", task())
        await (await _begun(client)).cancel()
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        assert script.asked(method)
        assert all(RELATED not in params.get("_meta", {}) for params in script.asked(method))


@pytest.mark.requirement("older-client/opaque-cursors")
async def test_cursors_are_passed_on_as_they_came() -> None:
    script = Scripted()
    cursors = [" a b ", "%7B%7D", '{"a": 1}', "\u2603", "0"]
    pages = [{"tasks": [task(taskId=str(number))], "nextCursor": cursor} for number, cursor in enumerate(cursors)]
    script.on("tasks/list", *pages, {"tasks": [task(taskId="last")]})
    async with _connected(script) as client:
        listed = [snapshot.id async for snapshot in list_tasks(client)]
    assert listed == ["0", "1", "2", "3", "4", "last"]
    assert [params.get("cursor") for params in script.asked("tasks/list")] == [None, *cursors]


@pytest.mark.requirement("older-client/list-capability", "older-client/cancel-capability")
async def test_tasks_are_neither_listed_nor_cancelled_where_that_is_not_declared() -> None:
    script = Scripted(tasks={"requests": {"tools": {"call": {}}}})
    script.on("tasks/get", task())
    async with _connected(script) as client:
        with pytest.raises(UsageError):
            [snapshot async for snapshot in list_tasks(client)]
        handle = await _begun(client)
        with pytest.raises(UsageError):
            await handle.cancel()
    assert script.asked("tasks/list") == script.asked("tasks/cancel") == []


@pytest.mark.requirement("older-client/cancelled-tasks")
async def test_a_cancelled_task_that_is_gone_at_once_is_no_surprise() -> None:
    script = Scripted()
    script.on("tasks/get", task())

    async def cancelled(params: Params, push: Push) -> dict[str, Any]:
        for method in ("tasks/get", "tasks/result"):
            script.on(method, Refused(INVALID_PARAMS, "Failed to retrieve task: Task not found"))
        return task("cancelled")

    script.handlers["tasks/cancel"] = cancelled
    async with _connected(script) as client:
        handle = await _begun(client)
        await handle.cancel()
        with pytest.raises((TaskWasCancelled, UnknownTask)):
            await handle.result(PATIENCE)


DOCS = Path(__file__).parents[2] / "docs"
ELICIT: dict[str, Any] = {"mode": "form", "message": "Name?", "requestedSchema": FORM}


@asynccontextmanager
async def _hosting(person: Any) -> AsyncGenerator[Scripted]:
    script, tasks = Scripted(), TasksClient(hosting=Hosting())
    async with (
        serving_script(script) as url,
        Client(
            tasks.host(reconnecting_http(url)), mode="legacy", elicitation_callback=person, extensions=[tasks]
        ) as client,
    ):
        # The session's own stream is open once something came over it.
        await client.list_tools()
        yield script


async def _create(script: Scripted, **params: Any) -> str:
    created = (await script.ask("elicitation/create", {**ELICIT, "task": {"ttl": 60_000}, **params})).result["task"]
    assert created["status"] == "working"
    return created["taskId"]


async def _until_final(script: Scripted, task_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        task = (await script.ask("tasks/get", {"taskId": task_id})).result
        return task if task["status"] in FINAL else None

    return await eventually(look) or {}


# `tests/hosted` has everything else that a client that hosts tasks does.


@pytest.mark.requirement(
    "hosted/result",
    "hosted/result-blocks",
    "hosted/result-related-task",
    "hosted/no-related-task",
    "hosted/informative",
    "hosted/unknown-id",
    "hosted/audit-log",
)
async def test_over_http_a_result_is_waited_for_is_that_of_the_plain_request_and_its_end_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ready = asyncio.Event()
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        async with _hosting(Person(ready=ready)) as script:
            task_id, other = await _create(script), await _create(script)
            # The id counts, and not what the `_meta` says.
            lie = {"taskId": other, "_meta": {RELATED: {"taskId": task_id}}}
            assert (await script.ask("tasks/get", lie)).result["taskId"] == other
            assert (await script.ask("tasks/cancel", lie)).result["taskId"] == other
            waiting = asyncio.create_task(script.ask("tasks/result", {"taskId": task_id}))
            assert (await script.ask("tasks/get", {"taskId": task_id})).result["status"] == "working"
            assert not waiting.done()
            ready.set()
            result = (await waiting).result
            plain = (await script.ask("elicitation/create", ELICIT)).result
            await _until_final(script, task_id)
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                unknown = await script.ask(method, {"taskId": "nope"})
                assert (unknown.code, "task" in unknown.error["message"].lower()) == (INVALID_PARAMS, True)
    assert result.pop("_meta") == {RELATED: {"taskId": task_id}}
    plain.pop("_meta", None)
    assert result == plain
    assert any(task_id[:8] in line and "completed" in line for line in caplog.messages)
    assert not any(task_id in line for line in caplog.messages)


@pytest.mark.requirement("hosted/result-error", "hosted/failed-message")
async def test_the_error_is_what_the_plain_request_gives() -> None:
    async def refuse(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ErrorData(code=-7, message="nobody is at home", data={"until": "noon"})

    async with _hosting(refuse) as script:
        plain = (await script.ask("elicitation/create", ELICIT)).error
        task_id = await _create(script)
        task = await _until_final(script, task_id)
        error = (await script.ask("tasks/result", {"taskId": task_id})).error
    assert (task["status"], "nobody is at home" in task["statusMessage"]) == ("failed", True)
    assert error["data"].pop("_meta") == {RELATED: {"taskId": task_id}}
    assert error == plain


# What is documented, logged and watched


@pytest.mark.requirement(
    "hosted/documented-limits", "older/documented-exposure", "older/documented-ttl", "older/documented-concurrency"
)
def test_limits_and_exposure_are_documented_as_they_are() -> None:
    host, limits = (DOCS / "client-tasks.md").read_text(encoding="utf-8"), Hosting()
    assert "| `max_ttl` | 1 day |" in host
    assert limits.max_ttl == timedelta(days=1)
    for name in ("max_running", "max_tasks", "max_total"):
        assert f"| `{name}` | {getattr(limits, name)} |" in host
    server = " ".join((DOCS / "eras.md").read_text(encoding="utf-8").split())
    assert "Without authentication, whoever has the id of a task has the task." in server
    assert "`Tasks(max_ttl=)`, or `Limits.ttl`, 30 days by default" in server
    assert Limits().ttl == timedelta(days=30)
    assert "a rate limit and a limit of tasks per requestor: both hold for callers with a name" in server


@pytest.mark.requirement("older/audit-owner", "older/monitoring", "older/audit-log")
async def test_observers_and_the_log_are_told_of_a_task_whose_id_no_line_has_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes: list[TaskChange] = []
    # Before the server starts: it asks once whether anybody reads such lines.
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        server = furnished(Tasks("memory://", settings=QUICK, observers=[changes.append]), guarded=True)
        async with serving(server) as way, http_session(way.as_user("alice")) as alice:
            task_id = await alice.start("nothing")
            await alice.until(task_id, "completed")
            await eventually(lambda: changes and changes[-1].task.is_final)
            await eventually(lambda: any("completed after" in line for line in caplog.messages))
    assert {change.task.id for change in changes} == {task_id}
    assert all("alice" in (change.task.owner or "") for change in changes)
    assert isinstance(changes[0].event, TaskCreated)
    assert any("was created" in line for line in caplog.messages if task_id[:12] in line)
    # A log is read by more people than a task is meant for.
    assert not any(task_id in line for line in caplog.messages)
