"""What a server tells without being asked: that a status changed, and how far the work is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.older import OWN_STREAM, RELATED, Arrived, HttpClient, OlderClient, http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from tests.spec.legacy.furnished import furnished

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


@pytest.mark.requirement(
    "older/progress-token",
    "older/progress-same-token",
    "older/progress-increases",
    "older/progress-tokens-are-tracked",
    "older/related-task-on-notifications",
)
async def test_progress_comes_under_the_token_of_the_call_and_names_its_task(everywhere: OlderClient) -> None:
    tokens: dict[str, str | int] = {}
    for token in ("a token", 0, 7):
        arguments = {"steps": 3, "total": 4.0, "message": repr(token)}
        reply = await everywhere.call("progressing", arguments, task={}, _meta={"progressToken": token})
        tokens[reply.result["task"]["taskId"]] = token
    for token in tokens.values():
        last = await everywhere.wait_for(_reached(3, token))
        assert (last.params["total"], last.params["message"]) == (4, repr(token))
    for task_id, token in tokens.items():
        own = [one for one in _of(everywhere, PROGRESS) if one.related == task_id]
        assert {(type(one.params["progressToken"]), one.params["progressToken"]) for one in own} == {
            (type(token), token)
        }
        values = [one.params["progress"] for one in own]
        assert values == sorted(set(values))
    assert {one.related for one in _of(everywhere, PROGRESS)} == tokens.keys()


def _reached(progress: float, token: str | int) -> Callable[[Arrived], bool]:
    def wanted(seen: Arrived) -> bool:
        said = seen.params
        return seen.method == PROGRESS and said["progress"] == progress and said["progressToken"] == token

    return wanted


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
    reply = await client.call("ask_late", task={}, _meta={"progressToken": "p"})
    task_id = reply.result["task"]["taskId"]
    waiting = client.begin_result(task_id)
    await client.answer(await client.question(task_id), {"roots": []})
    told = await client.wait_for(_reached(2, "p"))
    assert (told.stream, told.related) == ("tasks/result", task_id)
    desk.gate.set()
    await waiting.reply()


@pytest.mark.requirement("older/progress-rate")
async def test_progress_that_comes_too_quickly_is_told_less_often() -> None:
    settings = replace(QUICK, progress_interval=timedelta(milliseconds=200))
    server = furnished(Tasks("memory://", settings=settings))
    async with serving(server) as way, http_session(way) as client, client.listening():
        arguments = {"steps": 500, "total": 500, "message": None}
        reply = await client.call("progressing", arguments, task={}, _meta={"progressToken": "p"})
        await client.wait_for(_reached(500, "p"))
        await client.call("release")
        await client.status(reply.result["task"]["taskId"], "completed")
        # All of them at once: with one look in 200 ms there is time for a few, on the slowest machine too.
        assert len(_of(client, PROGRESS)) < 100


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
