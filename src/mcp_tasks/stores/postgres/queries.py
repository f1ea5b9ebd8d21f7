"""The reads of the store. Each has an index that gives its rows in their order (see `database.py`).

Sweeps (`queued`, `due`, `claimed`) give ids: what a task holds is not decoded, so that no damage in it stops
a sweep. Nothing but `REQUEST`, `OUTCOME` and `JOURNAL` reads what is kept beside a task's row.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from mcp_tasks.model.record import TaskStatus
from mcp_tasks.stores.backend import Listing, Place
from mcp_tasks.stores.backend import Row as Kept
from mcp_tasks.stores.base import EVERYBODY, MOST_COUNTED, ChildrenOf, InSession, OwnedBy, Owners
from mcp_tasks.stores.postgres.database import Query

# ---- text
# Any string as text that Postgres can keep.


NOBODY: Final = "\\-"
"""The owner of a task that nobody owns. `to_text` gives it for no string, and unlike NULL it equals itself."""

LONGEST_KEY: Final = 500
"""Characters of an idempotency key that are kept as they are. An index of Postgres takes some 2,700 bytes in all."""

_ODD = re.compile("[\0\\\\\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(\\|0|u[0-9a-f]{4})")


def to_text(text: str) -> str:
    """A string as Postgres can keep it. Different strings stay different."""
    return _ODD.sub(_escape, text) if _ODD.search(text) else text


def from_text(text: str) -> str:
    """The string that `to_text` was given."""
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def to_owner(owner: str | None) -> str:
    """An owner, or nobody."""
    return NOBODY if owner is None else to_text(owner)


def from_owner(text: str) -> str | None:
    """The owner that `to_owner` was given."""
    return None if text == NOBODY else from_text(text)


def to_optional(text: str | None) -> str | None:
    """A string that may be missing."""
    return None if text is None else to_text(text)


def to_key(key: str | None) -> str | None:
    """An idempotency key, which is asked for and never read: of a long one, the beginning and a hash."""
    if key is None or len(key) <= LONGEST_KEY:
        return to_optional(key)
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    # An escape that `to_text` never writes.
    return f"{to_text(key[:100])}\\#{digest}"


def row_of(task_id: str, owner: str, namespace: str, state: object) -> Kept:
    """What the columns have of a task."""
    return from_text(task_id), from_owner(owner), from_text(namespace), state


def _escape(found: re.Match[str]) -> str:
    match found[0]:
        case "\\":
            return "\\\\"
        case "\0":
            return "\\0"
        case surrogate:
            return f"\\u{ord(surrogate):04x}"


def _unescape(found: re.Match[str]) -> str:
    match found[1]:
        case "\\":
            return "\\"
        case "0":
            return "\0"
        case code:
            return chr(int(code[1:], 16))


AT_ANY_TIME: Final = -62135596800000000
"""`ready` of a task that can be started at any time, the earliest instant there is. It is written out in statements as
in the schema: Postgres uses a partial index only if it sees that the condition holds."""

OF_OWNER: Final = "(handed OR at_work)"
OF_TOOL: Final = "handed::int + at_work::int > 0"
"""What is in hand, as the indexes say it by which it is counted: of an owner, and of a tool."""

NOW = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""Not `now()`, which is when the transaction began."""

GET = b"SELECT owner, namespace, state FROM mcp_tasks_tasks WHERE id = %(id)s"

GET_OWNED = GET + b" AND owner = %(owner)s"

GET_WITH_REQUEST = b"""
SELECT t.owner, t.namespace, t.state, r.request FROM mcp_tasks_tasks t
LEFT JOIN mcp_tasks_requests r ON r.task = t.key AND octet_length(r.request) <= %(largest)s WHERE t.id = %(id)s
"""

GET_WITH_OUTCOME = b"""
SELECT t.owner, t.namespace, t.state, o.body, o.meta FROM mcp_tasks_tasks t
LEFT JOIN mcp_tasks_outcomes o ON o.task = t.key WHERE t.id = %(id)s AND t.owner = %(owner)s
"""

# Who needs a request must be told that it cannot be read, so a task whose request is gone is still a row.
REQUEST = b"""
SELECT t.owner, r.request FROM mcp_tasks_tasks t LEFT JOIN mcp_tasks_requests r ON r.task = t.key WHERE t.id = %(id)s
"""

OUTCOME = b"""
SELECT t.owner, o.body, o.meta FROM mcp_tasks_tasks t JOIN mcp_tasks_outcomes o ON o.task = t.key WHERE t.id = %(id)s
"""

JOURNAL = b"""
SELECT t.owner, j.n, j.kind, j.key, j.value FROM mcp_tasks_tasks t JOIN mcp_tasks_journal j ON j.task = t.key
WHERE t.id = %(id)s AND j.n > %(after)s ORDER BY j.task, j.n
"""

WORKERS = b"""
WITH RECURSIVE busy AS (
    (
        SELECT worker FROM mcp_tasks_tasks
        WHERE worker IS NOT NULL AND namespace = %(namespace)s ORDER BY worker LIMIT 1
    )
    UNION ALL
    SELECT following.worker FROM busy, LATERAL (
        SELECT t.worker FROM mcp_tasks_tasks t
        WHERE t.worker > busy.worker AND t.namespace = %(namespace)s ORDER BY t.worker LIMIT 1
    ) following
)
SELECT worker, beats FROM mcp_tasks_heartbeats WHERE namespace = %(namespace)s
UNION ALL
SELECT h.worker, coalesce(b.beats, 0) FROM busy h LEFT JOIN mcp_tasks_heartbeats b ON b.worker = h.worker
"""

# From one namespace to the next along the index, however many tasks each has.
NAMESPACES = b"""
WITH RECURSIVE found(namespace) AS (
    (SELECT namespace FROM mcp_tasks_tasks ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT task.namespace FROM mcp_tasks_tasks task WHERE task.namespace > found.namespace
            ORDER BY task.namespace LIMIT 1)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM mcp_tasks_heartbeats
"""

UNDER_KEY = b"""
SELECT id FROM mcp_tasks_tasks WHERE idempotency_key = %(key)s AND namespace = %(namespace)s AND owner = %(owner)s
"""

NOTE = b"SELECT value FROM mcp_tasks_notes WHERE namespace = %(namespace)s AND name = %(name)s"

VERSIONS = b"SELECT id, version FROM mcp_tasks_tasks WHERE id = ANY(%(ids)s)"

# What is queued comes first in each queue. What was to wake comes behind it, in the order of this index and no other.
_WAITS = "t.ready IS NOT NULL AND t.namespace = %(namespace)s"
BACKLOG = f"""
WITH RECURSIVE queues AS (
    (SELECT t.queue FROM mcp_tasks_tasks t WHERE {_WAITS} ORDER BY t.queue, t.ready, t.since LIMIT 1)
    UNION ALL
    SELECT following.queue FROM queues, LATERAL (
        SELECT t.queue FROM mcp_tasks_tasks t
        WHERE {_WAITS} AND t.queue > queues.queue ORDER BY t.queue, t.ready, t.since LIMIT 1
    ) following
)
SELECT queue, (
    SELECT count(*) FROM (
        SELECT FROM mcp_tasks_tasks t
        WHERE {_WAITS} AND t.queue = queues.queue AND t.ready <= %(now)s LIMIT {MOST_COUNTED}
    ) counted
), (
    SELECT t.since FROM mcp_tasks_tasks t
    WHERE {_WAITS} AND t.queue = queues.queue AND t.ready = {AT_ANY_TIME} ORDER BY t.ready, t.since LIMIT 1
), (
    SELECT t.ready FROM mcp_tasks_tasks t
    WHERE {_WAITS} AND t.queue = queues.queue AND (t.ready, t.since) > ({AT_ANY_TIME}, 9223372036854775807)
        AND t.ready <= %(now)s
    ORDER BY t.ready, t.since LIMIT 1
) FROM queues
""".encode()

_LISTING = """
SELECT created, id, owner, namespace, state FROM mcp_tasks_tasks
WHERE {where} AND (created, {id}) {beyond} (%(place)s, %(after)s) AND (expires IS NULL OR expires > %(now)s)
ORDER BY created {way}, {id} {way} LIMIT %(limit)s
"""
_MERGED = "SELECT * FROM ({parts}) parts ORDER BY created {way}, id {way} LIMIT %(limit)s"

_QUEUED = f"""
SELECT created, id FROM mcp_tasks_tasks
WHERE ready = {AT_ANY_TIME} AND namespace = %(namespace)s AND handed = {{handed}}
    AND (created, id) > (%(place)s, %(after)s)
ORDER BY created, id LIMIT %(limit)s
"""

_HANDED, _NOT_HANDED = _QUEUED.format(handed="true"), _QUEUED.format(handed="false")
QUEUED = {
    True: _HANDED.encode(),
    False: _NOT_HANDED.encode(),
    None: f"""
SELECT * FROM (({_HANDED}) UNION ALL ({_NOT_HANDED})) both_kinds ORDER BY created, id LIMIT %(limit)s
""".encode(),
}

DUE = f"""
SELECT ready, id FROM mcp_tasks_tasks
WHERE ready > {AT_ANY_TIME} AND ready <= %(now)s AND namespace = %(namespace)s
    AND (ready, id) > (%(place)s, %(after)s)
ORDER BY ready, id LIMIT %(limit)s
""".encode()

CLAIMED = b"""
SELECT created, id FROM mcp_tasks_tasks
WHERE worker = %(worker)s AND (created, id) > (%(place)s, %(after)s)
ORDER BY created, id LIMIT %(limit)s
"""

# In the order of the one index that is meant.
_OPEN_OF_OWNER = """
SELECT size FROM mcp_tasks_tasks WHERE namespace = %(namespace)s AND owner = %(owner)s AND status = '{status}'
ORDER BY created, id COLLATE "POSIX" LIMIT {most}
"""
_OPEN_OF_ALL = """
SELECT 0 AS size FROM mcp_tasks_tasks WHERE namespace = %(namespace)s AND status = '{status}'
ORDER BY created, id LIMIT {most}
"""


def _open(sql: str) -> str:
    parts = [sql.format(status=status.value, most=MOST_COUNTED) for status in TaskStatus if not status.is_final]
    return " UNION ALL ".join(f"({part})" for part in parts) + f" LIMIT {MOST_COUNTED}"


_USAGE = f"""
SELECT count(*), coalesce(sum(size), 0)::bigint + coalesce((
    SELECT sum(kept) FROM (
        SELECT kept FROM mcp_tasks_tasks
        WHERE kept IS NOT NULL AND namespace = %(namespace)s AND owner = %(owner)s ORDER BY kept
    ) ended
), 0)::bigint FROM ({_open(_OPEN_OF_OWNER)}) open
""".encode()
_USAGE_OF_ALL = f"SELECT count(*), 0 FROM ({_open(_OPEN_OF_ALL)}) open".encode()

_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1
"""Before and behind every place in a listing."""


def usage(namespace: str, whose: Owners) -> Query:
    """The query for how many tasks are open, and how many bytes are kept beside all."""
    if whose is EVERYBODY:
        return _USAGE_OF_ALL, {"namespace": to_text(namespace)}
    owner = to_owner(whose.owner if isinstance(whose, OwnedBy) else None)
    return _USAGE, {"namespace": to_text(namespace), "owner": owner}


def listing(wanted: Listing) -> Query:
    """The query for one page of a listing."""
    whose, status = wanted.whose, wanted.status
    start = after(wanted.after, _LAST if wanted.newest_first else _FIRST)
    values: dict[str, Any] = {"namespace": to_text(wanted.namespace), "now": wanted.now, "limit": wanted.limit, **start}
    where, order = "namespace = %(namespace)s", "id"
    beyond, way = ("<", "DESC") if wanted.newest_first else (">", "ASC")
    if isinstance(whose, InSession | ChildrenOf):
        # A session, or a task, has few tasks: their statuses are read from the rows, and no index has to follow them.
        where += f" AND {'session' if isinstance(whose, InSession) else 'parent'} = %(of)s"
        values["of"] = to_text(whose.session if isinstance(whose, InSession) else whose.parent)
        if status is not None:
            where += f" AND status = '{status.value}'"
        return _LISTING.format(where=where, id=order, beyond=beyond, way=way).encode(), values
    if whose is not EVERYBODY:
        where += " AND owner = %(of)s"
        # As in the index of owners, and in no other.
        order = 'id COLLATE "POSIX"'
        values["of"] = to_owner(whose.owner if isinstance(whose, OwnedBy) else None)
    parts = [
        _LISTING.format(where=f"{where} AND status = '{one.value}'", id=order, beyond=beyond, way=way)
        for one in (TaskStatus if status is None else [status])
    ]
    return _MERGED.format(parts=" UNION ALL ".join(f"({part})" for part in parts), way=way).encode(), values


def after(place: Place | None, start: int = _FIRST) -> dict[str, Any]:
    """Behind which place a page starts, as the queries ask for it."""
    micros, task_id = (start, "") if place is None else place
    return {"place": micros, "after": to_text(task_id)}
