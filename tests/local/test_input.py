"""Answering a task from the server's own process, and with `tasks/sendInput` where that is enabled (document 004)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from mcp import Client
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ElicitResult, TextContent

from harness.official import AnyRequest, Anything
from mcp_tasks import Accepted, Limits, elicit
from mcp_tasks.errors import InvalidOption, UsageError, WaitTimedOut
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from mcp_tasks.testing import TaskTester
from tests.local.serving import LIMIT, Confirmed, Office, new_office, open_office, until

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
async def test_the_one_open_question_is_answered(
    office: Office, action: Any, content: dict[str, bool] | None, text: str
) -> None:
    task = await office.tasks.start("approve")
    asked = await task.until_asked(LIMIT)
    (question,) = asked.values()
    assert (question.method, question.params["message"]) == ("elicitation/create", "Deploy to production?")
    seen = await task.fetch()
    assert (seen.status, dict(seen.questions)) == (TaskStatus.INPUT_REQUIRED, asked)
    await task.send_input(action, content)
    assert (await task.wait(LIMIT)).content == [TextContent(type="text", text=text)]


@pytest.mark.requirement("local/send-input")
async def test_of_several_questions_the_key_says_which(office: Office) -> None:
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
    assert (await task.wait(LIMIT)).structured_content == {"result": ["cancel", "decline"]}


@pytest.mark.requirement("local/send-input")
async def test_what_is_asked_of_a_model_is_answered_with_a_whole_result(office: Office) -> None:
    task = await office.tasks.start("write")
    await task.until_asked(LIMIT)
    answer = {"role": "assistant", "content": {"type": "text", "text": "Once."}, "model": "mine"}
    await task.send_input(response=answer)
    assert (await task.wait(LIMIT)).content == [TextContent(type="text", text="Once.")]


@pytest.mark.requirement("local/send-input-checked")
async def test_an_answer_is_checked_as_on_the_wire_and_the_question_stays_open(office: Office) -> None:
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


async def test_a_task_that_asks_nothing_cannot_be_answered(office: Office) -> None:
    slow = await office.tasks.start("slow")
    with pytest.raises(UsageError, match="asks nothing now: it is working"):
        await slow.send_input(timeout=0.01)
    with pytest.raises(WaitTimedOut):
        await slow.until_asked(timedelta(milliseconds=10))
    ended = await office.tasks.start("report", {"id": 1})
    with pytest.raises(UsageError, match=r"asks nothing: it has ended \(completed\)"):
        await ended.until_asked(LIMIT)


@pytest.mark.requirement("local/send-input")
async def test_input_that_is_sent_right_after_the_start_waits_for_its_question(office: Office) -> None:
    for _ in range(20):
        task = await office.tasks.start("approve")
        await task.send_input("accept", {"confirmed": True})
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text="accept confirmed=True")]


async def test_input_waits_for_as_long_as_it_is_told_to(office: Office) -> None:
    late = await office.tasks.start("asks_late")
    sending = asyncio.create_task(late.send_input("decline", timeout=None))
    with pytest.raises(UsageError, match="asks nothing now"):
        await late.send_input("decline", timeout=timedelta(milliseconds=20))
    with pytest.raises(InvalidOption):
        await late.send_input("decline", timeout="soon")  # pyright: ignore[reportArgumentType]
    office.gate.set()
    await sending
    assert (await late.wait(LIMIT)).content == [TextContent(type="text", text="decline")]


# --- what asks by returning -----------------------------------------------------------------------------------------


async def test_what_asks_by_returning_is_answered_in_its_task(office: Office) -> None:
    tool = await office.tasks.start("greet")
    (question,) = (await tool.until_asked(LIMIT)).values()
    assert question.params["message"] == "Who?"
    await tool.send_input("accept", {"name": "Ada"})
    assert (await tool.wait(LIMIT)).content == [TextContent(type="text", text=f"Hello, Ada! ({tool.id})")]
    prompt = await office.tasks.start_prompt("welcome")
    await prompt.send_input("accept", {"name": "Bob"})
    (message,) = (await prompt.wait(LIMIT)).messages
    assert message.content == TextContent(type="text", text="Welcome Bob, state.")


async def test_what_a_called_tool_asks_by_returning_its_caller_asks() -> None:
    office = new_office()
    async with TaskTester(office.server, office.tasks) as tester:
        task = await tester.call("outer")
        await tester.answer(task, {"name": "Ada"})
        result = await tester.result(task)
        assert result.content == [TextContent(type="text", text=f"Hello, Ada! ({task})")]


# --- over a connection ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def wire(version: str, **options: Any) -> AsyncGenerator[tuple[Office, Send]]:
    """An office, and a client of it that sends `tasks/sendInput` with these params."""
    mode: Any = "legacy" if version == "2025-11-25" else version
    async with open_office(**options) as office, Client(office.server, mode=mode) as client:
        assert client.protocol_version == version

        async def send(**params: Any) -> dict[str, Any]:
            answer = await client.session.send_request(AnyRequest(method="tasks/sendInput", params=params), Anything)
            return answer.model_dump(mode="json", by_alias=True)

        yield office, send


async def refusal(sending: Awaitable[Any]) -> MCPError:
    with pytest.raises(MCPError) as refused:
        await sending
    return refused.value


@pytest.mark.requirement("local/no-wire-method")
@pytest.mark.parametrize(("version", "enabled"), [("2026-07-28", False), ("2026-07-28", True), ("2025-11-25", False)])
async def test_there_is_no_such_method_on_the_wire_unless_it_is_enabled(version: str, enabled: bool) -> None:
    async with wire(version, send_input=enabled) as (office, send):
        task = await office.tasks.start("approve")
        await task.until_asked(LIMIT)
        refused = await refusal(send(taskId=task.id, action="accept", content={"confirmed": True}))
        assert refused.code == METHOD_NOT_FOUND
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED


@pytest.mark.requirement("local/wire-method")
@pytest.mark.parametrize("at_once", [True, False], ids=["right after start", "once asked"])
async def test_a_client_of_2025_11_25_answers_where_the_author_enables_it(at_once: bool) -> None:
    async with wire("2025-11-25", send_input=True) as (office, send):
        for params, text in (
            ({"action": "accept", "content": {"confirmed": True}}, "accept confirmed=True"),
            ({"content": {"confirmed": True}}, "accept confirmed=True"),
            ({"action": "decline"}, "decline None"),
            ({"response": {"action": "cancel"}}, "cancel None"),
        ):
            task = await office.tasks.start("approve")
            if not at_once:
                await task.until_asked(LIMIT)
            shown = await send(taskId=task.id, **params)
            assert shown["taskId"] == task.id
            assert shown["status"] in ("working", "completed")
            assert (await task.wait(LIMIT)).content == [TextContent(type="text", text=text)]
        with pytest.raises(MCPError, match="asks nothing now: it is completed"):
            await send(taskId=task.id, action="decline")


@pytest.mark.requirement("local/wire-method")
async def test_what_a_client_sends_is_held_to_the_rules_of_any_answer_and_of_several_questions_its_key_says_which() -> (
    None
):
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
            assert (await refusal(send(taskId=task.id, **misfit))).code == INVALID_PARAMS, misfit
        too_large = {"confirmed": True, "more": "x" * 1000}
        assert (await refusal(send(taskId=task.id, content=too_large))).code == LIMIT_EXCEEDED
        for unknown in ("nobody", 7, None):
            assert (await refusal(send(taskId=unknown, action="decline"))).code == INVALID_PARAMS
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED
        task = await office.tasks.start("two_questions")
        seen = await until(task, lambda seen: len(seen.questions) == 2)
        for params in ({}, {"key": "nothing"}):
            assert (await refusal(send(taskId=task.id, action="decline", **params))).code == INVALID_PARAMS
        assert len((await refusal(send(taskId=task.id, action="decline", key="k" * 100_000))).message) < 500
        for key in seen.questions:
            await send(taskId=task.id, action="decline", key=key)
        assert (await task.wait(LIMIT)).structured_content == {"result": ["decline", "decline"]}


# --- plain values ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("local/plain-elicit")
@pytest.mark.parametrize(
    ("schema", "value"), [(bool, True), (bool, False), (str, "main"), (int, 7), (float, 0.5), (Confirmed, True)]
)
async def test_a_question_may_ask_for_one_plain_value(office: Office, schema: Any, value: Any) -> None:
    name = "confirmed" if schema is Confirmed else "value"
    given = Confirmed(confirmed=True) if schema is Confirmed else value
    asked: list[Any] = []
    answers: list[Any] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.requested_schema)
        return ElicitResult(action="accept", content={name: value})

    @office.server.tool()
    @office.tasks.task()
    async def ask(ctx: Context) -> str:
        answer = await elicit(ctx, "Well?", schema)
        answers.append(answer)
        return answer.action

    task = await office.tasks.start("ask")
    await task.send_input("accept", {name: value})
    await task.wait(LIMIT)
    for mode in ("legacy", "auto"):
        async with Client(office.server, mode=mode, elicitation_callback=person) as client:
            await client.call_tool("ask")
    assert [list(each["properties"]) for each in asked] == [[name]] * 2
    assert answers == [Accepted(data=given)] * 3
    assert {type(answer.data) for answer in answers} == {type(given)}


@pytest.mark.requirement("local/plain-elicit")
async def test_a_plain_question_may_be_declined_and_is_of_a_plain_type_or_a_model(office: Office) -> None:
    @office.server.tool()
    @office.tasks.task()
    async def ask(ctx: Context) -> str:
        wrong: list[Any] = [list, dict[str, int], "bool", None, object()]
        for schema in wrong:
            with pytest.raises(UsageError, match="elicit takes bool, str, int, float or a Pydantic model"):
                await elicit(ctx, "Well?", schema)
        return (await elicit(ctx, "Well?", bool)).action

    for action in ("decline", "cancel"):
        task = await office.tasks.start("ask")
        await task.send_input(action)
        assert (await task.wait(LIMIT)).content == [TextContent(type="text", text=action)]
