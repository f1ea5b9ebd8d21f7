"""Questions of a task on an open call of an older client: each asked once, answered also when the call is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from mcp.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from harness.forking import piped
from harness.http import HttpWire, serving
from harness.older import (
    ASKABLE,
    Arrived,
    HttpClient,
    OlderClient,
    Pending,
    http_session,
    pipe_session,
)
from harness.processes import ROOT
from harness.rpc import PATIENCE
from harness.server import Desk
from harness.stdio import stdio_process
from mcp_tasks.fallback import questions as asked
from mcp_tasks.fallback.questions import asked_by
from tests.fallback.waiting_server import waiting_server

pytestmark = pytest.mark.anyio

ELICIT = "elicitation/create"
CANCELLED = "notifications/cancelled"
MODULE = "tests.fallback.waiting_server"
A_WHILE = 0.3
"""How long a test waits for what must not happen; and how long a call waits that is to be over before its answer."""

NOBODY: Mapping[str, Any] = {}


@asynccontextmanager
async def connected(transport: str, capabilities: Mapping[str, Any] = ASKABLE) -> AsyncGenerator[OlderClient]:
    """A session of 2025-11-25, or over pipes of the version before, with a server of its own."""
    if transport == "http":
        async with waiting_server() as (server, _), serving(server) as wire, http_session(wire, capabilities) as client:
            yield client
    else:
        version = "2025-06-18" if transport == "stdio, 2025-06-18" else "2025-11-25"
        async with stdio_process(module=MODULE) as wire, pipe_session(wire, capabilities, version=version) as client:
            yield client


@asynccontextmanager
async def served(desk: Desk | None = None) -> AsyncGenerator[HttpWire]:
    async with waiting_server(desk) as (server, _), serving(server) as wire:
        yield wire


def begin(client: OlderClient, tool: str, *, seconds: float = PATIENCE, **arguments: Any) -> Pending:
    """Call a tool, and wait for it so long."""
    return client.begin("tools/call", {"name": tool, "arguments": arguments, "_meta": {"seconds": seconds}})


async def said(call: Pending) -> str:
    return (await call.reply()).result["content"][0]["text"]


async def call(client: OlderClient, tool: str, *, seconds: float = PATIENCE, **arguments: Any) -> str:
    """The text that a call of a tool is answered with."""
    return await said(begin(client, tool, seconds=seconds, **arguments))


async def gave_up(client: OlderClient, tool: str) -> str:
    """The task of a call that was over before anybody answered the question."""
    status, task_id = (await call(client, tool, seconds=A_WHILE)).split()
    assert status == "input_required"
    return task_id


async def request(client: OlderClient, number: int = 1, method: str = ELICIT) -> Arrived:
    """The first question of a kind, or a later one."""
    return await client.wait_for(
        lambda seen: seen.method == method and requests(client, method).index(seen) == number - 1
    )


def requests(client: OlderClient, method: str = ELICIT) -> list[Arrived]:
    return [seen for seen in client.arrived if seen.method == method]


async def accept(client: OlderClient, question: Arrived, **content: Any) -> None:
    await client.answer(question, {"action": "accept", "content": content})


async def cancelled(client: OlderClient, question: Arrived) -> None:
    """Return when the client has been told that nobody waits for the answer."""
    await client.wait_for(lambda seen: cancels(seen, question))


def cancels(seen: Arrived, question: Arrived) -> bool:
    return seen.method == CANCELLED and seen.params["requestId"] == question.message["id"]


async def settles(client: OlderClient) -> None:
    """Return when nothing is left of any question on the server."""
    with anyio.fail_after(PATIENCE):
        while await call(client, "questions") != "none":  # noqa: ASYNC110 - what the server has is what is tested
            await anyio.sleep(0.02)


both = pytest.mark.parametrize("transport", ["http", "stdio"])


# As in a plain call


@pytest.mark.parametrize("transport", ["http", "stdio", "stdio, 2025-06-18"])
async def test_a_question_is_asked_on_the_call_as_a_plain_call_asks_it(transport: str) -> None:
    async with connected(transport) as client:
        waiting = begin(client, "ask_name")
        question = await request(client)
        assert question.params["message"] == "What is your name?"
        assert question.params.keys() <= {"mode", "message", "requestedSchema"}
        assert question.stream == ("tools/call" if transport == "http" else "the session's own")
        await accept(client, question, name="Ada")
        assert await said(waiting) == "Hello, Ada!"
        assert len(requests(client)) == 1
        await settles(client)


@both
async def test_sampling_and_roots_are_asked_as_well(transport: str) -> None:
    async with connected(transport) as client:
        model, roots = begin(client, "ask_model"), begin(client, "ask_roots")
        content = {"type": "text", "text": "42"}
        await client.answer(
            await request(client, method="sampling/createMessage"),
            {"role": "assistant", "content": content, "model": "m"},
        )
        question = await request(client, method="roots/list")
        assert question.params == {}
        await client.answer(question, {"roots": [{"uri": "file:///home"}]})
        assert [await said(model), await said(roots)] == ["42", "file:///home"]


async def test_a_question_that_could_be_a_task_of_the_client_is_asked_plainly() -> None:
    hosting: dict[str, Any] = {**ASKABLE, "tasks": {"requests": {"elicitation": {"create": {}}}}}
    async with connected("http", hosting) as client:
        waiting = begin(client, "ask_as_task")
        question = await request(client)
        assert question.params.keys() <= {"mode", "message", "requestedSchema"}
        await accept(client, question, name="Ada")
        assert await said(waiting) == "Hello, Ada!"


@both
async def test_two_questions_at_once_are_both_asked(transport: str) -> None:
    async with connected(transport) as client:
        waiting = begin(client, "ask_both")
        by_text = {each.params["message"]: each for each in (await request(client), await request(client, 2))}
        await accept(client, by_text["Your age?"], age=36)
        await accept(client, by_text["Your name?"], name="Ada")
        assert await said(waiting) == "Ada is 36"


@both
async def test_an_error_of_the_client_is_for_the_tool_to_see(transport: str) -> None:
    async with connected(transport) as client:
        waiting = begin(client, "insist")
        await client.refuse(await request(client), -1, "User rejected it")
        assert await said(waiting) == "-1 User rejected it None"
        assert len(requests(client)) == 1


@pytest.mark.parametrize(
    "misfit",
    [{}, {"action": "agree"}, {"action": "accept", "content": {"name": 7}}],
    ids=["empty", "action", "content"],
)
async def test_an_answer_that_does_not_fit_is_an_error_for_the_tool(misfit: dict[str, Any]) -> None:
    async with connected("http") as client:
        waiting = begin(client, "insist")
        await client.answer(await request(client), misfit)
        assert (await said(waiting)).startswith("-32602 The answer to ")
        assert len(requests(client)) == 1


# When the call is over


@both
async def test_an_answer_counts_although_the_call_is_over(transport: str) -> None:
    async with connected(transport) as client:
        task_id = await gave_up(client, "ask_name")
        await accept(client, await request(client), name="Ada")
        assert await call(client, "wait", task_id=task_id) == "Hello, Ada!"
        await settles(client)


@both
async def test_a_refusal_counts_although_the_call_is_over(transport: str) -> None:
    async with connected(transport) as client:
        task_id = await gave_up(client, "insist")
        await client.refuse(await request(client), -1, "User rejected it")
        assert await call(client, "wait", task_id=task_id) == "-1 User rejected it None"


@both
async def test_a_client_that_has_a_question_is_not_asked_again_by_the_calls_that_follow(transport: str) -> None:
    async with connected(transport) as client:
        task_id = await gave_up(client, "ask_name")
        for _ in range(3):
            assert await call(client, "wait", task_id=task_id, seconds=0.05) == f"input_required {task_id}"
        waiting = begin(client, "wait", task_id=task_id)
        await anyio.sleep(A_WHILE)  # sleep: the time in which it would be asked again
        [question] = requests(client)
        await accept(client, question, name="Ada")
        assert await said(waiting) == "Hello, Ada!"


@both
async def test_of_two_calls_that_wait_for_a_task_one_asks(transport: str) -> None:
    async with connected(transport) as client:
        task_id = await gave_up(client, "ask_name")
        calls = [begin(client, "wait", task_id=task_id) for _ in range(2)]
        await anyio.sleep(A_WHILE)  # sleep: the time in which it would be asked again
        [question] = requests(client)
        await accept(client, question, name="Ada")
        assert [await said(each) for each in calls] == ["Hello, Ada!"] * 2


async def test_a_question_on_an_open_call_is_not_asked_in_another_session() -> None:
    async with served() as wire, http_session(wire) as one, http_session(wire) as two:
        task_id = await gave_up(one, "ask_name")
        first = begin(two, "wait", task_id=task_id)
        # The call that asked is over, and who has it now may be somebody else.
        question = await request(two)
        second = begin(one, "wait", task_id=task_id)
        await anyio.sleep(A_WHILE)  # sleep: the time in which it would be asked again
        assert len(requests(one)) == len(requests(two)) == 1
        await accept(two, question, name="Ada")
        assert [await said(each) for each in (first, second)] == ["Hello, Ada!"] * 2


async def test_the_first_answer_counts_and_the_question_is_cancelled_where_it_is_still_open() -> None:
    async with served() as wire, http_session(wire) as one, http_session(wire) as two:
        task_id = await gave_up(one, "ask_name")
        waiting = begin(two, "wait", task_id=task_id)
        again = await request(two)
        await accept(one, await request(one), name="Ada")
        assert await said(waiting) == "Hello, Ada!"
        assert any(cancels(seen, again) for seen in two.arrived)
        await settles(one)


async def test_a_client_may_be_asked_again_when_it_has_said_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "AGAIN_AFTER", 0.0)
    async with served() as wire, http_session(wire) as client:
        task_id = await gave_up(client, "ask_name")
        for _ in range(asked.MAX_EARLIER + 1):
            await call(client, "wait", task_id=task_id, seconds=0.05)
        assert len(requests(client)) == asked.MAX_EARLIER + 2
        # Of so many, the first are not waited for any more; any other answers it.
        await accept(client, requests(client)[0], name="Nobody")
        await accept(client, requests(client)[2], name="Ada")
        assert await call(client, "wait", task_id=task_id) == "Hello, Ada!"
        await settles(client)


# When the client is gone


async def test_a_client_that_was_cut_off_is_asked_again_when_it_comes_back() -> None:
    async with served() as wire, http_session(wire) as client:
        lost = begin(client, "ask_name")
        first = await request(client)
        await lost.leave()
        [task_id] = await unfinished(client)
        waiting = begin(client, "wait", task_id=task_id)
        again = await request(client, 2)
        assert again.params == first.params
        await accept(client, first, name="Ada")
        assert await said(waiting) == "Hello, Ada!"
        assert any(cancels(seen, again) for seen in client.arrived)


async def test_a_question_stays_open_when_its_session_ends_and_the_next_is_asked() -> None:
    async with served() as wire, http_session(wire) as one, http_session(wire) as two:
        task_id = await gave_up(one, "ask_name")
        await end_session(one)
        await settles(two)
        waiting = begin(two, "wait", task_id=task_id)
        await accept(two, await request(two), name="Ada")
        assert await said(waiting) == "Hello, Ada!"


async def test_what_a_client_cannot_be_asked_is_not_waited_for() -> None:
    async with served() as wire, http_session(wire) as one, http_session(wire, NOBODY) as two:
        task_id = await gave_up(one, "ask_name")
        await end_session(one)
        await settles(two)
        assert await call(two, "wait", task_id=task_id) == f"input_required {task_id}"
        assert requests(two) == []


async def test_a_client_that_says_it_is_gone_is_not_asked_for_ever() -> None:
    async with connected("http") as client:
        waiting = begin(client, "ask_name")
        await client.refuse(await request(client), -32000, "Connection closed")
        assert (await said(waiting)).startswith("input_required ")
        assert len(requests(client)) == 1


# When it is over


@both
async def test_a_question_that_is_answered_elsewhere_is_cancelled_before_the_call_is_answered(transport: str) -> None:
    async with connected(transport) as client:
        task_id = await gave_up(client, "ask_again")
        await accept(client, await request(client), name="Ada")
        waiting = begin(client, "wait", task_id=task_id)
        second = await request(client, 2)
        assert await call(client, "answer", task_id=task_id, name="Grace") == "answered"
        await cancelled(client, second)
        await accept(client, await request(client, 3), name="Joan")
        assert await said(waiting) == "Ada, Grace, Joan"


@both
async def test_the_question_of_a_cancelled_task_is_cancelled_before_the_call_is_answered(transport: str) -> None:
    async with connected(transport) as client:
        first = await gave_up(client, "ask_again")
        await accept(client, await request(client), name="Ada")
        waiting = begin(client, "wait", task_id=first)
        question = await request(client, 2)
        assert await call(client, "cancel", task_id=first) == "cancelled"
        assert await said(waiting) == f"cancelled {first}"
        assert any(cancels(seen, question) for seen in client.arrived)
        await settles(client)


async def test_a_question_that_the_tool_gave_up_on_is_cancelled_at_the_client() -> None:
    desk = Desk()
    async with served(desk) as wire, http_session(wire) as client:
        waiting = begin(client, "waver")
        question = await request(client)
        await cancelled(client, question)
        await accept(client, question, name="too late")
        desk.gate.set()
        assert await said(waiting) == "went on"


async def test_over_pipes_a_question_is_cancelled_at_the_client_also_after_its_call() -> None:
    async with connected("stdio") as client:
        task_id = await gave_up(client, "ask_name")
        assert await call(client, "cancel", task_id=task_id) == "cancelled"
        await cancelled(client, await request(client))
        await settles(client)


async def test_over_http_nothing_is_left_of_a_question_whose_task_is_cancelled_after_its_call() -> None:
    async with connected("http") as client:
        task_id = await gave_up(client, "ask_name")
        assert await call(client, "cancel", task_id=task_id) == "cancelled"
        await settles(client)
        # Its stream is closed, so that the client cannot be told; what it still answers changes nothing.
        await accept(client, await request(client), name="Ada")
        assert await call(client, "wait", task_id=task_id) == f"cancelled {task_id}"


# Where there is no way to ask


async def test_an_answer_of_plain_json_has_no_room_for_questions() -> None:
    async with (
        waiting_server() as (server, runtime),
        serving(server, json_response=True) as wire,
        http_session(wire) as client,
    ):
        assert (await call(client, "ask_name")).startswith("input_required ")
        assert asked_by(runtime).is_empty


async def test_over_stateless_http_the_tool_is_told_that_it_cannot_ask() -> None:
    async with waiting_server() as (server, _), serving(server, stateless=True) as wire, http_session(wire) as client:
        assert (await call(client, "ask_name")).startswith(
            "-32021 The tool asks with elicitation/create, and this serv"
        )


# Many


async def test_nothing_is_left_of_many_calls_and_their_questions() -> None:
    async with waiting_server() as (server, runtime), serving(server) as wire, http_session(wire) as client:
        for _ in range(4):
            calls = [begin(client, "ask_name", seconds=0.02 * number) for number in range(25)]
            for each in calls:
                await each.reply()
        for number, question in enumerate(requests(client)):
            if number % 3:
                await accept(client, question, name="Ada")
        assert len(requests(client)) >= 75
        await end_session(client)
        with anyio.fail_after(PATIENCE):
            while not asked_by(runtime).is_empty:  # noqa: ASYNC110 - what is left is what is tested
                await anyio.sleep(0.02)
        assert [each for each in asyncio.all_tasks() if each.get_name() == "mcp-tasks-question"] == []
        assert list(runtime.hints.listened()) == []


# The SDK's own client


@asynccontextmanager
async def sdk_client(transport: str, answered: anyio.Event) -> AsyncGenerator[Client]:
    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        await answered.wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    if transport == "stdio":
        command, *arguments = piped(MODULE, "stdio")
        parameters = StdioServerParameters(command=command, args=arguments, cwd=ROOT)
        async with Client(stdio_client(parameters), mode="legacy", elicitation_callback=person) as client:
            yield client
        return
    async with waiting_server() as (server, _):
        if transport == "memory":
            async with Client(server, mode="legacy", elicitation_callback=person) as client:
                yield client
            return
        async with serving(server) as wire, Client(wire.url, mode="legacy", elicitation_callback=person) as client:
            yield client


@pytest.mark.parametrize("transport", ["memory", "stdio", "http"])
async def test_the_sdks_client_is_asked_once_and_its_person_may_take_longer_than_the_call(transport: str) -> None:
    answered = anyio.Event()
    async with sdk_client(transport, answered) as client:
        status, task_id = (await told(client, "ask_name", seconds=A_WHILE)).split()
        assert status == "input_required"
        answered.set()
        assert await told(client, "wait", task_id=task_id) == "Hello, Ada!"
        assert await told(client, "questions") == "none"


async def told(client: Client, tool: str, *, seconds: float = PATIENCE, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments, meta=cast(Any, {"seconds": seconds}))
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def unfinished(client: OlderClient) -> list[str]:
    return (await call(client, "unfinished")).split()


async def end_session(client: OlderClient) -> None:
    assert isinstance(client, HttpClient)
    await client.wire.client.delete(client.wire.url, headers=client.headers())
