"""Write ids, and recognising a write that is repeated because the answer to an earlier attempt was lost."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from mcp_tasks.core.record import OTHER_WRITES, TaskRecord, WriteId
from mcp_tasks.errors import StoreUnavailable, TaskExists, VersionConflict, short_id

Get: TypeAlias = Callable[[str], Awaitable[TaskRecord | None]]


def new_write_id(*, run: bool = False) -> WriteId:
    """An id for one change, or for the claim with which a run begins."""
    return WriteId(secrets.token_urlsafe(6), int(run))


async def made_before(get: Get, record: TaskRecord) -> TaskRecord:
    """The task that is there under the id of a new one, if an earlier attempt made it.

    Raises:
        TaskExists: Another call made it, or it is gone again.
        StoreUnavailable: So much was written since that it cannot be known.
    """
    found = await _look(get, record.id)
    if found is not None and _wrote(found, record):
        return found
    if found is not None and found.created_at == record.created_at and _may_have_pushed_out(found, record):
        raise StoreUnavailable(f"task {short_id(record.id)} may have been created before", may_have_happened=True)
    raise TaskExists(record.id)


async def saved_before(get: Get, record: TaskRecord, expected: int) -> TaskRecord:
    """The task as it is now, if the save of `record` that met a conflict was made by an earlier attempt.

    Writes of a run are recognised for as long as it is the last run. Any other write is recognised until
    `OTHER_WRITES` others came after it. After that its caller meets a conflict and decides anew, which is why each
    such change makes no difference when it is made twice: an answer to a question that is closed, an end of a task that
    has ended, the release of a run that is not the current one.

    Raises:
        VersionConflict: It was not. The error has the record that is there.
        TaskUnreadable: What is there cannot be read.
    """
    current = await _look(get, record.id)
    if current is None or not _wrote(current, record):
        raise VersionConflict(record.id, expected, current)
    return current


async def _look(get: Get, task_id: str) -> TaskRecord | None:
    try:
        return await get(task_id)
    except StoreUnavailable as exc:
        # Only a read, but the conflict before it may be with an earlier attempt of the write.
        exc.may_have_happened = True
        raise


def _wrote(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether the write that makes `record` is among those that made `found`."""
    return bool(record.writes) and found.has(record.writes[0])


def _may_have_pushed_out(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether `found` may have had the id of the write that makes `record`, and keeps it no longer."""
    if record.writes and record.writes[0].number:
        return found.attempt > record.attempt
    return sum(not each.number for each in found.writes) >= OTHER_WRITES
