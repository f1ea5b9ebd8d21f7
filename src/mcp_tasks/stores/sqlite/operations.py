"""The writes of the store as operations for the `Writer`.

What they write was encoded by their caller, so that the transaction is short and a value that is no JSON fails where it
came from. Each function returns what the writer's thread is to do. Conflicts show in the row count: an exception or a
savepoint for each would cost more than the write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from mcp_tasks.core.record import ALWAYS, Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import LimitReached, StoreError, VersionConflict
from mcp_tasks.stores.columns import (
    MICROSECOND,
    expiry,
    is_at_work,
    is_resuming,
    queued_since,
    ready,
    sort_key,
    to_micros,
)
from mcp_tasks.stores.encoding import Line
from mcp_tasks.stores.fairness import Turns
from mcp_tasks.stores.shares import Ready, Share, WorkLimits
from mcp_tasks.stores.sqlite.connection import fetch, to_text
from mcp_tasks.stores.sqlite.queries import NOTE
from mcp_tasks.stores.sqlite.reader import Read
from mcp_tasks.stores.sqlite.waiting import (
    AT_WORK,
    HANDED,
    RESUMING,
    WAITS,
    Decode,
    InHand,
    SqliteWaiting,
    owner_key,
    tool_digest,
)
from mcp_tasks.stores.sqlite.writer import Operation

Row: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Created:
    """What came of a creation.

    Attributes:
        standing: The row (id, owner, namespace, state) that stands under the key; None if the task was made.
        handed: Whether the new task is handed out.
        spent: Whether the key is taken though its task is gone; then nothing was made.
        child: Which task that was, if its parent is open. None as well if the parent has ended or is gone.
        exists: Whether there is a task of this id already; then nothing was made.
    """

    standing: Row | None = None
    handed: bool = False
    spent: bool = False
    child: str | bytes | None = None
    exists: bool = False


class _Waits:
    """The columns that decide who is next."""

    def __init__(self, record: TaskRecord) -> None:
        self.is_queued = record.ready_at == ALWAYS
        self.since = queued_since(record) if self.is_queued else None
        at_work = RESUMING if is_resuming(record) else AT_WORK if is_at_work(record) else None
        self.hand = WAITS if self.is_queued else at_work
        self._record = record
        self.row = (to_text(record.queue), record.priority, tool_digest(record.method, record.name))

    def fits(self, share: Share, read: Read) -> bool:
        """Whether the task is queued, and may be handed out within the share."""
        queue, _, tool = self.row
        route = queue, owner_key(self._record.owner), tool
        return self.is_queued and InHand(read, self._record.namespace).room(share).has(route)


_INSERT_TASK = """
INSERT INTO tasks (
    id, version, namespace, owner, session, parent, idempotency_key, status, worker, created, ready, expires, state,
    queue, priority, tool, key_outlives, since, hand, seq
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT seq FROM meta)) ON CONFLICT (id) DO NOTHING
"""
_INSERT_REQUEST = "INSERT INTO requests (task, request) VALUES (?, ?)"
# What never changes is left out, so that its indexes are not touched; but for the tool, which a migration cannot read
# where tasks are encrypted. What stays queued stays as it is with those who wait.
_UPDATE_TASK = """
UPDATE tasks
SET version = ?, session = ?, status = ?, worker = ?, ready = ?, expires = ?, state = ?, queue = ?, priority = ?,
    tool = ?, since = CASE WHEN ? AND hand IN (0, 1) THEN since ELSE ? END,
    hand = CASE WHEN ? THEN hand IS 1 ELSE ? END, seq = (SELECT seq FROM meta)
WHERE id = ? AND version = ?
"""
_VERSION = "SELECT version, hand FROM tasks WHERE id = ?"
_MARK = "UPDATE tasks SET hand = 1 WHERE id = ? AND hand = 0"
_HAND_BACK = "UPDATE tasks SET hand = 0 WHERE id = ? AND hand = 1"
_INSERT_ENTRY = "INSERT INTO journal (task, kind, key, value) SELECT key, ?, ?, ? FROM tasks WHERE id = ?"
_INSERT_OUTCOME = "INSERT OR REPLACE INTO outcomes (task, body, meta) SELECT key, ?, ? FROM tasks WHERE id = ?"
_DELETE_TASK = "DELETE FROM tasks WHERE id = ? AND version = ?"
_STANDING = """
SELECT key, status, expires, expires + key_outlives, id, owner, namespace, state FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND ifnull(owner, 0) = ifnull(?, 0)
"""
_FIND = "SELECT key FROM tasks WHERE id = ?"
_DELETE_STANDING = "DELETE FROM tasks WHERE key = ?"
_FREE_KEY = "UPDATE tasks SET idempotency_key = NULL, key_outlives = NULL WHERE key = ?"
SPENT = "SELECT until FROM spent_keys WHERE idempotency_key = ? AND namespace = ? AND owner = ifnull(?, 0)"
CHILD = """
SELECT c.task FROM tasks p LEFT JOIN child_keys c
    ON c.parent = p.id AND c.idempotency_key = ?2 AND c.namespace = ?3 AND c.owner = ifnull(?4, 0)
WHERE p.id = ?1 AND p.status NOT IN ('completed', 'failed', 'cancelled')
"""
_KEEP_CHILD = """
INSERT OR REPLACE INTO child_keys
SELECT id, ?, ?, ifnull(?, 0), ? FROM tasks WHERE id = ? AND status NOT IN ('completed', 'failed', 'cancelled')
"""
FREE_SPENT = "DELETE FROM spent_keys WHERE idempotency_key = ? AND namespace = ? AND owner = ifnull(?, 0)"
_OUTLIVED = """
SELECT ? + key_outlives, idempotency_key, namespace, owner FROM tasks
WHERE id = ? AND version = ? AND key_outlives IS NOT NULL AND idempotency_key IS NOT NULL
"""
SPEND = "UPDATE spent_keys SET until = ? WHERE idempotency_key = ? AND namespace = ? AND owner = ifnull(?, 0)"
_FINAL = frozenset(status.value for status in TaskStatus if status.is_final)
_BEAT = """
INSERT INTO heartbeats (worker, namespace, beats) VALUES (?1, ?2, ifnull(?3, 1))
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace, beats = max(beats, ifnull(?3, beats + 1))
"""
_DELETE_HEARTBEAT = "DELETE FROM heartbeats WHERE worker = ?"
_SET_NOTE = "INSERT OR REPLACE INTO notes (namespace, name, value) VALUES (?, ?, ?)"

KEPT: Final = object()
"""What `set_note` gives for a note that it kept."""


def create(
    record: TaskRecord,
    *,
    state: bytes,
    request: bytes,
    outcome: Outcome | None = None,
    key: str | None = None,
    key_until_end: bool = False,
    key_outlives: timedelta | None = None,
    share: Share | None = None,
) -> Operation[Created]:
    """Insert a task with its request and its outcome, unless a task stands under the key."""
    place = under, namespace, owner = _optional_text(key), to_text(record.namespace), _optional_text(record.owner)
    waits = _Waits(record)
    row = (
        to_text(record.id),
        record.version,
        namespace,
        owner,
        _optional_text(record.session),
        _optional_text(record.parent),
        under,
        record.status.value,
        _optional_text(record.worker),
        sort_key(record),
        ready(record),
        expiry(record),
        state,
        *waits.row,
        None if key is None or key_outlives is None else key_outlives // MICROSECOND,
    )
    now, parent = sort_key(record), _optional_text(record.parent)

    def spent_for(cursor: sqlite3.Cursor) -> Created | None:
        """What the parent keeps from being made: its child under this key, or any, if it is not open."""
        if parent is None or key_until_end:
            return None
        rows = cursor.execute(CHILD, (parent, *place)).fetchall()
        return Created(spent=True, child=rows[0][0] if rows else None) if rows != [(None,)] else None

    def find(cursor: sqlite3.Cursor) -> Created | StoreError | None:
        """What is in the way of a task under this key; what need not be is taken out of it."""
        # Under the write lock: whoever comes second under a key finds the first.
        for standing, status, expires, until, *found in cursor.execute(_STANDING, place).fetchall():
            loses_key = key_until_end and status in _FINAL
            if not loses_key and (expires is None or expires > now):
                return Created(standing=found)
            if (spent := spent_for(cursor)) is not None:
                return spent
            if not loses_key and until is not None and until > now:
                return Created(spent=True)
            if cursor.execute(_FIND, row[:1]).fetchall():
                return Created(exists=True)
            cursor.execute(_FREE_KEY if loses_key else _DELETE_STANDING, (standing,))
            return None
        if (spent := spent_for(cursor)) is not None:
            return spent
        for (until,) in cursor.execute(SPENT, place).fetchall():
            if until > now and not key_until_end:
                return Created(spent=True)
            if cursor.execute(_FIND, row[:1]).fetchall():
                return Created(exists=True)
            cursor.execute(FREE_SPENT, place)
        return None

    def run(cursor: sqlite3.Cursor) -> Created | StoreError:
        if key is not None and (found := find(cursor)) is not None:
            return found
        handed = share is not None and waits.fits(share, partial(fetch, cursor.connection))
        if cursor.execute(_INSERT_TASK, (*row, waits.since, HANDED if handed else waits.hand)).rowcount == 0:
            return Created(exists=True)
        cursor.execute(_INSERT_REQUEST, (cursor.lastrowid, request))
        if outcome is not None:
            cursor.execute(_INSERT_OUTCOME, (outcome.body, outcome.meta, row[0]))
        if key is not None and parent is not None:
            cursor.execute(_KEEP_CHILD, (*place, row[0], parent))
        return Created(handed=handed)

    return run


def save(
    record: TaskRecord,
    *,
    expected: int,
    state: bytes,
    lines: Sequence[Line] = (),
    outcome: Outcome | None = None,
    limits: WorkLimits | None = None,
) -> Operation[bool]:
    """Update a task, append to its journal and keep its outcome; False if it is at another version, or gone."""
    task_id = to_text(record.id)
    waits = _Waits(record)
    row = (
        record.version,
        _optional_text(record.session),
        record.status.value,
        _optional_text(record.worker),
        ready(record),
        expiry(record),
        state,
        *waits.row,
        waits.is_queued,
        waits.since,
        waits.is_queued,
        waits.hand,
    )

    def run(cursor: sqlite3.Cursor) -> bool | StoreError:
        if limits is not None and (refusal := _refusal(record, expected, limits, cursor)) is not None:
            return refusal
        if cursor.execute(_UPDATE_TASK, (*row, task_id, expected)).rowcount == 0:
            return False
        for kind, key, value in lines:
            cursor.execute(_INSERT_ENTRY, (kind, to_text(key), value, task_id))
        if outcome is not None:
            cursor.execute(_INSERT_OUTCOME, (outcome.body, outcome.meta, task_id))
        return True

    return run


def _refusal(record: TaskRecord, expected: int, limits: WorkLimits, cursor: sqlite3.Cursor) -> StoreError | None:
    """Which limit keeps the task from being claimed, if it is at the expected version.

    Under the write lock, so that nothing is claimed between counting and writing.
    """
    found = cursor.execute(_VERSION, (to_text(record.id),)).fetchall()
    if not found or found[0][0] != expected:
        return None
    # A task that is at work does not count against itself, and of those that are resuming none against another.
    up_to = AT_WORK if found[0][1] == RESUMING else RESUMING
    itself = int(found[0][1] == AT_WORK)
    in_hand = InHand(partial(fetch, cursor.connection), record.namespace)
    if limits.tool is not None:
        tool = tool_digest(record.method, record.name)
        if in_hand.tool_at_work(tool, limits.tool + itself, up_to) - itself >= limits.tool:
            return LimitReached(record.id, "tool")
    if limits.owner is not None:
        owner = owner_key(record.owner)
        if in_hand.owner_at_work(owner, limits.owner + itself, up_to) - itself >= limits.owner:
            return LimitReached(record.id, "owner")
    return None


def hand_out(
    namespace: str, share: Share, *, queues: Collection[str] | None, limit: int, turns: Turns, decode: Decode
) -> Operation[list[Ready]]:
    """Choose tasks and mark them."""

    def run(cursor: sqlite3.Cursor) -> list[Ready]:
        waiting = SqliteWaiting(partial(fetch, cursor.connection), namespace, decode)
        chosen = waiting.choose(share, queues, limit, turns)
        cursor.executemany(_MARK, [(to_text(task.id),) for task in chosen])
        return chosen

    return run


def hand_back(task_id: str) -> Operation[None]:
    """Take the mark from a task."""

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_HAND_BACK, (to_text(task_id),))

    return run


def delete(task_id: str, *, expected: int, now: datetime | None = None) -> Operation[None]:
    """Remove a task; a trigger removes what is kept beside it, and keeps its key if that outlives it."""
    which, instant = (to_text(task_id), expected), None if now is None else to_micros(now)

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        outlived = [] if instant is None else cursor.execute(_OUTLIVED, (instant, *which)).fetchall()
        if not cursor.execute(_DELETE_TASK, which).rowcount:
            return VersionConflict(task_id, expected)
        cursor.executemany(SPEND, outlived)
        return None

    return run


def heartbeat(worker: str, *, namespace: str, beats: int | None) -> Operation[None]:
    """Count one heartbeat more, or as many as the worker has counted."""
    row = (to_text(worker), to_text(namespace), beats)

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_BEAT, row)

    return run


def retire(worker: str) -> Operation[None]:
    """Forget the heartbeat of a worker."""

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_DELETE_HEARTBEAT, (to_text(worker),))

    return run


def set_note(namespace: str, name: str, *, value: bytes, is_expected: Callable[[object], bool]) -> Operation[object]:
    """Keep a note, already encoded, if what is there (None for nothing) is what was expected; otherwise gives that."""
    place = (to_text(namespace), to_text(name))

    def run(cursor: sqlite3.Cursor) -> object:
        rows = cursor.execute(NOTE, place).fetchall()
        found = rows[0][0] if rows else None
        try:
            # By what it says: encrypted bytes differ each time, whatever is in them.
            if not is_expected(found):
                return found
        except StoreError as exc:
            return exc
        cursor.execute(_SET_NOTE, (*place, value))
        return KEPT

    return run


def _optional_text(text: str | None) -> str | bytes | None:
    return None if text is None else to_text(text)
