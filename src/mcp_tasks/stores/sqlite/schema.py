"""The mark of a task store, its schema, and whether it is encrypted.

A fresh file is marked with `application_id`, so that no other program's database is ever written into, and
`user_version` counts the migrations in `migrations/`. Both are part of the transaction that applies them: processes
that start together on one new file queue for its lock, and all but the first find the work done.

A file of a newer release is used as it is, if it says that releases such as this one may (`compatible_from` in `meta`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from anyio import from_thread

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.files import FileId
from mcp_tasks.quiet import get_logger
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, SqlVault, Value, as_bytes, note_to_write, sql_samples
from mcp_tasks.stores.migrations import compatible_from, scripts_of, this_release
from mcp_tasks.stores.sqlite.file import connect, create_file, from_text, is_busy, retry_while_busy, to_text

logger: Final = get_logger(__name__)

APPLICATION_ID = int.from_bytes(b"MCPT", "big")

LEDGER_APPLICATION_ID = int.from_bytes(b"MCPL", "big")
"""The mark of a client's ledger: the other file of this package, and easily taken for this one."""

UPGRADE_PATIENCE = 600.0
"""Seconds to wait for an upgrade by another process: a large file takes longer than any other lock is held."""

_PAUSE = 0.1
"""Seconds between two looks at whether the other process is done."""


@cache
def migrations() -> tuple[str, ...]:
    """The SQL scripts in their order; script number n takes a file from schema n - 1 to n."""
    return scripts_of("mcp_tasks.stores.sqlite")


def prepare(path: Path, *, patience: float, upgrade_patience: float = UPGRADE_PATIENCE) -> FileId:
    """Make the file at `path` a task store of this release.

    Gives which file it is, for a second look when it is open (`files.check_still`).

    Raises:
        StoreUnavailable: It cannot be made or written, or another process has not come to the end of upgrading it.
        StoreCorrupt: It is something else, or of a newer release, or not to be trusted.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    known = create_file(path)
    # All of it again when another process has the lock: each step finds what is done, and so does the retry.
    try:
        retry_while_busy(lambda: _prepare(path), patience=patience)
    except sqlite3.OperationalError as exc:
        if not is_busy(exc) or not _is_older(path):
            raise
        _wait_for_upgrade(path, upgrade_patience)
    return known


def _wait_for_upgrade(path: Path, patience: float) -> None:
    """Wait until another process has upgraded the file, or has died while it did: then this one upgrades it.

    To end that process, as is good advice for other locks, would undo its work.
    """
    logger.warning("%s is being upgraded by another process; waiting for it, for up to %.0f s", path, patience)
    deadline = time.monotonic() + patience
    while True:
        try:
            return _prepare(path)
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            # Nor does it keep a program from ending, which would wait for this thread.
            if time.monotonic() >= deadline or not threading.main_thread().is_alive():
                raise StoreUnavailable(
                    f"{path} is being upgraded by another process; wait for it, and start again."
                ) from exc
        time.sleep(_PAUSE)
        with suppress(RuntimeError):  # not in a thread of anyio's, so nothing could cancel this
            from_thread.check_cancelled()


def _is_older(path: Path) -> bool:
    """Whether the file is a task store of an older release, and can be read."""
    try:
        with closing(connect(path, timeout=0)) as connection:
            application, schema, _ = _identity(connection)
    except sqlite3.Error:
        return False
    return application == APPLICATION_ID and schema < len(migrations())


def schema_of_file(path: Path) -> int:
    """The schema number of a file that is there, 0 for an empty one. Changes nothing.

    Raises:
        StoreCorrupt: It is something else, or of a newer release.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
        return _schema_of(connection, path)


def _schema_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema number of the file, 0 for an empty one; raises if it is not ours to use."""
    application, schema, tables = _identity(connection)
    if application == LEDGER_APPLICATION_ID:
        raise StoreCorrupt(f"{path} is the ledger of a client; choose another path for the task store.")
    if application != APPLICATION_ID:
        if application or schema or tables:
            raise StoreCorrupt(f"{path} is a SQLite database of another application. Choose another path.")
        return 0
    if schema > len(migrations()):
        first, release = _meta(connection)
        if not isinstance(first, int) or not 0 < first <= len(migrations()):
            raise StoreCorrupt(
                f"{path} has schema {schema}, and this release knows up to {len(migrations())}. "
                f"Use {release} or a newer one."
            )
    return schema


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    # One statement, hence one snapshot: between two, another process might finish what makes the file ours.
    return connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id),"
        " (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
    ).fetchall()[0]


def _meta(connection: sqlite3.Connection) -> tuple[object, str]:
    """From which schema on releases may use the file of a newer release, and the name of that."""
    try:
        ((release, first),) = connection.execute("SELECT release, compatible_from FROM meta").fetchall()
        return first, f"mcp-tasks {release}"
    except (sqlite3.Error, ValueError):
        return None, "the release of mcp-tasks that wrote it"


def _prepare(path: Path) -> None:
    with closing(connect(path, timeout=0)) as connection:
        schema = _schema_of(connection, path)
        # INCREMENTAL must be chosen while the file is empty; on any other file the pragma does nothing. Without it a
        # file never gets smaller again, and tasks come and go. See `Writer` for when pages are given back.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if connection.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
            raise StoreUnavailable(f"{path} is where SQLite's WAL mode does not work. Choose a path on a local disk.")
        if schema < len(migrations()):
            with _transaction(connection):
                _migrate(connection, path)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    # Asked again under the lock: another process may have been first.
    for script in migrations()[_schema_of(connection, path) :]:
        for statement in _statements(script):
            connection.execute(statement)
    marks = (this_release(), compatible_from(migrations()))
    connection.execute("UPDATE meta SET release = ?, compatible_from = ?", marks)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(migrations())}")


def _statements(script: str) -> Iterator[str]:
    # `executescript` would commit the transaction it finds open.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# ---- encryption

_SET_NOTE: Final = "INSERT OR REPLACE INTO notes (namespace, name, value) VALUES (?, ?, ?)"

BATCH: Final = 8 * 1024 * 1024
"""Bytes that are written between two commits."""


def agree(connection: sqlite3.Connection, codec: Codec, path: Path) -> None:
    """Check that the file is encrypted as the codec is, and mark a new file.

    Raises:
        EncryptionMismatch: It is not.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    if _note_to_write(connection, codec, path) is None:
        return
    with _transaction(connection):
        # Asked again under the lock: another process may have been first, and without a key.
        if (note := _note_to_write(connection, codec, path)) is not None:
            connection.execute(_SET_NOTE, (NAMESPACE, NAME, note))


def _note_to_write(connection: sqlite3.Connection, codec: Codec, path: Path) -> bytes | None:
    sql = "SELECT value FROM notes WHERE namespace = ? AND name = ?"
    for (note,) in connection.execute(sql, (NAMESPACE, NAME)).fetchall():
        return note_to_write(codec, as_bytes(note), None, str(path))
    found: Sample | None = None
    try:
        for sql, bound_to in sql_samples():
            for *names, value in connection.execute(sql).fetchall() if found is None else ():
                found = bound_to(*map(from_text, names)), as_bytes(value)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        # Damaged: the verb that meets it says so. But what cannot be read is not to be opened with a key.
        if codec.encrypts:
            raise
    return note_to_write(codec, None, found, str(path))


class SqliteVault(SqlVault):
    """A file that no other connection has open. Its calls block: nothing else runs in the process.

    Raises:
        StoreUnavailable: Another process has it open.
    """

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        super().__init__(place, "", from_text)
        self._connection = connection
        self._written = 0
        try:
            # Before the WAL is used for the first time: then SQLite lets no other connection in, and refuses this one
            # if there is another.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            raise StoreUnavailable(
                f"{place} is in use. Stop the servers and workers that have it, and try again."
            ) from exc

    async def rows(self, sql: str, *values: Any) -> Sequence[Any]:
        return self._connection.execute(sql, values).fetchall()

    async def write_note(self, note: bytes) -> None:
        self._connection.execute(_SET_NOTE, (NAMESPACE, NAME, note))
        self._fold()

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        sql, values = self.update(value, None if key is None else to_text(key), new, alone=True)
        self._connection.execute(sql, values)
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
