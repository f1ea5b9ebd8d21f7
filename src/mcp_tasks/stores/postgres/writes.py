"""The writes of the store: each is one statement, which is a transaction by itself, and so one round trip.

What they write was encoded by their caller. Conflicts show in what a statement gives back, not as errors.

When a connection breaks under a write, it is done again on another. By its version it can succeed only once; if it
meets a conflict, the write ids in the record tell whether that is its own doing (`stores.repeats`).
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.errors import LimitReached, VersionConflict
from mcp_tasks.stores.columns import expiry, is_at_work, is_resuming, queued_since, ready, sort_key, to_micros
from mcp_tasks.stores.encoding import Line, size_of
from mcp_tasks.stores.postgres.database import Query, Session
from mcp_tasks.stores.postgres.queries import AT_ANY_TIME, OF_OWNER, OF_TOOL
from mcp_tasks.stores.postgres.text import to_optional, to_owner, to_text
from mcp_tasks.stores.shares import WorkLimits

KEYS_AT_ONCE: Final = 200
"""Keys that outlived their tasks, and are forgotten with one slice of what has expired."""

# What never changes is left out, so that its indexes are not touched.
_UPDATE = """
UPDATE mcp_tasks_tasks t
SET version = %(version)s, session = %(session)s, queue = %(queue)s, rank = %(rank)s, status = %(status)s,
    worker = %(worker)s, ready = %(ready)s,
    since = CASE WHEN %(queued)s THEN coalesce(t.since, %(since)s) END, expires = %(expires)s,
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
_ROOM = f"""
own AS (
    SELECT coalesce((SELECT resuming FROM mcp_tasks_tasks WHERE id = %(id)s), false) AS resuming
), room AS (
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM mcp_tasks_tasks t
            WHERE {OF_TOOL} AND NOT handed AND id <> %(id)s AND NOT (t.resuming AND own.resuming)
                AND namespace = %(namespace)s AND name = %(name)s AND method = %(method)s
            LIMIT %(tool_limit)s::bigint
        ) others
    ) AS tool, (
        SELECT count(*) FROM (
            SELECT FROM mcp_tasks_tasks t
            WHERE {OF_OWNER} AND NOT handed AND id <> %(id)s AND NOT (t.resuming AND own.resuming)
                AND namespace = %(namespace)s AND owner = %(owner)s
            LIMIT %(owner_limit)s::bigint
        ) others
    ) AS owner FROM own
),
"""
_HAS_ROOM = """
(%(tool_limit)s::bigint IS NULL OR room.tool < %(tool_limit)s::bigint)
AND (%(owner_limit)s::bigint IS NULL OR room.owner < %(owner_limit)s::bigint)
"""
_THERE = "EXISTS (SELECT FROM mcp_tasks_tasks WHERE id = %(id)s AND version = %(expected)s)"

# Those who claim under one limit come one after the other. Of two locks, everybody takes the smaller first.
_LOCKS = b"SELECT pg_advisory_xact_lock(lock) FROM unnest(%(locks)s::bigint[]) AS lock ORDER BY lock"

# A trigger keeps the key, if that outlives its task, where no moment is given from which its time runs.
DELETE: Final = b"""
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
# Of those who ask at once, each takes what no other has its hands on. What was saved meanwhile is looked at again.
_FORGET_EXPIRED = """
WITH expired AS (
    SELECT id FROM mcp_tasks_tasks WHERE expires <= %(now)s ORDER BY expires, created, id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM mcp_tasks_tasks t USING expired WHERE t.id = expired.id RETURNING t.*
), over AS (
    SELECT idempotency_key, namespace, owner FROM mcp_tasks_spent_keys WHERE until <= %(now)s
    ORDER BY until LIMIT {keys} FOR UPDATE SKIP LOCKED
), freed AS (
    DELETE FROM mcp_tasks_spent_keys k USING over
    WHERE (k.idempotency_key, k.namespace, k.owner) = (over.idempotency_key, over.namespace, over.owner)
)
SELECT {wanted} FROM gone ORDER BY expires, created, id
"""
_EXISTS = b"SELECT FROM mcp_tasks_tasks WHERE id = %(id)s"
HAND_BACK = f"UPDATE mcp_tasks_tasks SET handed = false WHERE id = %(id)s AND handed AND ready = {AT_ANY_TIME}".encode()
BEAT = b"""
INSERT INTO mcp_tasks_heartbeats AS known (worker, namespace, beats)
VALUES (%(worker)s, %(namespace)s, coalesce(%(beats)s::bigint, 1))
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace,
    beats = greatest(known.beats, coalesce(%(beats)s::bigint, known.beats + 1))
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


def row_of(record: TaskRecord, *, state: bytes) -> dict[str, Any]:
    """What is written of a record, each time."""
    return {
        "id": to_text(record.id),
        "version": record.version,
        "session": to_optional(record.session),
        "queue": to_text(record.queue),
        "rank": -record.priority,
        "status": record.status.value,
        "worker": to_optional(record.worker),
        "ready": ready(record),
        "queued": ready(record) == AT_ANY_TIME,
        "since": queued_since(record),
        "expires": expiry(record),
        "at_work": is_at_work(record),
        "resuming": is_resuming(record),
        "final": record.is_final,
        "state": state,
    }


def identity_of(record: TaskRecord) -> dict[str, Any]:
    """What is written of a record once, when it is made."""
    return {
        "namespace": to_text(record.namespace),
        "owner": to_owner(record.owner),
        "parent": to_optional(record.parent),
        "method": to_text(record.method),
        "name": to_text(record.name),
        "created": sort_key(record),
    }


class Save:
    """A save: the update of a task, with what is appended to its journal, and its outcome."""

    def __init__(
        self,
        record: TaskRecord,
        *,
        expected: int,
        state: bytes,
        lines: Sequence[Line],
        outcome: Outcome | None,
        limits: WorkLimits | None,
    ) -> None:
        self._record = record
        self._limits = limits if limits is not None and (limits.tool, limits.owner) != (None, None) else None
        self._values = row_of(record, state=state) | {"expected": expected}
        grown = sum(len(value) for _, _, value in lines)
        if lines:
            kinds, keys, values = zip(*lines, strict=True)
            self._values |= {"kinds": list(kinds), "keys": [to_text(key) for key in keys], "values": list(values)}
        if outcome is not None:
            self._values |= {"body": outcome.body, "meta": outcome.meta}
            grown += size_of(outcome)
        self._values["grown"] = grown
        self._update = _UPDATE.format(size=_GROWN if outcome is None else _GROWN_BY_OUTCOME)
        self._rest = (_ENTRIES if lines else "") + (_OUTCOME if outcome is not None else "")

    async def run(self, session: Session) -> bool:
        """Write it; False if the task is at another version, or gone.

        Raises:
            LimitReached: As many as may be are at work.
        """
        return await (self._plain(session) if self._limits is None else self._claim(session, self._limits))

    async def _plain(self, session: Session) -> bool:
        where = "WHERE t.id = %(id)s AND t.version = %(expected)s RETURNING t.key"
        sql = f"WITH changed AS ({self._update} {where}) {self._rest} SELECT FROM changed"
        return bool(await session.rows(sql.encode(), self._values))

    async def _claim(self, session: Session, limits: WorkLimits) -> bool:
        identity = identity_of(self._record)
        values = self._values | identity | {"tool_limit": limits.tool, "owner_limit": limits.owner}
        where = f"FROM room WHERE t.id = %(id)s AND t.version = %(expected)s AND {_HAS_ROOM} RETURNING t.key"
        sql = f"""
            WITH {_ROOM} changed AS ({self._update} {where}) {self._rest}
            SELECT EXISTS (SELECT FROM changed), {_THERE}, tool, owner FROM room
        """
        locks = _locks(identity, limits)
        ((done, is_there, tool, owner),) = await session.transaction((_LOCKS, {"locks": locks}), (sql.encode(), values))
        if is_there and not done:
            for limit, others, what in ((limits.tool, tool, "tool"), (limits.owner, owner, "owner")):
                if limit is not None and others >= limit:
                    raise LimitReached(self._record.id, what)
        return bool(done)


def _locks(identity: dict[str, Any], limits: WorkLimits) -> list[int]:
    """Numbers for those who claim under the same limits. Two limits of one number only wait for each other."""
    names: list[tuple[str, ...]] = []
    if limits.tool is not None:
        names.append(("tool", identity["namespace"], identity["method"], identity["name"]))
    if limits.owner is not None:
        names.append(("owner", identity["namespace"], identity["owner"]))
    return [lock_number(*name) for name in names]


def lock_number(*name: str) -> int:
    """A number for an advisory lock, the same in all processes."""
    digest = hashlib.blake2b("\0".join(("mcp-tasks", *name)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def forget_expired(now: datetime, *, limit: int, states: bool) -> Query:
    """The statement that removes tasks that have expired, and gives version and id, and all that a record is made from.

    A trigger removes what is kept beside them.
    """
    wanted = "version, id, owner, namespace, state" if states else "version, id"
    return _FORGET_EXPIRED.format(wanted=wanted, keys=KEYS_AT_ONCE).encode(), {
        "now": to_micros(now),
        "limit": max(limit, 0),
    }


async def delete(session: Session, task_id: str, *, expected: int, now: datetime | None) -> None:
    """Remove a task; a trigger removes what is kept beside it."""
    values = {"id": to_text(task_id), "expected": expected, "now": None if now is None else to_micros(now)}
    if await session.rows(DELETE, values):
        return
    # Gone, and perhaps by this very call: what was wanted is so.
    if not session.again or await session.rows(_EXISTS, {"id": values["id"]}):
        raise VersionConflict(task_id, expected)
