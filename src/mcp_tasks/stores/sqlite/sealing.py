"""Whether a file is encrypted, and encrypting all of one, so that nothing in it or beside it can be read any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, note_id, part_id
from mcp_tasks.stores.encryption import NAME, NAMESPACE, ON, Resealed, Sample, Tally, begin, note_to_write
from mcp_tasks.stores.sqlite.file import connect, from_text, is_busy, to_text
from mcp_tasks.stores.sqlite.queries import NOTE

_SET_NOTE: Final = "INSERT OR REPLACE INTO notes (namespace, name, value) VALUES (?, ?, ?)"
_PLACE: Final = (NAMESPACE, NAME)
_ONE_TASK: Final = "SELECT id, state FROM tasks LIMIT 1"
_ONE_NOTE: Final = "SELECT namespace, name, value FROM notes LIMIT 1"

_OF_TASKS: Final = (
    (STATE, "SELECT t.id, t.state FROM tasks t WHERE t.key = ?", "UPDATE tasks SET state = ? WHERE key = ?"),
    (
        REQUEST,
        "SELECT t.id, p.request FROM requests p JOIN tasks t ON t.key = p.task WHERE p.task = ?",
        "UPDATE requests SET request = ? WHERE task = ?",
    ),
    (
        BODY,
        "SELECT t.id, p.body FROM outcomes p JOIN tasks t ON t.key = p.task WHERE p.task = ?",
        "UPDATE outcomes SET body = ? WHERE task = ?",
    ),
    (
        META,
        "SELECT t.id, p.meta FROM outcomes p JOIN tasks t ON t.key = p.task WHERE p.task = ? AND p.meta IS NOT NULL",
        "UPDATE outcomes SET meta = ? WHERE task = ?",
    ),
)
_KEYS: Final = "SELECT key FROM tasks WHERE key > ? ORDER BY key LIMIT 500"
_ENTRIES: Final = "SELECT n FROM journal WHERE n > ? ORDER BY n LIMIT 500"
_ENTRY: Final = "SELECT t.id, j.kind, j.key, j.value FROM journal j JOIN tasks t ON t.key = j.task WHERE j.n = ?"
_SET_ENTRY: Final = "UPDATE journal SET key = ?, value = ? WHERE n = ?"
_NOTES: Final = "SELECT namespace, name, value FROM notes"

BATCH: Final = 8 * 1024 * 1024
"""Bytes that are written between two commits."""


def agree(connection: sqlite3.Connection, codec: Codec, path: Path) -> None:
    """See that the file is encrypted as the codec is, and make it so if it is new.

    Raises:
        EncryptionMismatch: It is not.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    if _write_note(connection, codec, path, write=False) is None:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again under the lock: somebody may have been first, and without a key.
        _write_note(connection, codec, path, write=True)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _write_note(connection: sqlite3.Connection, codec: Codec, path: Path, *, write: bool) -> bytes | None:
    def sample() -> Sample | None:
        try:
            return _sample(connection)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # Damaged: whoever asks for a task is told. But what cannot be looked at is not for a key.
            if codec.encrypts:
                raise
            return None

    new = note_to_write(codec, _note(connection), sample, str(path))
    if new is not None and write:
        connection.execute(_SET_NOTE, (*_PLACE, new))
    return new


def _note(connection: sqlite3.Connection) -> bytes | None:
    rows = connection.execute(NOTE, _PLACE).fetchall()
    return bytes(rows[0][0]) if rows else None


def _sample(connection: sqlite3.Connection) -> Sample | None:
    for task_id, state in connection.execute(_ONE_TASK).fetchall():
        return part_id(from_text(task_id), STATE), _as_bytes(state)
    for namespace, name, value in connection.execute(_ONE_NOTE).fetchall():
        return note_id(from_text(namespace), from_text(name)), _as_bytes(value)
    return None


def encrypt_file(path: Path, codec: Codec) -> Resealed:
    """Encrypt all that a task store keeps, while nobody else has it open.

    Afterwards nothing is left of what was there: not in free pages, for the file is written anew, nor in the WAL.

    Raises:
        EncryptionMismatch: It is encrypted with a key that is not there.
        StoreUnavailable: Somebody has it open.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    tally = Tally(codec)
    with closing(connect(path, timeout=0)) as connection:
        try:
            # Before the WAL is used for the first time: then SQLite lets nobody else in, and not us if somebody is.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            raise StoreUnavailable(
                f"{path} is in use. Stop the servers and workers that have it, and try again."
            ) from exc
        if (value := begin(codec, _note(connection), str(path))) is not None:
            connection.execute(_SET_NOTE, (*_PLACE, value))
        connection.execute("COMMIT")
        _in_batches(connection, _resealed(connection, tally))
        connection.execute("VACUUM")
        # Before the note says that it is done: what VACUUM wrote is in the WAL, and the file still as it was.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute(_SET_NOTE, (*_PLACE, codec.encode_note(*_PLACE, ON)))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return tally.result()


def _resealed(connection: sqlite3.Connection, tally: Tally) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The writes to be made: one value at a time, whatever its size."""
    for key in _numbers(connection, _KEYS):
        for part, select, update in _OF_TASKS:
            for task_id, data in connection.execute(select, (key,)).fetchall():
                if (new := tally.value(part_id(from_text(task_id), part), data)) is not None:
                    yield update, (new, key)
    for number in _numbers(connection, _ENTRIES):
        for task_id, kind, key, data in connection.execute(_ENTRY, (number,)).fetchall():
            if (entry := tally.entry(from_text(task_id), kind, from_text(key), data)) is not None:
                yield _SET_ENTRY, (to_text(entry[0]), entry[1], number)
    for namespace, name, data in connection.execute(_NOTES).fetchall():
        if (namespace, name) == _PLACE:
            continue
        if (new := tally.value(note_id(from_text(namespace), from_text(name)), data)) is not None:
            yield _SET_NOTE, (namespace, name, new)


def _numbers(connection: sqlite3.Connection, sql: str) -> Iterator[int]:
    last = -1
    while rows := connection.execute(sql, (last,)).fetchall():
        for (last,) in rows:
            yield last


def _in_batches(connection: sqlite3.Connection, writes: Iterator[tuple[str, tuple[Any, ...]]]) -> None:
    size = 0
    connection.execute("BEGIN IMMEDIATE")
    for sql, values in writes:
        connection.execute(sql, values)
        size += sum(len(value) for value in values if isinstance(value, bytes)) + 1_000
        if size > BATCH:
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            size = 0
    connection.execute("COMMIT")


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
