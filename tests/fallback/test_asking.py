"""Questions of a task on the open call of an older client: each asked once, answered also when the call is over."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from harness.http import serving
from harness.older import ASKABLE, Arrived, HttpClient, OlderClient, Pending, http_session, pipe_session
from harness.rpc import NOTHING, PATIENCE, text_of
from harness.server import QUICK
from harness.stdio import stdio_process
from harness.waiting import eventually
from mcp_tasks import Fallback
from tests.fallback.scenes import MODULE, Person, chat, handle, place, text
from tests.fallback.server import Jobs, Served, build
from tests.unit.virtual_time import simulated, time_passes

ELICIT = "elicitation/create"
CANCELLED = "notifications/cancelled"
A_WHILE = 0.3
"""How long a test waits for what must not happen."""
LONG = Fallback(wait=timedelta(seconds=PATIENCE))
SHORT = Fallback(wait=timedelta(seconds=0.4))
"""Calls that are over before anybody answers."""


@dataclass
class Session:
    client: OlderClient
    jobs: Jobs
    served: Served | None = None

    def begin(self, tool: str, **arguments: Any) -> Pending:
        return self.client.begin("tools/call", {"name": tool, "arguments": {"job": "job", **arguments}})

    def look(self, task_id: str, **arguments: Any) -> Pending:
        return self.client.begin("tools/call", {"name": "task_status", "arguments": {"task_id": task_id, **arguments}})

    async def gave_up(self, tool: str, **arguments: Any) -> str:
        """The task of a call that was over before anybody answered the question."""
        pending = self.begin(tool, **arguments)
        await self.question()
        return handle((await pending.reply()).result, "input_required")

    def questions(self, method: str = ELICIT) -> list[Arrived]:
        return [seen for seen in self.client.arrived if seen.method == method]

    async def question(self, number: int = 1, method: str = ELICIT) -> Arrived:
        """The first question of a kind, or a later one."""
        await self.client.wait_for(lambda _: len(self.questions(method)) >= number)
        return self.questions(method)[number - 1]

    async def accept(self, question: Arrived, **content: Any) -> None:
        await self.client.answer(question, {"action": "accept", "content": content})

    def was_told_of_the_end_of(self, question: Arrived) -> bool:
        ended = [seen.params["requestId"] for seen in self.client.arrived if seen.method == CANCELLED]
        return question.message["id"] in ended


async def said(call: Pending) -> str:
    return text_of((await call.reply()).result)


@asynccontextmanager
async def connected(
    transport: str, ways: Fallback = SHORT, capabilities: Mapping[str, Any] = ASKABLE
) -> AsyncGenerator[Session]:
    """A session of 2025-11-25, or over pipes of the version before, with a server of its own."""
    if transport == "http":
        served = build(fallback=ways)
        async with serving(served.server) as wire, http_session(wire, capabilities) as client:
            yield Session(client, served.jobs, served)
        return
    with place() as here:
        config = here.config(store="memory://", wait=ways.wait.total_seconds())
        version = "2025-06-18" if transport == "older stdio" else "2025-11-25"
        async with (
            stdio_process(config, module=MODULE) as wire,
            pipe_session(wire, capabilities, version=version) as it,
        ):
            yield Session(it, here.jobs)


@asynccontextmanager
async def two_sessions(ways: Fallback = SHORT) -> AsyncGenerator[tuple[Session, Session]]:
    served = build(fallback=ways)
    async with serving(served.server) as wire, http_session(wire) as one, http_session(wire) as two:
        yield Session(one, served.jobs, served), Session(two, served.jobs, served)


both = pytest.mark.parametrize("transport", ["http", "stdio"])


# --- as in a plain call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["http", "older stdio"])
async def test_questions_are_asked_on_the_call_as_a_plain_call_asks_them(transport: str) -> None:
    hosting: dict[str, Any] = {**ASKABLE, "tasks": {"requests": {"elicitation": {"create": {}}}}}
    async with connected(transport, LONG, hosting) as it:
        waiting = it.begin("asks_both")
        asked = {each.params["message"]: each for each in (await it.question(), await it.question(2))}
        for each in asked.values():
            # Also where it could be a task of the client.
            assert each.params.keys() <= {"mode", "message", "requestedSchema"}
            assert each.stream == ("tools/call" if transport == "http" else "the session's own")
        await it.accept(asked["Your age?"], age=36)
        await it.accept(asked["Your name?"], name="Ada")
        assert await said(waiting) == "name='Ada' age=36"
        waiting = it.begin("asks_the_client")
        question = await it.question(method="sampling/createMessage")
        content = {"type": "text", "text": "42"}
        await it.client.answer(question, {"role": "assistant", "content": content, "model": "m"})
        question = await it.question(method="roots/list")
        assert question.params == {}
        await it.client.answer(question, {"roots": [{"uri": "file:///home"}]})
        assert await said(waiting) == "42 in file:///home"
        assert len(it.questions()) == 2


async def test_an_error_of_the_client_or_an_answer_that_does_not_fit_is_for_the_tool_to_see() -> None:
    async with connected("http", LONG) as it:
        waiting = it.begin("insists")
        await it.client.refuse(await it.question(), -1, "User rejected it")
        assert await said(waiting) == "-1 User rejected it"
        misfits: list[dict[str, Any]] = [{}, {"action": "agree"}, {"action": "accept", "content": {"name": 7}}]
        for number, misfit in enumerate(misfits, 2):
            waiting = it.begin("insists")
            await it.client.answer(await it.question(number), misfit)
            assert (await said(waiting)).startswith("-32602 The answer to ")
        assert len(it.questions()) == 4


async def test_a_timeout_of_the_tool_is_not_cut_short_because_its_caller_speaks_no_tasks() -> None:
    for mode in ("legacy", "2026-07-28"):
        served = build(fallback=Fallback(answer_within=timedelta(milliseconds=1)))
        async with chat(served.server, mode, person=Person()) as client:
            assert text(await client.call_tool("asks_with_time", {"job": "job"})) == "Hello, Ada!"


# --- when the call is over ------------------------------------------------------------------------------------------


@both
async def test_a_client_is_asked_once_and_what_it_says_counts_although_the_call_is_over(transport: str) -> None:
    async with connected(transport) as it:
        task_id = await it.gave_up("asks")
        for _ in range(3):
            told = (await it.look(task_id, wait_seconds=0.05).reply()).result
            assert handle(told, "input_required") == task_id
        calls = [it.look(task_id) for _ in range(2)]
        await anyio.sleep(A_WHILE)  # sleep: the time in which it would be asked again
        [question] = it.questions()
        await it.accept(question, name="Ada")
        assert [await said(each) for each in calls] == ["Hello, Ada!"] * 2
        task_id = await it.gave_up("insists")
        await it.client.refuse(await it.question(2), -1, "User rejected it")
        assert await said(it.look(task_id)) == "-1 User rejected it"


async def test_another_session_is_asked_as_well_once_the_call_is_over_and_the_first_answer_counts() -> None:
    async with two_sessions() as (one, two):
        task_id = await one.gave_up("asks")
        # Who has it now may be somebody else.
        looks = [two.look(task_id)]
        again = await two.question()
        looks.append(one.look(task_id))
        await anyio.sleep(A_WHILE)  # sleep: the time in which the first would be asked again
        assert len(one.questions()) == len(two.questions()) == 1
        await one.accept(await one.question(), name="Ada")
        assert [await said(each) for each in looks] == ["Hello, Ada!"] * 2
        assert two.was_told_of_the_end_of(again)


@simulated
@pytest.mark.usefixtures("one_clock")
async def test_a_client_may_be_asked_again_when_it_has_said_nothing_for_long() -> None:
    # Some clients close a dialog with the call that it came on, and say nothing.
    served, people = build(settings=QUICK), list[asyncio.Future[Any]]()

    async def person(context: Any, params: Any) -> Any:
        people.append(asyncio.get_running_loop().create_future())
        return await people[-1]

    async with chat(served.server, "legacy", person=person) as client:
        task_id = handle(await client.call_tool("insists", {"job": "job"}), "input_required")
        for number in range(1, 7):
            handle(await client.call_tool("task_status", {"task_id": task_id}), "input_required")
            assert len(people) == number
            await time_passes(301)
        # Of so many, the first are not waited for any more; any other answers it.
        people[4].set_result(ElicitResult(action="accept", content={"name": "Ada"}))
        assert text(await client.call_tool("task_status", {"task_id": task_id})) == "no error, but accept"


# --- when the client is gone ----------------------------------------------------------------------------------------


async def end_session(it: Session) -> None:
    assert isinstance(it.client, HttpClient)
    await it.client.wire.client.delete(it.client.wire.url, headers=it.client.headers())


async def test_a_client_that_was_cut_off_is_asked_again_when_it_comes_back() -> None:
    async with connected("http", LONG) as it:
        lost = it.begin("asks")
        first = await it.question()
        await lost.leave()
        assert it.served is not None
        [task] = await it.served.all_tasks()
        waiting = it.look(task.id)
        again = await it.question(2)
        assert again.params == first.params
        await it.accept(first, name="Ada")
        assert await said(waiting) == "Hello, Ada!"
        assert it.was_told_of_the_end_of(again)


async def test_a_question_stays_open_when_its_session_ends_and_the_next_is_asked_that_can_be() -> None:
    async with two_sessions() as (one, two):
        task_id = await one.gave_up("asks")
        await end_session(one)
        assert isinstance(two.client, HttpClient)
        async with http_session(two.client.wire, NOTHING) as mute:
            told = (await mute.call("task_status", {"task_id": task_id, "wait_seconds": 0.2})).result
            assert handle(told, "input_required") == task_id
            assert mute.arrived == []
        waiting = two.look(task_id)
        await two.accept(await two.question(), name="Ada")
        assert await said(waiting) == "Hello, Ada!"


async def test_a_client_that_says_it_is_gone_is_not_asked_for_ever() -> None:
    async with connected("http", LONG) as it:
        waiting = it.begin("asks")
        await it.client.refuse(await it.question(), -32000, "Connection closed")
        handle((await waiting.reply()).result, "input_required")
        assert len(it.questions()) == 1


async def test_over_a_pipe_a_question_is_cancelled_with_its_call_and_asked_again_at_once() -> None:
    async with connected("stdio", LONG) as it:
        call = it.begin("asks")
        question = await it.question()
        await it.client.notify(CANCELLED, {"requestId": call.request_id})
        await eventually(lambda: it.was_told_of_the_end_of(question))
        [task] = (await it.client.call("task_status")).result["structuredContent"]["tasks"]
        waiting = it.look(task["taskId"])
        await it.accept(await it.question(2), name="Ada")
        assert await said(waiting) == "Hello, Ada!"


# --- when it is over ------------------------------------------------------------------------------------------------


async def test_a_question_that_is_answered_elsewhere_is_cancelled_before_the_call_is_answered() -> None:
    async with connected("http") as it:
        assert it.served is not None
        task_id = await it.gave_up("asks_often", times=3)
        await it.accept(await it.question(), name="Ada")
        waiting = it.look(task_id)
        second = await it.question(2)
        await it.served.tasks.handle(task_id).send_input("accept", {"name": "Grace"})
        third = await it.question(3)
        assert it.was_told_of_the_end_of(second)
        await it.accept(third, name="Joan")
        assert await said(waiting) == "Ada, Grace, Joan"
        waiting = it.begin("asks")
        fourth = await it.question(4)
        [task] = [task for task in await it.served.all_tasks() if not task.is_final]
        await it.served.tasks.handle(task.id).cancel()
        assert "was cancelled" in await said(waiting)
        assert it.was_told_of_the_end_of(fourth)


async def test_a_question_that_the_tool_gave_up_on_is_cancelled_at_the_client() -> None:
    async with connected("http", LONG) as it:
        waiting = it.begin("wavers")
        question = await it.question()
        it.jobs.open("job")
        await eventually(lambda: it.was_told_of_the_end_of(question))
        await it.accept(question, name="too late")
        it.jobs.open("job-after")
        assert await said(waiting) == "went on"


@both
async def test_nothing_is_left_of_a_question_whose_task_is_cancelled_after_its_call(transport: str) -> None:
    async with connected(transport) as it:
        task_id = await it.gave_up("asks")
        question = await it.question()
        await it.client.call("task_cancel", {"task_id": task_id})
        if transport == "stdio":
            await eventually(lambda: it.was_told_of_the_end_of(question))
        # Over HTTP its stream is closed, so that the client cannot be told; what it still answers changes nothing.
        await it.accept(question, name="Ada")
        assert "was cancelled" in await said(it.look(task_id))
        if it.served is not None:
            await eventually(nothing_is_left)


def nothing_is_left() -> bool:
    return not [each for each in asyncio.all_tasks() if each.get_name() == "mcp-tasks-question"]


async def test_nothing_is_left_of_many_calls_and_their_questions() -> None:
    async with connected("http", LONG) as it:
        calls = [it.begin("asks", job=str(number)) for number in range(30)]
        await it.question(30)
        for number, question in enumerate(it.questions()):
            if number % 3:
                await it.accept(question, name="Ada")
        for call in calls:
            await call.leave()
        await end_session(it)
        await eventually(nothing_is_left)


# --- where there is no way to ask -----------------------------------------------------------------------------------


async def test_without_streams_or_sessions_a_call_says_at_once_what_a_person_can_answer_and_refuses_the_rest() -> None:
    served = build(fallback=LONG)
    async with (
        serving(served.server, json_response=True) as plain,
        serving(served.server, stateless=True) as stateless,
        http_session(plain) as client,
        http_session(stateless) as nameless,
    ):
        for each, tool in ((client, "asks"), (nameless, "asks"), (nameless, "asks_to_visit")):
            handle((await each.call(tool, {"job": "job"})).result, "input_required")
        error = (await nameless.call("asks_the_client", {"job": "job"})).error
        assert "The tool asks with sampling/createMessage, and this server is stateless" in error["message"]
        assert client.arrived == nameless.arrived == []
