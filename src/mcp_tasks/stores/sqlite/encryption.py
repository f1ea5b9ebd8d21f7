"""Whether a file is encrypted, and encrypting all of one, so that nothing plain stays in it or beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, entry_part, note_id, part_id
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, Value, Vault, as_bytes, note_to_write
from mcp_tasks.stores.sqlite.file import from_text, is_busy, to_text
from mcp_tasks.stores.sqlite.queries import NOTE

_PLACE: Final = (NAMESPACE, NAME)
_SET_NOTE: Final = "INSERT OR REPLACE INTO notes (namespace, name, value) VALUES (?, ?, ?)"
_ONE_TASK: Final = "SELECT id, state FROM tasks LIMIT 1"
_ONE_NOTE: Final = "SELECT namespace, name, value FROM notes LIMIT 1"
_KEYS: Final = "SELECT key, id FROM tasks WHERE key > ? ORDER BY key LIMIT 500"
_PARTS: Final = (
    (STATE, "SELECT state FROM tasks WHERE key = ?", "UPDATE tasks SET state = ?2 WHERE key = ?1"),
    (REQUEST, "SELECT request FROM requests WHERE task = ?", "UPDATE requests SET request = ?2 WHERE task = ?1"),
    (BODY, "SELECT body FROM outcomes WHERE task = ?", "UPDATE outcomes SET body = ?2 WHERE task = ?1"),
    (
        META,
        "SELECT meta FROM outcomes WHERE task = ? AND meta IS NOT NULL",
        "UPDATE outcomes SET meta = ?2 WHERE task = ?1",
    ),
)
_ENTRY: Final = (
    "SELECT n, kind, key, value FROM journal INDEXED BY journal_task WHERE task = ? AND n > ? ORDER BY n LIMIT 1"
)
_SET_ENTRY: Final = "UPDATE journal SET value = ?2, key = ?3 WHERE n = ?1"
_NOTES: Final = "SELECT namespace, name, value FROM notes WHERE (namespace, name) <> (?, ?)"

BATCH: Final = 8 * 1024 * 1024
"""Bytes that are written between two commits."""


def agree(connection: sqlite3.Connection, codec: Codec, path: Path) -> None:
    """See that the file is encrypted as the codec is, and make it so if it is new.

    Raises:
        EncryptionMismatch: It is not.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    if _note_to_write(connection, codec, path) is None:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again under the lock: another process may have been first, and without a key.
        if (note := _note_to_write(connection, codec, path)) is not None:
            connection.execute(_SET_NOTE, (*_PLACE, note))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _note_to_write(connection: sqlite3.Connection, codec: Codec, path: Path) -> bytes | None:
    def sample() -> Sample | None:
        try:
            for task_id, state in connection.execute(_ONE_TASK).fetchall():
                return part_id(from_text(task_id), STATE), as_bytes(state)
            for namespace, name, value in connection.execute(_ONE_NOTE).fetchall():
                return note_id(from_text(namespace), from_text(name)), as_bytes(value)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # Damaged: the verb that meets it says so. But what cannot be looked at is not for a key.
            if codec.encrypts:
                raise
        return None

    return note_to_write(codec, _note(connection), sample, str(path))


def _note(connection: sqlite3.Connection) -> bytes | None:
    rows = connection.execute(NOTE, _PLACE).fetchall()
    return as_bytes(rows[0][0]) if rows else None


class SqliteVault(Vault):
    """A file that no other connection has open. Its calls block: nothing else runs in the process.

    Raises:
        StoreUnavailable: Another process has it open.
    """

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self.place = place
        self._connection = connection
        self._written = 0
        try:
            # Before the WAL is used for the first time: then SQLite lets nobody else in, and not us if somebody is.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            raise StoreUnavailable(
                f"{place} is in use. Stop the servers and workers that have it, and try again."
            ) from exc

    async def note(self) -> bytes | None:
        return _note(self._connection)

    async def write_note(self, note: bytes) -> None:
        self._connection.execute(_SET_NOTE, (*_PLACE, note))
        self._fold()

    async def values(self) -> AsyncIterator[Value]:
        execute, last = self._connection.execute, -1
        while rows := execute(_KEYS, (last,)).fetchall():
            for last, stored_id in rows:
                task_id = from_text(stored_id)
                for part, select, update in _PARTS:
                    for (data,) in execute(select, (last,)).fetchall():
                        yield Value((update, last), part_id(task_id, part), as_bytes(data))
                number = -1
                while found := execute(_ENTRY, (last, number)).fetchall():
                    number, kind, key, data = found[0]
                    name = part_id(task_id, entry_part(kind))
                    yield Value((_SET_ENTRY, number), name, as_bytes(data), from_text(key))
        for namespace, name, data in execute(_NOTES, _PLACE).fetchall():
            place = note_id(from_text(namespace), from_text(name))
            yield Value((_SET_NOTE, namespace, name), place, as_bytes(data))

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        sql, *where = value.where
        self._connection.execute(sql, (*where, new) if key is None else (*where, new, to_text(key)))
        self._written += len(new) + 1_000
        if self._written > BATCH:
            self._commit()
        return True

    async def clean(self, *, was_plain: bool) -> None:
        """Write the file anew: no free page has a value any more."""
        self._commit()
        self._connection.execute("VACUUM")
        # Before the note says that it is done: what VACUUM wrote is in the WAL, and the file still as it was.
        self._fold()

    def _commit(self) -> None:
        self._written = 0
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _fold(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
