"""A task of 2025-11-25 that asks: with which status, on which stream, how often, and what becomes of the answer."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.older import OWN_STREAM, RELATED, Arrived, HttpClient, OlderClient, http_session
from harness.rpc import EVERYTHING, INVALID_PARAMS, INVALID_REQUEST, PATIENCE, Tasking, accept, text_of
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from tests.spec.furnished import furnished

ADA, WRONG = accept(name="Ada"), accept(name=7)
MODEL: dict[str, Any] = {"role": "assistant", "content": {"type": "text", "text": "42"}, "model": "m"}
ROOTS: dict[str, Any] = {"roots": [{"uri": "file:///home"}]}
KEY = "mcp-tasks/question"
ASKED_AT_MOST = 3
"""How often a client is asked the same whose answers do not fit."""

ASKING: list[tuple[str, str, dict[str, Any], str]] = [
    ("ask_name", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_by_returning", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_before", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_model", "sampling/createMessage", MODEL, "42"),
    ("ask_roots", "roots/list", ROOTS, "file:///home"),
]
"""Tools that ask, what they ask, an answer, and what they make of it."""


def questions(client: OlderClient) -> list[Arrived]:
    return [one for one in client.arrived if "id" in one.message]


async def said(client: OlderClient, task_id: str) -> str:
    return text_of((await client.result(task_id)).result)


async def withdrawn(client: OlderClient, question: Arrived) -> Arrived:
    """The notification that a question is not to be answered any more, which names the task."""
    told = await client.wait_for(
        lambda seen: seen.method == "notifications/cancelled" and seen.params["requestId"] == question.message["id"]
    )
    assert told.related == question.related
    return told


async def asks_no_more(client: OlderClient, number: int) -> None:
    """A task is made, and its end told, on the same streams: whatever was to be asked before has come."""
    await client.status(await client.start("nothing"), "completed")
    assert len(questions(client)) == number


@asynccontextmanager
async def listening_again(client: HttpClient) -> AsyncGenerator[None]:
    """With the session's own stream open, once the server has noticed that the one before was closed."""
    async with AsyncExitStack() as stack:
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    await stack.enter_async_context(client.listening())
                    break
                except AssertionError:  # The SDK lets a session have one at a time.
                    await anyio.sleep(0.02)
        yield


# Where a question goes


@pytest.mark.requirement(
    "older/asks-as-input-required", "older/leaves-input-required", "older/related-task-on-requests"
)
async def test_a_question_goes_to_the_session_once_and_its_answer_to_the_tool(everywhere: OlderClient) -> None:
    for tool, method, answer, expected in ASKING:
        task_id = await everywhere.start(tool)
        assert (await everywhere.until(task_id, "input_required"))["status"] == "input_required"
        question = await everywhere.question(task_id)
        assert (question.method, question.stream) == (method, OWN_STREAM)
        assert question.params["_meta"][RELATED] == {"taskId": task_id}
        waiting = everywhere.begin_result(task_id)
        await everywhere.answer(question, answer)
        assert text_of((await waiting.reply()).result) == expected
    assert len(questions(everywhere)) == len(ASKING)


@pytest.mark.requirement("older/questions-on-result", "older/related-task-on-requests")
async def test_a_question_comes_on_the_stream_of_the_result_where_nothing_else_is_open(older: HttpClient) -> None:
    task_id = await older.start("ask_name")
    await older.until(task_id, "input_required")
    assert older.arrived == []
    waiting = older.begin_result(task_id)
    question = await older.question(task_id)
    assert (question.stream, question.related) == ("tasks/result", task_id)
    await older.answer(question, ADA)
    assert text_of((await waiting.reply()).result) == "Hello, Ada!"
    assert len(questions(older)) == 1


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_comes_on_one_stream_only(listener: HttpClient, desk: Desk) -> None:
    task_id = await listener.start("knock")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    waiting = [listener.begin_result(task_id) for _ in range(2)]
    await listener.get(task_id)
    desk.gate.set()
    question = await listener.question(task_id)
    assert question.stream == "tasks/result"
    await asks_no_more(listener, 1)
    await listener.answer(question, ADA)
    assert {text_of((await one.reply()).result) for one in waiting} == {"Hello, Ada!"}


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_that_is_asked_is_not_asked_again_on_a_result_that_opens_later(listener: HttpClient) -> None:
    task_id = await listener.start("ask_again")
    question = await listener.question(task_id)
    waiting = listener.begin_result(task_id)
    for number, name in enumerate(("Ada", "Bea", "Cleo"), start=1):
        question = await listener.question(task_id, after=0 if number == 1 else listener.arrived.index(question) + 1)
        await asks_no_more(listener, number)
        await listener.answer(question, accept(name=name))
    assert text_of((await waiting.reply()).result) == "Ada, Bea, Cleo"


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_waits_for_a_stream_and_its_answer_counts_when_that_is_gone(older: HttpClient) -> None:
    task_id = await older.start("ask_name")
    await older.until(task_id, "input_required")
    async with older.listening():
        question = await older.question(task_id)
        assert question.stream == OWN_STREAM
    await older.answer(question, ADA)
    assert await said(older, task_id) == "Hello, Ada!"


@pytest.mark.requirement("older/questions-on-result")
@pytest.mark.parametrize("answered", ["first", "second"])
async def test_a_question_whose_result_was_left_is_asked_on_the_next_stream_and_either_may_be_answered(
    older: HttpClient, answered: str
) -> None:
    task_id = await older.start("ask_name")
    waiting = older.begin_result(task_id)
    first = await older.question(task_id)
    await waiting.leave()
    async with older.listening():
        second = await older.question(task_id, after=len(older.arrived))
        assert second.message["id"] != first.message["id"]
        assert second.params == first.params
        await older.answer(first if answered == "first" else second, ADA)
        assert await said(older, task_id) == "Hello, Ada!"
        if answered == "first":
            await withdrawn(older, second)


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_on_a_result_that_the_client_cancelled_moves_to_the_sessions_own_stream(
    listener: HttpClient, desk: Desk
) -> None:
    task_id = await listener.start("knock")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    waiting = listener.begin_result(task_id)
    await listener.get(task_id)
    desk.gate.set()
    first = await listener.question(task_id)
    assert first.stream == "tasks/result"
    await listener.notify("notifications/cancelled", {"requestId": waiting.request_id})
    again = await listener.question(task_id, after=len(listener.arrived))
    assert again.stream == OWN_STREAM
    assert (await withdrawn(listener, first)).stream == "tasks/result"
    await listener.answer(again, ADA)
    assert await said(listener, task_id) == "Hello, Ada!"


@pytest.mark.requirement("older/questions-on-result")
@pytest.mark.parametrize("answer", [None, WRONG], ids=["unanswered", "misfit"])
async def test_a_question_is_asked_again_when_the_sessions_own_stream_is_opened_anew(
    older: HttpClient, answer: dict[str, Any] | None
) -> None:
    async with older.listening():
        task_id = await older.start("ask_name")
        first = await older.question(task_id)
    seen = len(older.arrived)
    if answer is not None:
        await older.answer(first, answer)
    async with listening_again(older):
        again = await older.question(task_id, after=seen)
        assert again.params["message"] == first.params["message"]
        await older.answer(again, ADA)
        assert await said(older, task_id) == "Hello, Ada!"
    assert len(questions(older)) == 2


@pytest.mark.requirement("older/questions-on-result")
async def test_another_session_that_presents_the_id_is_asked_when_the_first_is_gone(wire: HttpWire) -> None:
    async with http_session(wire) as maker, http_session(wire) as finder, finder.listening():
        async with maker.listening():
            task_id = await maker.start("ask_name")
            await maker.question(task_id)
            await finder.until(task_id, "input_required")
            await asks_no_more(finder, 0)
        assert (await wire.client.delete(wire.url, headers=maker.headers())).status_code == 200
        await finder.answer(await finder.question(task_id), ADA)
        assert await said(finder, task_id) == "Hello, Ada!"


@pytest.mark.requirement("older/asks-what-was-declared")
async def test_a_session_is_never_asked_what_it_did_not_declare_for_its_own_tasks_or_those_of_others(
    wire: HttpWire, listener: HttpClient
) -> None:
    async with http_session(wire, {}) as shy, shy.listening():
        of_another = await listener.start("ask_name")
        waiting = shy.begin_result(of_another)
        for tool, kind in (("ask_name", "elicitation"), ("ask_model", "sampling"), ("ask_roots", "roots")):
            task_id = await shy.start(tool)
            error = (await shy.result(task_id)).error
            # In the words of this version, which has no code of its own for it.
            assert (error["code"], error["data"]) == (INVALID_REQUEST, {"_meta": {RELATED: {"taskId": task_id}}})
            assert f"did not declare the {kind} capability" in error["message"]
            assert error["message"] in (await shy.until(task_id, "failed"))["statusMessage"]
        await shy.until(of_another, "input_required")
        await asks_no_more(shy, 0)
        await listener.answer(await listener.question(of_another), ADA)
        assert text_of((await waiting.reply()).result) == "Hello, Ada!"


@pytest.mark.requirement("older/questions-on-result")
async def test_with_json_answers_a_question_comes_on_the_session_stream_only() -> None:
    server = furnished(Tasks("memory://", settings=QUICK))
    async with serving(server, json_response=True) as way, http_session(way) as session:
        task_id = await session.start("ask_name")
        waiting = session.begin_result(task_id)
        await session.until(task_id, "input_required")
        assert questions(session) == []
        async with session.listening():
            question = await session.question(task_id)
            assert question.stream == OWN_STREAM
            await session.answer(question, ADA)
            assert text_of((await waiting.reply()).result) == "Hello, Ada!"


@pytest.mark.requirement("older/asks-as-input-required")
async def test_two_questions_at_once_are_both_put(listener: HttpClient) -> None:
    task_id = await listener.start("ask_both")
    for message, answer in (("Your age?", accept(age=36)), ("Your name?", ADA)):
        question = await listener.wait_for(lambda seen: seen.params.get("message") == message)  # noqa: B023
        assert question.related == task_id
        await listener.answer(question, answer)
    assert await said(listener, task_id) == "Ada is 36"


async def test_a_child_of_a_task_is_asked_about_once_its_id_is_presented(listener: HttpClient) -> None:
    child = await said(listener, await listener.start("delegate"))
    await listener.until(child, "input_required")
    await listener.answer(await listener.question(child), ADA)
    assert await said(listener, child) == "Hello, Ada!"


# When it is over


@pytest.mark.requirement("older/first-answer-counts")
async def test_the_second_of_two_answers_is_ignored(listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    question = await listener.question(task_id)
    await listener.answer(question, ADA)
    await listener.answer(question, accept(name="Eve"))
    assert await said(listener, task_id) == "Hello, Ada!"


@pytest.mark.requirement("older/first-answer-counts")
async def test_an_answer_of_the_other_era_counts_and_ends_the_question(wire: HttpWire, listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    question = await listener.question(task_id)
    modern = Tasking(wire, EVERYTHING)
    [key] = (await modern.until(task_id, "input_required"))["inputRequests"]
    await modern.update(task_id, **{key: ADA})
    await withdrawn(listener, question)
    await listener.answer(question, accept(name="Eve"))
    assert await said(listener, task_id) == "Hello, Ada!"


@pytest.mark.requirement("older/cancelled-question")
async def test_the_question_of_a_cancelled_task_is_withdrawn_before_its_result_is_answered(older: HttpClient) -> None:
    task_id = await older.start("ask_name")
    waiting = older.begin_result(task_id)
    question = await older.question(task_id)
    await older.cancel(task_id)
    assert "error" in (await waiting.reply()).message
    # On that stream, of which the answer is the last message.
    assert (await withdrawn(older, question)).stream == "tasks/result"


@pytest.mark.requirement("older/asks-as-input-required", "older/leaves-input-required")
async def test_a_question_that_the_tool_gave_up_is_withdrawn_and_no_reason_to_wait(
    listener: HttpClient, desk: Desk
) -> None:
    task_id = await listener.start("ask_until_told")
    question = await listener.question(task_id)
    desk.started.set()
    await withdrawn(listener, question)
    assert (await listener.until(task_id, "working"))["status"] == "working"
    await listener.answer(question, accept(name="too late"))
    desk.gate.set()
    assert await said(listener, task_id) == "went on"


# Answers that are none


@pytest.mark.requirement("older/refused-question")
@pytest.mark.parametrize("tool", ["ask_name", "ask_model", "ask_roots", "insist"])
async def test_a_question_that_the_client_refuses_ends_as_in_a_plain_call(listener: HttpClient, tool: str) -> None:
    plain = listener.begin("tools/call", {"name": tool, "arguments": {}})
    await listener.refuse(await listener.wait_for(lambda seen: "id" in seen.message), -1, "the user said no")
    expected = (await plain.reply()).message
    task_id = await listener.start(tool)
    await listener.refuse(await listener.question(task_id), -1, "the user said no")
    reply = (await listener.result(task_id)).message
    assert ("error" in reply) == ("error" in expected)
    if "result" in reply:
        assert reply["result"]["content"] == expected["result"]["content"]
    if tool == "insist":
        assert text_of(reply["result"]) == "-1 the user said no None"
    else:
        assert (await listener.get(task_id))["status"] == "failed"


@pytest.mark.requirement("older/refused-question")
async def test_a_person_may_decline(listener: HttpClient) -> None:
    for action in ("decline", "cancel"):
        task_id = await listener.start("ask_name")
        await listener.answer(await listener.question(task_id), {"action": action})
        assert await said(listener, task_id) == f"{action}, then"


MISFITS: list[dict[str, Any]] = [
    {},
    {"action": "agree"},
    {"action": "accept"},
    WRONG,
    accept(nom="Ada"),
    {"action": "accept", "content": "Ada"},
]


async def test_a_question_whose_answer_does_not_fit_is_asked_again_under_another_key(listener: HttpClient) -> None:
    for misfit in MISFITS:
        task_id = await listener.start("ask_name")
        first = await listener.question(task_id)
        seen = len(listener.arrived)
        await listener.answer(first, misfit)
        again = await listener.question(task_id, after=seen)
        assert again.params["message"] == first.params["message"]
        # A client that keeps its answers by this key would give the same one again.
        assert again.params["_meta"][KEY] != first.params["_meta"][KEY]
        assert (await listener.get(task_id))["status"] == "input_required"
        await listener.answer(again, ADA)
        assert await said(listener, task_id) == "Hello, Ada!"
    assert len(questions(listener)) == 2 * len(MISFITS)


async def test_a_client_whose_answers_never_fit_is_asked_three_times_and_the_tool_is_told_why(
    listener: HttpClient,
) -> None:
    for tool, wrong in (("insist", 7), ("trust", 7), ("trust", ["x" * 100_000])):
        task_id, seen = await listener.start(tool), len(questions(listener))
        for _ in range(ASKED_AT_MOST):
            question = await listener.question(task_id, after=seen)
            seen = len(listener.arrived)
            await listener.answer(question, accept(name=wrong))
        reply = await listener.result(task_id)
        if tool == "insist":
            assert text_of(reply.result).startswith(f"{INVALID_PARAMS} ")
        told = text_of(reply.result) if tool == "insist" else reply.error["message"]
        assert wrong != 7 or "does not fit: $.name: 7 is not of type 'string'" in told
        # What did not fit does not fill the task.
        assert len(told) < 5_000
    assert len(questions(listener)) == 3 * ASKED_AT_MOST
