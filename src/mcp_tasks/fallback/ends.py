"""How a task ended, as the answer to a call that waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.fallback.words import failed_result
from mcp_tasks.protocol import RpcError
from mcp_tasks.protocol.outcome import decoded, outcome_of
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.tools.channel import in_older_words


async def plain_answer(runtime: TaskRuntime, record: TaskRecord, version: str) -> dict[str, Any]:
    """What a plain call of that version would have answered. A tool that was stopped is a tool error that says so.

    Raises:
        RpcError: What the tool raised, or what it could not be given.
        UnknownTask: The task is gone.
    """
    outcome = await outcome_of(runtime, record)
    if outcome is None:
        return failed_result(record)
    if record.status is TaskStatus.COMPLETED:
        return await _result(outcome)
    error: JsonObject = await decoded(outcome.body)
    if _was_stopped(error):
        return failed_result(record, error)
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        error = in_older_words(error)
    raise RpcError(error["code"], error["message"], error.get("data"))


async def told_answer(runtime: TaskRuntime, record: TaskRecord, version: str) -> dict[str, Any]:
    """The same for a caller that asks how the task ended: whatever happened is a result.

    Raises:
        UnknownTask: The task is gone.
    """
    outcome = await outcome_of(runtime, record)
    if outcome is None:
        return failed_result(record)
    if record.status is TaskStatus.COMPLETED:
        return await _result(outcome)
    return failed_result(record, await decoded(outcome.body))


async def _result(outcome: Outcome) -> dict[str, Any]:
    result: dict[str, Any] = await decoded(outcome.body)
    return result if outcome.meta is None else {**result, "_meta": await decoded(outcome.meta)}


def _was_stopped(error: JsonObject) -> bool:
    """Whether the work ended before it had an outcome, through nothing that the tool raised."""
    data = error.get("data")
    return error["code"] == INTERNAL_ERROR and isinstance(data, Mapping) and "reason" in data
