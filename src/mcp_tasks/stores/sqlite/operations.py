"""The writes of the store as operations for the `Writer`.

Each function encodes in its caller, so that the transaction is short and a value that is no JSON fails where
it came from, and returns what the writer's thread is to do. Conflicts show in the row count: an exception
or a savepoint for each would cost more than the write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, TaskExists, VersionConflict
from mcp_tasks.stores.codec import encode_json, encode_request, encode_state, expiry, ready, sort_key
from mcp_tasks.stores.sqlite.connection import to_text
from mcp_tasks.stores.sqlite.writer import Operation

_INSERT_TASK = """
INSERT INTO tasks (id, version, owner, namespace, status, holder, created, ready, expires, state, seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT seq FROM meta)) ON CONFLICT (id) DO NOTHING
"""
_INSERT_REQUEST = "INSERT INTO requests (task, request) VALUES (?, ?)"
# Owner, namespace and creation never change, and are left out so that their indexes are not touched.
_UPDATE_TASK = """
UPDATE tasks SET version = ?, status = ?, holder = ?, ready = ?, expires = ?, state = ?, seq = (SELECT seq FROM meta)
WHERE id = ? AND version = ?
"""
_INSERT_ENTRY = "INSERT INTO journal (task, kind, key, value) SELECT key, ?, ?, ? FROM tasks WHERE id = ?"
_DELETE_TASK = "DELETE FROM tasks WHERE id = ? AND version = ?"
_BEAT = """
INSERT INTO heartbeats (holder, namespace, beats) VALUES (?, ?, 1)
ON CONFLICT (holder) DO UPDATE SET namespace = excluded.namespace, beats = beats + 1
"""
_DELETE_HEARTBEAT = "DELETE FROM heartbeats WHERE holder = ?"


def create(record: TaskRecord) -> Operation:
    """Insert a task and its request."""
    request = encode_request(record.request)
    row = (
        to_text(record.id),
        record.version,
        _optional_text(record.owner),
        to_text(record.namespace),
        record.status.value,
        _optional_text(record.holder),
        sort_key(record),
        ready(record),
        expiry(record),
        encode_state(record),
    )

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        if cursor.execute(_INSERT_TASK, row).rowcount == 0:
            return TaskExists(record.id)
        cursor.execute(_INSERT_REQUEST, (cursor.lastrowid, request))
        return None

    return run


def save(record: TaskRecord, *, expected: int, entries: Sequence[JournalEntry]) -> Operation:
    """Update a task and append to its journal."""
    task_id = to_text(record.id)
    row = (
        record.version,
        record.status.value,
        _optional_text(record.holder),
        ready(record),
        expiry(record),
        encode_state(record),
    )
    lines = [(entry.kind, to_text(entry.key), encode_json(entry.value), task_id) for entry in entries]

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        if cursor.execute(_UPDATE_TASK, (*row, task_id, expected)).rowcount == 0:
            return VersionConflict(record.id, expected)
        for line in lines:
            cursor.execute(_INSERT_ENTRY, line)
        return None

    return run


def delete(task_id: str, *, expected: int) -> Operation:
    """Remove a task; a trigger removes its request and journal."""

    def run(cursor: sqlite3.Cursor) -> StoreError | None:
        removed = cursor.execute(_DELETE_TASK, (to_text(task_id), expected)).rowcount
        return None if removed else VersionConflict(task_id, expected)

    return run


def beat(holder: str, *, namespace: str) -> Operation:
    """Count one heartbeat more."""
    row = (to_text(holder), to_text(namespace))

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_BEAT, row)

    return run


def retire(holder: str) -> Operation:
    """Forget the heartbeat of a holder."""

    def run(cursor: sqlite3.Cursor) -> None:
        cursor.execute(_DELETE_HEARTBEAT, (to_text(holder),))

    return run


def _optional_text(text: str | None) -> str | bytes | None:
    return None if text is None else to_text(text)
