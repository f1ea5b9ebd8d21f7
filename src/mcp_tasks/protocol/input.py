"""Sending an answer to a task in one call, without its question in hand: for code in the server's own process
(`LocalTask.send_input`), and for `tasks/sendInput`, which clients of 2025-11-25 have where the author enables it.

A question may be asked a moment after its task began, so an answer waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import anyio

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UsageError
from mcp_tasks.protocol.answers import check_answers
from mcp_tasks.runtime import TaskRuntime

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
        await current.wait_until(record.id, condition, min(_LOOK_INTERVAL, timedelta(seconds=min(left, 60))))


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
        check_answers(task, responses, limits)

    return await current.answer(record, responses, actor=Actor("client", record.owner), check=check)


def status_of(record: TaskRecord) -> TaskStatus:
    """How a task stands to those who count an `isError` result as a failure."""
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
