"""A task that asks: with which status, on which stream, how often, and what becomes of the answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.older import OWN_STREAM, RELATED, Arrived, HttpClient, OlderClient, http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept, text_of
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from tests.spec.legacy.furnished import furnished

pytestmark = pytest.mark.anyio

ADA = accept(name="Ada")
MODEL: dict[str, Any] = {"role": "assistant", "content": {"type": "text", "text": "42"}, "model": "m"}
ROOTS: dict[str, Any] = {"roots": [{"uri": "file:///home"}]}

ASKING: list[tuple[str, str, dict[str, Any], str]] = [
    ("ask_name", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_by_returning", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_before", "elicitation/create", ADA, "Hello, Ada!"),
    ("ask_model", "sampling/createMessage", MODEL, "42"),
    ("ask_roots", "roots/list", ROOTS, "file:///home"),
]
"""Tools that ask, what they ask, an answer, and what they make of it."""


def _questions(client: OlderClient) -> list[Arrived]:
    return [one for one in client.arrived if "id" in one.message]


@pytest.mark.requirement(
    "older/asks-as-input-required", "older/leaves-input-required", "older/related-task-on-requests"
)
async def test_a_question_goes_to_the_session_and_its_answer_to_the_tool(everywhere: OlderClient) -> None:
    for tool, method, answer, said in ASKING:
        task_id = await everywhere.start(tool)
        assert (await everywhere.until(task_id, "input_required"))["status"] == "input_required"
        question = await everywhere.question(task_id)
        assert (question.method, question.stream) == (method, OWN_STREAM)
        assert question.params["_meta"][RELATED] == {"taskId": task_id}
        await everywhere.answer(question, answer)
        assert text_of((await everywhere.result(task_id)).result) == said
    assert len(_questions(everywhere)) == len(ASKING)


@pytest.mark.requirement("older/leaves-input-required")
async def test_a_task_that_has_its_answer_works_again(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("ask_late")
    await everywhere.until(task_id, "input_required")
    await everywhere.answer(await everywhere.question(task_id), ROOTS)
    assert (await everywhere.until(task_id, "working"))["status"] == "working"
    await everywhere.call("release")
    assert text_of((await everywhere.result(task_id)).result) == "1 roots"


@pytest.mark.requirement("older/questions-on-result", "older/related-task-on-requests")
async def test_a_question_comes_on_the_stream_of_the_result_where_nothing_else_is_open(client: HttpClient) -> None:
    task_id = await client.start("ask_name")
    await client.until(task_id, "input_required")
    assert client.arrived == []
    waiting = client.begin_result(task_id)
    question = await client.question(task_id)
    assert question.stream == "tasks/result"
    await client.answer(question, ADA)
    assert text_of((await waiting.reply()).result) == "Hello, Ada!"
    assert len(_questions(client)) == 1


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_comes_on_one_stream_only(listener: HttpClient) -> None:
    task_id = await listener.start("ask_again")
    asked = 0
    waiting = listener.begin_result(task_id)
    for name in ("Ada", "Bea", "Cleo"):
        question = await listener.question(task_id, after=asked)
        asked = len(listener.arrived)
        await listener.answer(question, accept(name=name))
    assert text_of((await waiting.reply()).result) == "Ada, Bea, Cleo"
    assert len({one.message["id"] for one in _questions(listener)}) == len(_questions(listener)) == 3


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_whose_stream_is_gone_is_asked_again_on_the_next(client: HttpClient) -> None:
    task_id = await client.start("ask_name")
    first = client.begin_result(task_id)
    await client.question(task_id)
    await first.leave()
    seen = len(client.arrived)
    second = client.begin_result(task_id)
    question = await client.question(task_id, after=seen)
    await client.answer(question, ADA)
    assert text_of((await second.reply()).result) == "Hello, Ada!"


@pytest.mark.requirement("older/questions-on-result")
async def test_a_question_waits_for_a_stream_to_be_opened(client: HttpClient) -> None:
    task_id = await client.start("ask_name")
    await client.until(task_id, "input_required")
    async with client.listening():
        question = await client.question(task_id)
        assert question.stream == OWN_STREAM
        await client.answer(question, ADA)
        assert text_of((await client.result(task_id)).result) == "Hello, Ada!"


@pytest.mark.requirement("older/questions-on-result")
async def test_another_session_that_presents_the_id_is_asked_when_the_first_is_gone(wire: HttpWire) -> None:
    async with http_session(wire) as first:
        task_id = await first.start("ask_name")
        await first.until(task_id, "input_required")
    async with http_session(wire) as second:
        waiting = second.begin_result(task_id)
        await second.answer(await second.question(task_id), ADA)
        assert text_of((await waiting.reply()).result) == "Hello, Ada!"


@pytest.mark.requirement("older/first-answer-counts")
async def test_the_second_of_two_answers_is_ignored(listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    question = await listener.question(task_id)
    await listener.answer(question, ADA)
    await listener.answer(question, accept(name="Eve"))
    assert text_of((await listener.result(task_id)).result) == "Hello, Ada!"


@pytest.mark.requirement("older/first-answer-counts")
async def test_an_answer_of_the_other_era_counts_and_ends_the_question(wire: HttpWire, listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    question = await listener.question(task_id)
    modern = Tasking(wire, EVERYTHING)
    [key] = (await modern.until(task_id, "input_required"))["inputRequests"]
    await modern.update(task_id, **{key: ADA})
    withdrawn = await listener.wait_for(lambda seen: seen.method == "notifications/cancelled")
    assert withdrawn.params["requestId"] == question.message["id"]
    assert text_of((await listener.result(task_id)).result) == "Hello, Ada!"


@pytest.mark.requirement("older/asks-what-was-declared")
@pytest.mark.parametrize("tool", ["ask_name", "ask_model", "ask_roots"])
async def test_a_client_is_never_asked_what_it_did_not_declare(wire: HttpWire, tool: str) -> None:
    async with http_session(wire, {}) as session, session.listening():
        task_id = await session.start(tool)
        await session.result(task_id)
        assert _questions(session) == []
        task = await session.get(task_id)
        assert task["status"] == "failed"
        assert task["statusMessage"]


@pytest.mark.requirement("older/refused-question")
@pytest.mark.parametrize("tool", ["ask_name", "ask_model", "ask_roots"])
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
    assert (await listener.get(task_id))["status"] == "failed"


@pytest.mark.requirement("older/refused-question")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_may_decline(listener: HttpClient, action: str) -> None:
    task_id = await listener.start("ask_name")
    await listener.answer(await listener.question(task_id), {"action": action})
    assert text_of((await listener.result(task_id)).result) == f"{action}, then"


@pytest.mark.requirement("older/cancelled-question")
async def test_the_question_of_a_cancelled_task_is_withdrawn(listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    question = await listener.question(task_id)
    await listener.cancel(task_id)
    withdrawn = await listener.wait_for(lambda seen: seen.method == "notifications/cancelled")
    assert withdrawn.params["requestId"] == question.message["id"]


@pytest.mark.requirement("older/stateless-questions")
async def test_without_sessions_a_tool_that_asks_gets_a_clear_error(stateless: HttpWire) -> None:
    async with http_session(stateless) as session:
        task_id = await session.start("ask_name")
        reply = (await session.result(task_id)).message
        assert "error" in reply or reply["result"]["isError"]
        assert (await session.get(task_id))["status"] == "failed"
        assert (await session.get(task_id))["statusMessage"]


@pytest.mark.requirement("older/questions-on-result")
async def test_with_json_answers_a_question_comes_on_the_session_stream_only() -> None:
    server = furnished(Tasks("memory://", settings=QUICK))
    async with serving(server, json_response=True) as way, http_session(way) as session:
        task_id = await session.start("ask_name")
        waiting = session.begin_result(task_id)
        await session.until(task_id, "input_required")
        assert _questions(session) == []
        async with session.listening():
            question = await session.question(task_id)
            assert question.stream == OWN_STREAM
            await session.answer(question, ADA)
            assert text_of((await waiting.reply()).result) == "Hello, Ada!"


@pytest.mark.requirement("older/asks-as-input-required")
async def test_two_questions_at_once_are_both_put(listener: HttpClient) -> None:
    task_id = await listener.start("ask_both")
    for message, answer in (("Your name?", accept(name="Ada")), ("Your age?", accept(age=36))):
        question = await listener.wait_for(lambda seen: seen.params.get("message") == message)  # noqa: B023
        assert question.related == task_id
        await listener.answer(question, answer)
    assert text_of((await listener.result(task_id)).result) == "Ada is 36"


@pytest.mark.requirement("older/asks-as-input-required")
async def test_a_question_that_is_given_up_is_no_reason_to_wait(listener: HttpClient, desk: Desk) -> None:
    task_id = await listener.start("ask_briefly")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    assert (await listener.until(task_id, "working"))["status"] == "working"
