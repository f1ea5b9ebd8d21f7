"""What a ledger's file is: how it is known from any other SQLite file, its format, and bringing an old one to it.

`application_id` says that the file is a ledger, `user_version` which format it has. Both are looked at before anything
is written, so that no task store and no other program's database is ever written into; and both are part of the
transaction that makes the tables, so that processes which open one new file together find the work done.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from mcp_tasks.client.sealing import open_sealed
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import StoreCorrupt

APPLICATION_ID: Final = int.from_bytes(b"MCPL", "big")

FORMAT: Final = 3

_MAGIC: Final = b"SQLite format 3\0"

STORE_APPLICATION_ID: Final = int.from_bytes(b"MCPT", "big")
"""A task store of a server, which is told from other databases to say something helpful about it."""

_FIRST_RELEASE: Final = {
    ("tasks", "task_id,server,tool,started,status,message,result,error,finished"),
    ("answers", "server,task_id,key,answer,sent"),
}
"""Tables and columns of format 0, which had no application id."""

_SERVERS: Final = "CREATE TABLE servers (server TEXT PRIMARY KEY, name TEXT NOT NULL)"
"""Servers that the user called, each with the name that was used last; empty for an address that was typed."""

_SCHEMA: Final = (
    """
    CREATE TABLE tasks (
        server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, attributed INTEGER NOT NULL,
        tool TEXT NOT NULL, started TEXT NOT NULL, status TEXT NOT NULL, message TEXT, result TEXT, error TEXT,
        finished TEXT, arguments TEXT, named TEXT, PRIMARY KEY (server, identity, task_id, attributed)
    )
    """,
    """
    CREATE TABLE answers (
        server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, question TEXT,
        answer TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, identity, task_id, key)
    )
    """,
    _SERVERS,
)

# The first release knew servers by the names they give themselves, which anybody can give themselves. Its tasks stay
# listed; its answers were meant for servers that nobody can name any more, and go.
_MIGRATION: Final = (
    "ALTER TABLE tasks RENAME TO first_tasks",
    "DROP TABLE answers",
    *_SCHEMA,
    """
    INSERT INTO tasks
    SELECT server, '', task_id, 0, tool, started, status, message, result, error, finished, NULL, NULL
    FROM first_tasks
    """,
    "DROP TABLE first_tasks",
)

_FORMAT_2: Final = ("ALTER TABLE tasks ADD COLUMN named TEXT", _SERVERS)
"""From format 2, which did not keep whether the user had named or typed a server."""

_FORMAT_1: Final = ("ALTER TABLE tasks ADD COLUMN arguments TEXT", *_FORMAT_2)
"""From format 1, which did not keep what tools were called with."""


_SECRETS: Final = (
    ("tasks", "server, identity, task_id", ("message", "result", "error", "arguments")),
    ("answers", "server, identity, task_id, key", ("question", "answer")),
)
"""What is encrypted where there is a cipher. The rest is what tasks are found by, and what a list of them shows."""


def open_ledger(path: Path, *, timeout: float, cipher: Cipher | None = None) -> sqlite3.Connection:
    """A connection to the ledger at `path`, which is made if it is not there, and encrypted if there is a cipher.

    Raises:
        StoreCorrupt: The file is something else, or of a newer release, or not to be trusted, or has another key.
            Nothing was written.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    # For its owner alone: answers and results are in it.
    return open_sealed(path, cipher, _SECRETS, lambda: _opened(path, timeout))


def _opened(path: Path, timeout: float) -> sqlite3.Connection:
    _must_be_sqlite(path)
    db = sqlite3.connect(path, isolation_level=None, timeout=timeout, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _must_be_sqlite(path: Path) -> None:
    """SQLite takes a file that is shorter than its header for an empty database, and would write over it."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError:
        # It is not there yet; or SQLite says why.
        return
    if start and start != _MAGIC:
        raise StoreCorrupt(f"{path} is not a SQLite database, hence no ledger. Choose another path.")


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    missing = _missing(db, path)
    _use_wal(db)
    # An answer is on disk before it is sent, and some builds of SQLite would not wait for that.
    db.execute("PRAGMA synchronous = FULL")
    # An answer that is forgotten is gone from the file, not only from its tables.
    db.execute("PRAGMA secure_delete = ON")
    if missing:
        db.execute("BEGIN IMMEDIATE")
        try:
            # Asked again under the lock: another process may have been first.
            for statement in _missing(db, path):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _missing(db: sqlite3.Connection, path: Path) -> tuple[str, ...]:
    """The statements that make the file a ledger of this release."""
    # One statement, hence one snapshot of the file.
    rows = db.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " name, (SELECT group_concat(name) FROM pragma_table_info(main.name)) FROM"
        " (SELECT NULL AS name UNION ALL SELECT name FROM sqlite_master WHERE type = 'table') AS main"
    ).fetchall()
    application, version = rows[0][:2]
    tables = {(name, columns) for _, _, name, columns in rows if name is not None}
    if application == APPLICATION_ID and version == FORMAT:
        return ()
    if application == APPLICATION_ID and version == 1:
        return _FORMAT_1
    if application == APPLICATION_ID and version == 2:
        return _FORMAT_2
    if application == APPLICATION_ID:
        raise StoreCorrupt(
            f"{path} is a ledger of format {version}, and this release knows format {FORMAT}. Use a newer release."
        )
    if application == STORE_APPLICATION_ID:
        raise StoreCorrupt(
            f"{path} is the task store of a server, not a ledger. Give the ledger a file of its own, such as ledger.db."
        )
    if not application and not version and not tables:
        return _SCHEMA
    if not application and not version and tables == _FIRST_RELEASE:
        return _MIGRATION
    raise StoreCorrupt(f"{path} is a SQLite database of another application, not a ledger. Choose another path.")


def _use_wal(db: sqlite3.Connection) -> None:
    # Two processes that make the file at the same moment: here SQLite does not wait for a lock, whatever its timeout.
    for _ in range(100):
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc):
                raise
            time.sleep(0.02)
    db.execute("PRAGMA journal_mode=WAL")
