"""Questions of tasks on the 2025-11-25 wire: on one stream at a time, until they are answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, NOTHING, PATIENCE, Tasking
from harness.server import QUICK, Desk
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.legacy.questions import MAX_MISFITS
from mcp_tasks.protocol.shapes import QUESTION_META_KEY
from tests.legacy.asking_server import build_asking
from tests.legacy.http_session import RELATED, HttpSession, Stream, open_session

pytestmark = pytest.mark.anyio

ELICIT, CANCELLED = "elicitation/create", "notifications/cancelled"
A_WHILE = 0.3
"""Seconds in which what must not come would have come."""


@asynccontextmanager
async def served(desk: Desk | None = None, *, json_response: bool = False) -> AsyncGenerator[HttpWire]:
    server = build_asking(Tasks("memory://", settings=QUICK), desk)
    async with serving(server, json_response=json_response) as wire:
        yield wire


async def asks_nothing(*streams: Stream) -> None:
    """Nothing is asked on these, or nothing more than was."""
    before = [len(stream.sent(ELICIT)) for stream in streams]
    await anyio.sleep(A_WHILE)  # sleep: the time in which nothing may come
    assert [len(stream.sent(ELICIT)) for stream in streams] == before


def cancels(stream: Stream, request: dict[str, Any]) -> bool:
    """Whether a request of a task is cancelled, in a notification that names the task."""
    related = {RELATED: request["params"]["_meta"][RELATED]}
    told = [message["params"] for message in stream.sent(CANCELLED) if message["params"]["requestId"] == request["id"]]
    assert all(params["_meta"] == related for params in told)
    return bool(told)


@asynccontextmanager
async def listening_again(client: HttpSession) -> AsyncGenerator[Stream]:
    """The session's own stream, once the server has noticed that the one before was closed."""
    with anyio.fail_after(PATIENCE):
        while True:
            async with client.listen() as stream:
                if stream.status == 200:
                    yield stream
                    return
            await anyio.sleep(0.02)


# Where a question goes


async def test_a_question_goes_to_the_sessions_own_stream_if_no_result_is_open() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asked = await own.request(ELICIT)
            assert asked["params"]["message"] == "What is your name?"
            assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
            await client.accept(asked, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"
            assert len(own.sent(ELICIT)) == 1
            assert own.sent(CANCELLED) == []


async def test_a_question_goes_to_an_open_result_and_not_to_the_sessions_own_stream_as_well() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("knock")
            await desk.started.wait()
            async with client.open_result(task_id) as result:
                desk.gate.set()
                asked = await result.request(ELICIT)
                assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
                await asks_nothing(own, result)
                await client.accept(asked, name="Ada")
                answer = await result.answer()
            assert answer["result"]["content"][0]["text"] == "Hello, Ada!"
            assert own.sent(ELICIT) == []


async def test_without_a_stream_the_question_waits_until_the_result_is_asked_for() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        await client.until_status(task_id, "input_required")
        async with client.open("tasks/result", taskId=task_id) as result:
            await client.accept(await result.request(ELICIT), name="Ada")
            answer = await result.answer()
        assert answer["result"]["content"][0]["text"] == "Hello, Ada!"
        assert len(result.sent(ELICIT)) == 1


async def test_without_a_stream_the_question_waits_until_the_session_opens_its_own() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        await client.until_status(task_id, "input_required")
        async with client.listen() as own:
            await client.accept(await own.request(ELICIT), name="Ada")
            await client.until_status(task_id, "completed")


async def test_a_question_that_is_asked_is_not_asked_again_on_a_result_that_opens_later() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asked = await own.request(ELICIT)
            async with client.open("tasks/result", taskId=task_id) as result:
                await asks_nothing(own, result)
                await client.accept(asked, name="Ada")
                answer = await result.answer()
            assert answer["result"]["content"][0]["text"] == "Hello, Ada!"
            assert result.sent(ELICIT) == []


async def test_of_two_open_results_one_is_asked() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        task_id = await client.create("knock")
        async with (
            client.open_result(task_id) as one,
            client.open_result(task_id) as two,
        ):
            desk.gate.set()
            await eventually(lambda: one.sent(ELICIT) or two.sent(ELICIT))
            await asks_nothing(one, two)
            [asked] = [*one.sent(ELICIT), *two.sent(ELICIT)]
            await client.accept(asked, name="Ada")
            for stream in (one, two):
                assert (await stream.answer())["result"]["content"][0]["text"] == "Hello, Ada!"


async def test_two_questions_at_once_are_both_asked() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_both")
            first, second = await own.request(ELICIT), await own.request(ELICIT, number=2)
            by_text = {each["params"]["message"]: each for each in (first, second)}
            await client.accept(by_text["Your age?"], age=36)
            await client.accept(by_text["Your name?"], name="Ada")
            assert await client.result(task_id) == "Ada is 36"


async def test_in_json_mode_the_result_carries_no_question_and_the_sessions_own_stream_does() -> None:
    async with served(json_response=True) as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        await client.until_status(task_id, "input_required")
        texts: list[str] = []
        async with anyio.create_task_group() as group:

            async def wait_for_result() -> None:
                texts.append(await client.result(task_id))

            group.start_soon(wait_for_result)
            await anyio.sleep(0.05)  # sleep: nobody is told when the server has begun to wait
            async with client.listen() as own:
                await client.accept(await own.request(ELICIT), name="Ada")
        assert texts == ["Hello, Ada!"]


async def test_sampling_and_roots_are_asked_like_any_question() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            model, roots = await client.create("ask_model"), await client.create("ask_roots")
            asked = await own.request("sampling/createMessage")
            assert asked["params"]["_meta"][RELATED] == {"taskId": model}
            assert asked["params"]["maxTokens"] == 10
            content = {"type": "text", "text": "42"}
            await client.reply(asked, {"role": "assistant", "content": content, "model": "m"})
            asked = await own.request("roots/list")
            assert asked["params"].keys() == {"_meta"}
            assert asked["params"]["_meta"][RELATED] == {"taskId": roots}
            await client.reply(asked, {"roots": [{"uri": "file:///home"}]})
            assert await client.result(model) == "42"
            assert await client.result(roots) == "file:///home"


async def test_a_child_of_a_task_is_asked_about_once_its_id_is_presented() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            child = await client.result(await client.create("delegate"))
            await client.until_status(child, "input_required")
            asked = await own.request(ELICIT)
            assert asked["params"]["_meta"][RELATED] == {"taskId": child}
            await client.accept(asked, name="Ada")
            assert await client.result(child) == "Hello, Ada!"


async def test_a_kind_that_the_client_did_not_declare_is_not_asked() -> None:
    async with served() as wire:
        client = await open_session(wire, NOTHING)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            error = (await client.ask("tasks/result", taskId=task_id))["error"]
            assert "did not declare the elicitation capability" in error["message"]
            assert own.sent(ELICIT) == []


# When a stream goes away


async def test_a_question_on_a_result_whose_client_hung_up_is_asked_on_the_next_stream() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        async with client.open("tasks/result", taskId=task_id) as lost:
            await lost.request(ELICIT)
        async with client.listen() as own:
            asked = await own.request(ELICIT)
            await client.accept(asked, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"


async def test_a_question_that_has_moved_may_be_answered_where_it_was_asked_first() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        async with client.open("tasks/result", taskId=task_id) as lost:
            first = await lost.request(ELICIT)
        async with client.listen() as own:
            again = await own.request(ELICIT)
            await client.accept(first, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"
            await own.until(lambda message: message.get("method") == CANCELLED)
            assert cancels(own, again)


async def test_a_question_on_a_result_that_the_client_cancelled_moves_to_the_sessions_own_stream() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("knock")
            async with client.open_result(task_id) as result:
                desk.gate.set()
                first = await result.request(ELICIT)
                await client.notify(CANCELLED, requestId=result.request_id)
                again = await own.request(ELICIT)
                assert cancels(result, first)
            await client.accept(again, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"


async def test_a_question_is_asked_again_when_the_sessions_own_stream_is_opened_anew() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as lost:
            task_id = await client.create("ask_name")
            first = await lost.request(ELICIT)
        async with listening_again(client) as own:
            again = await own.request(ELICIT)
            assert again["id"] != first["id"]
            assert again["params"] == first["params"]
            await client.accept(again, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"
            assert len(own.sent(ELICIT)) == 1


async def test_an_answer_counts_although_the_stream_of_its_question_is_gone() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as lost:
            task_id = await client.create("ask_name")
            asked = await lost.request(ELICIT)
        await anyio.sleep(A_WHILE)  # sleep: nobody is told when the server sees that the stream is gone
        await client.accept(asked, name="Ada")
        assert await client.result(task_id) == "Hello, Ada!"


async def test_a_task_that_another_session_presents_is_asked_about_in_one_of_them() -> None:
    async with served() as wire:
        maker, finder = await open_session(wire), await open_session(wire)
        async with maker.listen() as first, finder.listen() as second:
            task_id = await maker.create("ask_name")
            await first.request(ELICIT)
            await finder.until_status(task_id, "input_required")
            await asks_nothing(first, second)
            assert second.sent(ELICIT) == []
            await maker.delete()
            await finder.accept(await second.request(ELICIT), name="Ada")
            assert await finder.result(task_id) == "Hello, Ada!"


async def test_a_session_that_does_not_take_such_questions_is_not_asked_for_another() -> None:
    async with served() as wire:
        maker, finder = await open_session(wire), await open_session(wire, NOTHING)
        task_id = await maker.create("ask_name")
        async with finder.listen() as own, finder.open("tasks/result", taskId=task_id) as result:
            await finder.until_status(task_id, "input_required")
            await asks_nothing(own, result)
            assert own.sent(ELICIT) == result.sent(ELICIT) == []
            async with maker.listen() as stream:
                await maker.accept(await stream.request(ELICIT), name="Ada")
            assert (await result.answer())["result"]["content"][0]["text"] == "Hello, Ada!"


# When it is over


async def test_a_question_that_is_answered_on_the_modern_wire_is_cancelled_at_the_client() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asked = await own.request(ELICIT)
            modern = Tasking(wire, EVERYTHING)
            [key] = (await modern.get(task_id))["inputRequests"]
            await modern.update(task_id, **{key: {"action": "accept", "content": {"name": "Grace"}}})
            await own.until(lambda _: cancels(own, asked))
            await client.accept(asked, name="Ada")
            assert await client.result(task_id) == "Hello, Grace!"


async def test_a_question_of_a_task_that_is_cancelled_is_cancelled_before_the_result_is_answered() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        async with client.open("tasks/result", taskId=task_id) as result:
            asked = await result.request(ELICIT)
            assert (await client.ask("tasks/cancel", taskId=task_id))["result"]["status"] == "cancelled"
            await result.answer()
            assert cancels(result, asked)
            assert result.messages[-1]["id"] == result.request_id


async def test_a_question_that_the_tool_gave_up_on_is_cancelled_at_the_client() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("waver")
            asked = await own.request(ELICIT)
            await own.until(lambda _: cancels(own, asked))
            await client.accept(asked, name="too late")
            desk.gate.set()
            assert await client.result(task_id) == "went on"


async def test_only_the_first_answer_counts() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            asked = await own.request(ELICIT)
            await client.accept(asked, name="Ada")
            await client.accept(asked, name="Grace")
            assert await client.result(task_id) == "Hello, Ada!"


# Answers that are none


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [(-32601, "Method not found", None), (-1, "User rejected it", {"why": ["no", 1]}), (-32000, "Busy", None)],
)
async def test_an_error_reaches_the_tool_as_in_a_plain_call(code: int, message: str, data: Any) -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("insist")
            await client.refuse(await own.request(ELICIT), code, message, data)
            told = await client.result(task_id)
        async with client.open("tools/call", name="insist", arguments={}) as plain:
            await client.refuse(await plain.request(ELICIT), code, message, data)
            answer = await plain.answer()
        assert told == answer["result"]["content"][0]["text"] == f"{code} {message} {data}"


@pytest.mark.parametrize(
    "misfit",
    [
        {},
        {"action": "agree"},
        {"action": "accept"},
        {"action": "accept", "content": {"name": 7}},
        {"action": "accept", "content": {"nom": "Ada"}},
        {"action": "accept", "content": "Ada"},
    ],
    ids=["empty", "unknown action", "no content", "wrong type", "wrong field", "no object"],
)
async def test_a_question_whose_answer_does_not_fit_is_asked_again(misfit: dict[str, Any]) -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("ask_name")
            first = await own.request(ELICIT)
            await client.reply(first, misfit)
            again = await own.request(ELICIT, number=2)
            assert again["params"]["message"] == first["params"]["message"]
            # A client that keeps its answers by this key would give the same one again.
            assert again["params"]["_meta"][QUESTION_META_KEY] != first["params"]["_meta"][QUESTION_META_KEY]
            assert await client.status(task_id) == "input_required"
            await client.accept(again, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"
            assert len(own.sent(ELICIT)) == 2


async def test_a_client_whose_answers_never_fit_is_asked_three_times_and_the_tool_is_told_why() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            told, failed = await client.create("insist"), await client.create("trust")
            for number in range(1, 2 * MAX_MISFITS + 1):
                await client.accept(await own.request(ELICIT, number=number), name=7)
            text = await client.result(told)
            assert text.startswith("-32602 ")
            assert "does not fit: $.name: 7 is not of type 'string'" in text
            error = (await client.ask("tasks/result", taskId=failed))["error"]
            assert error["code"] == INVALID_PARAMS
            assert "$.name: 7 is not of type 'string'" in error["message"]
            assert len(own.sent(ELICIT)) == 2 * MAX_MISFITS


async def test_an_answer_that_does_not_fit_does_not_fill_the_task() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("trust")
            for number in range(1, MAX_MISFITS + 1):
                await client.accept(await own.request(ELICIT, number=number), name=["x" * 100_000])
            error = (await client.ask("tasks/result", taskId=task_id))["error"]
            assert len(error["message"]) < 5_000


async def test_a_question_that_is_asked_again_goes_to_the_stream_that_is_open_by_then() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as lost:
            task_id = await client.create("ask_name")
            asked = await lost.request(ELICIT)
        await anyio.sleep(A_WHILE)  # sleep: nobody is told when the server sees that the stream is gone
        await client.accept(asked, name=7)
        await client.until_status(task_id, "input_required")
        async with listening_again(client) as own:
            await client.accept(await own.request(ELICIT), name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"
