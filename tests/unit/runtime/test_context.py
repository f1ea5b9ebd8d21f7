"""`current_task()`, where it is not about steps and sleeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import QuestionTimedOut, UsageError
from mcp_tasks.runtime import current_task

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


# Asking


async def reply() -> str:
    return "yes"


async def test_outside_a_task_a_question_is_asked_as_it_is() -> None:
    assert await current_task().ask(reply(), key="sure", timeout=HOUR) == "yes"


async def test_outside_a_task_a_question_has_its_time_limit_too() -> None:
    with pytest.raises(QuestionTimedOut) as caught:
        await current_task().ask(_never(), timeout=timedelta(milliseconds=1))
    assert isinstance(caught.value, TimeoutError)


async def _never() -> str:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


async def test_what_is_no_question_or_no_time_limit_is_refused() -> None:
    anything: Any = "Sure?"
    with pytest.raises(UsageError, match="ask takes what asks, not awaited yet"):
        await current_task().ask(anything)
    seconds: Any = 60
    with pytest.raises(UsageError, match="timeout must be a timedelta"):
        await current_task().ask(reply(), timeout=seconds)


async def test_outside_a_task_a_question_without_a_time_limit_is_waited_for() -> None:
    assert await current_task().ask(reply(), key="sure") == "yes"


@pytest.mark.parametrize("name", ["", None, 7])
async def test_what_cannot_be_the_name_of_a_step_is_refused_before_it_is_done(name: Any) -> None:
    with pytest.raises(UsageError, match="a step's name must be a non-empty string"):
        await current_task().step(name, reply)
