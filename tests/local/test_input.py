"""Answering a task from the server's own process, and with `tasks/sendInput` where that is enabled (document 004)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from mcp import Client
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ElicitResult, Request, TextContent

from mcp_tasks import Accepted, Limits, elicit
from mcp_tasks.client.backend import AnyResult
from mcp_tasks.errors import InvalidDuration, InvalidOption, UsageError, WaitTimedOut
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.local.serving import LIMIT, Confirmed, Office, new_office, open_office, until

pytestmark = pytest.mark.anyio

Send: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]


@pytest.mark.requirement("local/send-input")
@pytest.mark.parametrize(
    ("action", "content", "text"),
    [
        ("accept", {"confirmed": True}, "accept confirmed=True"),
        ("decline", None, "decline None"),
        ("cancel", None, "cancel None"),
    ],
)
async def test_the_one_open_question_is_answered(action: Any, content: dict[str, bool] | None, text: str) -> None:
    async with open_office() as office:
        task = await office.tasks.start("approve")
        asked = await task.until_asked(LIMIT)
        (question,) = asked.values()
        assert (question.method, question.params["message"]) == ("elicitation/create", "Deploy to production?")
        seen = await task.fetch()
        assert (seen.status, dict(seen.questions)) == (TaskStatus.INPUT_REQUIRED, asked)
        await task.send_input(action, content)
        result = await task.wait(LIMIT)
        assert result.content == [TextContent(type="text", text=text)]


@pytest.mark.requirement("local/send-input")
async def test_of_several_questions_the_key_says_which() -> None:
    async with open_office() as office:
        task = await office.tasks.start("two_questions")
        await until(task, lambda seen: len(seen.questions) == 2)
        keys = {question.params["message"]: key for key, question in (await task.fetch()).questions.items()}
        with pytest.raises(UsageError, match="asks several things: say which with key, one of"):
            await task.send_input("decline")
        with pytest.raises(UsageError, match="does not ask 'nothing'; it asks"):
            await task.send_input("decline", key="nothing")
        await task.send_input("decline", key=keys["Second?"])
        await until(task, lambda seen: list(seen.questions) == [keys["First?"]])
        await office.tasks.handle(task.id).send_input("cancel")
        result = await task.wait(LIMIT)
        assert result.structured_content == {"result": ["cancel", "decline"]}


@pytest.mark.requirement("local/send-input")
async def test_what_is_asked_of_a_model_is_answered_with_a_whole_result() -> None:
    async with open_office() as office:
        task = await office.tasks.start("write")
        await task.until_asked(LIMIT)
        answer = {"role": "assistant", "content": {"type": "text", "text": "Once."}, "model": "mine"}
        await task.send_input(response=answer)
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text="Once.")]


@pytest.mark.requirement("local/send-input-checked")
async def test_an_answer_is_checked_as_on_the_wire_and_the_question_stays_open() -> None:
    async with open_office() as office:
        task = await office.tasks.start("approve")
        await task.until_asked(LIMIT)
        for wrong in ({"confirmed": "perhaps"}, {}, None):
            with pytest.raises(MCPError) as refused:
                await task.send_input("accept", wrong)
            assert refused.value.code == INVALID_PARAMS
        with pytest.raises(MCPError):
            await task.send_input(response={"role": "assistant"})
        with pytest.raises(InvalidOption, match="action must be 'accept', 'decline' or 'cancel', got 'yes'"):
            await task.send_input("yes")  # pyright: ignore[reportArgumentType]
        for odd in ({"content": "yes"}, {"content": 5}, {"content": {1: 2}}, {"response": [1]}, {"key": 7}):
            with pytest.raises(InvalidOption, match=f"{next(iter(odd))} must be"):
                await task.send_input(**odd)  # pyright: ignore[reportArgumentType]
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED


async def test_a_task_that_asks_nothing_cannot_be_answered() -> None:
    async with open_office() as office:
        slow = await office.tasks.start("slow")
        with pytest.raises(UsageError, match="asks nothing now: it is working"):
            await slow.send_input(timeout=0.01)
        with pytest.raises(WaitTimedOut):
            await slow.until_asked(timedelta(milliseconds=10))
        ended = await office.tasks.start("report", {"id": 1})
        with pytest.raises(UsageError, match=r"asks nothing: it has ended \(completed\)"):
            await ended.until_asked(LIMIT)


class SendInput(Request[dict[str, Any], str]):
    """What document 004 has as an extension of its own."""

    method: str = "tasks/sendInput"
    params: dict[str, Any]


@asynccontextmanager
async def wire(version: str, **options: Any) -> AsyncGenerator[tuple[Office, Send]]:
    """An office, and a client of it that sends `tasks/sendInput` with these params."""
    async with open_office(**options) as office, Client(office.server, mode=mode_of(version)) as client:
        assert client.protocol_version == version

        async def send(**params: Any) -> dict[str, Any]:
            request = SendInput(params=params)
            answer = await client.session.send_request(request, AnyResult)  # pyright: ignore[reportArgumentType]
            return answer.model_dump(mode="json", by_alias=True)

        yield office, send


@pytest.mark.requirement("local/no-wire-method")
@pytest.mark.parametrize(("version", "enabled"), [("2026-07-28", False), ("2026-07-28", True), ("2025-11-25", False)])
async def test_there_is_no_such_method_on_the_wire_unless_it_is_enabled(version: str, enabled: bool) -> None:
    async with wire(version, send_input=enabled) as (office, send):
        task = await office.tasks.start("approve")
        await task.until_asked(LIMIT)
        with pytest.raises(MCPError) as refused:
            await send(taskId=task.id, action="accept", content={"confirmed": True})
        assert refused.value.code == METHOD_NOT_FOUND
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED


@pytest.mark.requirement("local/wire-method")
@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"action": "accept", "content": {"confirmed": True}}, "accept confirmed=True"),
        ({"content": {"confirmed": True}}, "accept confirmed=True"),
        ({"action": "decline"}, "decline None"),
        ({"response": {"action": "cancel"}}, "cancel None"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["right after start", "once asked"])
async def test_a_client_of_2025_11_25_answers_where_the_author_enables_it(
    params: dict[str, Any], text: str, at_once: bool
) -> None:
    async with wire("2025-11-25", send_input=True) as (office, send):
        task = await office.tasks.start("approve")
        if not at_once:
            await task.until_asked(LIMIT)
        shown = await send(taskId=task.id, **params)
        assert shown["taskId"] == task.id
        assert shown["status"] in ("working", "completed")
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text=text)]


@pytest.mark.requirement("local/wire-method")
async def test_of_several_questions_a_client_says_which_by_its_key() -> None:
    async with wire("2025-11-25", send_input=True) as (office, send):
        task = await office.tasks.start("two_questions")
        seen = await until(task, lambda seen: len(seen.questions) == 2)
        for params in ({}, {"key": "nothing"}):
            with pytest.raises(MCPError) as refused:
                await send(taskId=task.id, action="decline", **params)
            assert refused.value.code == INVALID_PARAMS
        with pytest.raises(MCPError) as refused:
            await send(taskId=task.id, action="decline", key="k" * 100_000)
        assert len(refused.value.message) < 500
        for key in seen.questions:
            await send(taskId=task.id, action="decline", key=key)
        assert (await task.wait(LIMIT)).structured_content == {"result": ["decline", "decline"]}


@pytest.mark.requirement("local/wire-method")
async def test_what_a_client_sends_is_held_to_the_rules_of_any_answer() -> None:
    async with wire("2025-11-25", send_input=True, limits=Limits(answer_bytes=1000)) as (office, send):
        task = await office.tasks.start("approve")
        await task.until_asked(LIMIT)
        misfits: list[dict[str, Any]] = [
            {"content": {"confirmed": "perhaps"}},
            {"content": {}},
            {},
            {"response": {"role": "assistant"}},
            {"action": "yes"},
            {"action": 7},
            {"action": ["accept"]},
            {"content": "yes"},
            {"response": [1]},
            {"key": 7},
        ]
        for misfit in misfits:
            with pytest.raises(MCPError) as refused:
                await send(taskId=task.id, **misfit)
            assert refused.value.code == INVALID_PARAMS, misfit
        with pytest.raises(MCPError) as too_large:
            await send(taskId=task.id, content={"confirmed": True, "more": "x" * 1000})
        assert too_large.value.code == LIMIT_EXCEEDED
        refusals: list[Any] = []
        for unknown in ("nobody", 7, None):
            with pytest.raises(MCPError) as refused:
                await send(taskId=unknown, action="decline")
            refusals.append(refused.value.code)
        assert refusals == [INVALID_PARAMS] * 3
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED


async def test_a_task_that_has_ended_is_refused_without_waiting() -> None:
    async with wire("2025-11-25", send_input=True) as (office, send):
        task = await office.tasks.start("report", {"id": 1})
        await task.wait(LIMIT)
        with pytest.raises(MCPError, match="asks nothing now: it is completed"):
            await send(taskId=task.id, action="decline")


@pytest.mark.requirement("local/send-input")
async def test_input_that_is_sent_right_after_the_start_waits_for_its_question() -> None:
    async with open_office() as office:
        for _ in range(20):
            task = await office.tasks.start("approve")
            await task.send_input("accept", {"confirmed": True})
            assert (await task.wait(LIMIT)).content == [TextContent(type="text", text="accept confirmed=True")]


async def test_input_waits_for_as_long_as_it_is_told_to() -> None:
    async with open_office() as office:
        late = await office.tasks.start("asks_late")
        sending = asyncio.create_task(late.send_input("decline", timeout=None))
        with pytest.raises(UsageError, match="asks nothing now"):
            await late.send_input("decline", timeout=timedelta(milliseconds=20))
        with pytest.raises(InvalidDuration):
            await late.send_input("decline", timeout="soon")  # pyright: ignore[reportArgumentType]
        office.gate.set()
        await sending
        assert (await late.wait(LIMIT)).content == [TextContent(type="text", text="decline")]


@pytest.mark.requirement("local/plain-elicit")
@pytest.mark.parametrize(
    ("schema", "value"), [(bool, True), (bool, False), (str, "main"), (int, 7), (float, 0.5), (Confirmed, True)]
)
@pytest.mark.parametrize("way", ["task", "call", "newer call"])
async def test_a_question_may_ask_for_one_plain_value(schema: Any, value: Any, way: str) -> None:
    name = "confirmed" if schema is Confirmed else "value"
    given = Confirmed(confirmed=True) if schema is Confirmed else value
    asked: list[Any] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.requested_schema)
        return ElicitResult(action="accept", content={name: value})

    office = new_office()
    answers: list[Any] = []

    @office.server.tool()
    @office.tasks.task()
    async def ask(ctx: Context) -> str:
        answer = await elicit(ctx, "Well?", schema)
        answers.append(answer)
        return answer.action

    async with office.tasks.running(office.server):
        if way == "task":
            task = await office.tasks.start("ask")
            await task.send_input("accept", {name: value})
            await task.wait(LIMIT)
        else:
            mode: Any = "legacy" if way == "call" else "auto"
            async with Client(office.server, mode=mode, elicitation_callback=person) as client:
                await client.call_tool("ask")
            assert list(asked[0]["properties"]) == [name]
    [answer] = answers
    assert answer == Accepted(data=given)
    assert type(answer.data) is type(given)


@pytest.mark.requirement("local/plain-elicit")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_plain_question_may_be_declined(action: Any) -> None:
    office = new_office()

    @office.server.tool()
    @office.tasks.task()
    async def ask(ctx: Context) -> str:
        return (await elicit(ctx, "Well?", bool)).action

    async with office.tasks.running(office.server):
        task = await office.tasks.start("ask")
        await task.send_input(action)
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text=action)]


@pytest.mark.parametrize("schema", [list, dict[str, int], "bool", None, object()])
async def test_what_is_no_plain_type_and_no_model_cannot_be_asked_for(schema: Any) -> None:
    office = new_office()

    @office.server.tool()
    @office.tasks.task()
    async def ask(ctx: Context) -> str:
        with pytest.raises(UsageError, match="elicit takes bool, str, int, float or a Pydantic model"):
            await elicit(ctx, "Well?", schema)
        return "refused"

    async with office.tasks.running(office.server):
        task = await office.tasks.start("ask")
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text="refused")]


def mode_of(version: str) -> Any:
    """How the SDK's client is told to speak a version."""
    return "legacy" if version == "2025-11-25" else version
