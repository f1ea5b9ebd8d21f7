"""Identifies the file, and brings it to the schema of this release.

A fresh file is marked with `application_id`, so that no other program's database is ever written into, and
`user_version` counts the migrations in `migrations/`. Both are part of the transaction that applies them:
processes that start together on one new file queue for its lock, and all but the first find the work done.

A file of a newer release is used as it is, if it says that releases such as this one may (`compatible_from` in `meta`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Final

from anyio import from_thread

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.files import FileId
from mcp_tasks.quiet import get_logger
from mcp_tasks.stores.migrations import compatible_from, scripts_of, this_release
from mcp_tasks.stores.sqlite.file import connect, create_file, is_busy, retry_while_busy

logger: Final = get_logger(__name__)

APPLICATION_ID = int.from_bytes(b"MCPT", "big")

LEDGER_APPLICATION_ID = int.from_bytes(b"MCPL", "big")
"""What a client's ledger is marked with: the other file of this package, and easily taken for this one."""


UPGRADE_PATIENCE = 600.0
"""Seconds to wait for an upgrade by another process: a large file takes longer than any other lock is held."""

_PAUSE = 0.1
"""Seconds between two looks at whether the other process is done."""


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
    """Wait until another process has upgraded the file, or has died of it: then it is our turn.

    To end that process, as is good advice for other locks, would undo its work.
    """
    logger.warning("%s is being upgraded by another process; waiting for it, for up to %.0f s", path, patience)
    deadline = time.monotonic() + patience
    while True:
        try:
            return retry_while_busy(lambda: _prepare(path), patience=0)
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            # Nor does it keep a program from ending, which would wait for this thread.
            if time.monotonic() >= deadline or not threading.main_thread().is_alive():
                raise StoreUnavailable(
                    f"{path} is being upgraded by another process; wait for it, and start again."
                ) from exc
        time.sleep(_PAUSE)
        with suppress(RuntimeError):  # not in a thread of anyio's, so there is nobody who could cancel this
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


def _prepare(path: Path) -> None:
    with closing(connect(path, timeout=0)) as connection:
        schema = _schema_of(connection, path)
        _use_wal(connection, path)
        if schema < len(migrations()):
            connection.execute("BEGIN IMMEDIATE")
            _migrate(connection, path)


@cache
def migrations() -> tuple[str, ...]:
    """The SQL scripts in their order; script number n takes a file from schema n - 1 to n."""
    return scripts_of("mcp_tasks.stores.sqlite")


def _schema_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema number of the file, 0 for an empty one; raises if it is not ours to use."""
    application, schema, tables = _identity(connection)
    if application == LEDGER_APPLICATION_ID:
        raise StoreCorrupt(f"{path} is the ledger of a client; choose another path for the task store.")
    if application != APPLICATION_ID:
        if application or schema or tables:
            raise StoreCorrupt(f"{path} is a SQLite database of another application. Choose another path.")
        return 0
    if schema > len(migrations()) and not _is_compatible(connection):
        raise StoreCorrupt(
            f"{path} has schema {schema}, and this release knows up to {len(migrations())}. "
            f"Use {_release_of(connection)} or a newer one."
        )
    return schema


def _is_compatible(connection: sqlite3.Connection) -> bool:
    """Whether a file of a newer release may be used by this one."""
    try:
        ((first,),) = connection.execute("SELECT compatible_from FROM meta").fetchall()
        return isinstance(first, int) and 0 < first <= len(migrations())
    except (sqlite3.DatabaseError, ValueError):
        return False


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    # One statement, hence one snapshot: between two, another process might finish what makes the file ours.
    return connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id),"
        " (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
    ).fetchall()[0]


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    # INCREMENTAL must be chosen while the file is empty; on any other file the pragma does nothing. Without
    # it a file never gets smaller again, and tasks come and go. See `Writer` for when pages are given back.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != [("wal",)]:
        raise StoreUnavailable(f"{path} is where SQLite's WAL mode does not work. Choose a path on a local disk.")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply what is missing, in the transaction that the caller began."""
    try:
        # Asked again under the lock: another process may have been first.
        for script in migrations()[_schema_of(connection, path) :]:
            for statement in _statements(script):
                connection.execute(statement)
        marks = (this_release(), compatible_from(migrations()))
        connection.execute("UPDATE meta SET release = ?, compatible_from = ?", marks)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations())}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    # `executescript` would commit the transaction it finds open.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _release_of(connection: sqlite3.Connection) -> str:
    try:
        ((release,),) = connection.execute("SELECT release FROM meta").fetchall()
        return f"mcp-tasks {release}"
    except (sqlite3.Error, ValueError):
        return "the release of mcp-tasks that wrote it"
