"""Opening one SQLite connection, binding any string, and the driver's exceptions in our words."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable, ValueNotStorable
from mcp_tasks.files import FileId, make_private_file

T = TypeVar("T")

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""What goes into the places of a statement, by position or by name."""

JOURNAL_SIZE_LIMIT = 16 * 1024 * 1024
"""To what the WAL file is cut after a burst: four times what it needs between two checkpoints."""


def create_file(path: Path) -> FileId:
    """Make an empty file that only its owner can read, with its parent directories, unless it is there.

    Arguments and results of tasks may be private. The -wal and -shm files take over the mode of this one.

    Raises:
        StoreUnavailable: It cannot be made here.
        UntrustedFile: It is there, and somebody else may have put it there or can write it.
    """
    try:
        known = make_private_file(path)
    except (OSError, ValueError) as exc:  # ValueError: a NUL character in the path
        raise StoreUnavailable(f"{path} cannot be created: {exc}. Choose a path that can be written.") from exc
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a directory. Give the path of a file in it, such as {path / 'tasks.db'}.")
    return known


def connect(path: Path, *, timeout: float) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        # FULL: in WAL mode, NORMAL would sync only at checkpoints and forget the last commits at a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT}")
    except BaseException:
        connection.close()
        raise
    return connection


def fetch(connection: sqlite3.Connection, sql: str, values: Values) -> list[Any]:
    """All rows of one query, text that is not UTF-8 as bytes; none if it asks by a string too long for any row.

    `fetchall` ends the statement and with it the read transaction: one left open would show the next read an old
    state, and keep the WAL from being folded.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except (sqlite3.DataError, OverflowError):
        longest = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
        asked = values.values() if isinstance(values, Mapping) else values
        if any(_size(value) > longest for value in asked if isinstance(value, str | bytes)):
            return []
        raise
    except sqlite3.OperationalError as exc:
        # The driver, not SQLite, refuses an answer with damaged text in it; one row would hide all the others.
        if _errorname(exc):
            raise
        connection.text_factory = _text_or_bytes
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.text_factory = str


def _size(text: str | bytes) -> int:
    return len(text.encode() if isinstance(text, str) else text)


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def retry_while_busy(action: Callable[[], T], *, patience: float) -> T:
    """The result of `action`, tried again while another process has the lock, for `patience` seconds.

    SQLite's own busy handler backs off to 100 ms, and some locks (the switch to WAL) bypass it. A process
    that writes without a pause leaves the lock free for about a tenth of a millisecond at a time, so short
    random waits are what finds a gap.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.004))  # noqa: S311 - jitter needs no secret


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether somebody else has the lock."""
    return _errorname(exc).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def is_disk_full(exc: Exception) -> bool:
    """Whether there is no room for what was to be written."""
    return _errorname(exc) == "SQLITE_FULL"


def translate(exc: Exception, path: Path) -> StoreError:
    """What a driver's exception means for the caller. Raise it `from exc`."""
    if isinstance(exc, _NOT_STORABLE):
        return ValueNotStorable(f"a value is too large, or of a kind, for {path} to keep ({exc})")
    name = _errorname(exc)
    for prefix, (kind, meaning) in _MEANINGS.items():
        if name.startswith(prefix):
            return kind(f"{path} {meaning} ({exc})")
    return StoreUnavailable(f"{path} cannot be used: {exc}")


# A value and not the file is at fault: too large (SQLITE_TOOBIG is a DataError), or of a kind that cannot be bound.
_NOT_STORABLE = (OverflowError, ValueError, sqlite3.DataError, sqlite3.InterfaceError)

_MEANINGS: dict[str, tuple[type[StoreError], str]] = {
    "SQLITE_BUSY": (
        StoreUnavailable,
        "is locked by another process. Try again, or end the process that holds it.",
    ),
    "SQLITE_LOCKED": (StoreUnavailable, "is locked. Try again."),
    "SQLITE_FULL": (StoreUnavailable, "cannot grow: the disk or its quota is full. Make room and try again."),
    "SQLITE_READONLY": (
        StoreUnavailable,
        "is read-only for this process. Let it write the file and its directory, or choose another path.",
    ),
    "SQLITE_CANTOPEN": (
        StoreUnavailable,
        "cannot be opened. Let this process write the file and its directory, or choose another path.",
    ),
    "SQLITE_IOERR": (StoreUnavailable, "could not be read or written: look at the disk."),
    "SQLITE_NOTADB": (StoreCorrupt, "is not a SQLite database. Choose another path."),
    "SQLITE_CORRUPT": (StoreCorrupt, "is damaged. Restore a backup, or try `sqlite3 FILE .recover`."),
}


def _errorname(exc: Exception) -> str:
    # Absent from errors that the Python module found by itself.
    return getattr(exc, "sqlite_errorname", "")


def to_text(text: str) -> str | bytes:
    """A string as SQLite can keep it.

    A lone surrogate has no UTF-8 form, and ids come from the wire as anybody wrote them. Such a string is
    kept as a blob, which equals no text; all others are text, for people who look into the file.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def from_text(value: str | bytes) -> str:
    """The string that `to_text` was given; for bytes that it never wrote, a text that names nothing."""
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value.decode("utf-8", "backslashreplace")
