"""The writes of the store as operations for the `Writer`.

What they write was encoded by their caller, so that the transaction is short and a value that is no JSON fails where it
came from. Each function returns what the writer's thread is to do. Conflicts show in the row count: an exception or a
savepoint for each would cost more than the write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import StoreError, TaskExists, VersionConflict
from mcp_tasks.stores.columns import expiry, ready, sort_key
from mcp_tasks.stores.encoding import Line
from mcp_tasks.stores.sqlite.connection import to_text
from mcp_tasks.stores.sqlite.queries import NOTE
from mcp_tasks.stores.sqlite.writer import Operation

Row: TypeAlias = Sequence[Any]

_INSERT_TASK = """
INSERT INTO tasks (
    id, version, namespace, owner, session, parent, idempotency_key, status, worker, created, ready, expires, state, seq
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT seq FROM meta)) ON CONFLICT (id) DO NOTHING
"""
_INSERT_REQUEST = "INSERT INTO requests (task, request) VALUES (?, ?)"
# What never changes is left out, so that its indexes are not touched.
_UPDATE_TASK = """
UPDATE tasks
SET version = ?, session = ?, status = ?, worker = ?, ready = ?, expires = ?, state = ?, seq = (SELECT seq FROM meta)
WHERE id = ? AND version = ?
"""
_INSERT_ENTRY = "INSERT INTO journal (task, kind, key, value) SELECT key, ?, ?, ? FROM tasks WHERE id = ?"
_INSERT_OUTCOME = "INSERT OR REPLACE INTO outcomes (task, body, meta) SELECT key, ?, ? FROM tasks WHERE id = ?"
_DELETE_TASK = "DELETE FROM tasks WHERE id = ? AND version = ?"
_STANDING = """
SELECT key, status, expires, id, owner, namespace, state FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND ifnull(owner, 0) = ifnull(?, 0)
"""
_FIND = "SELECT key FROM tasks WHERE id = ?"
_DELETE_STANDING = "DELETE FROM tasks WHERE key = ?"
_FREE_KEY = "UPDATE tasks SET idempotency_key = NULL WHERE key = ?"
_FINAL = frozenset(status.value for status in TaskStatus if status.is_final)
_BEAT = """
INSERT INTO heartbeats (worker, namespace, beats) VALUES (?, ?, 1)
ON CONFLICT (worker) DO UPDATE SET namespace = excluded.namespace, beats = beats + 1
"""
_DELETE_HEARTBEAT = "DELETE FROM heartbeats WHERE worker = ?"
_SET_NOTE = "INSERT OR REPLACE INTO notes (namespace, name, value) VALUES (?, ?, ?)"


def create(
    record: TaskRecord, *, state: bytes, request: bytes, key: str | None = None, key_until_end: bool = False
) -> Operation[Row | None]:
    """Insert a task and its request; gives the row (id, owner, namespace, state) that stands under the key instead."""
    place = (_optional_text(key), to_text(record.namespace), _optional_text(record.owner))
    row = (
        to_text(record.id),
        record.version,
        to_text(record.namespace),
        _optional_text(record.owner),
        _optional_text(record.session),
        _optional_text(record.parent),
        _optional_text(key),
        record.status.value,
        _optional_text(record.worker),
        sort_key(record),
        ready(record),
        expiry(record),
        state,
    )

    def run(cursor: sqlite3.Cursor) -> Row | StoreError | None:
        # Under the write lock: whoever comes second under a key finds the first.
        for standing, status, expires, *found in cursor.execute(_STANDING, place).fetchall() if key is not None else ():
            loses_key = key_until_end and status in _FINAL
            if not loses_key and (expires is None or expires > sort_key(record)):
                return found
            if cursor.execute(_FIND, row[:1]).fetchall():
                return TaskExists(record.id)
            cursor.execute(_FREE_KEY if loses_key else _DELETE_STANDING, (standing,))
        if cursor.execute(_INSERT_TASK, row).rowcount == 0:
            return TaskExists(record.id)
        cursor.execute(_INSERT_REQUEST, (cursor.lastrowid, request))
        return None

    return run


def save(
    record: TaskRecord, *, expected: int, state: bytes, lines: Sequence[Line] = (), outcome: Outcome | None = None
) -> Operation[None]:
    """Update a task, append to its journal and keep its outcome."""
    task_id = to_text(record.id)
    row = (
        record.version,
        _optional_text(record.session),
        record.status.value,
        _optional_text(record.worker),
        ready(record),
        expiry(record),
        state,
    )

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        if cursor.execute(_UPDATE_TASK, (*row, task_id, expected)).rowcount == 0:
            return VersionConflict(record.id, expected)
        for kind, key, value in lines:
            cursor.execute(_INSERT_ENTRY, (kind, to_text(key), value, task_id))
        if outcome is not None:
            cursor.execute(_INSERT_OUTCOME, (outcome.body, outcome.meta, task_id))
        return None

    return run


def delete(task_id: str, *, expected: int) -> Operation[None]:
    """Remove a task; a trigger removes what is kept beside it."""

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        removed = cursor.execute(_DELETE_TASK, (to_text(task_id), expected)).rowcount
        return None if removed else VersionConflict(task_id, expected)

    return run


def heartbeat(worker: str, *, namespace: str) -> Operation[None]:
    """Count one heartbeat more."""
    row = (to_text(worker), to_text(namespace))

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_BEAT, row)

    return run


def retire(worker: str) -> Operation[None]:
    """Forget the heartbeat of a worker."""

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_DELETE_HEARTBEAT, (to_text(worker),))

    return run


def set_note(namespace: str, name: str, *, value: bytes, is_expected: Callable[[object], bool]) -> Operation[bool]:
    """Keep a note, already encoded, if what is there (None for nothing) is what was expected."""
    place = (to_text(namespace), to_text(name))

    def run(cursor: sqlite3.Cursor) -> bool | StoreError:
        rows = cursor.execute(NOTE, place).fetchall()
        try:
            # By what it says: encrypted bytes differ each time, whatever is in them.
            if not is_expected(rows[0][0] if rows else None):
                return False
        except StoreError as exc:
            return exc
        cursor.execute(_SET_NOTE, (*place, value))
        return True

    return run


def _optional_text(text: str | None) -> str | bytes | None:
    return None if text is None else to_text(text)
