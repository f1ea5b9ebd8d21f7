"""The answer of a client that was asked by a request, on its way into the task.

Such a client gives its answer once and is told nothing about it. So what is wrong with the answer is for the tool to
see, as in a plain call, and a store that is away is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.text import short_message
from mcp_tasks.errors import AnswerRefused, LimitExceeded, StoreError, TasksError, ValueNotStorable
from mcp_tasks.protocol.answers import AnswerMisfit, check_answers, check_count
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

_NOT_STORABLE: Final = AnswerRefused(INTERNAL_ERROR, "The client's answer cannot be stored")


def misfits(record: TaskRecord, answers: Mapping[str, Any], limits: Limits) -> dict[str, AnswerRefused | None]:
    """What is wrong with each of the answers that came together to open questions, by their keys."""
    try:
        check_count(answers)
    except AnswerMisfit as exc:
        return dict.fromkeys(answers, AnswerRefused(INVALID_PARAMS, exc.message))
    return {key: misfit(record, key, answer, limits) for key, answer in answers.items()}


def misfit(record: TaskRecord, key: str, answer: Any, limits: Limits) -> AnswerRefused | None:
    """What is wrong with an answer, as its tool is told in the end; None if it fits its question."""
    try:
        check_answers(record, {key: answer}, limits)
    except (RpcError, LimitExceeded) as exc:
        return AnswerRefused(INVALID_PARAMS, short_message(str(exc)))
    return None


async def take_answer(
    runtime: Callable[[], TaskRuntime], record: TaskRecord, key: str, answer: dict[str, Any] | AnswerRefused
) -> None:
    """Write an answer down. The client will not send it again, so a store that is away is waited for."""
    failures = 0
    while True:
        try:
            await _write(runtime(), record, key, answer)
            return
        except ValueNotStorable as exc:
            logger.warning("an answer to task %s… cannot be stored: %s", record.id[:12], exc)
            answer = _NOT_STORABLE
        except StoreError as exc:
            logger.warning("an answer to task %s… is not stored yet: %s", record.id[:12], exc)
            await asyncio.sleep(_pause(failures))
        except TasksError as exc:
            # The task is gone, most likely.
            logger.info("an answer to task %s… came to nothing: %s", record.id[:12], exc)
            return
        failures += 1


async def _write(runtime: TaskRuntime, record: TaskRecord, key: str, answer: dict[str, Any] | AnswerRefused) -> None:
    actor = Actor("client", record.owner)
    if isinstance(answer, AnswerRefused):
        await runtime.refuse(record, key, answer, actor=actor)
    else:
        await runtime.answer(record, {key: answer}, actor=actor)


def _pause(failures: int) -> float:
    return backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=10)).total_seconds()
