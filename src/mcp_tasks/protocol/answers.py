"""Whether an answer fits its question, checked before it is written down for good.

Only answers to open questions are looked at: SEP-2663 has the others ignored, whatever they look like.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import anyio
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ListRootsResult,
)
from pydantic import TypeAdapter, ValidationError

from mcp_tasks._utils import short_id
from mcp_tasks.errors import AnswerRefused, LimitExceeded, StoreError, TasksError, UsageError, ValueNotStorable
from mcp_tasks.model import InputRequest
from mcp_tasks.model.json import check_json, count_values, short_message
from mcp_tasks.model.limits import Limits, backoff
from mcp_tasks.model.record import Actor, TaskRecord, TaskStatus
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.schema import Schema, Uncheckable, UnusableSchema, not_enforced
from mcp_tasks.protocol.shapes import encode_plain
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

_WARNINGS: Final = 100
"""Warnings that are remembered, so as not to be repeated: a tool's questions are alike."""

MOST_VALUES: Final = 2_000
"""Values in the answers of one update. A form has a few dozen."""

MOST_RULES: Final = 5_000
"""Rules of a schema that are applied to one answer."""

VALUES_PER_TURN: Final = 50
"""Values in answers that count as one request."""

MOST_PROBLEMS: Final = 100
"""Problems of an answer among which the first is told: Pydantic gives all of them or none."""

LONGEST_PLACE: Final = 200
"""Characters of where in an answer a problem is: the names in it are the client's."""

_SHAPES: Mapping[str, TypeAdapter[Any]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


class AnswerMisfit(RpcError):
    """An update is refused for one of its answers. To find that out took some work, which is not to be done again."""

    def __init__(self, why: str) -> None:
        super().__init__(INVALID_PARAMS, why)


class AnswerCheck:
    """Refuses an update in which an answer does not fit its question; the question then stays open.

    The task may be read several times before the answers are written down. Each answer is checked once, unless its
    question has become another.

    Args:
        limits: How much an answer may have; None for one of the server's own process.
    """

    def __init__(self, answers: Mapping[str, Any], limits: Limits | None = None) -> None:
        self._answers = answers
        self._limits = limits
        self._fitting: dict[str, InputRequest] = {}

    def __call__(self, record: TaskRecord) -> None:
        """Check the answers to open questions of the task.

        Raises:
            AnswerMisfit: -32602, naming the key and what is wrong with its answer; or they are too many values.
            LimitExceeded: An answer is too large, or nested too deeply.
        """
        answers, limits = answers_to(record, self._answers), self._limits
        if limits is not None and count_values(answers, MOST_VALUES) > MOST_VALUES:
            raise AnswerMisfit(f"The answers of a request may have {MOST_VALUES:,} values in all, and these have more")
        for key in sorted(answers):
            request, answer = record.inputs.outstanding[key], answers[key]
            if self._fitting.get(key) == request:
                continue
            if limits is not None:
                what, most, depth = f"The answer to {key[:100]!r}", limits.answer_bytes, limits.json_depth
                check_json("answer_bytes", what, answer, most=most, depth=depth, written=encode_plain)
            if (problem := _problem(request, answer)) is not None:
                raise AnswerMisfit(f"The answer to {key!r} does not fit: {problem}")
            self._fitting[key] = request


def check_answers(record: TaskRecord, answers: Mapping[str, Any], limits: Limits | None = None) -> None:
    """Check answers once. Raises what `AnswerCheck` raises."""
    AnswerCheck(answers, limits)(record)


def answers_to(record: TaskRecord, answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers to open questions. The others are not even gone through: there may be hundreds of thousands."""
    return {key: answers[key] for key in record.inputs.outstanding if key in answers}


def turns_of(answers: Mapping[str, Any]) -> int:
    """As how many requests answers count: to check them takes time for each value."""
    return 1 + count_values(dict(answers), MOST_VALUES) // VALUES_PER_TURN


def _problem(request: InputRequest, answer: Any) -> str | None:
    try:
        _SHAPES[request.method].validate_python(answer, by_name=False)
    except ValidationError as exc:
        if exc.error_count() > MOST_PROBLEMS:
            return f"it has {exc.error_count():,} problems"
        first = exc.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:LONGEST_PLACE] or 'it'}: {first['msg']}"
    schema = request.params.get("requestedSchema")
    if request.method != "elicitation/create" or answer["action"] != "accept" or schema is None:
        return None
    content = answer.get("content")
    try:
        return Schema(schema).first_problem({} if content is None else content, most=MOST_RULES)
    except Uncheckable as exc:
        return f"it cannot be checked: {exc}"
    except UnusableSchema as exc:
        # The tool's own mistake; the client cannot answer it any better.
        logger.warning("an answer is not checked, because of the schema that its question has: %s", exc)
        return None


def warn_of_schema(params: Mapping[str, Any]) -> None:
    """Tell the author of a question, once, which parts of its schema answers are not checked against."""
    with suppress(RecursionError):
        # One that is nested too deeply is told of with the answer.
        for said in [] if (schema := params.get("requestedSchema")) is None else not_enforced(schema):
            _warn_once(said)


@lru_cache(_WARNINGS)
def _warn_once(said: str) -> None:
    logger.warning("in the schema of a question, %s; check it in the tool", said)


# ---- taking
# The answer of a client that was asked by a request, on its way into the task.


_NOT_STORABLE: Final = AnswerRefused(INTERNAL_ERROR, "The client's answer cannot be stored")


def misfits(record: TaskRecord, answers: Mapping[str, Any], limits: Limits) -> dict[str, AnswerRefused | None]:
    """What is wrong with each of the answers that came together to open questions, by their keys."""
    if count_values(dict(answers), MOST_VALUES) > MOST_VALUES:
        problem = misfit(record, answers, limits)
        return dict.fromkeys(answers, problem)
    return {key: misfit(record, {key: answer}, limits) for key, answer in answers.items()}


def misfit(record: TaskRecord, answers: Mapping[str, Any], limits: Limits) -> AnswerRefused | None:
    """What is wrong with answers, as their tool is told in the end; None if they fit their questions."""
    try:
        AnswerCheck(answers, limits)(record)
    except (RpcError, LimitExceeded) as exc:
        return AnswerRefused(INVALID_PARAMS, short_message(str(exc)))
    return None


async def take_answer(
    runtime: Callable[[], TaskRuntime], record: TaskRecord, key: str, answer: dict[str, Any] | AnswerRefused
) -> None:
    """Write an answer down. The client will not send it again, so an unavailable store is waited for."""
    actor = Actor("client", record.owner)
    for failures in itertools.count():
        try:
            if isinstance(answer, AnswerRefused):
                await runtime().refuse(record, key, answer, actor=actor)
            else:
                await runtime().answer(record, {key: answer}, actor=actor)
            return
        except ValueNotStorable as exc:
            logger.warning("an answer to task %s cannot be stored: %s", short_id(record.id), exc)
            answer = _NOT_STORABLE
        except StoreError as exc:
            logger.warning("an answer to task %s is not stored yet: %s", short_id(record.id), exc)
            pause = backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=10))
            await asyncio.sleep(pause.total_seconds())
        except TasksError as exc:
            # The task is gone, most likely.
            logger.info("an answer to task %s came to nothing: %s", short_id(record.id), exc)
            return


# ---- input
# Sending an answer to a task in one call, without its question in hand: for code in the server's own process
# (`LocalTask.send_input`), and for `tasks/sendInput`, which clients of 2025-11-25 have where the author enables it.


Action: TypeAlias = Literal["accept", "decline", "cancel"]
"""What a person does with a question."""

ASKED_WITHIN: Final = 5.0
"""Seconds that an answer waits for its question: enough for a task that has just been started."""

_LOOK_INTERVAL: Final = timedelta(seconds=3)
"""How often a wait looks whether the server still runs."""

LONGEST_KEY: Final = 100
"""Characters of a key that is not one of an open question, where an error names it."""

Find: TypeAlias = Callable[[TaskRuntime], Awaitable[TaskRecord]]
"""Finds the task for its caller, or raises."""


async def until(
    runtime: Callable[[], TaskRuntime], find: Find, condition: Callable[[TaskRecord], bool], seconds: float | None
) -> TaskRecord:
    """The task once the condition holds for it, or as it is when the time is over."""
    deadline = anyio.current_time() + (math.inf if seconds is None else seconds)
    while True:
        # Each time anew: it raises when the server has stopped, and nothing of it will ever end any more.
        current = runtime()
        record = await find(current)
        left = deadline - anyio.current_time()
        if condition(record) or left <= 0:
            return record
        timeout = min(_LOOK_INTERVAL, timedelta(seconds=min(left, 60)))
        await current.follow(record.id, condition, timeout=timeout)


async def send_input(
    runtime: Callable[[], TaskRuntime],
    find: Find,
    response: Mapping[str, Any],
    *,
    key: str | None,
    seconds: float | None,
    limits: Limits | None = None,
) -> TaskRecord:
    """Answer an open question: the one under `key`, or the only one. Durable on return; the task as it is then.

    Args:
        seconds: How long to wait for a question; None until the task asks one or ends.
        limits: How much an answer may have; None for one of the server's own process.

    Raises:
        UsageError: The task asks nothing, asks several things and no key is given, or not under this key.
        RpcError: -32602: the answer does not fit the question, which stays open.
        UnknownTask: There is no such task (any more).
    """
    record = await until(runtime, find, lambda task: task.is_final or bool(task.inputs.outstanding), seconds)
    responses = {_asked(record, key): dict(response)}
    current = runtime()

    def check(task: TaskRecord) -> None:
        if not task.inputs.answerable(responses, current.now()):
            raise UsageError(f"task {task.id} does not ask {next(iter(responses))!r} any more")
        AnswerCheck(responses, limits)(task)

    return await current.answer(record, responses, actor=Actor("client", record.owner), check=check)


def status_of(record: TaskRecord) -> TaskStatus:
    """The status of a task as those see it who count an `isError` result as a failure."""
    return TaskStatus.FAILED if record.is_error else record.status


def _asked(record: TaskRecord, key: str | None) -> str:
    open_keys = sorted(record.inputs.outstanding)
    if not open_keys:
        raise UsageError(f"task {record.id} asks nothing now: it is {status_of(record).value}")
    if key is None and len(open_keys) > 1:
        raise UsageError(f"task {record.id} asks several things: say which with key, one of {', '.join(open_keys)}")
    if key is not None and key not in open_keys:
        raise UsageError(f"task {record.id} does not ask {key[:LONGEST_KEY]!r}; it asks {', '.join(open_keys)}")
    return key or open_keys[0]
