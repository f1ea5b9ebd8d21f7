"""What a task asks, for somebody who answers it and does not stay."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest

from mcp_tasks.client import (
    NoOpenQuestion,
    QuestionUnseen,
    TaskHandle,
    TaskSnapshot,
    TaskStatus,
    open_questions,
    still_asked,
)

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 8, 1, 10, tzinfo=UTC)
ASKED = {"q1": {"method": "elicitation/create", "params": {"message": "Sure?"}}}


def state(status: TaskStatus, **fields: Any) -> TaskSnapshot:
    return TaskSnapshot(id="task_1", status=status, created_at=NOW, updated_at=NOW, **fields)


class Handle:
    """A task that shows what it asks only to somebody who waits, if ever."""

    id = "task_1"
    tool = ""

    def __init__(self, before: TaskSnapshot, after: TaskSnapshot | None = None) -> None:
        self._states = [before]
        self._after = after

    async def status(self) -> TaskSnapshot:
        return self._states[-1]

    async def watch(self) -> AsyncGenerator[TaskSnapshot]:
        yield self._states[-1]
        if self._after is None:
            await anyio.sleep_forever()
        else:
            self._states.append(self._after)
            yield self._after


def handle(before: TaskSnapshot, after: TaskSnapshot | None = None) -> TaskHandle:
    return cast("TaskHandle", Handle(before, after))


async def test_what_a_task_asks_is_given_with_where_it_is_from() -> None:
    [question] = await open_questions(handle(state(TaskStatus.INPUT_REQUIRED, input_requests=ASKED)), server="farm")
    assert (question.key, question.message, question.tool, question.server) == ("q1", "Sure?", "task_1", "farm")


async def test_a_task_that_asks_nothing_says_how_it_stands() -> None:
    with pytest.raises(NoOpenQuestion, match="no open question; it is working"):
        await open_questions(handle(state(TaskStatus.WORKING)))


async def test_what_is_shown_only_to_who_waits_is_fetched() -> None:
    hidden, shown = state(TaskStatus.INPUT_REQUIRED), state(TaskStatus.INPUT_REQUIRED, input_requests=ASKED)
    [question] = await open_questions(handle(hidden, shown))
    assert question.key == "q1"
    with pytest.raises(NoOpenQuestion, match="it is completed"):
        await open_questions(handle(hidden, state(TaskStatus.COMPLETED)))


async def test_what_is_not_shown_in_time_or_not_fetched_is_unseen() -> None:
    hidden = state(TaskStatus.INPUT_REQUIRED)
    with pytest.raises(QuestionUnseen, match=r"did not send it within 0\.01 s"):
        await open_questions(handle(hidden), within=timedelta(milliseconds=10))
    with pytest.raises(QuestionUnseen, match="only to one who is going to answer"):
        await open_questions(handle(hidden), fetch=False)


async def test_what_is_no_longer_asked_is_left_out_of_the_answers() -> None:
    asks = handle(state(TaskStatus.INPUT_REQUIRED, input_requests=ASKED))
    assert await still_asked(asks, {"q1": "yes", "q0": "no"}) == {"q1": "yes"}
    for gone in (asks, handle(state(TaskStatus.WORKING)), handle(state(TaskStatus.COMPLETED))):
        with pytest.raises(NoOpenQuestion, match="no longer asks this"):
            await still_asked(gone, {"q0": "no"})


async def test_what_a_server_shows_to_nobody_else_is_still_ours_to_answer() -> None:
    assert await still_asked(handle(state(TaskStatus.INPUT_REQUIRED)), {"q1": "yes"}) == {"q1": "yes"}
