"""What a session of 2025-11-25 is told without asking: that a status changed, how far the work is, what a tool says."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp import Client

from harness.http import HttpWire, serving
from harness.older import OWN_STREAM, RELATED, Arrived, HttpClient, OlderClient, http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept, text_of
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient
from mcp_tasks.legacy.sessions import pause_between
from tests.client.connecting import text
from tests.spec.furnished import furnished

STATUS, PROGRESS, MESSAGE = "notifications/tasks/status", "notifications/progress", "notifications/message"
UPDATED, COMPLETE = "notifications/resources/updated", "notifications/elicitation/complete"
TOOLS = "notifications/tools/list_changed"
OF_THE_CALL, OF_THE_SERVER = [MESSAGE, COMPLETE, MESSAGE], [TOOLS, UPDATED]
"""What the tool `talk` sends."""


def of(client: OlderClient, *methods: str) -> list[Arrived]:
    return [one for one in client.arrived if one.method in methods]


async def start(client: OlderClient, tool: str, *, token: str | int, **arguments: Any) -> str:
    reply = await client.call(tool, arguments, task={}, _meta={"progressToken": token})
    return reply.result["task"]["taskId"]


def reached(progress: float, token: str | int = "p") -> Callable[[Arrived], bool]:
    def wanted(seen: Arrived) -> bool:
        said = seen.params
        return seen.method == PROGRESS and said["progress"] == progress and said["progressToken"] == token

    return wanted


async def settled(client: OlderClient) -> str:
    """Once another task has ended, and that was told: what was to be told before has come. Gives its id."""
    other = await client.start("nothing")
    await client.status(other, "completed")
    return other


async def go_on(desk: Desk) -> None:
    """Let the tool `steps` make one step more."""
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    desk.started.clear()
    desk.gate.set()


# Status


@pytest.mark.requirement(
    "older/status-notifications",
    "older/status-has-no-related-task",
    "older/leaves-input-required",
    "older/progress-token",
)
async def test_a_change_of_status_is_told_with_the_whole_task(everywhere: OlderClient) -> None:
    task_id = await start(everywhere, "ask_late", token="p")
    asking = await everywhere.status(task_id, "input_required")
    await everywhere.answer(await everywhere.question(task_id), {"roots": []})
    await everywhere.status(task_id, "working")
    await everywhere.wait_for(reached(2))
    await everywhere.call("release")
    done = await everywhere.status(task_id, "completed")
    for told in (asking, done):
        assert RELATED not in told.params.get("_meta", {})
        assert told.stream == OWN_STREAM
    got = await everywhere.get(task_id)
    assert {**done.params, "_meta": 0, "pollInterval": 0} == {**got, "_meta": 0, "pollInterval": 0}
    assert {one.params["progressToken"] for one in of(everywhere, PROGRESS)} == {"p"}


@pytest.mark.requirement("older/status-notifications")
async def test_the_end_is_told_once_whatever_it_is(listener: HttpClient) -> None:
    for tool, status in (("nothing", "completed"), ("fails", "failed"), ("gated", "cancelled")):
        task_id = await listener.start(tool)
        if tool == "gated":
            await listener.cancel(task_id)
        told = await listener.status(task_id, status)
        assert tool != "fails" or "it did not work out" in told.params["statusMessage"]
        await settled(listener)
        assert len([one for one in of(listener, STATUS) if one.params["taskId"] == task_id]) == 1


@pytest.mark.requirement("older/status-notifications", "older/apart")
async def test_only_sessions_that_made_a_task_or_presented_its_id_are_told(
    wire: HttpWire, listener: HttpClient, desk: Desk
) -> None:
    modern = Tasking(wire, EVERYTHING)
    async with http_session(wire) as finder, http_session(wire) as stranger, finder.listening(), stranger.listening():
        task_id, unpresented = await listener.start("gated"), await modern.create("ask_name")
        [key] = (await modern.until(unpresented, "input_required"))["inputRequests"]
        await modern.update(unpresented, **{key: accept(name="Ada")})
        assert RELATED not in str(await modern.until(unpresented, "completed"))
        assert (await finder.get(task_id))["status"] == "working"
        desk.gate.set()
        for one in (listener, finder):
            await one.status(task_id, "completed")
        own = await settled(stranger)
        assert {one.params.get("taskId") for one in stranger.arrived} == {own}
        own = await settled(listener)
        assert {one.params.get("taskId") for one in listener.arrived} == {task_id, own}


async def test_a_client_is_told_of_a_task_only_after_it_knows_it(everywhere: OlderClient) -> None:
    seen: list[str] = []
    for number in range(20):
        seen.append(await everywhere.start("echo", value=number))
        assert {one.params["taskId"] for one in of(everywhere, STATUS)} <= set(seen)


# Progress


@pytest.mark.requirement(
    "older/progress-token",
    "older/progress-same-token",
    "older/progress-increases",
    "older/progress-tokens-are-tracked",
    "older/related-task-on-notifications",
)
async def test_progress_comes_under_the_token_of_the_call_and_names_its_task(listener: HttpClient) -> None:
    tokens: dict[str, str | int] = {}
    for token in ("a token", 0, 7):
        task_id = await start(listener, "progressing", token=token, steps=3, total=4.0, message=repr(token))
        tokens[task_id] = token
    for task_id, token in tokens.items():
        last = await listener.wait_for(reached(3, token))
        assert last.params == {
            "progressToken": token,
            "progress": 3,
            "total": 4,
            "message": repr(token),
            "_meta": {RELATED: {"taskId": task_id}},
        }
        own = [one for one in of(listener, PROGRESS) if one.related == task_id]
        assert {(type(one.params["progressToken"]), one.params["progressToken"]) for one in own} == {
            (type(token), token)
        }
        values = [one.params["progress"] for one in own]
        assert values == sorted(set(values))
    assert {one.related for one in of(listener, PROGRESS)} == tokens.keys()


@pytest.mark.requirement("older/progress-token")
async def test_without_a_token_progress_is_a_message_of_the_status_only(listener: HttpClient, desk: Desk) -> None:
    task_id = await listener.start("steps", values=[5])
    await go_on(desk)
    status = await listener.status(task_id, "working")
    assert status.params["statusMessage"] == "at 5.0"
    # The id of the task stands in it, and is not in its `_meta`.
    assert status.params["_meta"] == {"mcp-tasks/progress": {"progress": 5, "total": 10}}
    await go_on(desk)
    assert "_meta" not in (await listener.status(task_id, "completed")).params
    assert of(listener, PROGRESS) == []


@pytest.mark.requirement("older/progress-increases")
async def test_progress_that_falls_back_is_not_told(listener: HttpClient, desk: Desk) -> None:
    task_id = await start(listener, "steps", token="p", values=[5, 3, 6])
    await go_on(desk)
    await listener.wait_for(reached(5))
    await go_on(desk)
    # Looked at before the next comes.
    await listener.wait_for(lambda seen: seen.method == STATUS and seen.params.get("statusMessage") == "at 3.0")
    await go_on(desk)
    await listener.wait_for(reached(6))
    await go_on(desk)
    await listener.status(task_id, "completed")
    assert [one.params["progress"] for one in of(listener, PROGRESS)] == [5, 6]


@pytest.mark.requirement("older/progress-ends")
@pytest.mark.parametrize("end", ["completed", "cancelled"])
async def test_no_progress_comes_after_the_end(listener: HttpClient, desk: Desk, end: str) -> None:
    task_id = await start(listener, "progressing", token="p", steps=50, total=50, message=None)
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    if end == "cancelled":
        await listener.cancel(task_id)
    desk.gate.set()
    last = await listener.status(task_id, end)
    await settled(listener)
    assert all(one.method != PROGRESS for one in listener.arrived[listener.arrived.index(last) :])


@pytest.mark.requirement("older/progress-token")
@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
async def test_progress_goes_to_an_open_result_if_that_is_a_stream(desk: Desk, *, json_response: bool) -> None:
    server = furnished(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=json_response) as way, http_session(way) as client, client.listening():
        task_id = await start(client, "steps", token="p", values=[1])
        waiting = client.begin_result(task_id)
        await client.get(task_id)
        await go_on(desk)
        told = await client.wait_for(reached(1))
        assert (told.stream, told.related) == (OWN_STREAM if json_response else "tasks/result", task_id)
        await go_on(desk)
        await waiting.reply()
        assert len(of(client, PROGRESS)) == 1


@pytest.mark.requirement("older/progress-rate")
async def test_progress_that_comes_too_quickly_is_told_less_often_and_the_last_of_it_is(desk: Desk) -> None:
    settings = replace(QUICK, progress_interval=timedelta(milliseconds=200))
    server = furnished(Tasks("memory://", settings=settings), desk)
    async with serving(server) as way, http_session(way) as client, client.listening():
        await start(client, "progressing", token="p", steps=500, total=500, message=None)
        await client.wait_for(reached(500))
        # All of them at once: with one look in 200 ms there is time for a few, on the slowest machine too.
        assert len(of(client, PROGRESS)) < 100


async def test_many_reports_give_few_statuses_and_the_last_is_told(listener: HttpClient) -> None:
    await listener.start("count", reports=500)
    await listener.wait_for(lambda seen: seen.params.get("statusMessage") == "500 of 500")
    assert 1 < len(of(listener, STATUS)) <= 100


@pytest.mark.parametrize("apart", [0.001, 0.1, 1.0, 60.0, 3600.0])
def test_at_most_a_hundred_statuses_are_told_of_two_thousand_reports_however_far_apart_they_are(apart: float) -> None:
    statuses, free_at = 0, 0.0
    for report in range(1, 2_001):
        now = report * apart
        if now >= free_at:
            statuses, free_at = statuses + 1, now + pause_between(now)
    assert 1 < statuses <= 100


# What a tool says besides


@pytest.mark.requirement("older/related-task-on-notifications")
@pytest.mark.parametrize("way", ["task", "plain"])
async def test_what_a_tool_says_for_its_call_comes_before_its_answer_and_the_rest_on_the_session_stream(
    listener: HttpClient, desk: Desk, way: str
) -> None:
    task_id = await listener.start("talk") if way == "task" else None
    method, params = ("tasks/result", {"taskId": task_id}) if task_id else ("tools/call", {"name": "talk"})
    waiting = listener.begin(method, params)
    await listener.ask("ping")
    desk.gate.set()
    assert text_of((await waiting.reply()).result) == "talked"
    await listener.wait_for(lambda seen: seen.method == UPDATED)
    told = of(listener, *OF_THE_CALL, *OF_THE_SERVER)
    assert [one.method for one in told if one.stream == method] == OF_THE_CALL
    assert [one.method for one in told if one.stream == OWN_STREAM] == OF_THE_SERVER
    assert [one.related for one in told if one.method in OF_THE_CALL] == [task_id] * 3
    assert [one.related for one in told if one.method in OF_THE_SERVER] == [None] * 2


async def test_without_a_result_open_all_of_it_comes_on_the_own_stream_before_the_end_is_told(
    everywhere: OlderClient,
) -> None:
    await everywhere.call("release")
    task_id = await everywhere.start("talk")
    last = await everywhere.status(task_id, "completed")
    told = of(everywhere, *OF_THE_CALL, *OF_THE_SERVER)
    assert [one.method for one in told] == [MESSAGE, TOOLS, UPDATED, COMPLETE, MESSAGE]
    assert everywhere.arrived[-1] == last
    assert [one.related for one in told if one.method in OF_THE_CALL] == [task_id] * 3


async def test_the_last_of_what_is_said_waits_for_a_stream_and_does_not_hold_up_the_tool(
    older: HttpClient, desk: Desk
) -> None:
    task_id = await older.start("chatter", count=5_000)
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    waiting = older.begin_result(task_id)
    await older.get(task_id)
    desk.gate.set()
    await waiting.reply()
    said = [one.params["data"] for one in of(older, MESSAGE)]
    assert said == [f"said {number}" for number in range(4_900, 5_000)]


async def test_a_tool_pings_the_client_that_waits_for_its_result_and_otherwise_the_task_stands_in(
    older: HttpClient, desk: Desk
) -> None:
    task_id = await older.start("ping")
    waiting = older.begin_result(task_id)
    await older.get(task_id)
    desk.gate.set()
    await older.answer(await older.question(task_id), {})
    assert text_of((await waiting.reply()).result) == "pinged"
    alone = await older.start("ping")
    await older.until(alone, "completed")
    assert text_of((await older.result(alone)).result) == "pinged"
    # A plain call pings its caller; in the newest version there is nobody to ping, which is no error either.
    plain, seen = older.begin("tools/call", {"name": "ping"}), len(older.arrived)
    await older.answer(await older.wait_for(lambda one: one.method == "ping", after=seen), {})
    assert text_of((await plain.reply()).result) == "pinged"
    for extensions in ([], [TasksClient()]):
        async with Client(older.wire.url, mode="2026-07-28", extensions=extensions) as modern:
            assert text(await modern.call_tool("ping", {})) == "pinged"
