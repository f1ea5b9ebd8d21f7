"""The reads of the store. Each names its index, so that no statistic can make one a scan of all tasks.

Sweeps (`queued`, `due`, `held`, `expired`) read from their index alone and give ids: what a task holds is not
touched, so that it costs nothing, and that no damage in it stops a sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.codec import decode_cursor, to_micros
from mcp_tasks.stores.sqlite.connection import Values, to_text

Query: TypeAlias = tuple[str, Values]
"""A statement and its values."""

MAX_VARIABLES = 500
"""Ids in one statement; builds of SQLite from before 2020 take 999."""

# Who needs a task must be told that it cannot be read, so a task whose request is gone is still a row.
GET = """
SELECT t.owner, t.namespace, r.request, t.state FROM tasks t LEFT JOIN requests r ON r.task = t.key WHERE t.id = ?
"""

# CROSS JOIN is SQLite's way of saying that the left side comes first.
JOURNAL = """
SELECT t.owner, j.kind, j.key, j.value FROM tasks t CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key
WHERE t.id = ? ORDER BY j.n
"""

HOLDERS = """
SELECT holder, beats FROM heartbeats WHERE namespace = :namespace
UNION ALL
SELECT t.holder, coalesce(h.beats, 0) FROM (
    SELECT DISTINCT holder FROM tasks INDEXED BY tasks_held WHERE holder IS NOT NULL AND namespace = :namespace
) t LEFT JOIN heartbeats h ON h.holder = t.holder
"""

_LISTING = """
SELECT t.created, t.id, t.owner, t.namespace, r.request, t.state
FROM tasks t INDEXED BY {index} LEFT JOIN requests r ON r.task = t.key
WHERE {where} ORDER BY t.created, t.id LIMIT :limit
"""

# The number is `ready` of a task that can be started at any time, the earliest instant there is. It is written out as
# in the schema: SQLite uses a partial index only if it sees that the condition holds.
_QUEUED = """
SELECT created, id FROM tasks INDEXED BY tasks_queued
WHERE ready = -62135596800000000 AND namespace = :namespace AND (created, id) > (:place, :id)
ORDER BY created, id LIMIT :limit
"""

_DUE = """
SELECT ready, id FROM tasks INDEXED BY tasks_due
WHERE ready > -62135596800000000 AND ready <= :now AND namespace = :namespace AND (ready, id) > (:place, :id)
ORDER BY ready, id LIMIT :limit
"""

_HELD = """
SELECT created, id FROM tasks INDEXED BY tasks_held
WHERE holder = :holder AND (created, id) > (:place, :id)
ORDER BY created, id LIMIT :limit
"""

_EXPIRED = """
SELECT id, version FROM tasks INDEXED BY tasks_expires WHERE expires <= ? ORDER BY expires, created, id LIMIT ?
"""

_VERSIONS = "SELECT id, version FROM tasks WHERE id IN ({places})"

_FIRST = -(2**63)
"""Before every place in a listing."""


def queued(namespace: str, *, cursor: str | None, limit: int) -> Query:
    """The query for tasks that could run at any time."""
    return _QUEUED, {"namespace": to_text(namespace), "limit": limit, **_after(cursor)}


def due(namespace: str, now: datetime, *, cursor: str | None, limit: int) -> Query:
    """The query for parked tasks whose time has come."""
    return _DUE, {"namespace": to_text(namespace), "now": to_micros(now), "limit": limit, **_after(cursor)}


def held(holder: str, *, cursor: str | None, limit: int) -> Query:
    """The query for the tasks of a holder."""
    return _HELD, {"holder": to_text(holder), "limit": limit, **_after(cursor)}


def expired(now: datetime, *, limit: int) -> Query:
    """The query for tasks whose time after the end is over."""
    return _EXPIRED, (to_micros(now), limit)


def versions(task_ids: Collection[str]) -> Iterator[Query]:
    """The queries for the versions of these tasks: one, unless they are very many."""
    ids = [to_text(task_id) for task_id in task_ids]
    for start in range(0, len(ids), MAX_VARIABLES):
        some = ids[start : start + MAX_VARIABLES]
        yield _VERSIONS.format(places=", ".join("?" * len(some))), some


def listing(*, owner: str | None, status: TaskStatus | None, cursor: str | None, limit: int) -> Query:
    """The query for one page of a listing.

    Raises:
        ValueError: The cursor is not one of ours.
    """
    index, conditions = "tasks_created", ["(t.created, t.id) > (:place, :id)"]
    values: dict[str, Any] = {"limit": limit, **_after(cursor)}
    if status is not None:
        index = "tasks_status"
        conditions.append("t.status = :status")
        values["status"] = status.value
    if owner is not None:
        index = "tasks_owner"
        conditions.append("t.owner = :owner")
        values["owner"] = to_text(owner)
    return _LISTING.format(index=index, where=" AND ".join(conditions)), values


def _after(cursor: str | None) -> Mapping[str, Any]:
    place, task_id = (_FIRST, "") if cursor is None else decode_cursor(cursor)
    return {"place": place, "id": to_text(task_id)}
