"""Making a task: its row, its request, its outcome if it has ended, what stands under its key, and its job.

One round trip makes a task or finds the one under its key; with a job that is written beside it, two. One more where a
task under the key has to give way first.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import psycopg

from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.statement import Statement
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.stores.columns import MICROSECOND
from mcp_tasks.stores.encoding import size_of
from mcp_tasks.stores.fairness import TOOL_METHOD
from mcp_tasks.stores.postgres.database import Query, Row, Session
from mcp_tasks.stores.postgres.failures import is_collision, is_lost
from mcp_tasks.stores.postgres.queries import OF_OWNER, OF_TOOL
from mcp_tasks.stores.postgres.text import to_key
from mcp_tasks.stores.postgres.writes import identity_of, row_of
from mcp_tasks.stores.shares import Handing, Share

logger: Final = get_logger(__name__)

_TASK = """
task AS (
    INSERT INTO mcp_tasks_tasks (
        id, version, namespace, owner, session, parent, idempotency_key, method, name, queue, rank, status, worker,
        created, ready, since, expires, handed, at_work, resuming, state, size, kept, key_outlives
    )
    SELECT %(id)s, %(version)s, %(namespace)s, %(owner)s, %(session)s::text, %(parent)s::text, %(key)s::text,
        %(method)s, %(name)s, %(queue)s, %(rank)s, %(status)s, %(worker)s::text, %(created)s, %(ready)s::bigint,
        CASE WHEN %(queued)s THEN %(since)s END, %(expires)s::bigint, {handed}, %(at_work)s, %(resuming)s, %(state)s,
        %(grown)s, CASE WHEN %(final)s THEN %(grown)s::bigint END, %(outlives)s::bigint
    {unless} ON CONFLICT DO NOTHING RETURNING key, handed
), request AS (
    INSERT INTO mcp_tasks_requests (task, request) SELECT key, %(request)s FROM task
)
"""
_OUTCOME = """
, outcome AS (
    INSERT INTO mcp_tasks_outcomes (task, body, meta) SELECT key, %(body)s, %(meta)s FROM task
)
"""
_CREATE = f"WITH {_TASK} {{outcome}} SELECT true, handed FROM task"

_UNDER_KEY = "idempotency_key = %(key)s AND namespace = %(namespace)s AND owner = %(owner)s"

# Who comes second under a key waits, and finds nothing: the task was not there yet when it began to look. A key that
# outlived its task and is free again, or is taken over, is the new task's from then on. It is looked for by the key and
# not among all by their time, hence the sum.
_CREATE_UNDER_KEY = f"""
WITH standing AS (
    SELECT id, owner, namespace, state, version, status, expires, expires + key_outlives AS until
    FROM mcp_tasks_tasks WHERE {_UNDER_KEY}
), child AS (
    {{child}}
), spent AS (
    SELECT until FROM mcp_tasks_spent_keys WHERE {_UNDER_KEY} AND until + 0 > %(created)s AND NOT %(until_end)s
), {_TASK} {{outcome}} {{kept}}, freed AS (
    DELETE FROM mcp_tasks_spent_keys WHERE {_UNDER_KEY} AND EXISTS (SELECT FROM task)
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
_OPEN_PARENT = "p.id = %(parent)s AND p.status NOT IN ('completed', 'failed', 'cancelled')"
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
_EXISTS = b"SELECT FROM mcp_tasks_tasks WHERE id = %(id)s"
_FINAL: Final = frozenset(status.value for status in TaskStatus if status.is_final)

_FEWER = """
(SELECT count(*) FROM (
    SELECT FROM mcp_tasks_tasks WHERE {where} AND namespace = %(namespace)s LIMIT %({limit})s
) counted) < %({limit})s
"""


class Create:
    """One new task.

    Attributes:
        standing: Id, owner, namespace and state of the task that stands under the key instead, if one does.
        is_spent: Whether the key is taken though its task is gone; then nothing was made.
        child: Which task that was, if its parent is open. None as well if the parent has ended or is gone.
        exists: Whether there is a task of this id already; then nothing was made.
    """

    def __init__(
        self,
        record: TaskRecord,
        *,
        state: bytes,
        request: bytes,
        key: str | None,
        key_until_end: bool,
        key_outlives: timedelta | None,
        handing: Handing | None,
        job: Statement | None,
        outcome: Outcome | None,
    ) -> None:
        self._record = record
        self._until_end = key_until_end
        self._handing = handing
        self._job = job
        self._values = row_of(record, state=state) | identity_of(record) | {"key": to_key(key), "request": request}
        outlives = None if key is None or key_outlives is None else key_outlives // MICROSECOND
        self._values |= {"grown": len(request), "outlives": outlives, "until_end": key_until_end}
        if outcome is not None:
            self._values |= {"body": outcome.body, "meta": outcome.meta, "grown": len(request) + size_of(outcome)}
        handed = "false" if handing is None or not self._values["queued"] else self._within(handing.share)
        sql = _CREATE if key is None else _CREATE_UNDER_KEY
        self._sql = sql.format(
            handed=handed,
            unless="" if key is None else _UNLESS_STANDING,
            outcome="" if outcome is None else _OUTCOME,
            child=_NO_CHILD if record.parent is None else _CHILD,
            kept="" if record.parent is None else _KEPT_CHILD,
        ).encode()
        self.standing: Row | None = None
        self.is_spent: bool = False
        self.child: str | None = None
        self.exists: bool = False

    @property
    def query(self) -> Query:
        """The statement that makes the task, unless something is in its way."""
        return self._sql, self._values

    async def run(self, session: Session) -> None:
        """Write it, or find what stands in its place."""
        before: Sequence[Query] = ()
        while True:
            made, found = await self._insert(session, *before)
            if made:
                return
            if found is None or before:
                self.exists = bool(await session.rows(_EXISTS, {"id": self._values["id"]}))
                if self.exists:
                    return
            if found is None:
                # Under a key somebody may have been first, or have let go of it, in this very moment.
                before = ()
                continue
            task_id, *_, version, status, expires, until, self.child = found
            if task_id is None:
                self.is_spent = True
                return
            loses_key = self._until_end and status in _FINAL
            if not loses_key and (expires is None or expires > self._values["created"]):
                self.standing = found[:4]
                return
            if not loses_key and (self.child is not None or (until is not None and until > self._values["created"])):
                self.is_spent = True
                return
            gives_way = self._values | {"standing": task_id, "at": version}
            before = [(_FREE_KEY if loses_key else _DELETE_STANDING, gives_way)]

    async def _insert(self, session: Session, *before: Query) -> tuple[bool, Row | None]:
        """Whether the task was made, and otherwise what stands under its key."""
        query = self.query
        if self._job is None and not before:
            return self._told(await session.rows(*query))
        rows: list[Row] = []

        def then(found: list[list[Row]]) -> Sequence[Query]:
            rows[:] = found[-1]
            if not rows or not rows[0][0]:
                return [(b"ROLLBACK", {})]
            return [(self._job.text.encode(), self._job.values)] if self._job is not None and rows[0][1] else []

        try:
            await session.in_two_parts(*before, query, then=then)
        except psycopg.Error as exc:
            if self._job is None or is_lost(exc) or is_collision(exc):
                raise
            # The engine's part may be missing or of another release. The task is worth more than the transaction.
            logger.warning("a job cannot be written beside its task, and is submitted by itself: %s", what(exc))
            self._job = None
            await session.rollback()
            return await self._insert(session, *before)
        return self._told(rows)

    def _told(self, rows: Sequence[Row]) -> tuple[bool, Row | None]:
        if not rows:
            return False, None
        made, handed, *found = rows[0]
        if made and self._handing is not None:
            self._handing.handed = handed
            self._handing.carried = handed and self._job is not None
        return made, None if made else tuple(found)

    def _within(self, share: Share) -> str:
        """The condition under which the task is handed out."""
        tool = "name = %(name)s AND method = %(method)s"
        counts = {"share_of_owner": (share.owner, f"handed AND owner = %(owner)s AND queue = %(queue)s AND {tool}")}
        if share.owner_at_work is not None:
            counts["share_at_work"] = share.owner_at_work, f"{OF_OWNER} AND NOT handed AND owner = %(owner)s"
        if self._record.method == TOOL_METHOD and self._record.name in share.tools:
            counts["share_of_tool"] = share.tools[self._record.name], f"{OF_TOOL} AND {tool}"
        self._values |= {limit: number for limit, (number, _) in counts.items()}
        return " AND ".join(_FEWER.format(where=where, limit=limit) for limit, (_, where) in counts.items())
