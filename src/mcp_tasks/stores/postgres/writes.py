"""The writes of the store: each is one statement, which is a transaction by itself, and so one round trip.

The caller has encoded all values. Conflicts show in what a statement returns, not as errors. When a
connection breaks under a write, it is done again on another. By its version it can succeed only once; if it meets a
conflict, the write ids in the record tell whether that is its own doing (`Store`).
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import psycopg

from mcp_tasks.errors import LimitReached
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.model.values import Statement
from mcp_tasks.quiet import get_logger
from mcp_tasks.quiet import what as quiet_what
from mcp_tasks.stores.base import Change, Created, Creation, Ready, Share, WorkLimits
from mcp_tasks.stores.base import Row as Kept
from mcp_tasks.stores.codec import FINAL, MICROSECOND, columns_of, size_of, sort_key
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Position, Room, Route, Step, Turns, Waiting
from mcp_tasks.stores.postgres.database import Query, Row, Session, is_collision, is_lost

logger: Final = get_logger(__name__)

# ---- strings

UNOWNED: Final = "\\-"
"""The owner of a task without one. `to_text` gives it for no string, and unlike NULL it equals itself."""

LONGEST_KEY: Final = 500
"""Characters of an idempotency key that are kept as they are. An index of Postgres takes some 2,700 bytes in all."""

_ODD = re.compile("[\0\\\\\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(\\|0|u[0-9a-f]{4})")


def to_text(text: str) -> str:
    """A string as Postgres can keep it. Different strings stay different."""
    if not _ODD.search(text):
        return text
    return _ODD.sub(lambda odd: {"\\": "\\\\", "\0": "\\0"}.get(odd[0], f"\\u{ord(odd[0]):04x}"), text)


def from_text(text: str) -> str:
    """The string that `to_text` was given."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: {"\\": "\\", "0": "\0"}.get(found[1]) or chr(int(found[1][1:], 16)), text)


def to_owner(owner: str | None) -> str:
    """An owner, or none."""
    return UNOWNED if owner is None else to_text(owner)


def from_owner(text: str) -> str | None:
    """The owner that `to_owner` was given."""
    return None if text == UNOWNED else from_text(text)


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
    """A task as its columns have it."""
    return from_text(task_id), from_owner(owner), from_text(namespace), state


def _lock_number(*name: str) -> int:
    """A number for an advisory lock, the same in all processes. Two names with one number only wait for each other."""
    digest = hashlib.blake2b("\0".join(("mcp-tasks", *name)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


AT_ANY_TIME: Final = -62135596800000000
"""`ready` of a task that can be started at any time, the earliest instant there is. It is written out in statements as
in the schema: Postgres uses a partial index only if it sees that the condition holds."""

_OF_OWNER: Final = "(handed OR at_work)"
_OF_TOOL: Final = "handed::int + at_work::int > 0"
"""Conditions of the indexes by which tasks in hand are counted: of an owner, and of a tool."""

_OPEN_PARENT = "p.id = %(parent)s AND p.status NOT IN ('completed', 'failed', 'cancelled')"
UNDER_KEY: Final = "idempotency_key = %(key)s AND namespace = %(namespace)s AND owner = %(owner)s"

# ---- tasks


def _identity(record: TaskRecord) -> dict[str, Any]:
    """The columns of a record that are written once, when it is made."""
    return {
        "namespace": to_text(record.namespace),
        "owner": to_owner(record.owner),
        "parent": to_optional(record.parent),
        "method": to_text(record.method),
        "name": to_text(record.name),
        "created": sort_key(record),
    }


# Columns that never change are left out, so that their indexes are not touched.
_UPDATE = """
UPDATE mcp_tasks_tasks t
SET version = %(version)s, session = %(session)s, queue = %(queue)s, rank = %(rank)s, status = %(status)s,
    worker = %(worker)s, ready = %(ready)s,
    since = CASE WHEN %(queued)s THEN coalesce(t.since, %(since)s::bigint) END, expires = %(expires)s,
    handed = t.handed AND %(queued)s, at_work = %(at_work)s, resuming = %(resuming)s, state = %(state)s,
    size = {size}, kept = CASE WHEN %(final)s THEN {size} END
"""
# An outcome may take the place of another.
_GROWN = "t.size + %(grown)s"
_GROWN_BY_OUTCOME = f"""
{_GROWN} - coalesce(
    (SELECT octet_length(body) + coalesce(octet_length(meta), 0) FROM mcp_tasks_outcomes WHERE task = t.key), 0
)
"""
_ENTRIES = """
, entries AS (
    INSERT INTO mcp_tasks_journal (task, kind, key, value)
    SELECT changed.key, entry.kind, entry.key, entry.value
    FROM changed, unnest(%(kinds)s::text[], %(keys)s::text[], %(values)s::bytea[])
        WITH ORDINALITY AS entry (kind, key, value, place)
    ORDER BY entry.place
)
"""
_OUTCOME = """
, ended AS (
    INSERT INTO mcp_tasks_outcomes (task, body, meta) SELECT key, %(body)s, %(meta)s FROM changed
    ON CONFLICT (task) DO UPDATE SET body = excluded.body, meta = excluded.meta
)
"""
# Of tasks that are resuming, none counts against another.
_OTHERS = """(
    SELECT count(*) FROM (
        SELECT FROM mcp_tasks_tasks t
        WHERE {in_hand} AND NOT handed AND id <> %(id)s AND NOT (t.resuming AND own.resuming)
            AND namespace = %(namespace)s AND {of}
        LIMIT {limit}
    ) others
)"""
_TOOL_LIMIT, _OWNER_LIMIT = "%(tool_limit)s::bigint", "%(owner_limit)s::bigint"
_ROOM = f"""
own AS (
    SELECT coalesce((SELECT resuming FROM mcp_tasks_tasks WHERE id = %(id)s), false) AS resuming
), room AS (
    SELECT
        {_OTHERS.format(in_hand=_OF_TOOL, of="name = %(name)s AND method = %(method)s", limit=_TOOL_LIMIT)} AS tool,
        {_OTHERS.format(in_hand=_OF_OWNER, of="owner = %(owner)s", limit=_OWNER_LIMIT)} AS owner
    FROM own
),
"""
_HAS_ROOM = f"""
({_TOOL_LIMIT} IS NULL OR room.tool < {_TOOL_LIMIT}) AND ({_OWNER_LIMIT} IS NULL OR room.owner < {_OWNER_LIMIT})
"""
_THERE = "EXISTS (SELECT FROM mcp_tasks_tasks WHERE id = %(id)s AND version = %(expected)s)"

# Claims under one limit come one after the other. Of two locks, each claim takes the smaller first.
_LOCKS = b"SELECT pg_advisory_xact_lock(lock) FROM unnest(%(locks)s::bigint[]) AS lock ORDER BY lock"


async def save(session: Session, change: Change) -> bool:
    """Update a task, append to its journal and keep its outcome; False if it is at another version, or gone.

    Raises:
        LimitReached: As many tasks as allowed are at work.
    """
    record, outcome, limits = change.record, change.outcome, change.limits or WorkLimits()
    grown = sum(len(value) for _, _, value in change.lines) + (0 if outcome is None else size_of(outcome))
    values: dict[str, Any] = columns_of(record, change.state, to_text) | {"expected": change.expected, "grown": grown}
    update, rest = _UPDATE.format(size=_GROWN if outcome is None else _GROWN_BY_OUTCOME), ""
    if change.lines:
        kinds, keys, parts = zip(*change.lines, strict=True)
        values |= {"kinds": list(kinds), "keys": [to_text(key) for key in keys], "values": list(parts)}
        rest += _ENTRIES
    if outcome is not None:
        values |= {"body": outcome.body, "meta": outcome.meta}
        rest += _OUTCOME
    where = "t.id = %(id)s AND t.version = %(expected)s"
    if limits.tool is None and limits.owner is None:
        sql = f"WITH changed AS ({update} WHERE {where} RETURNING t.key) {rest} SELECT FROM changed"
        return bool(await session.rows(sql.encode(), values))
    values |= _identity(record) | {"tool_limit": limits.tool, "owner_limit": limits.owner}
    sql = f"""
        WITH {_ROOM} changed AS ({update} FROM room WHERE {where} AND {_HAS_ROOM} RETURNING t.key) {rest}
        SELECT EXISTS (SELECT FROM changed), {_THERE}, tool, owner FROM room
    """
    locks: list[int] = []
    if limits.tool is not None:
        locks.append(_lock_number("tool", values["namespace"], values["method"], values["name"]))
    if limits.owner is not None:
        locks.append(_lock_number("owner", values["namespace"], values["owner"]))
    ((done, is_there, tool, owner),) = await session.transaction((_LOCKS, {"locks": locks}), (sql.encode(), values))
    if is_there and not done:
        for limit, others, what in ((limits.tool, tool, "tool"), (limits.owner, owner, "owner")):
            if limit is not None and others >= limit:
                raise LimitReached(record.id, what)
    return bool(done)


# A trigger keeps the key, if that outlives its task, where no moment is given from which its time runs.
_DELETE: Final = b"""
WITH gone AS (
    DELETE FROM mcp_tasks_tasks WHERE id = %(id)s AND version = %(expected)s
    RETURNING idempotency_key, namespace, owner, key_outlives
), spent AS (
    INSERT INTO mcp_tasks_spent_keys (idempotency_key, namespace, owner, until)
    SELECT idempotency_key, namespace, owner, %(now)s::bigint + key_outlives FROM gone
    WHERE idempotency_key IS NOT NULL AND key_outlives IS NOT NULL AND %(now)s::bigint IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT FROM gone
"""
_EXISTS = b"SELECT FROM mcp_tasks_tasks WHERE id = %(id)s"


async def delete(session: Session, task_id: str, expected: int, now: int | None) -> bool:
    """Remove a task; a trigger removes what is kept beside it. False if it is at another version, or gone."""
    values = {"id": to_text(task_id), "expected": expected, "now": now}
    if await session.rows(_DELETE, values):
        return True
    # Gone, and perhaps by an earlier attempt.
    return session.again and not await session.rows(_EXISTS, {"id": values["id"]})


KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, and are removed with one slice of what has expired."""

# Of those that ask at once, each takes what no other has locked. What was saved meanwhile is looked at again.
_FORGET_EXPIRED = f"""
WITH expired AS (
    SELECT id FROM mcp_tasks_tasks WHERE expires <= %(now)s ORDER BY expires, created, id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM mcp_tasks_tasks t USING expired WHERE t.id = expired.id RETURNING t.*
), over AS (
    SELECT idempotency_key, namespace, owner FROM mcp_tasks_spent_keys WHERE until <= %(now)s
    ORDER BY until LIMIT {KEYS_AT_ONCE} FOR UPDATE SKIP LOCKED
), freed AS (
    DELETE FROM mcp_tasks_spent_keys k USING over
    WHERE (k.idempotency_key, k.namespace, k.owner) = (over.idempotency_key, over.namespace, over.owner)
)
SELECT {{wanted}} FROM gone ORDER BY expires, created, id
"""
FORGET_IDS: Final = _FORGET_EXPIRED.format(wanted="version, id").encode()
FORGET_STATES: Final = _FORGET_EXPIRED.format(wanted="version, id, owner, namespace, state").encode()
HAND_BACK = f"UPDATE mcp_tasks_tasks SET handed = false WHERE id = %(id)s AND handed AND ready = {AT_ANY_TIME}".encode()
BEAT = b"""
WITH before AS (SELECT beats FROM mcp_tasks_heartbeats WHERE worker = %(worker)s)
INSERT INTO mcp_tasks_heartbeats AS known (worker, namespace, beats)
VALUES (%(worker)s, %(namespace)s, %(beats)s)
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace, beats = greatest(known.beats, excluded.beats)
RETURNING coalesce((SELECT beats FROM before), 0)
"""
RETIRE = b"DELETE FROM mcp_tasks_heartbeats WHERE worker = %(worker)s"
INSERT_NOTE = b"""
INSERT INTO mcp_tasks_notes (namespace, name, value) VALUES (%(namespace)s, %(name)s, %(value)s)
ON CONFLICT DO NOTHING RETURNING true
"""
REPLACE_NOTE = b"""
UPDATE mcp_tasks_notes SET value = %(value)s WHERE namespace = %(namespace)s AND name = %(name)s AND value = %(found)s
RETURNING true
"""

# ---- creation

_TASK = """
task AS (
    INSERT INTO mcp_tasks_tasks (
        id, version, namespace, owner, session, parent, idempotency_key, method, name, queue, rank, status, worker,
        created, ready, since, expires, handed, at_work, resuming, state, size, kept, key_outlives
    )
    SELECT %(id)s, %(version)s, %(namespace)s, %(owner)s, %(session)s::text, %(parent)s::text, %(key)s::text,
        %(method)s, %(name)s, %(queue)s, %(rank)s, %(status)s, %(worker)s::text, %(created)s, %(ready)s::bigint,
        %(since)s::bigint, %(expires)s::bigint, {handed}, %(at_work)s, %(resuming)s, %(state)s,
        %(grown)s, CASE WHEN %(final)s THEN %(grown)s::bigint END, %(outlives)s::bigint
    {unless} ON CONFLICT DO NOTHING RETURNING key, handed
), request AS (
    INSERT INTO mcp_tasks_requests (task, request) SELECT key, %(request)s FROM task
)
"""
_CREATE = f"WITH {_TASK} SELECT true, handed FROM task"

# The second creation under a key waits, and finds nothing: the task was not there yet when it began to look. A key that
# outlived its task and is free again, or is taken over, is the new task's from then on. It is looked for by the key and
# not among all by their time, hence the sum.
_CREATE_UNDER_KEY = f"""
WITH standing AS (
    SELECT id, owner, namespace, state, version, status, expires, expires + key_outlives AS until
    FROM mcp_tasks_tasks WHERE {UNDER_KEY}
), child AS (
    {{child}}
), spent AS (
    SELECT until FROM mcp_tasks_spent_keys WHERE {UNDER_KEY} AND until + 0 > %(created)s AND NOT %(until_end)s
), {_TASK} {{kept}}, freed AS (
    DELETE FROM mcp_tasks_spent_keys WHERE {UNDER_KEY} AND EXISTS (SELECT FROM task)
)
SELECT true, handed, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM task
UNION ALL SELECT false, false, id, owner, namespace, state, version, status, expires, until, (SELECT id FROM child)
FROM standing
UNION ALL SELECT false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, id FROM child
UNION ALL SELECT false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, until, NULL FROM spent
"""
_UNLESS_STANDING = """
WHERE NOT EXISTS (SELECT FROM standing) AND NOT EXISTS (SELECT FROM child) AND NOT EXISTS (SELECT FROM spent)
"""
_NO_CHILD = "SELECT NULL::text AS id WHERE false"
# The child that the key stands for while its parent is open, whatever became of it; NULL if the parent is not open.
_CHILD = f"""
SELECT c.task AS id FROM (SELECT) one LEFT JOIN mcp_tasks_tasks p ON {_OPEN_PARENT}
LEFT JOIN mcp_tasks_child_keys c ON c.parent = p.id AND c.idempotency_key = %(key)s
    AND c.namespace = %(namespace)s AND c.owner = %(owner)s
WHERE NOT %(until_end)s AND (p.id IS NULL OR c.task IS NOT NULL)
"""
# With a lock: a parent that ends at the same time either waits, and removes the key, or was first, and none is kept.
_KEPT_CHILD = f"""
, kept AS (
    INSERT INTO mcp_tasks_child_keys (parent, idempotency_key, namespace, owner, task)
    SELECT p.id, %(key)s, %(namespace)s, %(owner)s, %(id)s FROM mcp_tasks_tasks p
    WHERE {_OPEN_PARENT} AND EXISTS (SELECT FROM task) FOR SHARE OF p
    ON CONFLICT (parent, idempotency_key, namespace, owner) DO UPDATE SET task = excluded.task
)
"""
_GIVES_WAY = (
    "WHERE id = %(standing)s AND version = %(at)s AND NOT EXISTS (SELECT FROM mcp_tasks_tasks WHERE id = %(id)s)"
)
_DELETE_STANDING = f"DELETE FROM mcp_tasks_tasks {_GIVES_WAY} RETURNING key".encode()
_FREE_KEY = (
    f"UPDATE mcp_tasks_tasks SET idempotency_key = NULL, key_outlives = NULL {_GIVES_WAY} RETURNING key".encode()
)

_COUNT = "(SELECT count(*) FROM (SELECT FROM mcp_tasks_tasks t WHERE {where} AND {of} LIMIT {limit}) counted)"
"""How many tasks of a namespace there are, up to a limit."""
_HERE = "t.namespace = %(namespace)s"


class Create:
    """One new task. Its job is written with it, if that is for this database."""

    def __init__(self, new: Creation, job: Statement | None) -> None:
        record, handing, outlives = new.record, new.handing, new.key_outlives
        self._until_end = new.key_until_end
        self._job = job
        self._values = columns_of(record, new.state, to_text) | _identity(record)
        self._values |= {
            "key": to_key(new.key),
            "request": new.request,
            "grown": len(new.request),
            "outlives": None if outlives is None else outlives // MICROSECOND,
            "until_end": new.key_until_end,
        }
        sql = (_CREATE if new.key is None else _CREATE_UNDER_KEY).format(
            handed="false" if handing is None or not self._values["queued"] else self._within(record, handing.share),
            unless="" if new.key is None else _UNLESS_STANDING,
            child=_NO_CHILD if record.parent is None else _CHILD,
            kept="" if record.parent is None else _KEPT_CHILD,
        )
        self.query: Query = sql.encode(), self._values

    def _within(self, record: TaskRecord, share: Share) -> str:
        """The condition under which the task is dispatched."""
        tool = "t.name = %(name)s AND t.method = %(method)s"
        route = f"t.handed AND t.owner = %(owner)s AND t.queue = %(queue)s AND {tool}"
        counts: dict[str, tuple[int, str]] = {"share_of_owner": (share.owner, route)}
        if share.owner_at_work is not None:
            counts["share_at_work"] = share.owner_at_work, f"{_OF_OWNER} AND NOT t.handed AND t.owner = %(owner)s"
        if record.method == TOOL_METHOD and record.name in share.tools:
            counts["share_of_tool"] = share.tools[record.name], f"{_OF_TOOL} AND {tool}"
        self._values |= {limit: number for limit, (number, _) in counts.items()}
        return " AND ".join(
            f"{_COUNT.format(where=_HERE, of=of, limit=f'%({limit})s')} < %({limit})s"
            for limit, (_, of) in counts.items()
        )

    async def run(self, session: Session) -> Created:
        """Write it, or find what stands in its place."""
        before: Sequence[Query] = ()
        created = self._values["created"]
        while True:
            row = await self._insert(session, *before)
            if row is not None and row[0]:
                return Created(handed=row[1], carried=row[1] and self._job is not None)
            if (row is None or before) and await session.rows(_EXISTS, {"id": self._values["id"]}):
                return Created(exists=True)
            if row is None:
                # Under a key another call may have been first, or have let go of it, in this very moment.
                before = ()
                continue
            _, _, task_id, *found, version, status, expires, until, child = row
            child = None if child is None else from_text(child)
            loses_key = self._until_end and status in FINAL
            if task_id is not None and not loses_key and (expires is None or expires > created):
                return Created(standing=row_of(task_id, *found))
            if not loses_key and (task_id is None or child is not None or (until is not None and until > created)):
                return Created(spent=True, child=child)
            gives_way = self._values | {"standing": task_id, "at": version}
            before = [(_FREE_KEY if loses_key else _DELETE_STANDING, gives_way)]

    async def _insert(self, session: Session, *before: Query) -> Row | None:
        """The row of the statement: whether the task was made, and otherwise the one that stands under its key."""
        if self._job is None and not before:
            rows = await session.rows(*self.query)
            return rows[0] if rows else None
        rows: list[Row] = []

        def then(found: list[list[Row]]) -> Sequence[Query]:
            rows[:] = found[-1]
            if not rows or not rows[0][0]:
                return [(b"ROLLBACK", {})]
            return [(self._job.text.encode(), self._job.values)] if self._job is not None and rows[0][1] else []

        try:
            await session.transaction(*before, self.query, then=then)
        except psycopg.Error as exc:
            if self._job is None or is_lost(exc) or is_collision(exc):
                raise
            # The engine's part may be missing or of another release. The task is worth more than the transaction.
            logger.warning("a job cannot be written beside its task, and is submitted by itself: %s", quiet_what(exc))
            self._job = None
            await session.rollback()
            return await self._insert(session, *before)
        return rows[0] if rows else None


# ---- dispatch
# Waiting tasks are read in one statement, for a fair choice among it (`stores/fairness.py`).

MOST_GROUPS: Final = 2_000
"""Groups of one queue in one look: some ten milliseconds."""

MOST_TASKS: Final = 4_000
"""Tasks in one look, where that is more than one of each group."""

_WAITS = f"t.ready = {AT_ANY_TIME} AND NOT t.handed AND {_HERE}"
_GROUP = "t.rank, t.owner, t.method, t.name"
_NEXT_GROUP = f"""
    SELECT {_GROUP} FROM mcp_tasks_tasks t
    WHERE {_WAITS} AND t.queue = {{queue}} AND ({_GROUP}) > ({{behind}}) ORDER BY {_GROUP} LIMIT 1
"""
_SEEN = """
    coalesce(seen.rank, -9223372036854775808), coalesce(seen.owner, ''), coalesce(seen.method, ''),
    coalesce(seen.name, '')
"""
_ROUTE = "t.handed AND t.owner = g.owner AND t.queue = g.queue AND t.name = g.name AND t.method = g.method"
_HANDED = _COUNT.format(where=_HERE, of=_ROUTE, limit="%(of_owner)s")
_AT_WORK = _COUNT.format(
    where=_HERE, of=f"{_OF_OWNER} AND NOT t.handed AND t.owner = g.owner", limit="%(at_work)s::bigint"
)
_TOOL_IN_HAND = _COUNT.format(
    where=_HERE, of=f"{_OF_TOOL} AND t.name = tool.name AND t.method = %(method)s", limit="tool.most"
)

_LOOK = f"""
WITH RECURSIVE queues AS (
    (SELECT t.queue FROM mcp_tasks_tasks t WHERE {_WAITS} ORDER BY t.queue LIMIT 1)
    UNION ALL
    SELECT following.queue FROM queues q, LATERAL (
        SELECT t.queue FROM mcp_tasks_tasks t WHERE {_WAITS} AND t.queue > q.queue ORDER BY t.queue LIMIT 1
    ) following
), groups AS (
    SELECT q.queue, first.*, 1 AS number FROM queues q
    LEFT JOIN unnest(%(queues_seen)s::text[], %(ranks)s::bigint[], %(owners)s::text[], %(methods)s::text[],
        %(names)s::text[]) AS seen (queue, rank, owner, method, name) ON seen.queue = q.queue,
    LATERAL ({_NEXT_GROUP.format(queue="q.queue", behind=_SEEN)}) first
    WHERE %(queues)s::text[] IS NULL OR q.queue = ANY(%(queues)s::text[])
    UNION ALL
    SELECT g.queue, following.*, g.number + 1 FROM groups g,
    LATERAL ({_NEXT_GROUP.format(queue="g.queue", behind="g.rank, g.owner, g.method, g.name")}) following
    WHERE g.number < {MOST_GROUPS}
)
SELECT g.queue, g.rank, g.owner, g.method, g.name, g.handed, g.at_work, g.number, first.created, first.id
FROM (SELECT g.*, {_HANDED} AS handed, {_AT_WORK} AS at_work FROM groups g) g, LATERAL (
    SELECT t.created, t.id FROM mcp_tasks_tasks t
    WHERE {_WAITS} AND t.queue = g.queue AND t.rank = g.rank AND t.owner = g.owner AND t.method = g.method
        AND t.name = g.name
    ORDER BY t.created, t.id
    LIMIT least(%(limit)s::bigint, greatest(1, {MOST_TASKS} / greatest(1, (SELECT count(*) FROM groups))))
) first
UNION ALL
SELECT NULL, NULL, NULL, NULL, tool.name, {_TOOL_IN_HAND}, NULL, NULL, NULL, NULL
FROM unnest(%(tools)s::text[], %(most)s::bigint[]) AS tool (name, most)
""".encode()

_LOCK = b"SELECT pg_advisory_xact_lock(%(lock)s)"
_MARK = f"""
UPDATE mcp_tasks_tasks SET handed = true WHERE id = ANY(%(ids)s) AND ready = {AT_ANY_TIME} AND NOT handed RETURNING id
""".encode()


class Dispatch:
    """Chooses among the tasks that wait. While the store is open, it remembers whose turn was last."""

    def __init__(self) -> None:
        self._turns: Turns = {}
        # Where the last look at a queue ended that did not come to its end.
        self._seen: dict[tuple[str, str], Row] = {}

    async def run(
        self, session: Session, namespace: str, share: Share, *, queues: Collection[str] | None, mark: bool, limit: int
    ) -> Sequence[Ready]:
        """The tasks that are dispatched, marked if they are to be."""
        if limit <= 0 or share.owner <= 0:
            return []
        wanted = None if queues is None else [to_text(queue) for queue in queues]
        is_whole = not self._is_midway(namespace)
        while True:
            chosen = await self._once(session, namespace, share, wanted, mark, limit)
            # Behind what was looked at, or before it, there may be owners who have room.
            if chosen or (is_whole and not self._is_midway(namespace)):
                return chosen
            is_whole = is_whole or not self._is_midway(namespace)

    async def _once(
        self, session: Session, namespace: str, share: Share, wanted: list[str] | None, mark: bool, limit: int
    ) -> Sequence[Ready]:

        def choose(rows: Sequence[Row]) -> list[Ready]:
            waiting = _Looked(rows)
            limits = {(TOOL_METHOD, to_text(name)): most for name, most in share.tools.items()}
            chosen = Choice(waiting, Room(waiting, share, limits), wanted, limit).make(namespace, self._turns)
            self._remember(namespace, waiting, chosen)
            return chosen

        # Mostly nothing waits, and no lock has to be taken to see that.
        rows = await session.rows(*self._look(namespace, share, wanted, limit))
        if not mark or all(row[0] is None for row in rows):
            return choose(rows)
        chosen: list[Ready] = []

        def then(found: list[list[Row]]) -> Sequence[Query]:
            chosen[:] = choose(found[-1])
            return [(_MARK, {"ids": [to_text(ready.id) for ready in chosen]})] if chosen else []

        # Under a lock: two that dispatch at once would both find the same room.
        lock = _LOCK, {"lock": _lock_number("hand out", to_text(namespace))}
        look = self._look(namespace, share, wanted, limit)
        marked = {from_text(task_id) for (task_id,) in await session.transaction(lock, look, then=then)}
        return [ready for ready in chosen if ready.id in marked]

    def _look(self, namespace: str, share: Share, queues: list[str] | None, limit: int) -> Query:
        here = to_text(namespace)
        seen = [row for (where, _), row in self._seen.items() if where == namespace]
        names = ("queues_seen", "ranks", "owners", "methods", "names")
        return _LOOK, {
            "namespace": here,
            "queues": queues,
            "limit": min(limit, share.owner),
            "of_owner": share.owner,
            "at_work": share.owner_at_work,
            "method": TOOL_METHOD,
            "tools": [to_text(name) for name in share.tools],
            "most": list(share.tools.values()),
            **{name: [row[place] for row in seen] for place, name in enumerate(names)},
        }

    def _is_midway(self, namespace: str) -> bool:
        """Whether the next look begins where the last one ended."""
        return any(where == namespace for where, _ in self._seen)

    def _remember(self, namespace: str, waiting: _Looked, chosen: Sequence[Ready]) -> None:
        """The next look begins behind the last task that was chosen, or where this one ended if none was.

        One that began at the beginning and came to the end of a queue has seen all of it, and so will the next.
        """
        served = {
            to_text(each.queue): (
                *(to_text(each.queue), -each.priority, to_owner(each.owner)),
                *(to_text(each.method), to_text(each.name)),
            )
            for each in chosen
        }
        ends = {row[0]: row for row in waiting.cut_off}
        midway = {queue for where, queue in self._seen if where == namespace}
        self._seen = {key: row for key, row in self._seen.items() if key[0] != namespace}
        for queue in ends.keys() | (midway & served.keys()):
            self._seen[namespace, queue] = served.get(queue) or ends[queue]


class _Looked(Waiting):
    """The tasks of one look. Values are as in the index."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.cut_off: list[Row] = []  # the last group of each queue that has more
        self._values: dict[Step, Sequence[Any]] = {}
        self._places: dict[Step, list[Position]] = {}
        self._ready: dict[str, Ready] = {}
        self._handed: dict[Route, int] = {}
        self._at_work: dict[str, int] = {}
        self._of_tool: dict[tuple[str, str], int] = {}
        values: dict[Step, set[Any]] = {}
        for queue, rank, owner, method, name, handed, at_work, number, created, task_id in rows:
            if queue is None:
                self._of_tool[TOOL_METHOD, name] = handed
                continue
            step = queue, rank, owner, (method, name)
            for length, value in enumerate(step):
                values.setdefault(step[:length], set()).add(value)
            self._places.setdefault(step, []).append((created, task_id))
            self._handed[queue, owner, (method, name)], self._at_work[owner] = handed, at_work
            self._ready[task_id] = Ready(
                id=from_text(task_id),
                owner=from_owner(owner),
                method=from_text(method),
                name=from_text(name),
                queue=from_text(queue),
                priority=-rank,
            )
            if number == MOST_GROUPS:
                self.cut_off.append((queue, rank, owner, method, name))
        self._values = {step: sorted(found) for step, found in values.items()}

    def following(self, step: Step, after: Any = None) -> Any:
        values = self._values.get(step, ())
        place = 0 if after is None else bisect_right(values, after)
        return values[place] if place < len(values) else None

    def tasks(self, step: Step) -> Iterator[Position]:
        return iter(sorted(self._places.get(step, ())))

    def ready(self, task_id: str) -> Ready:
        return self._ready[task_id]

    def handed(self, route: Route, most: int) -> int:
        return self._handed[route]

    def owner_at_work(self, owner: str, most: int) -> int:
        return self._at_work[owner]

    def of_tool(self, tool: tuple[str, str], most: int) -> int:
        return self._of_tool[tool]
