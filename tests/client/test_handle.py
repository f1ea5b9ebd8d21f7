"""`TaskHandle`: look, wait, answer, cancel, give up."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from datetime import timedelta
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from harness.rpc import PATIENCE
from harness.server import CUSTOM_ERROR, Desk
from harness.waiting import eventually
from mcp_tasks.client import TaskFailed, TaskHandle, TaskSnapshot, call_tool, resume_task, start_task
from mcp_tasks.client import handle as handle_module
from mcp_tasks.errors import TasksError, TaskWasCancelled, UnknownTask, WaitTimedOut
from mcp_tasks.model import Progress, TaskStatus
from tests.client.connecting import LONG, SHORT, Person, accepted, begin, connect, seen, text
from tests.client.peer import OUT_OF_ORDER, TASK_ID, Answer, Peer, asking, completed, task

pytestmark = pytest.mark.anyio

ANSWER = accepted().model_dump(by_alias=True, mode="json", exclude_none=True)


@pytest.fixture(params=[True, False], ids=["push", "polls"])
def push(request: pytest.FixtureRequest) -> bool:
    """Whether the client listens."""
    return request.param


# Outcomes


async def test_a_result_is_what_a_plain_call_would_have_given(url: str, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "point", x=1.5)
        result = await handle.result()
    assert result.structured_content == {"x": 1.5, "y": None}
    assert not result.is_error


async def test_a_result_can_be_had_again(url: str) -> None:
    async with connect(url) as client:
        handle = await begin(client, "echo", value="again")
        assert [text(await handle.result()), text(await handle.result())] == ["again", "again"]


async def test_a_tool_that_fails_is_a_result_that_says_so(url: str) -> None:
    async with connect(url) as client:
        result = await (await begin(client, "fails")).result()
    assert result.is_error
    assert "it did not work out" in text(result)


async def test_a_failed_task_raises_its_json_rpc_error_with_all_its_parts(url: str, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "breaks")
        with pytest.raises(MCPError) as caught:
            await handle.result()
    assert (caught.value.code, caught.value.message) == (CUSTOM_ERROR, "the protocol says no")
    assert caught.value.error.data == {"hint": "ask again"}


@pytest.mark.parametrize("caught_as", [MCPError, TasksError, TaskFailed])
@pytest.mark.parametrize("way", ["handle", "call_tool", "the SDK's call_tool"])
async def test_a_failed_task_is_an_error_of_ours_and_of_the_sdk(url: str, caught_as: type[Exception], way: str) -> None:
    async with connect(url) as client:
        with pytest.raises(caught_as) as caught:
            await _break(client, way)
    failed = caught.value
    assert isinstance(failed, TaskFailed)
    assert (failed.code, failed.error.message) == (CUSTOM_ERROR, "the protocol says no")
    assert failed.task_id
    assert str(failed) == f"task {failed.task_id} failed: the protocol says no"


async def _break(client: Client, way: str) -> None:
    match way:
        case "handle":
            await (await begin(client, "breaks")).result()
        case "call_tool":
            await call_tool(client, "breaks")
        case _:
            await client.call_tool("breaks")


def test_a_failed_task_can_be_sent_to_another_process() -> None:
    failed = pickle.loads(pickle.dumps(TaskFailed(-32000, "no", {"hint": 1}, task_id="task-1")))
    assert (failed.code, failed.message, failed.data, failed.task_id) == (-32000, "no", {"hint": 1}, "task-1")


async def test_a_task_cancelled_by_somebody_else_says_so_and_names_itself(url: str, desk: Desk, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "gated")
        await desk.started.wait()
        cancelling = asyncio.create_task(resume_task(client, handle.id).cancel())
        with pytest.raises(TaskWasCancelled) as caught:
            await handle.result(PATIENCE)
        await cancelling
    assert caught.value.task_id == handle.id
    assert "Cancelled by the client" in str(caught.value)


@pytest.mark.parametrize("verb", ["status", "result", "cancel", "answer", "watch"])
async def test_a_task_that_is_not_there_is_unknown_whatever_is_asked_of_it(url: str, verb: str) -> None:
    async with connect(url) as client:
        handle = resume_task(client, "task_nobody")
        with pytest.raises(UnknownTask) as caught:
            await _use(handle, verb)
    assert caught.value.task_id == "task_nobody"


async def _use(handle: TaskHandle, verb: str) -> None:
    match verb:
        case "watch":
            async for _ in handle.watch():
                pass
        case "answer":
            await handle.answer({"key": ANSWER})
        case _:
            await getattr(handle, verb)()


async def test_a_tool_that_answers_at_once_is_no_task(url: str) -> None:
    async with connect(url) as client:
        inline = await start_task(client, "greet", {"name": "Ada"})
    assert isinstance(inline, CallToolResult)
    assert text(inline) == "Hello, Ada!"


# Looking


async def test_status_is_one_look(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handle = await begin(client, "progressing", steps=2, total=4, message="half")
        await desk.started.wait()
        working = await seen(handle, lambda snapshot: snapshot.progress and snapshot.progress.progress == 2)
        desk.gate.set()
        await handle.result()
        done = await handle.status()
    assert (working.status, working.message) == (TaskStatus.WORKING, "half")
    assert working.progress == Progress(progress=2, total=4, message="half")
    assert (done.status, done.is_final) == (TaskStatus.COMPLETED, True)


@pytest.mark.requirement("client/polls-to-the-end")
async def test_watch_shows_every_change_of_status_and_ends_with_the_final_one(url: str, push: bool) -> None:
    async with connect(url, push=push, person=Person()) as client:
        handle = await begin(client, "ask_name")
        statuses: list[TaskStatus] = []
        async for snapshot in handle.watch():
            statuses.append(snapshot.status)
            if snapshot.status is TaskStatus.INPUT_REQUIRED:
                await handle.answer(dict.fromkeys(snapshot.input_requests, ANSWER))
    distinct = [status for status, _ in groupby(statuses)]
    assert distinct[-1] is TaskStatus.COMPLETED
    assert distinct.count(TaskStatus.INPUT_REQUIRED) == 1


async def test_watch_shows_questions_and_does_not_answer_them(url: str, push: bool) -> None:
    person = Person()
    async with connect(url, push=push, person=person) as client:
        handle = await begin(client, "ask_name")
        async for snapshot in handle.watch():
            if snapshot.input_requests:
                break
        await handle.cancel()
    assert person.asked == []


async def test_watch_never_shows_the_same_state_twice_in_a_row(url: str, desk: Desk, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "progressing", steps=3, total=None, message=None)
        states: list[TaskSnapshot] = []
        async for snapshot in handle.watch():
            states.append(snapshot)
            if snapshot.progress == Progress(progress=3, message="3"):
                desk.gate.set()
    assert all(one != other for one, other in pairwise(states))


async def test_several_may_watch_and_wait_for_one_task(url: str, desk: Desk) -> None:
    ends: list[str] = []

    async with connect(url) as client, connect(url) as other_client:
        handle = await begin(client, "gated")

        async def wait(which: TaskHandle) -> None:
            ends.append(text(await which.result()))

        async def watch(which: TaskHandle) -> None:
            ends.append([snapshot.status async for snapshot in which.watch()][-1])

        async with anyio.create_task_group() as group:
            for which in (handle, resume_task(client, handle.id), resume_task(other_client, handle.id)):
                group.start_soon(wait, which)
                group.start_soon(watch, which)
            await desk.started.wait()
            desk.gate.set()
    assert sorted(ends) == ["completed"] * 3 + ["through"] * 3


# Progress


async def test_progress_is_reported_as_it_changes(url: str, desk: Desk, push: bool) -> None:
    reported: list[Progress] = []

    async def on_progress(progress: Progress) -> None:
        reported.append(progress)
        if progress.progress == 3:
            desk.gate.set()

    async with connect(url, push=push) as client:
        handle = await begin(client, "progressing", steps=3, total=3, message="on it")
        await handle.result(on_progress=on_progress)
    assert reported[-1] == Progress(progress=3, total=3, message="on it")
    assert reported == sorted(reported, key=lambda progress: progress.progress)
    assert len(set(reported)) == len(reported)


async def test_progress_reaches_the_callback_of_a_single_call_and_that_of_the_client(url: str, desk: Desk) -> None:
    reported: list[str] = []

    async def of_client(progress: Progress) -> None:
        reported.append("client")
        desk.gate.set()

    async def of_call(progress: Progress) -> None:
        reported.append("call")
        desk.gate.set()

    arguments = {"steps": 1, "total": 1, "message": None}
    async with connect(url, on_progress=of_client) as client:
        await client.call_tool("progressing", arguments)
        desk.gate.clear()
        await call_tool(client, "progressing", arguments, on_progress=of_call)
    assert list(dict.fromkeys(reported)) == ["client", "call"]


async def test_what_a_call_does_not_say_is_as_the_client_was_made(url: str, desk: Desk) -> None:
    async def on_progress(progress: Progress) -> None:
        desk.gate.set()

    async with connect(url, on_progress=on_progress, on_abandon="cancel") as client:
        with anyio.fail_after(PATIENCE):
            await call_tool(client, "progressing", {"steps": 1, "total": 1, "message": None})
        desk.gate.clear()
        with pytest.raises(WaitTimedOut):
            await call_tool(client, "gated", timeout=0.2)
        await eventually(desk.stopped.is_set)
        with pytest.raises(WaitTimedOut) as caught:
            await (await begin(client, "gated")).result(0.2)
        assert caught.value.fate == "cancelled"


# Questions


@pytest.mark.requirement("client/inspects-input-requests")
async def test_a_wait_answers_through_the_callback_of_the_client(url: str, push: bool) -> None:
    person = Person()
    async with connect(url, push=push, person=person) as client:
        assert text(await (await begin(client, "ask_both")).result()) == "Ada is 36"
    assert sorted(person.asked) == ["Your age?", "Your name?"]


async def test_the_same_question_asked_again_is_another_question(url: str) -> None:
    person = Person()
    async with connect(url, person=person) as client:
        assert text(await (await begin(client, "ask_again")).result()) == "Ada, Ada, Ada"
    assert person.asked == ["What is your name?"] * 3


async def test_answers_can_be_given_by_hand_one_by_one(url: str) -> None:
    async with connect(url, person=Person()) as client:
        handle = await begin(client, "ask_both")
        async for snapshot in handle.watch():
            for key in list(snapshot.input_requests)[:1]:
                await handle.answer({key: ANSWER})
        assert text(await handle.result()) == "Ada is 36"


async def test_an_answer_may_be_a_model_of_the_sdk(url: str, tmp_path: Path) -> None:
    async with connect(url, person=Person(), ledger=str(tmp_path / "ledger.db")) as client:
        handle = await begin(client, "ask_name")
        async for snapshot in handle.watch():
            if snapshot.input_requests:
                await handle.answer(dict.fromkeys(snapshot.input_requests, accepted()))
        assert text(await handle.result()) == "Hello, Ada!"


async def test_a_question_that_somebody_else_answers_leaves_the_person_alone(url: str) -> None:
    person = Person(ready=asyncio.Event())
    async with connect(url, person=person) as client, connect(url, person=Person()) as other:
        handle = await begin(client, "ask_name")
        async with anyio.create_task_group() as group:
            group.start_soon(handle.result)
            await person.until_asked()
            assert text(await resume_task(other, handle.id).result()) == "Hello, Ada!"
    assert (len(person.asked), person.left_alone) == (1, 1)


# Time limits


async def test_a_wait_that_takes_too_long_ends_and_says_for_whom(url: str, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "gated")
        with pytest.raises(WaitTimedOut) as caught:
            await handle.result(timedelta(seconds=0.05))
    assert (caught.value.task_id, caught.value.seconds) == (handle.id, 0.05)
    assert isinstance(caught.value, TimeoutError)


async def test_the_time_a_person_takes_to_answer_does_not_count(url: str) -> None:
    ready = asyncio.Event()
    async with connect(url, person=Person(ready=ready)) as client:
        handle = await begin(client, "ask_name")
        await seen(handle, lambda snapshot: snapshot.input_requests)
        asyncio.get_running_loop().call_later(1.2, ready.set)
        assert text(await handle.result(1.0)) == "Hello, Ada!"


async def test_after_the_answer_the_time_runs_on(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", asking("a"), task())
    peer.on("tasks/update", {"resultType": "complete"})
    person = Person()
    async with connect(peer_url, person=person) as client:
        handle = await begin(client, "x")
        began = time.monotonic()
        with pytest.raises(WaitTimedOut):
            await handle.result(0.3)
    assert 0.3 <= time.monotonic() - began < PATIENCE
    assert len(person.asked) == 1


async def test_a_task_that_ends_in_time_ends_the_wait_and_not_the_limit(url: str) -> None:
    async with connect(url) as client:
        assert text(await (await begin(client, "echo", value=1)).result(timedelta(seconds=PATIENCE))) == "1"


# Giving up


@pytest.mark.requirement("client/cancels-with-tasks-cancel")
async def test_a_wait_that_times_out_may_take_its_task_along(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handle = await begin(client, "gated")
        await desk.started.wait()
        with pytest.raises(WaitTimedOut):
            await handle.result(0.05, on_abandon="cancel")
        assert (await handle.status()).status is TaskStatus.CANCELLED
        await eventually(desk.stopped.is_set)


async def test_a_wait_that_times_out_leaves_its_task_otherwise(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handle = await begin(client, "gated")
        with pytest.raises(WaitTimedOut):
            await handle.result(0.05)
        assert (await handle.status()).status is TaskStatus.WORKING
        desk.gate.set()
        assert text(await handle.result()) == "through"


@pytest.mark.parametrize("on_abandon", ["cancel", "leave"])
@pytest.mark.parametrize("by", ["scope", "asyncio"])
async def test_a_caller_that_is_cancelled_decides_what_becomes_of_its_task(
    url: str, desk: Desk, by: str, on_abandon: Any
) -> None:
    async with connect(url) as client:
        handle = await begin(client, "gated")
        begun = asyncio.Event()
        waiting = asyncio.create_task(_wait(handle, on_abandon, by, begun))
        await begun.wait()
        await desk.started.wait()
        if by == "asyncio":
            waiting.cancel()
        await asyncio.wait([waiting], timeout=PATIENCE)
        assert waiting.cancelled() == (by == "asyncio")
        expected = TaskStatus.CANCELLED if on_abandon == "cancel" else TaskStatus.WORKING
        assert (await handle.status()).status is expected
        desk.gate.set()


async def _wait(handle: TaskHandle, on_abandon: Any, by: str, begun: asyncio.Event) -> None:
    begun.set()
    with anyio.move_on_after(0.1 if by == "scope" else None):
        await handle.result(on_abandon=on_abandon)


async def test_a_client_can_be_made_to_cancel_tasks_of_calls_that_are_cancelled(url: str, desk: Desk) -> None:
    async with connect(url, on_abandon="cancel") as client:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.call_tool, "gated", {}))
            await eventually(desk.started.is_set)
            # By the time of the answer to a later request, that to the call has come: it is known what to cancel.
            await client.list_tools()
            group.cancel_scope.cancel()
        await eventually(desk.stopped.is_set)


async def test_a_plain_call_that_is_cancelled_leaves_its_task(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        with anyio.move_on_after(0.2):
            await client.call_tool("gated", {})
        assert desk.started.is_set()
        # A cancellation would have come before any answer to a later request.
        await client.list_tools()
        assert not desk.stopped.is_set()


async def test_a_call_with_a_time_limit_may_cancel_its_task(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        with pytest.raises(WaitTimedOut, match="was cancelled") as caught:
            await call_tool(client, "gated", timeout=0.2, on_abandon="cancel")
        await eventually(desk.stopped.is_set)
    assert caught.value.fate == "cancelled"


async def test_a_call_with_a_time_limit_leaves_its_task_otherwise(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        with pytest.raises(WaitTimedOut, match="resume_task") as caught:
            await call_tool(client, "gated", timeout=0.2)
        desk.gate.set()
        assert text(await resume_task(client, caught.value.task_id).result()) == "through"


async def test_a_task_that_cannot_be_cancelled_does_not_hide_why_the_wait_ended(
    peer: Peer, peer_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer.on("tasks/get", task())
    peer.on("tasks/cancel", OUT_OF_ORDER)
    async with connect(peer_url) as client:
        handle = await begin(client, "x")
        with caplog.at_level(logging.WARNING), pytest.raises(WaitTimedOut):
            await handle.result(0.05, on_abandon="cancel")
    assert "could not be cancelled" in caplog.text


async def test_a_server_that_does_not_answer_a_cancellation_is_not_waited_for_long(
    peer: Peer, peer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(params: object) -> Answer:
        await anyio.sleep_forever()
        return OUT_OF_ORDER

    monkeypatch.setattr(handle_module, "CANCEL_TIMEOUT", 0.1)
    peer.on("tasks/get", task())
    peer.handlers["tasks/cancel"] = silence
    async with connect(peer_url) as client:
        handle = await begin(client, "x")
        with anyio.fail_after(PATIENCE / 2), pytest.raises(WaitTimedOut):
            await handle.result(0.05, on_abandon="cancel")


# A server that is out of reach for a while


async def test_looks_that_fail_for_now_are_tried_again(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task(), OUT_OF_ORDER, OUT_OF_ORDER, task(), OUT_OF_ORDER, completed("at last"))
    async with connect(peer_url, patience=LONG) as client:
        assert text(await client.call_tool("x", {})) == "at last"


async def test_patience_with_a_server_that_stays_away_ends_with_its_error(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", task(), OUT_OF_ORDER)
    async with connect(peer_url, patience=SHORT) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(MCPError, match="try again later"):
            await client.call_tool("x", {})
    assert 3 <= len(peer.asked("tasks/get")) < 40


async def test_one_look_is_not_tried_again(peer: Peer, peer_url: str) -> None:
    peer.on("tasks/get", OUT_OF_ORDER)
    async with connect(peer_url) as client:
        with pytest.raises(MCPError):
            await resume_task(client, TASK_ID).status()
    assert len(peer.asked("tasks/get")) == 1
