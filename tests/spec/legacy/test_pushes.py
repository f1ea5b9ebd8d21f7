"""What a server tells without being asked: that a status changed, and how far the work is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.helpers.http import HttpWire
from tests.helpers.older import OWN_STREAM, RELATED, Arrived, HttpClient, OlderClient, http_session
from tests.helpers.rpc import EVERYTHING, PATIENCE, Tasking, accept
from tests.helpers.server import Desk

pytestmark = pytest.mark.anyio

STATUS = "notifications/tasks/status"
PROGRESS = "notifications/progress"


def _of(client: OlderClient, method: str) -> list[Arrived]:
    return [one for one in client.arrived if one.method == method]


@pytest.mark.requirement("older/status-notifications", "older/status-has-no-related-task")
async def test_a_change_of_status_is_told_with_the_whole_task(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("ask_late")
    asking = await everywhere.status(task_id, "input_required")
    await everywhere.answer(await everywhere.question(task_id), {"roots": []})
    await everywhere.status(task_id, "working")
    await everywhere.call("release")
    done = await everywhere.status(task_id, "completed")
    for told in (asking, done):
        assert RELATED not in told.params.get("_meta", {})
        assert told.stream == OWN_STREAM
    got = await everywhere.get(task_id)
    assert {key: value for key, value in done.params.items() if key != "_meta"} == {
        key: value for key, value in got.items() if key != "_meta"
    }


@pytest.mark.requirement("older/status-notifications")
async def test_a_cancellation_is_told(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("gated")
    await everywhere.cancel(task_id)
    assert (await everywhere.status(task_id, "cancelled")).params["taskId"] == task_id


@pytest.mark.requirement("older/status-notifications")
async def test_sessions_that_have_nothing_to_do_with_a_task_are_told_nothing(listener: HttpClient, desk: Desk) -> None:
    async with http_session(listener.wire) as other, other.listening():
        task_id = await listener.start("gated")
        own = await other.start("nothing")
        desk.gate.set()
        await listener.status(task_id, "completed")
        await other.status(own, "completed")
        assert {one.params["taskId"] for one in _of(other, STATUS)} == {own}


@pytest.mark.requirement("older/progress-token", "older/related-task-on-notifications")
@pytest.mark.parametrize("token", ["a token", 0, 7], ids=repr)
async def test_progress_comes_under_the_token_of_the_call_and_names_its_task(
    everywhere: OlderClient, token: str | int
) -> None:
    arguments = {"steps": 3, "total": 4.0, "message": "a step"}
    reply = await everywhere.call("progressing", arguments, task={}, _meta={"progressToken": token})
    task_id = reply.result["task"]["taskId"]
    last = await everywhere.wait_for(lambda seen: seen.method == PROGRESS and seen.params["progress"] == 3)
    assert (last.params["total"], last.params["message"]) == (4, "a step")
    for one in _of(everywhere, PROGRESS):
        assert one.params["progressToken"] == token
        assert type(one.params["progressToken"]) is type(token)
        assert one.related == task_id
    values = [one.params["progress"] for one in _of(everywhere, PROGRESS)]
    assert values == sorted(set(values))


@pytest.mark.requirement("older/progress-token")
async def test_progress_goes_on_after_a_question(everywhere: OlderClient) -> None:
    reply = await everywhere.call("ask_late", task={}, _meta={"progressToken": "p"})
    task_id = reply.result["task"]["taskId"]
    await everywhere.answer(await everywhere.question(task_id), {"roots": []})
    await everywhere.wait_for(lambda seen: seen.method == PROGRESS and seen.params["progress"] == 2)
    await everywhere.call("release")
    await everywhere.result(task_id)
    assert {one.params["progressToken"] for one in _of(everywhere, PROGRESS)} == {"p"}


@pytest.mark.requirement("older/progress-token")
async def test_without_a_token_there_is_no_progress(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("progressing", steps=3, total=None, message=None)
    await everywhere.call("release")
    await everywhere.status(task_id, "completed")
    assert _of(everywhere, PROGRESS) == []


@pytest.mark.requirement("older/progress-ends")
async def test_no_progress_comes_after_the_end(everywhere: OlderClient) -> None:
    arguments = {"steps": 50, "total": 50, "message": None}
    reply = await everywhere.call("progressing", arguments, task={}, _meta={"progressToken": "p"})
    task_id = reply.result["task"]["taskId"]
    await everywhere.call("release")
    done = await everywhere.status(task_id, "completed")
    after = len(everywhere.arrived)
    # Another task through the same pipes: what was still to come of the first would have come before it.
    other = await everywhere.start("nothing")
    await everywhere.status(other, "completed")
    assert [one.method for one in everywhere.arrived[after:] if one.related == task_id] == []
    assert all(one.method != PROGRESS for one in everywhere.arrived[everywhere.arrived.index(done) :])


@pytest.mark.requirement("older/progress-ends")
async def test_no_progress_comes_after_a_cancellation(listener: HttpClient, desk: Desk) -> None:
    arguments = {"steps": 5, "total": 5, "message": None}
    reply = await listener.call("progressing", arguments, task={}, _meta={"progressToken": "p"})
    task_id = reply.result["task"]["taskId"]
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    await listener.cancel(task_id)
    cancelled = await listener.status(task_id, "cancelled")
    other = await listener.start("nothing")
    await listener.status(other, "completed")
    assert all(one.method != PROGRESS for one in listener.arrived[listener.arrived.index(cancelled) :])


@pytest.mark.requirement("older/progress-token")
async def test_progress_comes_on_an_open_result_where_nothing_else_is_open(client: HttpClient, desk: Desk) -> None:
    arguments = {"steps": 2, "total": None, "message": None}
    reply = await client.call("progressing", arguments, task={}, _meta={"progressToken": "p"})
    waiting = client.begin_result(reply.result["task"]["taskId"])
    told = await client.wait_for(lambda seen: seen.method == PROGRESS and seen.params["progress"] == 2)
    assert told.stream == "tasks/result"
    desk.gate.set()
    await waiting.reply()


@pytest.mark.requirement("older/related-task-on-notifications")
async def test_whatever_a_task_sends_names_the_task(listener: HttpClient) -> None:
    task_id = await listener.start("logs")
    await listener.status(task_id, "completed")
    for one in listener.arrived:
        assert one.method == STATUS or one.related == task_id, one


@pytest.mark.requirement("older/apart")
async def test_a_task_of_this_era_tells_the_other_nothing_it_does_not_know(
    wire: HttpWire, listener: HttpClient
) -> None:
    modern = Tasking(wire, EVERYTHING)
    task_id = await modern.create("ask_name")
    [key] = (await modern.until(task_id, "input_required"))["inputRequests"]
    await modern.update(task_id, **{key: accept(name="Ada")})
    done: dict[str, Any] = await modern.until(task_id, "completed")
    assert RELATED not in str(done)
    own = await listener.start("nothing")
    await listener.status(own, "completed")
    assert {one.params.get("taskId", one.related) for one in listener.arrived} == {own}
