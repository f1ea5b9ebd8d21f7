"""What a client keeps of its tasks, encrypted: the ledger, and the file of hosted tasks.

Both are SQLite files of one process or few. A file has a mark that says under which key it is; with another key, or
none, it is not opened. A plain one that is opened with a key is encrypted as a whole, and so is one whose key was
changed: in one transaction, while nobody else has it, and the file is written anew, so that nothing readable is left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from mcp_tasks.encryption import Cipher, Keyring
from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreUnavailable
from mcp_tasks.files import FileId, check_still, make_private_file

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
