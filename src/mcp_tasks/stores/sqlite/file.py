"""One SQLite file: strings, the driver's errors, the connections that read, and the thread that writes."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable, ValueNotStorable
from mcp_tasks.files import FileId, make_private_file
from mcp_tasks.stores.base import Meanings, meaning_of

T = TypeVar("T")

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The values of a statement, by position or by name."""

Read: TypeAlias = Callable[[str, Values], Sequence[Any]]
"""Runs one query and returns all its rows."""

JOURNAL_SIZE_LIMIT = 16 * 1024 * 1024
"""To what the WAL file is cut after a burst: four times what it needs between two checkpoints."""

# ---- strings


def to_text(text: str) -> str | bytes:
    """A string as SQLite can keep it.

    A lone surrogate has no UTF-8 form, and ids come from the wire. Such a string is kept as a blob, which equals no
    text; all others are text, for people who look into the file.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def to_optional(text: str | None) -> str | bytes | None:
    """A string that may be missing."""
    return None if text is None else to_text(text)


def from_text(value: str | bytes) -> str:
    """The string that `to_text` was given; for bytes that it never wrote, a text that names nothing."""
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value.decode("utf-8", "backslashreplace")


def to_owner(owner: str | None) -> bytes:
    """An owner as SQLite keeps it; empty for no owner, which therefore comes first."""
    return b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")


def from_owner(data: bytes) -> str | None:
    """The owner that `to_owner` was given."""
    return from_text(data[1:]) if data else None


# ---- errors

# A value and not the file is at fault: too large (SQLITE_TOOBIG is a DataError), or of a kind that cannot be bound.
_NOT_STORABLE = (OverflowError, ValueError, sqlite3.DataError, sqlite3.InterfaceError)

_MEANINGS: Final[Meanings] = {
    "SQLITE_BUSY": (StoreUnavailable, "is locked by another process. Try again, or end the process that holds it."),
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


def translate(exc: Exception, path: Path) -> StoreError:
    """The error of ours for a driver's exception. Raise it `from exc`."""
    if isinstance(exc, _NOT_STORABLE):
        return ValueNotStorable(f"a value is too large, or of a kind, for {path} to keep ({exc})")
    meaning = meaning_of(_errorname(exc), _MEANINGS, str(path), str(exc))
    return meaning or StoreUnavailable(f"{path} cannot be used: {exc}")


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether another process has the lock."""
    return _errorname(exc).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _errorname(exc: Exception) -> str:
    # Absent from errors that the Python module found by itself.
    return getattr(exc, "sqlite_errorname", "")


def retry_while_busy(action: Callable[[], T], *, patience: float) -> T:
    """The result of `action`, tried again while another process has the lock, for `patience` seconds.

    SQLite's own busy handler backs off to 100 ms, and some locks (the switch to WAL) bypass it. A process that writes
    without a pause leaves the lock free for about a tenth of a millisecond at a time, so short random waits find a gap.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.004))  # noqa: S311 - jitter needs no secret


# ---- connections


def create_file(path: Path) -> FileId:
    """Make an empty file that only its owner can read, with its parent directories, unless it is there.

    Arguments and results of tasks may be private. The -wal and -shm files take over the mode of this one.

    Raises:
        StoreUnavailable: It cannot be made here.
        UntrustedFile: It is there, and another user may have put it there or can write it.
    """
    try:
        known = make_private_file(path)
    except (OSError, ValueError) as exc:  # ValueError: a NUL character in the path
        raise StoreUnavailable(f"{path} cannot be created: {exc}. Choose a path that can be written.") from exc
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a directory. Give the path of a file in it, such as {path / 'tasks.db'}.")
    return known


def connect(path: Path, *, timeout: float, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        # FULL: in WAL mode, NORMAL would sync only at checkpoints and forget the last commits at a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def fetch(connection: sqlite3.Connection, sql: str, values: Values) -> list[Any]:
    """All rows of one query, text that is not UTF-8 as bytes; none if it asks by a string too long for any row.

    `fetchall` ends the statement and with it the read transaction: one left open would show the next read an old state,
    and keep the WAL from being folded.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except (sqlite3.DataError, OverflowError):
        longest = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
        asked = values.values() if isinstance(values, Mapping) else values
        texts = (text.encode() if isinstance(text, str) else text for text in asked if isinstance(text, str | bytes))
        if any(len(text) > longest for text in texts):
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


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


READ_PATIENCE = 0.25
"""Seconds a read may wait for a lock. In WAL mode it waits only for a recovery after a crash, and the event loop waits
with it."""


class Reader:
    """The two connections that read: one on the event loop's own thread, one in a thread for what is large.

    Raises:
        sqlite3.Error: The file cannot be opened; the caller translates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._small = connect(path, timeout=READ_PATIENCE, read_only=True)
        try:
            self._large = connect(path, timeout=READ_PATIENCE, read_only=True)
        except BaseException:
            self._small.close()
            raise
        # One at a time: large values are rare, and each takes as much memory as it has bytes.
        self._turn = anyio.CapacityLimiter(1)

    def rows(self, sql: str, values: Values, *, large: bool = False) -> list[Any]:
        """All rows of one query, read on this thread.

        Raises:
            StoreError: The file cannot be read.
        """
        try:
            return fetch(self._large if large else self._small, sql, values)
        except (sqlite3.Error, OverflowError) as exc:
            raise translate(exc, self._path) from exc

    async def in_thread(self, work: Callable[[Read], T]) -> T:
        """The result of `work`, which reads in a thread."""
        return await to_thread.run_sync(work, partial(self.rows, large=True), limiter=self._turn)

    async def close(self) -> None:
        """Close the file when no thread reads."""
        self._small.close()
        async with self._turn:
            self._large.close()

    def abandon(self) -> None:
        """Close the file at once, before anything was read."""
        self._small.close()
        self._large.close()


# ---- writer

Operation: TypeAlias = Callable[[sqlite3.Cursor], T | StoreError]
"""Writes with the cursor, marks changed tasks with the batch's number, and returns what to return or raise in its
caller."""

_Waiting: TypeAlias = tuple[Operation[Any], "asyncio.Future[Any]"]

MAX_BATCH = 1_000
"""Throughput is flat from about here on (a commit is a few percent of the batch), while the wait grows."""

TIDY_EVERY = 100
"""Batches between two looks at the free pages; one look costs a few microseconds."""

SPARE_PAGES = 2_000
"""Free pages worth keeping (8 MB): new tasks fill them without the file having to grow."""

TIDY_PAGES = 500
"""Pages given back at a time: a few milliseconds in which writers wait."""


class Writer:
    """One thread that does all writing, and commits for many callers at once, on a connection that it owns."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, patience: float) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._patience = patience
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        self._queue: SimpleQueue[Sequence[_Waiting] | None] = SimpleQueue()
        self._batches = 0
        self._is_committing = False
        # A daemon: a program that forgets `close` must still end. What was acknowledged is on disk.
        self._thread = Thread(target=self._serve, name="mcp-tasks-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, operation: Operation[T]) -> T:
        """Have it written; returns the result of the operation when it is on disk.

        Raises:
            StoreError: What the operation reported, or why its batch could not be written.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[T] = loop.create_future()
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = []
            loop.call_soon(self._submit, loop)
        gathered.append((operation, written))
        return await written

    def _submit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the thread what was gathered in this turn of the event loop."""
        gathered = self._gathered.pop(loop, ())
        for start in range(0, len(gathered), MAX_BATCH):
            self._queue.put(gathered[start : start + MAX_BATCH])

    async def close(self) -> None:
        """Write what waits, then end the thread and the connection."""
        for loop in list(self._gathered):
            self._submit(loop)
        self._queue.put(None)
        await to_thread.run_sync(self._thread.join)

    def _serve(self) -> None:
        while batch := self._take():
            self._settle(batch, self._write(batch))
            self._batches += 1
            if self._batches % TIDY_EVERY == 0:
                self._tidy()
        self._tidy()
        with suppress(sqlite3.Error):  # only to leave one file behind; the WAL is as durable
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.close()

    def _take(self) -> list[_Waiting]:
        """All that waits, up to about the limit; empty when there will be no more."""
        batch: list[_Waiting] = []
        waiting = self._queue.get()
        with suppress(Empty):
            while waiting is not None:
                batch += waiting
                if len(batch) >= MAX_BATCH:
                    return batch
                waiting = self._queue.get_nowait()
            # The end came together with work: do the work, and find the end again next time.
            if batch:
                self._queue.put(None)
        return batch

    def _write(self, batch: Sequence[_Waiting]) -> Sequence[object]:
        """The result of each operation. Never raises: a dead thread would leave every caller waiting."""
        try:
            return self._transact(batch)
        except Exception as exc:
            may_have_happened = self._is_committing and _errorname(exc) != "SQLITE_FULL"
            # After some failures (a full disk) SQLite has rolled back by itself.
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            if len(batch) > 1 and not isinstance(exc, sqlite3.OperationalError):
                # Not the disk, not a lock: a value that cannot be bound. Only its own operation fails.
                return [result for waiting in batch for result in self._write([waiting])]
            return [self._failure(exc, may_have_happened) for _ in batch]

    def _failure(self, exc: Exception, may_have_happened: bool) -> StoreError:
        # One exception for each caller: a shared one would collect all their tracebacks.
        error = translate(exc, self._path)
        if isinstance(error, StoreUnavailable):
            error.may_have_happened = may_have_happened
        error.__cause__ = exc
        return error

    def _transact(self, batch: Sequence[_Waiting]) -> Sequence[object]:
        cursor = self._cursor
        self._is_committing = False
        retry_while_busy(lambda: cursor.execute("BEGIN IMMEDIATE"), patience=self._patience)
        # The number is taken under the write lock, so numbers become visible in their order.
        cursor.execute("UPDATE meta SET seq = seq + 1")
        results = [operation(cursor) for operation, _ in batch]
        # No other process has the lock, so this is not refused for one: SQLite promises that after BEGIN IMMEDIATE.
        self._is_committing = True
        cursor.execute("COMMIT")
        return results

    def _settle(self, batch: Sequence[_Waiting], results: Sequence[object]) -> None:
        """Wake each event loop once, whatever the size of the batch: a wake-up costs as much as ten rows."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
        for (_, written), result in zip(batch, results, strict=True):
            by_loop.setdefault(written.get_loop(), []).append((written, result))
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, and nothing waits there any more
                loop.call_soon_threadsafe(_resolve, settled)

    def _tidy(self) -> None:
        """Give free pages back to the file system when there are many."""
        with suppress(sqlite3.Error):
            free: int = self._connection.execute("PRAGMA freelist_count").fetchall()[0][0]
            if free > SPARE_PAGES:
                # One step frees one page, and `execute` takes only one step of a statement without columns.
                self._connection.executescript(f"PRAGMA incremental_vacuum({TIDY_PAGES})")


def _resolve(settled: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for written, result in settled:
        if written.done():
            continue
        if isinstance(result, StoreError):
            written.set_exception(result)
        else:
            written.set_result(result)
