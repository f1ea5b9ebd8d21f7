"""The reads of the store. Each names its index, so that no statistic can make one a scan of all tasks.

Sweeps (`queued`, `due`, `claimed`) read from their index alone and give ids: what a task holds is not
touched, so that it costs nothing, and that no damage in it stops a sweep. Nothing but `REQUEST`, `OUTCOME` and
`JOURNAL` reads what is kept beside a task's row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from mcp_tasks.model.record import TaskStatus
from mcp_tasks.stores.backend import Listing, Place
from mcp_tasks.stores.base import EVERYBODY, MOST_COUNTED, ChildrenOf, InSession, OwnedBy, Owners
from mcp_tasks.stores.sqlite.file import Values, to_owner, to_text

Query: TypeAlias = tuple[str, Values]
"""A statement and its values."""

MAX_VARIABLES = 500
"""Ids in one statement; builds of SQLite from before 2020 take 999."""

UNDER_KEY = """
SELECT id FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND owner = ?
"""

# From one namespace to the next along the index, however many tasks each has.
NAMESPACES = """
WITH RECURSIVE found(namespace) AS (
    SELECT min(namespace) FROM tasks
    UNION ALL
    SELECT (SELECT min(namespace) FROM tasks WHERE namespace > found.namespace)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM heartbeats ORDER BY 1
"""

VERSION = "SELECT version FROM tasks WHERE id = ?"

LOOKS = 1_000
"""Tasks beyond those asked for that a listing passes over, because they have expired or are in another status: the
event loop waits meanwhile, a millisecond or two."""

GET = "SELECT owner, namespace, state FROM tasks WHERE id = ?"
GET_OWNED = f"{GET} AND owner = ?"

# What may be large is given only up to :limit bytes, with its size. The size of a blob is read without the blob.
# Who needs a request must be told that it cannot be read, so a task whose request is gone is still a row.
REQUEST = """
SELECT length(r.request), t.owner, CASE WHEN length(r.request) <= :limit THEN r.request END
FROM tasks t LEFT JOIN requests r ON r.task = t.key WHERE t.id = :id
"""

# CROSS JOIN is SQLite's way of saying that the left side comes first.
OUTCOME = """
SELECT length(o.body) + ifnull(length(o.meta), 0), t.owner,
    CASE WHEN length(o.body) + ifnull(length(o.meta), 0) <= :limit THEN o.body END,
    CASE WHEN length(o.body) + ifnull(length(o.meta), 0) <= :limit THEN o.meta END
FROM tasks t CROSS JOIN outcomes o ON o.task = t.key WHERE t.id = :id
"""

JOURNAL = """
SELECT s.size, t.owner, j.n, j.kind, j.key, CASE WHEN s.size <= :limit THEN j.value END
FROM (
    SELECT j.task, sum(length(j.value)) AS size
    FROM tasks t CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key WHERE t.id = :id AND j.n > :after
) s CROSS JOIN tasks t ON t.key = s.task CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key
WHERE j.n > :after ORDER BY j.n
"""

# From worker to worker by seeks, however many tasks each has. A process serves one server, so that the first task that
# is looked at says whether it is of this one.
WORKERS = """
WITH RECURSIVE claiming (worker) AS (
    SELECT min(worker) FROM tasks INDEXED BY tasks_claimed WHERE worker IS NOT NULL
    UNION ALL
    SELECT (SELECT min(worker) FROM tasks INDEXED BY tasks_claimed WHERE worker > h.worker)
    FROM claiming h WHERE h.worker IS NOT NULL
)
SELECT worker, beats FROM heartbeats WHERE namespace = :namespace
UNION ALL
SELECT t.worker, coalesce(h.beats, 0) FROM claiming t LEFT JOIN heartbeats h ON h.worker = t.worker
WHERE EXISTS (
    SELECT 1 FROM tasks INDEXED BY tasks_claimed WHERE worker = t.worker AND namespace = :namespace
)
"""

NOTE = "SELECT value FROM notes WHERE namespace = ? AND name = ?"

# At most so many are looked at: the inner one gives its rows as the outer asks for them. If the page is not full then,
# a row without a namespace follows: the end of what was looked at. It is one statement, for if some were deleted
# between two, the end would lie behind tasks that nobody looked at.
_LISTING = """
SELECT created, id, owner, namespace, state FROM (
    SELECT created, id, owner, namespace, state, status, expires FROM tasks INDEXED BY {index}
    WHERE {where} AND (created, id) {beyond} (:place, :id) ORDER BY {order} LIMIT :looks
)
WHERE {wanted}
UNION ALL
SELECT * FROM (
    SELECT created, id, NULL, NULL, NULL FROM tasks INDEXED BY {index}
    WHERE {where} AND (created, id) {beyond} (:place, :id) ORDER BY {order} LIMIT 1 OFFSET :looks - 1
)
LIMIT :limit
"""

# The condition of a partial index is written out as in the schema: SQLite uses it only if it sees that it holds.
_QUEUED_BY_HAND = """
SELECT created, id FROM tasks INDEXED BY tasks_queued
WHERE hand < 2 AND hand = {hand} AND namespace = :namespace AND (created, id) > (:place, :id)
"""
_IN_ORDER = "ORDER BY created, id LIMIT :limit"

# Merged, not sorted: of each part as much is read as is given.
QUEUED = {
    None: f"{_QUEUED_BY_HAND.format(hand=0)} UNION ALL {_QUEUED_BY_HAND.format(hand=1)} {_IN_ORDER}",
    False: f"{_QUEUED_BY_HAND.format(hand=0)} {_IN_ORDER}",
    True: f"{_QUEUED_BY_HAND.format(hand=1)} {_IN_ORDER}",
}

# From queue to queue by seeks; what is counted is read from the index alone. What is queued comes first in each: its
# `ready` is the earliest instant there is.
BACKLOG = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM tasks INDEXED BY tasks_backlog WHERE ready IS NOT NULL AND namespace = :namespace
    UNION ALL
    SELECT (
        SELECT min(queue) FROM tasks INDEXED BY tasks_backlog
        WHERE ready IS NOT NULL AND namespace = :namespace AND queue > q.queue
    ) FROM queues q WHERE q.queue IS NOT NULL
)
SELECT q.queue, (
    SELECT count(*) FROM (
        SELECT 1 FROM tasks INDEXED BY tasks_backlog
        WHERE ready <= :now AND namespace = :namespace AND queue = q.queue LIMIT :most
    )
), (
    SELECT min(since) FROM tasks INDEXED BY tasks_backlog
    WHERE ready = -62135596800000000 AND namespace = :namespace AND queue = q.queue
), (
    SELECT min(ready) FROM tasks INDEXED BY tasks_backlog
    WHERE ready > -62135596800000000 AND ready <= :now AND namespace = :namespace AND queue = q.queue
)
FROM queues q WHERE q.queue IS NOT NULL
"""

# From the index alone. What is kept beside tasks is counted as it is written, by triggers.
_OPEN = ", ".join(f"'{status.value}'" for status in TaskStatus if not status.is_final)
_USAGE = """
SELECT count(*), ifnull((SELECT bytes FROM stored WHERE namespace = :namespace AND owner = :owner), 0)
FROM (
    SELECT 1 FROM tasks INDEXED BY tasks_owner_status
    WHERE namespace = :namespace AND owner = :owner AND status IN ({open}) LIMIT :most
)
"""
_USAGE_OF_ALL = """
SELECT count(*), 0 FROM (
    SELECT 1 FROM tasks INDEXED BY tasks_status WHERE namespace = :namespace AND status IN ({open}) LIMIT :most
)
"""

# The number is `ready` of a task that can be started at any time, the earliest instant there is.
DUE = """
SELECT ready, id FROM tasks INDEXED BY tasks_due
WHERE ready > -62135596800000000 AND ready <= :now AND namespace = :namespace AND (ready, id) > (:place, :id)
ORDER BY ready, id LIMIT :limit
"""

CLAIMED = """
SELECT created, id FROM tasks INDEXED BY tasks_claimed
WHERE worker = :worker AND (created, id) > (:place, :id)
ORDER BY created, id LIMIT :limit
"""

_VERSIONS = "SELECT id, version FROM tasks WHERE id IN ({places})"

_FIRST, _LAST = -(2**63), 2**63 - 1
"""Before and behind every place in a listing."""


def usage(namespace: str, whose: Owners) -> Query:
    """The query for how many tasks are open, and how many bytes are kept beside all."""
    values: dict[str, Any] = {"namespace": to_text(namespace), "most": MOST_COUNTED}
    if whose is EVERYBODY:
        return _USAGE_OF_ALL.format(open=_OPEN), values
    return _USAGE.format(open=_OPEN), {**values, "owner": to_owner(whose.owner if isinstance(whose, OwnedBy) else None)}


def versions(task_ids: Collection[str]) -> Iterator[Query]:
    """The queries for the versions of these tasks: one, unless they are very many."""
    ids = [to_text(task_id) for task_id in task_ids]
    for start in range(0, len(ids), MAX_VARIABLES):
        some = ids[start : start + MAX_VARIABLES]
        yield _VERSIONS.format(places=", ".join("?" * len(some))), some


def listing(wanted: Listing) -> Query:
    """The query for one page of a listing, and the end of what was looked at if there may be more behind it."""
    whose, status = wanted.whose, wanted.status
    values: dict[str, Any] = {
        "namespace": to_text(wanted.namespace),
        "now": wanted.now,
        "limit": wanted.limit,
        "looks": wanted.limit + LOOKS,
        **after(wanted.after, _LAST if wanted.newest_first else _FIRST),
    }
    found, kept = ["namespace = :namespace"], ["(expires IS NULL OR expires > :now)"]
    parts = ["tasks"]
    if isinstance(whose, InSession | ChildrenOf):
        column = "session" if isinstance(whose, InSession) else "parent"
        values["of"] = to_text(whose.session if isinstance(whose, InSession) else whose.parent)
        found.append(f"{column} = :of")
        parts.append(column)
    elif whose is not EVERYBODY:
        values["of"] = to_owner(whose.owner if isinstance(whose, OwnedBy) else None)
        found.append("owner = :of")
        parts.append("owner")
    if status is not None:
        values["status"] = status.value
        if isinstance(whose, InSession | ChildrenOf):
            # A session, or a task, has few tasks: their statuses are read from the rows, no index has to follow them.
            kept.append("status = :status")
        else:
            found.append("status = :status")
            parts.append("status")
    sql = _LISTING.format(
        index="_".join(parts) if len(parts) > 1 else "tasks_created",
        where=" AND ".join(found),
        wanted=" AND ".join(kept),
        beyond="<" if wanted.newest_first else ">",
        order="created DESC, id DESC" if wanted.newest_first else "created, id",
    )
    return sql, values


def after(place: Place | None, start: int = _FIRST) -> Mapping[str, Any]:
    """Behind which place a page starts, as the queries ask for it."""
    micros, task_id = (start, "") if place is None else place
    return {"place": micros, "id": to_text(task_id)}
