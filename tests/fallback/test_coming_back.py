"""Calls that come back: twice, with answers, to another process, after a kill, to another version, to a store away."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.older import http_session
from harness.rpc import INTERNAL_ERROR, PATIENCE, TASKS, Tasking, accept, text_of
from harness.server import QUICK
from mcp_tasks import Fallback, Host
from tests.fallback.scenes import Call, MoodyStore, asking, handle, legs, older, place
from tests.fallback.server import SHORT, Jobs, build


@dataclass
class Scene:
    """A server in two processes, as far as they can tell, and a client of each."""

    jobs: Jobs
    one: Tasking
    other: Tasking


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene]:
    store = f"sqlite:///{tmp_path_factory.mktemp('coming-back') / 'tasks.db'}"
    served = build(store, fallback=SHORT)
    async with asking(served) as one, asking(build(store, jobs=served.jobs, fallback=SHORT)) as other:
        yield Scene(served.jobs, one, other)


# --- repeated -------------------------------------------------------------------------------------------------------


async def test_a_leg_that_is_repeated_resumes_and_starts_nothing(scene: Scene) -> None:
    call = Call("stepped", {"job": "repeated"})
    await call.begin(scene.one)
    twins = [replace(call) for _ in range(4)]
    clients = (scene.one, scene.one, scene.other, scene.other)
    waiting = [asyncio.create_task(twin.end(client)) for twin, client in zip(twins, clients, strict=True)]
    await scene.jobs.until("request", "repeated", 5)
    scene.jobs.open("repeated")
    assert [text_of(await each) for each in waiting] == ["repeated is done"] * 4
    # And after the end, as often as it comes, also with tasks.
    assert text_of(await replace(call).end(scene.one)) == "repeated is done"
    assert "result" in (await replace(call).leg(scene.one.declaring(TASKS))).message
    assert scene.jobs.counts("repeated", "start", "one", "two") == (1, 1, 1)


async def test_an_answer_that_is_repeated_counts_once_and_is_not_asked_for_again(scene: Scene) -> None:
    call = Call("asks", {"job": "answered-twice"})
    [key] = await call.asked(scene.one)
    twin = replace(call)
    assert text_of(await call.end(scene.one, {key: accept(name="Ada")})) == "Hello, Ada!"
    assert text_of(await twin.end(scene.other, {key: accept(name="Eve")})) == "Hello, Ada!"
    assert scene.jobs.counts("answered-twice", "start", "one", "two") == (1, 1, 1)


ODD_ANSWERS: dict[str, Any] = {
    "misfit": {"KEY": {"action": "accept", "content": {"name": 5}}},
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


async def test_odd_answers_break_nothing(scene: Scene) -> None:
    for name, given in ODD_ANSWERS.items():
        job = f"odd-{name.replace(' ', '-')}"
        call = Call("asks", {"job": job})
        [key] = await call.asked(scene.one)
        answers: Any = {key if each == "KEY" else each: value for each, value in given.items()} if given else given
        params = {"name": "asks", "arguments": call.arguments, "requestState": call.state, "inputResponses": answers}
        reply = await scene.one.ask("tools/call", params)
        # Refused, for the tool to see, or asked again: never a defect, and never a second start.
        assert "error" not in reply.message or reply.code != INTERNAL_ERROR, reply.message
        assert scene.jobs.counts(job, "start", "two") == (1, 0)


async def test_progress_grows_from_leg_to_leg_in_whichever_process(scene: Scene) -> None:
    call = Call("slow", {"job": "told-of"})
    seen: list[dict[str, Any]] = []
    for client in cycle((scene.one, scene.other)):
        reply = await call.leg(client, progress_token="token")
        seen += [each["params"] for each in reply.notifications]
        if reply.result["resultType"] == "complete":
            break
    values = [each["progress"] for each in seen]
    assert values == sorted(set(values))
    assert all(each["progress"] <= each.get("total", each["progress"]) for each in seen)
    assert {each["progressToken"] for each in seen} == {"token"}
    assert (seen[-1]["progress"], seen[-1]["total"]) == (4, 4)
    assert scene.jobs.count("start", "told-of") == 1


# --- asked first ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["asks_before", "asks_by_returning"])
async def test_answers_that_come_three_times_start_the_work_once(scene: Scene, tool: str) -> None:
    job = f"thrice-{tool}"
    call = Call(tool, {"job": job})
    [key] = await call.asked(scene.one)
    answers = {key: accept(name="Ada")}
    twins = [replace(call) for _ in range(3)]
    # Two at once, and one when the work has been going on for a while.
    for reply in await asyncio.gather(*(twin.leg(scene.one, answers) for twin in twins[:2])):
        assert reply.result["resultType"] == "input_required"
    await twins[2].leg(scene.other, answers)
    scene.jobs.open(job)
    for twin in twins:
        assert text_of(await twin.end(scene.one)).startswith(f"Ada: {job} is done")
    # And once more when it has ended.
    assert text_of(await call.end(scene.one, answers)).startswith(f"Ada: {job} is done")
    assert scene.jobs.count("start", job) == 1


async def test_parameters_are_asked_for_in_turn_in_whichever_process(scene: Scene) -> None:
    call = Call("asks_before_twice", {"job": "in-turn"})
    [name] = await call.asked(scene.one)
    second = (await call.leg(scene.other, {name: accept(name="Ada")})).result["inputRequests"]
    [(age, question)] = second.items()
    assert question["params"]["message"] == "How old is Ada?"
    waiting = (await call.leg(scene.one, {age: accept(age=36)})).result
    assert (waiting["resultType"], waiting.get("inputRequests")) == ("input_required", None)
    scene.jobs.open("in-turn")
    assert text_of(await call.end(scene.other)) == "Ada is 36: in-turn is done"
    assert scene.jobs.count("start", "in-turn") == 1


async def test_calls_that_were_answered_otherwise_are_not_joined(scene: Scene) -> None:
    calls = [Call("asks_before_joined", {"job": "same"}) for _ in range(2)]
    keys = [next(iter(await call.asked(scene.one))) for call in calls]
    for call, key, name in zip(calls, keys, ("Ada", "Bob"), strict=True):
        await call.leg(scene.one, {key: accept(name=name)})
    await scene.jobs.until("start", "same", 2)
    scene.jobs.open("same")
    ends = [text_of(await call.end(scene.one)) for call in calls]
    assert ends == ["Ada: same is done", "Bob: same is done"]


# --- killed ---------------------------------------------------------------------------------------------------------

SURVIVORS: dict[str, str] = {
    "stepped": "stepped is done",
    "asks": "Hello, Ada!",
    "asks_before": "Ada: asks_before is done",
    "asks_by_returning": "Ada: asks_by_returning is done",
}
"""Tools whose calls are between two legs when their server is killed, and what they come to."""


async def test_calls_survive_a_kill_between_two_of_their_legs_and_each_step_runs_once() -> None:
    with place() as here:
        server = here.serve()
        calls = {tool: Call(tool, {"job": tool}) for tool in (*SURVIVORS, "long")}
        async with legs(server.url) as client, older(server.url) as old:
            asked = {tool: await call.begin(client) for tool, call in calls.items()}
            task_id = handle((await old.call("stepped", {"job": "older"})).result)
        for event, job in (("one", "stepped"), ("one", "asks"), ("one", "older"), ("start", "long")):
            await here.jobs.until(event, job)
        server.kill()
        server.start()
        for job in (*SURVIVORS, "older"):
            here.jobs.open(job)
        async with legs(server.url) as client, older(server.url) as old:
            for tool, end in SURVIVORS.items():
                answers = {key: accept(name="Ada") for key in asked[tool]}
                assert text_of(await calls[tool].end(client, answers)).startswith(end)
            for _ in range(2):
                told = (await old.call("task_status", {"task_id": task_id})).result
                assert text_of(told) == "older is done"
            # A tool that may not run again says that it was interrupted.
            result = await calls["long"].end(client)
        assert result["isError"] is True
        assert 'The tool "long" was stopped before it had finished, and has no result.' in text_of(result)
        assert "nterrupted" in text_of(result)
        assert here.jobs.counts("long", "start") == (1,)
        assert [here.jobs.counts(job, "one", "two") for job in ("stepped", "asks", "older")] == [(1, 1)] * 3
        assert [here.jobs.counts(job, "start") for job in ("asks_before", "asks_by_returning")] == [(1,)] * 2


# --- deployed -------------------------------------------------------------------------------------------------------

MARKS: dict[str, dict[str, Any] | None] = {
    "gone": None,
    "no mark": {},
    "inline": {"fallback": "inline"},
    "forbidden": {"mode": "forbidden"},
    "required": {"mode": "required"},
}


@pytest.mark.parametrize("mark", MARKS)
async def test_a_call_that_has_begun_is_taken_up_whatever_its_tool_is_by_now(mark: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    before, after = [build(store, fallback=SHORT) for _ in range(2)]

    async def works(job: str) -> str:
        return await before.jobs.work(job)

    before.tool(name="works")(works)
    if (options := MARKS[mark]) is not None:
        after.server.add_tool(works, name="works")
    if options:
        after.tasks.mark("works", **options)
    # The old one is being replaced, and still runs what it began.
    async with asking(before) as old, asking(after) as new:
        call = Call("works", {"job": "deployed"})
        await call.begin(old)
        ending = asyncio.create_task(call.end(new))
        await after.jobs.until("request", "deployed")
        before.jobs.open("deployed")
        assert text_of(await ending) == "deployed is done"
    assert before.jobs.counts("deployed", "start", "end") == (1, 1)


# --- a store that is away, or takes its time ------------------------------------------------------------------------


@dataclass
class Moody:
    store: MoodyStore
    jobs: Jobs
    client: Tasking


@pytest.fixture
async def moody() -> AsyncGenerator[Moody]:
    store = MoodyStore()
    served = build(store, fallback=SHORT)
    async with asking(served) as client:
        yield Moody(store, served.jobs, client)


async def test_a_result_that_cannot_be_read_is_given_to_the_next_leg_or_who_asks_for_it_later(moody: Moody) -> None:
    call = Call("gated", {"job": "done"})
    moody.jobs.open("done")
    with moody.store.failing("outcome"):
        assert not await call.begin(moody.client)
    assert text_of(await call.end(moody.client)) == "done is done"
    call = Call("long", {"job": "unread"})
    await call.begin(moody.client)
    moody.jobs.open("unread")
    await moody.jobs.until("end", "unread")
    with moody.store.failing("outcome"):
        while (word := (await call.leg(moody.client)).result)["resultType"] == "input_required":
            pass
    assert "its result cannot be read right now" in text_of(word)
    assert 'Do not call "long" again' in text_of(word)
    assert text_of(await moody.client.call("task_status", task_id=handle(word))) == "unread is done"
    assert moody.jobs.counts("unread", "start", "end") == (1, 1)


@pytest.mark.parametrize("may_have_happened", [True, False])
async def test_a_model_is_told_whether_its_cancellation_may_have_been_made(
    moody: Moody, may_have_happened: bool
) -> None:
    task_id = handle(await Call("long", {"job": "cancelled"}).end(moody.client))
    moody.store.may_have_happened = may_have_happened
    with moody.store.failing("save"):
        told = text_of(await moody.client.call("task_cancel", task_id=task_id))
    assert ("may have been made" in told, "Nothing was changed" in told) == (may_have_happened, not may_have_happened)
    assert "again later" in told


@pytest.mark.parametrize("mood", ["failing", "holding"])
async def test_a_leg_that_finds_the_store_away_or_slow_is_told_to_come_back(moody: Moody, mood: str) -> None:
    call = Call("gated", {"job": "away"})
    await call.begin(moody.client)
    with anyio.fail_after(PATIENCE), getattr(moody.store, mood)("get"):
        for _ in range(2):
            assert not await call.begin(moody.client)
    moody.jobs.open("away")
    assert text_of(await call.end(moody.client)) == "away is done"
    assert moody.jobs.counts("away", "start", "end") == (1, 1)


async def test_an_answer_that_cannot_be_written_yet_is_not_asked_for_again(moody: Moody) -> None:
    call = Call("asks", {"job": "answered"})
    [key] = await call.asked(moody.client)
    with moody.store.failing("save"):
        # The one that brings it, and the next, which finds the question as open as it was.
        for answers in ({key: accept(name="Ada")}, None):
            result = (await call.leg(moody.client, answers)).result
            assert result["resultType"] == "input_required"
            assert "inputRequests" not in result
    assert text_of(await call.end(moody.client)) == "Hello, Ada!"
    assert moody.jobs.counts("answered", "start", "one", "two") == (1, 1, 1)


async def test_a_host_of_the_older_wire_is_answered_in_time_however_slow_the_store_is() -> None:
    store = MoodyStore()
    served = build(store, hosts={"raw": Host(limit=timedelta(seconds=1))})
    async with serving(served.server) as wire, http_session(wire) as client:
        with anyio.fail_after(PATIENCE), store.holding("get"):
            handle((await client.call("gated", {"job": "slow"})).result)
    assert served.jobs.count("start", "slow") == 1


async def test_a_store_that_was_away_when_the_tool_ended_is_asked_again() -> None:
    store = MoodyStore()
    # Nobody looks without a hint here, and the hint of its end comes while the store is away.
    served = build(
        store,
        settings=replace(QUICK, look_interval=timedelta(seconds=60)),
        fallback=Fallback(wait=timedelta(seconds=PATIENCE)),
    )
    async with serving(served.server) as wire, http_session(wire) as client:
        pending = client.begin("tools/call", {"name": "gated", "arguments": {"job": "ended"}})
        await served.jobs.until("start", "ended")
        with store.failing("get"):
            served.jobs.open("ended")
            await served.jobs.until("end", "ended")
            await anyio.sleep(0.1)  # sleep: the hint of its end comes meanwhile
        assert text_of((await pending.reply()).result) == "ended is done"
