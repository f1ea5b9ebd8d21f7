"""How a task ended, read for whoever is shown the task."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp_tasks.core.json_bytes import LARGE, decode_in_pieces, decode_json
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UnknownTask
from mcp_tasks.protocol.unread import Unread, hold
from mcp_tasks.runtime import TaskRuntime

_WITH_OUTCOME = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED})


async def outcome_of(runtime: TaskRuntime, record: TaskRecord) -> Outcome | None:
    """The outcome of a task that has one; None for a task that runs or was cancelled.

    Raises:
        UnknownTask: The task expired after its record was read, and its outcome is gone with it.
    """
    if record.status not in _WITH_OUTCOME:
        return None
    outcome = await runtime.outcome(record.id)
    if outcome is None:
        raise UnknownTask(record.id)
    return outcome


async def outcome_to_send(runtime: TaskRuntime, record: TaskRecord, unread: Unread) -> Outcome | None:
    """The same for the response that is being made, where it counts until its client has read it.

    Raises:
        UnknownTask: As above.
        LimitExceeded: There is no room for it.
    """
    async with unread.turn(record.owner):
        return hold(record.owner, [await outcome_of(runtime, record)])


async def decoded(data: bytes) -> Any:
    """The value behind the bytes; if it is large, from a thread, for the event loop's sake."""
    return await asyncio.to_thread(decode_in_pieces, data) if len(data) > LARGE else decode_json(data)
