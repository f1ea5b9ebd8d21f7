"""The SQLite files of a client: encrypting what is in them, and the ledger's own file.

`application_id` says that a file is a ledger, `user_version` which format it has. Both are checked before anything is
written, so that no other database is ever changed; and both are set in the transaction that creates the tables, so that
processes which open one new file together find the work done. A later format adds its statements to `UPGRADES`.
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
from mcp_tasks.files import check_still, make_private_file

# ---- sealing
# Encryption at rest, for the ledger and for the file of hosted tasks.


_ENCRYPTED: Final = b"\0"
"""The first byte of encrypted values. No text that is kept begins with it."""

_MARK_ID: Final = "ledger:mark"
_ON: Final = b"on"
_BEGUN: Final = b"begun"


class Sealer:
    """Encrypts and decrypts single values; without a cipher they stay as they are."""

    def __init__(self, cipher: Cipher | None) -> None:
        self.cipher: Cipher | None = cipher

    def seal(self, bound_to: str, text: str | None) -> str | bytes | None:
        """A text as it is kept."""
        if text is None or self.cipher is None:
            return text
        return _ENCRYPTED + self.cipher.encrypt(bound_to, text.encode("utf-8", "surrogatepass"))

    def open(self, bound_to: str, value: Any) -> Any:
        """The text that `seal` was given.

        Raises:
            EncryptionMismatch: It is encrypted and there is no key, or the other way round.
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
        return self.cipher.decrypt(bound_to, value[len(_ENCRYPTED) :]).decode("utf-8", "surrogatepass")


Columns: TypeAlias = Sequence[tuple[str, str, Sequence[str]]]
"""For each table, the columns that identify a row, and those that are encrypted. A value is bound to both."""


def bound_to(*parts: str | bytes) -> str:
    """The context that a value is bound to: its column, and the key of its row."""
    # With their lengths: no two lists are written alike.
    texts = [part.decode("utf-8", "surrogatepass") if isinstance(part, bytes) else part for part in parts]
    return "ledger:" + "".join(f"{len(text)}:{text}" for text in texts)


def open_sealed(
    path: Path, cipher: Cipher | None, columns: Columns, connect: Callable[[], sqlite3.Connection]
) -> sqlite3.Connection:
    """A connection to a private file, which is encrypted first if there is a cipher that it does not have yet.

    Raises:
        StoreCorrupt: The file cannot be trusted, or has another key.
        EncryptionMismatch: It has a key that is not there.
        StoreUnavailable: It must be encrypted, and another process has it open.
        sqlite3.Error: SQLite refused; the caller translates.
    """
    known = make_private_file(path)

    def checked() -> sqlite3.Connection:
        db = connect()
        try:
            check_still(path, known)
        except BaseException:
            db.close()
            raise
        return db

    db = checked()
    try:
        to_encrypt = _must_be_encrypted(db, cipher, path)
    except BaseException:
        db.close()
        raise
    if cipher is None or not to_encrypt:
        return db
    db.close()
    _encrypt_file(path, cipher, columns)
    return checked()


def _must_be_encrypted(db: sqlite3.Connection, cipher: Cipher | None, path: Path) -> bool:
    mark: bytes | None = None
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'encryption'").fetchall():
        rows = db.execute("SELECT mark FROM encryption").fetchall()
        mark = bytes(rows[0][0]) if rows else None
    if cipher is None:
        if mark is not None:
            why = f"{path} is encrypted, and there is no key. Give it the cipher it was written with."
            raise EncryptionMismatch(why)
        return False
    if mark is None:
        return True
    try:
        said = cipher.decrypt(_MARK_ID, mark[len(_ENCRYPTED) :])
    except Exception as exc:
        why = str(exc) if isinstance(exc, CannotDecrypt) else type(exc).__name__
        raise EncryptionMismatch(
            f"{path} is encrypted with a key that is not there ({why}). Give it that key as well."
        ) from exc
    # Only a `Keyring` can tell which of its keys was used.
    return said != _ON or (isinstance(cipher, Keyring) and not cipher.is_current(mark[len(_ENCRYPTED) :]))


def _encrypt_file(path: Path, cipher: Cipher, columns: Columns) -> None:
    """Encrypt everything in a file, whether it is plain or has an older key.

    Raises:
        StoreUnavailable: Another process has it open, and would go on to write as it did.
        CannotDecrypt: Something in it has a key that is not there.
    """
    with closing(sqlite3.connect(path, isolation_level=None, timeout=1)) as db:
        try:
            # Before the WAL is used for the first time: then SQLite lets no other process in, and not us if one is.
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
        # Only now: if it is interrupted before, all of it is done again.
        _set_mark(db, cipher, _ON)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _encrypt(db: sqlite3.Connection, cipher: Cipher, columns: Columns) -> None:
    broken: list[Exception] = []

    def seal(value: Any, *key: str | bytes) -> Any:
        """Like `Sealer.seal`, for a value that may have an older key, or be the bytes of an odd text."""
        if value is None:
            return None
        place = bound_to(*key)
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        try:
            plain = cipher.decrypt(place, raw[len(_ENCRYPTED) :]) if raw.startswith(_ENCRYPTED) else raw
        except Exception as exc:
            # SQLite would report that an exception was raised, and not which.
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
    db.execute("CREATE TABLE IF NOT EXISTS encryption (one INTEGER PRIMARY KEY CHECK (one = 1), mark BLOB NOT NULL)")
    mark = _ENCRYPTED + cipher.encrypt(_MARK_ID, said)
    db.execute("INSERT OR REPLACE INTO encryption (one, mark) VALUES (1, ?)", (mark,))


# ---- the ledger's file


APPLICATION_ID: Final = int.from_bytes(b"MCPL", "big")

_STORE_APPLICATION_ID: Final = int.from_bytes(b"MCPT", "big")
"""A server's task store, which gets an error message of its own."""

_MAGIC: Final = b"SQLite format 3\0"

_SCHEMA: Final = (
    """
    CREATE TABLE tasks (
        server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, tool TEXT NOT NULL, started TEXT NOT NULL,
        status TEXT NOT NULL, message TEXT, result TEXT, error TEXT, finished TEXT, arguments TEXT, named TEXT,
        PRIMARY KEY (server, identity, task_id)
    )
    """,
    """
    CREATE TABLE answers (
        server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, question TEXT,
        answer TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, identity, task_id, key)
    )
    """,
    # Servers that the user called, each with the name that was used last; empty for an address that was typed.
    "CREATE TABLE servers (server TEXT PRIMARY KEY, name TEXT NOT NULL)",
)
"""Format 1."""

UPGRADES: Sequence[Sequence[str]] = ()
"""The statements that bring a file from format 1 to 2, from 2 to 3, and so on."""

_SECRETS: Final = (
    ("tasks", "server, identity, task_id", ("message", "result", "error", "arguments")),
    ("answers", "server, identity, task_id, key", ("question", "answer")),
)
"""Columns that a cipher encrypts. The rest is what tasks are found by, and what a list of them shows."""


def open_ledger(path: Path, *, timeout: float, cipher: Cipher | None = None) -> sqlite3.Connection:
    """A connection to the ledger at `path`, which is created if it is not there, and encrypted if there is a cipher.

    Raises:
        StoreCorrupt: The file is something else, has a newer format, cannot be trusted, or has another key. Nothing
            was written.
        sqlite3.Error: SQLite refused; the caller translates.
    """

    def connect() -> sqlite3.Connection:
        _check_is_sqlite(path)
        db = sqlite3.connect(path, isolation_level=None, timeout=timeout, check_same_thread=False)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
        return db

    # For its owner alone: answers and results are in it.
    return open_sealed(path, cipher, _SECRETS, connect)


def _check_is_sqlite(path: Path) -> None:
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
            # Checked again under the lock: another process may have been first.
            for statement in _missing(db, path):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {1 + len(UPGRADES)}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _missing(db: sqlite3.Connection, path: Path) -> Sequence[str]:
    """The statements that make the file a ledger of this release."""
    # One statement, hence one snapshot of the file.
    [(application, version, tables)] = db.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " (SELECT count(*) FROM sqlite_master WHERE type = 'table')"
    ).fetchall()
    if application == APPLICATION_ID and 1 <= version <= 1 + len(UPGRADES):
        return [statement for upgrade in UPGRADES[version - 1 :] for statement in upgrade]
    if application == APPLICATION_ID:
        raise StoreCorrupt(
            f"{path} is a ledger of format {version}, and this release knows format {1 + len(UPGRADES)}. "
            "Use a newer release."
        )
    if application == _STORE_APPLICATION_ID:
        raise StoreCorrupt(
            f"{path} is the task store of a server, not a ledger. Give the ledger a file of its own, such as ledger.db."
        )
    if not (application or version or tables):
        return [statement for part in (_SCHEMA, *UPGRADES) for statement in part]
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
