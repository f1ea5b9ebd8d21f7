"""A call that comes back: to a server that was killed in between, to another one on the same store, or not as told.

One process is killed for all of the calls that are to survive it; each of them is then taken up by a test of its own.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, http_client
from harness.older import http_session
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, TASKS, Tasking, accept, text_of
from tests.fallback.matrix.legs import ASKABLE, Call, legs
from tests.fallback.matrix.serving import HttpServers, Place, place

pytestmark = pytest.mark.anyio

SURVIVORS = {
    "stepped": "stepped",
    "stepped elsewhere": "stepped",
    "asking": "asks",
    "asking elsewhere": "asks",
    "asking before": "asks_before",
    "asking by returning": "asks_by_returning",
    "not to be repeated": "long",
}
"""Calls that are between two legs when their server is killed, and their tools."""


GUARDED = {"auth": True, "store": "memory://", "tasks": {"fallback": {"wait": 0.1, "answer_within": 2}}}
"""A server that asks who its callers are, and where they cannot come back for long."""


@dataclass
class Scene:
    """Two servers on one store, of which the first was killed and started again, and the calls it had told to come."""

    place: Place
    first: HttpServers
    second: HttpServers
    calls: dict[str, Call]
    questions: dict[str, dict[str, Any]]
    handle: str


@pytest.fixture(scope="module")
async def scene() -> AsyncGenerator[Scene]:
    """The kill."""
    with place() as here:
        first = here.serve(store=here.store, variants={"guarded": GUARDED})
        calls = {name: Call(tool, {"job": name.replace(" ", "-")}) for name, tool in SURVIVORS.items()}
        async with legs(first.url, ASKABLE) as client:
            asked = await asyncio.gather(*(call.begin(client) for call in calls.values()))
            handle = await _older_handle(first.url)
        for job in ("stepped", "stepped-elsewhere", "asking", "asking-elsewhere", "older"):
            await here.until("one", job)
        await here.until("start", "not-to-be-repeated")
        first.kill()
        second, _ = await asyncio.gather(
            asyncio.to_thread(here.serve, store=here.store), asyncio.to_thread(first.start)
        )
        questions = {name: each.get("inputRequests", {}) for name, each in zip(calls, asked, strict=True)}
        yield Scene(here, first, second, calls, questions, handle)


async def _older_handle(url: str) -> str:
    async with http_client() as http, http_session(HttpWire(url, http)) as older:
        told = (await older.call("stepped", {"job": "older"})).result
        return told["structuredContent"]["taskId"]


@pytest.fixture
async def again(scene: Scene) -> AsyncGenerator[Tasking]:
    """A client of the server that was started again."""
    async with legs(scene.first.url, ASKABLE) as client:
        yield client


@pytest.fixture
async def other(scene: Scene) -> AsyncGenerator[Tasking]:
    """A client of the other server."""
    async with legs(scene.second.url, ASKABLE) as client:
        yield client


def counts(scene: Scene, job: str, *events: str) -> tuple[int, ...]:
    return tuple(scene.place.count(event, job) for event in events)


# --- killed ---------------------------------------------------------------------------------------------------------


async def test_a_call_survives_a_kill_between_two_of_its_legs_and_each_step_runs_once(
    scene: Scene, again: Tasking
) -> None:
    scene.place.open("stepped")
    result = await scene.calls["stepped"].end(again)
    assert text_of(result) == "stepped is done"
    assert not result.get("isError")
    assert counts(scene, "stepped", "start", "one", "two") == (2, 1, 1)


async def test_its_next_leg_may_reach_another_process(scene: Scene, other: Tasking) -> None:
    scene.place.open("stepped-elsewhere")
    assert text_of(await scene.calls["stepped elsewhere"].end(other)) == "stepped-elsewhere is done"
    assert counts(scene, "stepped-elsewhere", "start", "one", "two") == (2, 1, 1)


async def test_a_question_is_answered_after_a_kill(scene: Scene, again: Tasking) -> None:
    [key] = scene.questions["asking"]
    assert text_of(await scene.calls["asking"].end(again, {key: accept(name="Ada")})) == "Hello, Ada!"
    assert counts(scene, "asking", "one", "two") == (1, 1)


async def test_a_question_is_answered_in_another_process(scene: Scene, other: Tasking) -> None:
    [key] = scene.questions["asking elsewhere"]
    assert text_of(await scene.calls["asking elsewhere"].end(other, {key: accept(name="Bob")})) == "Hello, Bob!"
    assert counts(scene, "asking-elsewhere", "one", "two") == (1, 1)


@pytest.mark.parametrize(
    ("name", "greeting"),
    [("asking before", "Hello, Ada!"), ("asking by returning", "Hello, Ada of asking-by-returning!")],
)
async def test_what_was_asked_before_the_body_is_answered_after_a_kill(
    scene: Scene, again: Tasking, name: str, greeting: str
) -> None:
    [key] = scene.questions[name]
    assert text_of(await scene.calls[name].end(again, {key: accept(name="Ada")})) == greeting
    assert counts(scene, name.replace(" ", "-"), "start") == (1,)


async def test_a_tool_that_may_not_run_again_says_that_it_was_interrupted(scene: Scene, again: Tasking) -> None:
    result = await scene.calls["not to be repeated"].end(again)
    assert result["isError"] is True
    assert 'The tool "long" was stopped before it had finished, and has no result.' in text_of(result)
    assert "nterrupted" in text_of(result)
    assert counts(scene, "not-to-be-repeated", "start") == (1,)


async def test_an_older_client_gets_its_result_from_the_server_that_was_started_again(scene: Scene) -> None:
    scene.place.open("older")
    async with http_client() as http, http_session(HttpWire(scene.first.url, http)) as older:
        for _ in range(2):
            told = (await older.call("task_status", {"task_id": scene.handle})).result
            assert text_of(told) == "older is done"
    assert counts(scene, "older", "start", "one", "two") == (2, 1, 1)


# --- repeated -------------------------------------------------------------------------------------------------------


async def test_a_leg_that_is_repeated_resumes_and_starts_nothing(scene: Scene, again: Tasking, other: Tasking) -> None:
    call = Call("stepped", {"job": "repeated"})
    await call.begin(again)
    twins = [replace(call) for _ in range(4)]
    waiting = [
        asyncio.create_task(twin.end(client)) for twin, client in zip(twins, (again, again, other, other), strict=True)
    ]
    await scene.place.until("request", "repeated", 5)
    scene.place.open("repeated")
    assert [text_of(await each) for each in waiting] == ["repeated is done"] * 4
    # And after the end, as often as it comes.
    assert text_of(await replace(call).end(again)) == "repeated is done"
    assert counts(scene, "repeated", "start", "one", "two") == (1, 1, 1)


async def test_an_answer_that_is_repeated_counts_once(scene: Scene, again: Tasking) -> None:
    call = Call("asks", {"job": "answered-twice"})
    [key] = (await call.begin(again))["inputRequests"]
    twin = replace(call)
    assert text_of(await call.end(again, {key: accept(name="Ada")})) == "Hello, Ada!"
    assert text_of(await twin.end(again, {key: accept(name="Eve")})) == "Hello, Ada!"
    assert counts(scene, "answered-twice", "one", "two") == (1, 1)


async def test_an_answer_that_does_not_fit_is_for_the_tool_to_see(scene: Scene, again: Tasking) -> None:
    call = Call("asks", {"job": "misfit"})
    [key] = (await call.begin(again))["inputRequests"]
    reply = await call.leg(again, {key: {"action": "accept", "content": {"name": 5}}})
    assert "error" in reply.message or reply.result.get("isError")
    assert counts(scene, "misfit", "start", "two") == (1, 0)


async def test_a_state_outlives_the_key_that_it_was_sealed_under(scene: Scene, again: Tasking, other: Tasking) -> None:
    call = Call("stepped", {"job": "rotated"})
    await call.begin(again)
    old = replace(call)
    await again.call("operator_rotate")
    await call.begin(again)
    assert old.state is not None
    assert call.state is not None
    assert old.state.split(".")[1] != call.state.split(".")[1]
    # The other process has not heard of the new key, and the old one is still good.
    for state in (call, old):
        for client in (other, again):
            assert (await replace(state).leg(client)).result["resultType"] == "input_required"
    scene.place.open("rotated")
    assert text_of(await call.end(other)) == "rotated is done"
    assert counts(scene, "rotated", "start") == (1,)


async def test_progress_grows_from_leg_to_leg_in_whichever_process(
    scene: Scene, again: Tasking, other: Tasking
) -> None:
    call = Call("slow", {"job": "told-of"})
    seen: list[dict[str, Any]] = []
    for client in cycle((again, other)):
        reply = await call.leg(client, progress_token="token")
        seen += [each["params"] for each in reply.notifications]
        if reply.result["resultType"] == "complete":
            break
    values = [each["progress"] for each in seen]
    assert values == sorted(set(values))
    assert all(each["progress"] <= each.get("total", each["progress"]) for each in seen)
    assert {each["progressToken"] for each in seen} == {"token"}
    assert (seen[-1]["progress"], seen[-1]["total"]) == (4, 4)
    assert counts(scene, "told-of", "start") == (1,)


async def test_parameters_are_asked_for_in_turn_in_whichever_process(
    scene: Scene, again: Tasking, other: Tasking
) -> None:
    call = Call("asks_before_twice", {"job": "in-turn"})
    first = (await call.begin(again))["inputRequests"]
    [(name, _)] = first.items()
    second = (await call.leg(other, {name: accept(name="Ada")})).result["inputRequests"]
    [(age, question)] = second.items()
    assert question["params"]["message"] == "How old is Ada?"
    waiting = (await call.leg(again, {age: accept(age=36)})).result
    assert (waiting["resultType"], waiting.get("inputRequests")) == ("input_required", None)
    scene.place.open("in-turn")
    assert text_of(await call.end(other)) == "Ada is 36"
    assert counts(scene, "in-turn", "start") == (1,)


async def test_a_client_that_comes_back_with_tasks_resumes_too(scene: Scene, again: Tasking) -> None:
    call = Call("stepped", {"job": "converted"})
    await call.begin(again)
    scene.place.open("converted")
    result = (await call.leg(again.declaring(TASKS))).result
    assert result["resultType"] in ("complete", "input_required", "task"), result
    await scene.place.until("end", "converted")
    await anyio.sleep(0.2)  # sleep: the time in which it would begin again, and must not
    assert counts(scene, "converted", "start", "one", "two") == (1, 1, 1)


# --- refused --------------------------------------------------------------------------------------------------------


def _changed(state: str, place: int) -> str:
    """The state with one bit changed in one of its bytes."""
    before, _, sealed = state.rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4)))
    raw[place] ^= 1
    return f"{before}.{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


async def _assert_refused(client: Tasking, call: Call) -> None:
    before = (await call.leg(client)).error
    assert before == {
        "code": INVALID_PARAMS,
        "message": "Invalid or expired requestState",
        "data": {"reason": "invalid_request_state"},
    }


async def test_a_state_that_was_changed_is_refused(scene: Scene, again: Tasking) -> None:
    call = Call("stepped", {"job": "changed"})
    await call.begin(again)
    assert call.state is not None
    head, _, tail = call.state.rpartition(".")
    wrong = [
        _changed(call.state, 0),
        _changed(call.state, 20),
        _changed(call.state, -1),
        call.state[:-4],
        call.state + "AAAA",
        "mcp-tasks.",
        f"mcp-tasks.0000000000000000.{tail}",
        f"{head}.",
        "mcp-tasks.\u00e9",
        call.state + "A" * 1_000_000,
    ]
    for state in wrong:
        await _assert_refused(again, replace(call, state=state))
    assert counts(scene, "changed", "start", "one", "two") == (1, 1, 0)


async def test_a_state_is_for_its_tool_and_its_arguments(scene: Scene, again: Tasking, other: Tasking) -> None:
    call = Call("stepped", {"job": "bound"})
    await call.begin(again)
    for client in (again, other):
        await _assert_refused(client, replace(call, arguments={"job": "other-arguments"}))
        await _assert_refused(client, replace(call, arguments={"job": "bound", "more": 1}))
        await _assert_refused(client, replace(call, tool="quick"))
        await _assert_refused(client, replace(call, tool="operator_count", arguments={}))
    assert counts(scene, "other-arguments", "start") == (0,)
    assert counts(scene, "bound", "start") == (1,)


async def test_a_state_without_our_prefix_is_the_sdks_to_refuse(scene: Scene, again: Tasking) -> None:
    call = Call("stepped", {"job": "foreign"}, state="something-else")
    assert (await call.leg(again)).code == INVALID_PARAMS
    assert counts(scene, "foreign", "start") == (0,)


@pytest.mark.parametrize("state", [5, True, [], {}, ["mcp-tasks."], {"mcp-tasks.": 1}], ids=str)
async def test_a_state_that_is_no_text_is_refused(scene: Scene, again: Tasking, state: Any) -> None:
    job = f"no-text-{state}"
    params = {"name": "quick", "arguments": {"job": job}, "requestState": state}
    assert (await again.ask("tools/call", params)).code == INVALID_PARAMS
    assert counts(scene, job, "start") == (0,)


ODD_ANSWERS: dict[str, Any] = {
    "no mapping": [],
    "no answers": {"KEY": None},
    "text": {"KEY": "Ada"},
    "no action": {"KEY": {}},
    "odd action": {"KEY": {"action": "perhaps"}},
    "another kind": {"KEY": {"roots": []}},
    "too much": {"KEY": {"action": "accept", "content": {"name": "x" * 3_000_000}}},
    "nested": {"KEY": {"action": "accept", "content": {"name": [[[[[]]]]]}}},
    "unknown keys": {f"unknown-{number}": {"action": "accept"} for number in range(1000)},
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
async def test_odd_answers_break_nothing(scene: Scene, again: Tasking, odd: str) -> None:
    job = f"odd-{odd.replace(' ', '-')}"
    call = Call("asks", {"job": job})
    [key] = (await call.begin(again))["inputRequests"]
    given = ODD_ANSWERS[odd]
    answers: Any = {key if name == "KEY" else name: value for name, value in given.items()} if given else given
    params = {"name": call.tool, "arguments": call.arguments, "requestState": call.state, "inputResponses": answers}
    reply = await again.ask("tools/call", params)
    # Refused, for the tool to see, or asked again: never a defect, and never a second start.
    assert "error" not in reply.message or reply.code != INTERNAL_ERROR, reply.message
    assert counts(scene, job, "start") == (1,)
    assert text_of(await again.call("quick", job=f"after-{job}")) == f"after-{job} is done"


async def test_a_state_is_for_its_owner_and_expires(scene: Scene) -> None:
    url = scene.first.door("guarded")
    async with legs(url, token="ada") as ada, legs(url, token="eve") as eve:
        call = Call("gated", {"job": "owned"})
        await call.begin(ada)
        await _assert_refused(eve, replace(call))
        assert (await replace(call).leg(ada)).result["resultType"] == "input_required"
        await anyio.sleep(2.1)  # sleep: longer than the server takes a state
        await _assert_refused(ada, call)
    assert counts(scene, "owned", "start") == (1,)
