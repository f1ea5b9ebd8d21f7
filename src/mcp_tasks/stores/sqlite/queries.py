"""The reads of the store. Each names its index, so that no statistic can make one a scan of all tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.codec import decode_cursor, to_micros
from mcp_tasks.stores.sqlite.connection import to_text

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""What goes into the places of a statement, by position or by name."""

Query: TypeAlias = tuple[str, Values]
"""A statement and its values."""

# CROSS JOIN is SQLite's way of saying that the left side comes first.
GET = "SELECT r.request, t.state FROM tasks t CROSS JOIN requests r ON r.task = t.key WHERE t.id = ?"

JOURNAL = """
SELECT j.kind, j.key, j.value FROM tasks t CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key
WHERE t.id = ? ORDER BY j.n
"""

HELD = """
SELECT t.id, r.request, t.state FROM tasks t INDEXED BY tasks_held CROSS JOIN requests r ON r.task = t.key
WHERE t.holder = ? ORDER BY t.created, t.id LIMIT ?
"""

EXPIRED = """
SELECT t.id, r.request, t.state FROM tasks t INDEXED BY tasks_expires CROSS JOIN requests r ON r.task = t.key
WHERE t.expires <= ? ORDER BY t.expires, t.created, t.id LIMIT ?
"""

HOLDERS = """
SELECT holder, until FROM holders
UNION ALL
SELECT DISTINCT holder, NULL FROM tasks INDEXED BY tasks_held
WHERE holder IS NOT NULL AND holder NOT IN (SELECT holder FROM holders)
"""

# Two halves: tasks that were never asleep all have the same `ready`, so the index has them in order however
# long the queue is; those whose timer has run out are few, and are sorted.
_QUEUED = """
SELECT t.id, r.request, t.state FROM (
    SELECT * FROM (
        SELECT key, id, created, state FROM tasks INDEXED BY tasks_ready
        WHERE ready = :always ORDER BY created, id LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT key, id, created, state FROM tasks INDEXED BY tasks_ready
        WHERE ready > :always AND ready <= :now ORDER BY created, id LIMIT :limit
    )
) t CROSS JOIN requests r ON r.task = t.key ORDER BY t.created, t.id LIMIT :limit
"""
_READY_ALWAYS = to_micros(datetime.min.replace(tzinfo=UTC))

_LISTING = """
SELECT t.id, r.request, t.state FROM tasks t INDEXED BY {index} CROSS JOIN requests r ON r.task = t.key
WHERE {where} ORDER BY t.created, t.id LIMIT ?
"""


def queued(now: datetime, *, limit: int) -> Query:
    """The query for tasks that could run at `now`."""
    return _QUEUED, {"always": _READY_ALWAYS, "now": to_micros(now), "limit": limit}


def listing(*, owner: str | None, status: TaskStatus | None, cursor: str | None, limit: int) -> Query:
    """The query for one page of a listing.

    Raises:
        ValueError: The cursor is not one of ours.
    """
    index, conditions, values = "tasks_created", ["TRUE"], list[Any]()
    if status is not None:
        index = "tasks_status"
        conditions.append("t.status = ?")
        values.append(status.value)
    if owner is not None:
        index = "tasks_owner"
        conditions.append("t.owner = ?")
        values.append(to_text(owner))
    if cursor is not None:
        created, task_id = decode_cursor(cursor)
        conditions.append("(t.created, t.id) > (?, ?)")
        values += [created, to_text(task_id)]
    return _LISTING.format(index=index, where=" AND ".join(conditions)), (*values, limit)
