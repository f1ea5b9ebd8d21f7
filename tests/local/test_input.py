"""Answering a task from the server's own process, in place of `tasks/sendInput`, which is on no wire (document 004)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, EmptyResult, Request, TextContent

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidOption, UsageError, WaitTimedOut
from tests.local.serving import LIMIT, open_office, until

pytestmark = pytest.mark.anyio


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
        with pytest.raises(UsageError, match="asks several things: say which with key="):
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
            await slow.send_input()
        with pytest.raises(WaitTimedOut):
            await slow.until_asked(timedelta(milliseconds=10))
        ended = await office.tasks.start("report", {"id": 1})
        with pytest.raises(UsageError, match=r"asks nothing: it has ended \(completed\)"):
            await ended.until_asked(LIMIT)


class SendInput(Request[dict[str, Any], str]):
    """What document 004 has as an extension of its own."""

    method: str = "tasks/sendInput"
    params: dict[str, Any]


@pytest.mark.requirement("local/no-wire-method")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_there_is_no_such_method_on_the_wire(version: str) -> None:
    async with open_office() as office, Client(office.server, mode=mode_of(version)) as client:
        assert client.protocol_version == version
        task = await office.tasks.start("approve")
        await task.until_asked(LIMIT)
        request = SendInput(params={"taskId": task.id, "action": "accept", "content": {"confirmed": True}})
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(request, EmptyResult)  # pyright: ignore[reportArgumentType]
        assert refused.value.code == METHOD_NOT_FOUND
        assert (await task.fetch()).status is TaskStatus.INPUT_REQUIRED


def mode_of(version: str) -> Any:
    """How the SDK's client is told to speak a version."""
    return "legacy" if version == "2025-11-25" else version
