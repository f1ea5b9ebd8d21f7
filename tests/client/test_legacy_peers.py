"""Servers of 2025-11-25 that do as they like: slow, forgetful, wrong, hostile, or just unlike ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, ElicitResult, ErrorData, JSONRPCError, JSONRPCResponse

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import (
    InvalidResponse,
    Ledger,
    Progress,
    TaskFailed,
    TaskHandle,
    TaskStatus,
    UnknownTask,
    call_tool,
    list_tasks,
    resume_task,
    start_task,
)
from mcp_tasks.errors import UsageError
from mcp_tasks.legacy.shapes import RESULT_INTERRUPTED
from tests.client.connecting import LONG, SHORT, Person, begin, text
from tests.client.old_peer import EVERYTHING, RELATED, TASK_ID, Answer, OldPeer, connected, result, task

pytestmark = pytest.mark.anyio

FORM: dict[str, Any] = {
    "mode": "form",
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {}},
}


async def never(params: Mapping[str, Any]) -> Answer:
    """Leave a request without an answer."""
    return None


# What is asked of a server


async def test_a_task_is_asked_for_as_the_protocol_has_it() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", result())
    async with connected(peer) as client:
        assert text(await client.call_tool("x", {"a": 1})) == "done"
    [call] = peer.asked("tools/call")
    assert (call["name"], call["arguments"], call["task"]) == ("x", {"a": 1}, {})
    assert call["_meta"]["progressToken"]
    for method in ("tasks/get", "tasks/result"):
        assert all(params == {"taskId": TASK_ID} for params in peer.asked(method)), method


@pytest.mark.parametrize(
    "tasks", [None, {}, {"list": {}, "cancel": {}}, {"requests": {"tools": {}}}, {"requests": None}]
)
async def test_a_server_that_takes_no_calls_as_tasks_is_not_asked_to(tasks: Any) -> None:
    peer = OldPeer(tasks)
    peer.on("tools/call", result("plain"))
    async with connected(peer) as client:
        assert text(await client.call_tool("x")) == text(await call_tool(client, "x")) == "plain"
    assert all("task" not in call for call in peer.asked("tools/call"))


async def test_an_older_version_has_no_tasks_whatever_the_server_declares() -> None:
    peer = OldPeer(EVERYTHING, version="2025-06-18")
    peer.on("tools/call", result("plain"))
    async with connected(peer) as client:
        assert text(await client.call_tool("x")) == "plain"


@pytest.mark.parametrize("support", [None, "forbidden"])
async def test_a_tool_that_does_not_say_it_takes_tasks_is_not_called_as_one(support: str | None) -> None:
    peer = OldPeer()
    peer.offer(x=support)
    peer.on("tools/call", result("plain"))
    async with connected(peer) as client:
        assert text(await call_tool(client, "x")) == text(await client.call_tool("x")) == "plain"
    assert all("task" not in call for call in peer.asked("tools/call"))


async def test_tools_are_found_on_later_pages_and_a_list_that_never_ends_is_given_up() -> None:
    peer = OldPeer()
    tool = {"name": "x", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    peer.on(
        "tools/list",
        {"tools": [], "nextCursor": "2"},
        {"tools": [tool], "nextCursor": "3"},
        {"tools": [], "nextCursor": "3"},
    )
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", result())
    async with connected(peer) as client:
        with anyio.fail_after(PATIENCE):
            handle = await begin(client, "x")
            assert text(await handle.result()) == "done"
    assert {"cursor": "2"} in peer.asked("tools/list")


async def test_a_tool_that_takes_no_tasks_any_more_is_called_plainly() -> None:
    peer = OldPeer()
    async with connected(peer) as client:
        await client.list_tools()
        peer.offer(x="forbidden")
        peer.on("tools/call", ErrorData(code=-32601, message="not as a task"), result("plain"))
        assert text(await call_tool(client, "x")) == "plain"


async def test_a_task_may_be_asked_for_that_is_not_kept_at_all() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", result())
    async with connected(peer) as client:
        assert text(await call_tool(client, "x", ttl=timedelta(0))) == "done"
    [call] = peer.asked("tools/call")
    assert call["task"] == {"ttl": 0}


async def test_a_server_that_answers_at_once_has_its_result_taken() -> None:
    peer = OldPeer()
    peer.on("tools/call", result("at once"))
    async with connected(peer) as client:
        started = await start_task(client, "x")
        assert not isinstance(started, TaskHandle)
        assert text(started) == text(await client.call_tool("x")) == "at once"


async def test_what_a_server_does_not_offer_is_not_sent_and_says_why() -> None:
    peer = OldPeer({"requests": {"tools": {"call": {}}}})
    async with connected(peer) as client:
        handle = await begin(client, "x")
        with pytest.raises(UsageError, match=r"tasks\.cancel"):
            await handle.cancel()
        assert await handle.abandon("cancel") == "not cancelled"
        with pytest.raises(UsageError, match=r"tasks\.list"):
            await anext(aiter(list_tasks(client)))
    assert not peer.asked("tasks/cancel")
    assert not peer.asked("tasks/list")


async def test_a_call_that_is_given_up_before_it_has_a_task_cancels_the_task() -> None:
    peer = OldPeer()
    created = asyncio.Event()

    async def create(params: Mapping[str, Any]) -> Answer:
        await created.wait()
        return {"task": task()}

    peer.on("tools/call", create)
    peer.on("tasks/cancel", task("cancelled"))
    async with connected(peer) as client:
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: peer.asked("tools/call"))
        calling.cancel()
        created.set()
        await eventually(lambda: peer.asked("tasks/cancel"))
    # 2025-11-25: a call that asked for a task MUST NOT be cancelled with a notification.
    assert not peer.asked("notifications/cancelled")


# Waiting


async def test_a_result_that_is_cut_off_is_asked_for_again() -> None:
    peer = OldPeer()
    cut = ErrorData(code=CONNECTION_CLOSED, message="SSE stream ended without a response")
    peer.on("tasks/result", cut, cut, result())
    peer.on("tasks/get", task(), task(), task(), task("completed"))
    async with connected(peer, patience=LONG) as client:
        handle = await begin(client, "x")
        assert text(await handle.result(PATIENCE)) == "done"


async def test_a_server_that_cannot_wait_any_longer_is_asked_for_the_result_again() -> None:
    peer = OldPeer()
    stopping = ErrorData(code=RESULT_INTERRUPTED, message="The server is stopping", data={"reason": "server_stopping"})
    peer.on("tasks/result", stopping, result())
    # Forgotten as soon as it has ended: only what `tasks/result` gave tells how.
    peer.on("tasks/get", task(), ErrorData(code=-32602, message="Task not found"))
    async with connected(peer, patience=LONG) as client:
        handle = await begin(client, "x")
        assert text(await handle.result(PATIENCE)) == "done"


async def test_whoever_watched_and_then_waits_keeps_the_one_request_for_the_result() -> None:
    peer = OldPeer()
    ended = asyncio.Event()

    async def wait(params: Mapping[str, Any]) -> Answer:
        await ended.wait()
        peer.on("tasks/get", task("completed"))
        return result()

    peer.on("tasks/get", task())
    peer.on("tasks/result", wait)
    async with connected(peer) as client:
        handle = await begin(client, "x")
        async with aclosing(handle.watch()) as states:
            await anext(states)
        await eventually(lambda: peer.asked("tasks/result"))
        waiting = asyncio.create_task(handle.result())
        ended.set()
        with anyio.fail_after(PATIENCE):
            assert text(await waiting) == "done"
    assert len(peer.asked("tasks/result")) == 1
    assert not peer.asked("notifications/cancelled")


async def test_a_server_that_refuses_to_wait_is_polled() -> None:
    peer = OldPeer()
    refusal = ErrorData(code=-32602, message="Task is not finished")
    peer.on("tasks/result", refusal, refusal, result())
    peer.on("tasks/get", task(), task(), task(), task("completed"))
    async with connected(peer) as client:
        handle = await begin(client, "x")
        assert text(await handle.result(PATIENCE)) == "done"


async def test_a_failed_task_whose_result_is_a_plain_error_of_the_tool_raises_it() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("failed", statusMessage="no such table"))
    peer.on("tasks/result", ErrorData(code=-32602, message="Invalid arguments", data={"field": "a"}))
    async with connected(peer) as client:
        with pytest.raises(TaskFailed) as failed:
            await (await begin(client, "x")).result(PATIENCE)
    assert (failed.value.code, failed.value.message, failed.value.data) == (-32602, "Invalid arguments", {"field": "a"})


async def test_a_failed_task_without_a_result_says_what_its_state_says() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("failed", statusMessage="no such table"))
    peer.on("tasks/result", {"_meta": dict(RELATED)})
    async with connected(peer) as client:
        with pytest.raises(TaskFailed, match="no such table"):
            await (await begin(client, "x")).result(PATIENCE)


async def test_an_error_that_looks_like_a_broken_connection_is_the_tasks_own_after_some_tries() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("failed"))
    peer.on("tasks/result", ErrorData(code=CONNECTION_CLOSED, message="the database went away"))
    async with connected(peer, patience=LONG) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(TaskFailed, match="the database went away"):
            await (await begin(client, "x")).result()


async def test_a_task_that_expires_before_its_result_was_fetched_is_unknown() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", ErrorData(code=-32602, message="Task has expired"))
    async with connected(peer) as client:
        with pytest.raises(UnknownTask):
            await (await begin(client, "x")).result(PATIENCE)


async def test_a_server_that_stumbles_over_a_look_is_looked_at_again_before_the_task_is_called_unknown() -> None:
    peer = OldPeer()
    stumbled = ErrorData(code=-32602, message="Invalid request parameters", data="")
    peer.on("tasks/get", task(), stumbled, task("completed"))
    peer.on("tasks/result", stumbled, stumbled, result())
    async with connected(peer) as client:
        assert text(await (await begin(client, "x")).result(PATIENCE)) == "done"


async def test_a_server_that_only_ever_stumbles_does_not_know_the_task_and_the_error_names_sessions() -> None:
    peer = OldPeer()
    peer.on("tasks/get", ErrorData(code=-32602, message="Invalid request parameters", data=""))
    async with connected(peer) as client:
        with pytest.raises(UnknownTask, match="only for the session that made it"):
            await (await begin(client, "x")).status()


async def test_a_watch_shows_a_state_once_however_often_its_expiry_moves() -> None:
    peer = OldPeer()
    renewed = [task(ttl=1000 * n, pollInterval=20 + n, lastUpdatedAt=f"2025-11-25T10:40:0{n}Z") for n in range(9)]
    peer.on("tasks/get", *renewed, task("completed"))
    peer.on("tasks/result", never, result())
    async with connected(peer) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE):
            states = [snapshot.status async for snapshot in handle.watch()]
    assert states == [TaskStatus.WORKING, TaskStatus.COMPLETED]


async def test_the_first_state_that_asks_something_has_its_question() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("input_required"))

    async def ask(params: Mapping[str, Any]) -> Answer:
        await anyio.sleep(0.05)  # sleep: its state is seen before its question
        await peer.ask("elicitation/create", {**FORM, "_meta": dict(RELATED)})
        return None

    peer.on("tasks/result", ask)
    async with connected(peer) as client:
        handle = resume_task(client, TASK_ID)
        async with aclosing(handle.watch()) as states:
            with anyio.fail_after(PATIENCE):
                first = await anext(states)
    assert first.status is TaskStatus.INPUT_REQUIRED
    assert [question["params"]["message"] for question in first.input_requests.values()] == ["Your name?"]


async def test_a_question_that_never_comes_holds_its_state_back_for_a_moment_only() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("input_required"))
    peer.on("tasks/result", never)
    async with connected(peer) as client:
        handle = resume_task(client, TASK_ID)
        async with aclosing(handle.watch()) as states:
            with anyio.fail_after(PATIENCE):
                first = await anext(states)
    assert (first.status, first.input_requests) == (TaskStatus.INPUT_REQUIRED, {})


TOO_LARGE = ErrorData(
    code=CONNECTION_CLOSED, message="SSE stream failed: Server-sent event exceeded the 1048576 byte limit."
)


async def test_a_result_that_the_transport_refuses_for_its_size_ends_the_wait_and_not_the_look(tmp_path: Path) -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", TOO_LARGE)
    tasks = {"patience": LONG, "ledger": tmp_path / "ledger.db"}
    async with connected(peer, **tasks) as client:
        handle = await begin(client, "x")
        snapshot = await handle.status()
        assert (snapshot.status, snapshot.result) == (TaskStatus.COMPLETED, None)
        with anyio.fail_after(PATIENCE / 2), pytest.raises(MCPError, match="byte limit"):
            await handle.result()
        # Whoever comes back over a transport that takes more gets it.
        peer.on("tasks/result", result())
        with closing(Ledger(tmp_path / "ledger.db")) as ledger:
            assert [entry.task_id for entry in ledger.pending(server="old peer")] == [TASK_ID]
        assert text(await handle.result(PATIENCE)) == "done"


@pytest.mark.parametrize(
    "outcome", [result(), {**result(), "isError": True}, ErrorData(code=-32050, message="out of paper")]
)
async def test_a_result_that_came_counts_though_the_server_has_forgotten_the_task(outcome: Any) -> None:
    peer = OldPeer()

    async def late(params: Mapping[str, Any]) -> Answer:
        await anyio.sleep(0.05)  # sleep: the client looks at the task meanwhile
        return outcome

    peer.on("tasks/result", late, ErrorData(code=-32602, message="Task not found"))
    peer.on("tasks/get", ErrorData(code=-32602, message="Task not found"))
    async with connected(peer) as client:
        handle = await begin(client, "x")
        if isinstance(outcome, ErrorData):
            with pytest.raises(TaskFailed, match="out of paper"):
                await handle.result(PATIENCE)
        else:
            assert (await handle.result(PATIENCE)).is_error == outcome["isError"]


async def test_a_refusal_to_show_the_result_of_a_forgotten_task_is_not_its_failure() -> None:
    peer = OldPeer()
    peer.on("tasks/result", ErrorData(code=-32601, message="Method not found"))
    peer.on("tasks/get", task(), ErrorData(code=-32602, message="Task not found"))
    async with connected(peer) as client:
        with pytest.raises(UnknownTask):
            await (await begin(client, "x")).result(PATIENCE)


@pytest.mark.parametrize("code", [-32000, -32001])
async def test_a_failure_in_the_words_of_a_connection_that_ended_is_the_tasks_own(code: int) -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("failed"))
    peer.on("tasks/result", ErrorData(code=code, message="Connection closed"))
    async with connected(peer, patience=LONG) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(TaskFailed) as failed:
            await (await begin(client, "x")).result()
    assert (failed.value.code, failed.value.message) == (code, "Connection closed")


async def test_a_server_that_never_answers_is_given_up_when_the_time_is_over() -> None:
    peer = OldPeer()
    peer.on("tasks/get", never)
    peer.on("tasks/result", never)
    async with connected(peer, patience=SHORT) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE), pytest.raises(TimeoutError):
            await handle.result(0.1)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"status": "working"},
        task("sleeping"),
        task(taskId=7),
        task(taskId="another-task"),
        task(createdAt="yesterday"),
        {**task(), "status": ["working"]},
    ],
)
async def test_something_that_is_not_the_task_is_an_invalid_response(said: Mapping[str, Any]) -> None:
    peer = OldPeer()
    peer.on("tasks/get", said)
    async with connected(peer) as client:
        with pytest.raises(InvalidResponse):
            await resume_task(client, TASK_ID).status()


@pytest.mark.parametrize("said", [{"task": None}, {"task": {}}, {"task": task("sleeping")}, {"task": [task()]}])
async def test_a_call_that_is_answered_with_something_that_is_not_a_task_fails(said: Mapping[str, Any]) -> None:
    peer = OldPeer()
    peer.on("tools/call", said)
    async with connected(peer) as client:
        with pytest.raises(InvalidResponse):
            await start_task(client, "x")
        with pytest.raises(MCPError, match="not a valid task"):
            await client.call_tool("x")


async def test_instants_without_an_offset_are_utc() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task(createdAt="2025-11-25T10:30:00", lastUpdatedAt="2025-11-25T10:40:00"))
    async with connected(peer) as client:
        snapshot = await resume_task(client, TASK_ID).status()
    assert snapshot.created_at.isoformat() == "2025-11-25T10:30:00+00:00"


# Listing


async def test_every_page_of_a_list_is_asked_for_with_the_cursor_as_it_came() -> None:
    peer = OldPeer()
    peer.on("tasks/list", {"tasks": [task()], "nextCursor": "§ opaque §"}, {"tasks": [task("completed")]})
    async with connected(peer) as client:
        listed = [snapshot.status async for snapshot in list_tasks(client)]
    assert listed == [TaskStatus.WORKING, TaskStatus.COMPLETED]
    assert peer.asked("tasks/list") == [{}, {"cursor": "§ opaque §"}]


@pytest.mark.parametrize("page", [{}, {"tasks": {}}, {"tasks": [7]}, {"tasks": [{"taskId": "t"}]}])
async def test_a_list_of_something_else_is_an_invalid_response(page: Mapping[str, Any]) -> None:
    peer = OldPeer()
    peer.on("tasks/list", page)
    async with connected(peer) as client:
        with pytest.raises(InvalidResponse):
            await anext(aiter(list_tasks(client)))


# What a server sends by itself


async def test_status_notifications_are_hints_and_not_believed() -> None:
    peer = OldPeer()
    peer.on("tools/call", {"task": task(pollInterval=60_000)})
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", never, result())
    async with connected(peer) as client:
        handle = await begin(client, "x")
        waiting = asyncio.create_task(handle.result())
        await eventually(lambda: peer.asked("tasks/result"))
        for lie in ({}, {"taskId": 7}, {"taskId": TASK_ID, "status": "on fire"}):
            await peer.tell("notifications/tasks/status", lie)
        await peer.tell("notifications/tasks/status", task("cancelled"))
        with anyio.fail_after(PATIENCE):
            assert text(await waiting) == "done"


async def test_progress_that_comes_before_the_task_and_with_it_reaches_whoever_waits() -> None:
    peer = OldPeer()
    reported: list[Progress] = []

    async def report(progress: Progress) -> None:
        reported.append(progress)

    async def create(params: Mapping[str, Any]) -> Answer:
        token = params["_meta"]["progressToken"]
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 1, "total": 3})
        return {"task": task()}

    peer.on("tools/call", create)
    peer.on("tasks/get", task(pollInterval=60_000), task("completed"))
    peer.on("tasks/result", never, result())
    async with connected(peer, on_progress=report) as client:
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: reported)
        token = peer.asked("tools/call")[0]["_meta"]["progressToken"]
        odds: list[dict[str, Any]] = [
            {"progressToken": token},
            {"progressToken": token, "progress": "much"},
            {"progressToken": []},
        ]
        for odd in odds:
            await peer.tell("notifications/progress", odd)
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 2, "total": 3, "message": "m"})
        await eventually(lambda: len(reported) == 2)
        await peer.tell("notifications/tasks/status", task("completed"))
        await calling
    assert reported == [Progress(progress=1, total=3), Progress(progress=2, total=3, message="m")]


@pytest.mark.parametrize("token", [[], {}, None, 1.5])
async def test_a_progress_token_that_is_none_is_passed_over(token: Any, caplog: pytest.LogCaptureFixture) -> None:
    peer = OldPeer()

    async def tell(params: Mapping[str, Any]) -> Answer:
        await peer.tell("notifications/progress", {"progressToken": token, "progress": 0.5, "_meta": dict(RELATED)})
        return {"task": task()}

    peer.on("tools/call", tell)
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", result())
    async with connected(peer) as client:
        assert text(await (await begin(client, "x")).result(PATIENCE)) == "done"
    assert "could not be handled" not in caplog.text


async def test_a_question_is_answered_once_under_its_own_id_wherever_it_comes() -> None:
    peer = OldPeer()
    person = Person()
    peer.on("tasks/get", task("input_required"))
    peer.on("tasks/result", never)
    async with connected(peer, elicitation_callback=person) as client:
        handle = await begin(client, "x")
        waiting = asyncio.create_task(handle.result())
        await peer.ask("elicitation/create", {**FORM, "_meta": RELATED}, "q-1")
        await eventually(lambda: peer.replies)
        waiting.cancel()
    [reply] = peer.replies
    assert isinstance(reply, JSONRPCResponse)
    assert (reply.id, reply.result["action"]) == ("q-1", "accept")
    assert person.asked == ["Your name?"]


async def test_a_question_that_comes_before_its_task_waits_for_whoever_started_it() -> None:
    peer = OldPeer()
    person = Person()

    async def create(params: Mapping[str, Any]) -> Answer:
        await peer.ask("elicitation/create", {**FORM, "_meta": RELATED}, "early")
        return {"task": task()}

    peer.on("tools/call", create)
    peer.on("tasks/get", task("input_required"))
    peer.on("tasks/result", never)
    async with connected(peer, elicitation_callback=person) as client:
        handle = await begin(client, "x")
        snapshot = await handle.status()
        assert (len(snapshot.input_requests), person.asked) == (1, [])
        [key] = snapshot.input_requests
        await handle.answer({key: {"action": "decline"}})
        await eventually(lambda: peer.replies)
    assert person.asked == []


async def test_a_question_of_nobodys_task_is_the_sessions_as_ever() -> None:
    peer = OldPeer()
    person = Person()
    async with connected(peer, elicitation_callback=person):
        await peer.ask("elicitation/create", {**FORM, "_meta": RELATED})
        await peer.ask("elicitation/create", FORM, 2)
        await eventually(lambda: len(peer.replies) == 2)
    assert len(person.asked) == 2


async def test_no_more_than_some_questions_of_a_task_are_kept() -> None:
    peer = OldPeer()
    person = Person()
    peer.on("tasks/get", task("input_required"))
    async with connected(peer, elicitation_callback=person) as client:
        handle = await begin(client, "x")
        for number in range(150):
            await peer.ask("elicitation/create", {**FORM, "_meta": RELATED}, number)
        # What is beyond that is answered like any other request.
        await eventually(lambda: len(peer.replies) == 50)
        assert len((await handle.status()).input_requests) == 100


async def test_a_connection_that_ends_ends_the_wait_with_it() -> None:
    peer = OldPeer()
    peer.on("tasks/get", task())
    peer.on("tasks/result", never)
    async with connected(peer, patience=LONG) as client:
        handle = await begin(client, "x")
        waiting = asyncio.create_task(handle.result())
        calling = asyncio.create_task(client.call_tool("x"))
        await eventually(lambda: len(peer.asked("tools/call")) == 2 and peer.asked("tasks/result"))
        await peer.hang_up()
        for work in (waiting, calling):
            with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="Connection closed"):
                await work


@pytest.mark.parametrize("callback", ["none", "refuses", "raises", "unsendable"])
async def test_a_question_that_no_callback_answers_gets_an_error_that_names_the_task(callback: str) -> None:
    peer = OldPeer()
    answered = asyncio.Event()

    async def ask(params: Mapping[str, Any]) -> Answer:
        await peer.ask("elicitation/create", {**FORM, "_meta": dict(RELATED)}, request_id=7)
        await answered.wait()
        peer.on("tasks/get", task("completed"))
        return result("went on")

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult | ErrorData:
        match callback:
            case "refuses":
                return ErrorData(code=-5, message="not today", data={"why": "holiday"})
            case "raises":
                raise ValueError("not today")
            case _:
                return ElicitResult(action="accept", content={"name": "\ud800"})

    peer.on("tasks/get", task())
    peer.on("tasks/result", ask)
    async with connected(peer, elicitation_callback=None if callback == "none" else person) as client:
        with anyio.fail_after(PATIENCE):
            calling = asyncio.create_task(call_tool(client, "x"))
            await eventually(lambda: peer.replies)
            answered.set()
            assert text(await calling) == "went on"
    [reply] = peer.replies
    assert isinstance(reply, JSONRPCError)
    assert reply.id == 7
    assert reply.error.data["_meta"] == RELATED
    if callback == "refuses":
        assert (reply.error.code, reply.error.message, reply.error.data["why"]) == (-5, "not today", "holiday")


@pytest.mark.requirement("older-client/immediate-response")
@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"io.modelcontextprotocol/model-immediate-response": "Rendering has begun."}, "Rendering has begun."),
        ({"io.modelcontextprotocol/model-immediate-response": 7}, None),
        ({}, None),
        ("odd", None),
        (None, None),
    ],
)
async def test_the_immediate_response_that_comes_with_a_task_is_on_its_handle(meta: Any, expected: str | None) -> None:
    peer = OldPeer()
    peer.on("tools/call", {"task": task(), **({} if meta is None else {"_meta": meta})})
    peer.on("tasks/get", task("completed"))
    peer.on("tasks/result", result())
    async with connected(peer) as client:
        handle = await begin(client, "x")
        assert handle.immediate_response == expected
        assert text(await handle.result(PATIENCE)) == "done"
        assert handle.immediate_response == expected


@pytest.mark.requirement("older-client/related-task-on-answers")
@pytest.mark.parametrize("asks_for", ["another's task", "a task of its own"])
@pytest.mark.parametrize("data", [..., None, {"why": "no"}, ["no"], "no"], ids=repr)
async def test_an_answer_of_the_session_names_the_task_that_its_question_names(data: Any, asks_for: str) -> None:
    peer = OldPeer()
    related = {"io.modelcontextprotocol/related-task": {"taskId": "somebody-elses"}}
    augmented: dict[str, Any] = {"task": {}} if asks_for == "a task of its own" else {}

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult | ErrorData:
        if data is ...:
            return ElicitResult(action="decline", _meta={"own": 1})
        return ErrorData(code=-5, message="not today", data=data)

    async with connected(peer, elicitation_callback=person) as client:
        await client.list_tools()
        await peer.ask("elicitation/create", {**FORM, **augmented, "_meta": related}, request_id="q")
        await eventually(lambda: peer.replies)
        await peer.ask("elicitation/create", FORM, request_id="q")
        await eventually(lambda: len(peer.replies) == 2)
    named, plain = peer.replies
    if isinstance(named, JSONRPCError) and isinstance(plain, JSONRPCError):
        assert named.error.data["_meta"] == related
        own = {key: value for key, value in named.error.data.items() if key != "_meta"}
        assert own == (data if isinstance(data, dict) else {} if data is None else {"mcp-tasks/data": data})
        assert plain.error.data == data
    else:
        assert isinstance(named, JSONRPCResponse)
        assert isinstance(plain, JSONRPCResponse)
        assert named.result == {"action": "decline", "_meta": {"own": 1, **related}}
        assert plain.result == {"action": "decline", "_meta": {"own": 1}}


@pytest.mark.parametrize("data", [["no"], "no", 7, True], ids=repr)
async def test_data_that_a_server_moved_beside_the_name_of_the_task_is_given_as_it_was(data: Any) -> None:
    peer = OldPeer()
    peer.on("tasks/get", task("failed"))
    moved = {"mcp-tasks/data": data, "_meta": dict(RELATED)}
    peer.on("tasks/result", ErrorData(code=-5, message="it broke", data=moved))
    async with connected(peer) as client:
        with pytest.raises(TaskFailed) as failed:
            await (await begin(client, "x")).result(PATIENCE)
    assert failed.value.data == data
