"""What a ledger's file is: how it is known from any other SQLite file, its format, and bringing an old one to it.

`application_id` says that the file is a ledger, `user_version` which format it has. Both are looked at before anything
is written, so that no task store and no other program's database is ever written into; and both are part of the
transaction that makes the tables, so that processes which open one new file together find the work done.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from mcp_tasks.encryption import Cipher, Keyring
from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreCorrupt, StoreUnavailable
from mcp_tasks.files import FileId, check_still, make_private_file

# ---- sealing
# What a client keeps of its tasks, encrypted: the ledger, and the file of hosted tasks.


_ENCRYPTED: Final = b"\0"
"""What encrypted values begin with. No text that is kept does."""

_MARK_ID: Final = "ledger:mark"
_ON: Final = b"on"
_BEGUN: Final = b"begun"
_HAS_MARK: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'encryption'"
_MAKE_MARK: Final = (
    "CREATE TABLE IF NOT EXISTS encryption (one INTEGER PRIMARY KEY CHECK (one = 1), mark BLOB NOT NULL)"
)
_SET_MARK: Final = "INSERT OR REPLACE INTO encryption (one, mark) VALUES (1, ?)"


class Sealer:
    """Encrypts and decrypts single values; without a cipher they stay as they are."""

    def __init__(self, cipher: Cipher | None) -> None:
        self.cipher: Cipher | None = cipher

    def seal(self, bound_to: str, text: str | None) -> str | bytes | None:
        """A text as it is to be kept."""
        if text is None or self.cipher is None:
            return text
        return _ENCRYPTED + self.cipher.encrypt(bound_to, text.encode("utf-8", "surrogatepass"))

    def open(self, bound_to: str, value: Any) -> Any:
        """What `seal` was given.

        Raises:
            EncryptionMismatch: It is encrypted, and there is no key; or the other way round.
            CannotDecrypt: It has another key, or was changed.
        """
        if value is None:
            return None
        encrypted = isinstance(value, bytes) and value.startswith(_ENCRYPTED)
        if self.cipher is None:
            if encrypted:
                raise EncryptionMismatch("it is encrypted, and there is no key")
            return value
        if not encrypted:
            raise EncryptionMismatch("it is not encrypted, and there is a key")
        return _decrypted(self.cipher, bound_to, value).decode("utf-8", "surrogatepass")


Columns: TypeAlias = Sequence[tuple[str, str, Sequence[str]]]
"""Of each table, the columns that a row is found by, and those that are encrypted. A value is bound to both."""


def must_be_encrypted(db: sqlite3.Connection, cipher: Cipher | None, path: Path | str) -> bool:
    """Whether a file is not encrypted as it is to be, and has to be encrypted first (`encrypt_file`).

    Raises:
        EncryptionMismatch: It has a key that is not there.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    mark = _mark(db)
    if cipher is not None:
        return mark is None or not _is_current(cipher, mark, path)
    if mark is not None:
        raise EncryptionMismatch(f"{path} is encrypted, and there is no key. Give it the cipher it was written with.")
    return False


def encrypt_file(path: Path, cipher: Cipher, columns: Columns) -> None:
    """Encrypt all that a file of a client keeps, whether it is plain or has an older key.

    Raises:
        StoreUnavailable: Another process has it open: it would go on to write as it did.
        CannotDecrypt: Something in it has a key that is not there.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    with closing(sqlite3.connect(path, isolation_level=None, timeout=1)) as db:
        try:
            # Before the WAL is used for the first time: then SQLite lets nobody else in, and not us if somebody is.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as exc:
            why = f"{path} must be encrypted, and another process has it open. End that one first."
            raise StoreUnavailable(why) from exc
        try:
            _encrypt(db, cipher, columns)
            _set_mark(db, cipher, _BEGUN)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        # So nothing is left of what was there: not in free pages, nor in the WAL.
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        # Only now: whoever is interrupted before has all of it done again.
        _set_mark(db, cipher, _ON)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def open_sealed(
    path: Path, cipher: Cipher | None, columns: Columns, connect: Callable[[], sqlite3.Connection]
) -> sqlite3.Connection:
    """A connection to a file that is private, ours while it is opened, and encrypted if there is a cipher.

    Raises:
        StoreCorrupt: The file is not to be trusted, or has another key.
    """
    known = make_private_file(path)
    db = _checked(path, known, connect)
    try:
        to_encrypt = must_be_encrypted(db, cipher, path)
    except BaseException:
        db.close()
        raise
    if cipher is None or not to_encrypt:
        return db
    db.close()
    encrypt_file(path, cipher, columns)
    return _checked(path, known, connect)


def _checked(path: Path, known: FileId, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    db = connect()
    try:
        check_still(path, known)
    except BaseException:
        db.close()
        raise
    return db


def bound_to(*parts: str | bytes) -> str:
    """What a value of a client's file is bound to: its column, and the key of its row."""
    # With their lengths: no two lists are written alike.
    texts = [part.decode("utf-8", "surrogatepass") if isinstance(part, bytes) else part for part in parts]
    return "ledger:" + "".join(f"{len(text)}:{text}" for text in texts)


def _mark(db: sqlite3.Connection) -> bytes | None:
    if not db.execute(_HAS_MARK).fetchall():
        return None
    rows = db.execute("SELECT mark FROM encryption").fetchall()
    return bytes(rows[0][0]) if rows else None


def _is_current(cipher: Cipher, mark: bytes, path: Path | str) -> bool:
    try:
        said = _decrypted(cipher, _MARK_ID, mark)
    except Exception as exc:
        why = str(exc) if isinstance(exc, CannotDecrypt) else type(exc).__name__
        raise EncryptionMismatch(
            f"{path} is encrypted with a key that is not there ({why}). Give it that key as well."
        ) from exc
    # Of a cipher of somebody else's making it is not known which key it used.
    return said == _ON and (not isinstance(cipher, Keyring) or cipher.is_current(mark[len(_ENCRYPTED) :]))


def _encrypt(db: sqlite3.Connection, cipher: Cipher, columns: Columns) -> None:
    broken: list[Exception] = []

    def seal(value: Any, *key: str | bytes) -> Any:
        """As `Sealer.seal`, of what may be encrypted with an older key, or be the bytes of an odd text."""
        if value is None:
            return None
        place = bound_to(*key)
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        try:
            plain = _decrypted(cipher, place, raw) if raw.startswith(_ENCRYPTED) else raw
        except Exception as exc:
            # SQLite would tell that something was raised, and not what.
            broken.append(exc)
            raise
        return _ENCRYPTED + cipher.encrypt(place, plain)

    db.create_function("mcp_tasks_seal", -1, seal)
    try:
        for table, key, names in columns:
            values = ", ".join(f"{name} = mcp_tasks_seal({name}, '{name}', {key})" for name in names)
            db.execute(f"UPDATE {table} SET {values}")  # noqa: S608 - names of ours
    except sqlite3.OperationalError:
        if broken:
            raise broken[0] from None
        raise


def _set_mark(db: sqlite3.Connection, cipher: Cipher, said: bytes) -> None:
    db.execute(_MAKE_MARK)
    db.execute(_SET_MARK, (_ENCRYPTED + cipher.encrypt(_MARK_ID, said),))


def _decrypted(cipher: Cipher, place: str, value: bytes) -> bytes:
    return cipher.decrypt(place, value[len(_ENCRYPTED) :])


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
