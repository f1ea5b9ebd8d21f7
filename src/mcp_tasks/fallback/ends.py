"""How a task ended, as the answer to a call that waited for it."""

from __future__ import annotations

from typing import Any

from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.fallback.words import STOPPED, failed_result
from mcp_tasks.protocol import RpcError
from mcp_tasks.protocol.outcome import decoded, outcome_to_send
from mcp_tasks.protocol.unread import Unread
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.tools.channel import in_older_words


async def plain_answer(runtime: TaskRuntime, record: TaskRecord, version: str, unread: Unread) -> dict[str, Any]:
    """What a plain call of that version would have answered. A tool that was stopped is a tool error that says so.

    Raises:
        RpcError: What the tool raised, or what it could not be given.
        UnknownTask: The task is gone.
        LimitExceeded: Its caller has not read what it was sent before.
    """
    result, error = await _end_of(runtime, record, unread)
    if result is not None:
        return result
    if error is None or _was_stopped(error):
        return failed_result(record, error)
    told = in_older_words(error) if version in HANDSHAKE_PROTOCOL_VERSIONS else error
    raise RpcError(told["code"], told["message"], told.get("data"))


async def told_answer(runtime: TaskRuntime, record: TaskRecord, version: str, unread: Unread) -> dict[str, Any]:
    """The same for a caller that asks how the task ended: whatever happened is a result.

    Raises:
        UnknownTask: The task is gone.
        LimitExceeded: Its caller has not read what it was sent before.
    """
    result, error = await _end_of(runtime, record, unread)
    return failed_result(record, error) if result is None else result


async def _end_of(
    runtime: TaskRuntime, record: TaskRecord, unread: Unread
) -> tuple[dict[str, Any] | None, JsonObject | None]:
    """What the task ended with: a result, or an error, or neither for one that was cancelled."""
    outcome = await outcome_to_send(runtime, record, unread)
    if outcome is None:
        return None, None
    told: dict[str, Any] = await decoded(outcome.body)
    if record.status is not TaskStatus.COMPLETED:
        return None, told
    return told if outcome.meta is None else {**told, "_meta": await decoded(outcome.meta)}, None


def _was_stopped(error: JsonObject) -> bool:
    """Whether the work ended before it had an outcome, through nothing that the tool raised."""
    reason = (object_in(error, "data") or {}).get("reason")
    # A tool may give reasons of its own, of any kind.
    return error["code"] == INTERNAL_ERROR and isinstance(reason, str) and reason in STOPPED
