"""One SQLite file: connections, strings, the driver's errors, who reads, the thread that writes, and hints."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from mcp_tasks.errors import StoreCorrupt, StoreError, StoreUnavailable, UsageError, ValueNotStorable
from mcp_tasks.files import FileId, make_private_file
from mcp_tasks.stores.base import Hint, HintFan, Inbox

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


def to_owner(owner: str | None) -> bytes:
    """An owner as SQLite keeps it; empty for no owner, which therefore comes first."""
    return b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")


def from_owner(data: bytes) -> str | None:
    """The owner that `to_owner` was given."""
    return from_text(data[1:]) if data else None


# ---- reader
# The two connections that read: one on the event loop's own thread, one in a thread for what is large.


Read: TypeAlias = Callable[[str, Values], Sequence[Any]]
"""Runs one query and returns all its rows."""

READ_PATIENCE = 0.25
"""Seconds a read may wait for a lock. In WAL mode it waits only for a recovery after a crash, and the event
loop waits with it."""


class Reader:
    """Reads from the file at `path`, which is there.

    Raises:
        sqlite3.Error: It cannot be opened; the caller translates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._small = _read_only(path)
        try:
            self._large = _read_only(path)
        except BaseException:
            self._small.close()
            raise
        # One at a time: large values are rare, and each takes as much memory as it has bytes.
        self._turn = anyio.CapacityLimiter(1)

    def rows(self, sql: str, values: Values) -> list[Any]:
        """All rows of one query, read on this thread.

        Raises:
            StoreError: The file cannot be read.
        """
        return self._fetch(self._small, sql, values)

    async def in_thread(self, work: Callable[[Read], T]) -> T:
        """What `work` makes of what it reads, all of it done in a thread."""
        return await to_thread.run_sync(work, self._fetch_large, limiter=self._turn)

    async def close(self) -> None:
        """Let go of the file once nobody reads."""
        self._small.close()
        async with self._turn:
            self._large.close()

    def abandon(self) -> None:
        """Let go of the file at once: nobody has read from it yet."""
        self._small.close()
        self._large.close()

    def _fetch_large(self, sql: str, values: Values) -> Sequence[Any]:
        return self._fetch(self._large, sql, values)

    def _fetch(self, connection: sqlite3.Connection, sql: str, values: Values) -> list[Any]:
        try:
            return fetch(connection, sql, values)
        except (sqlite3.Error, OverflowError) as exc:
            raise translate(exc, self._path) from exc


def _read_only(path: Path) -> sqlite3.Connection:
    connection = connect(path, timeout=READ_PATIENCE)
    try:
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


# ---- writer
# One thread that does all writing, and commits for many callers at once.


Operation: TypeAlias = Callable[[sqlite3.Cursor], T | StoreError]
"""Writes with the cursor, marks changed tasks with the batch's number, and returns what to return or raise in its
caller."""

_Waiting: TypeAlias = tuple[Operation[Any], "asyncio.Future[Any]"]
_Outcome: TypeAlias = object

MAX_BATCH = 1_000
"""Throughput is flat from about here on (a commit is a few percent of the batch), while the wait grows."""

TIDY_EVERY = 100
"""Batches between two looks at the free pages; one look costs a few microseconds."""

SPARE_PAGES = 2_000
"""Free pages worth keeping (8 MB): new tasks fill them without the file having to grow."""

TIDY_PAGES = 500
"""Pages given back at a time: a few milliseconds in which writers wait."""


class Writer:
    """Runs operations on a connection that it owns from now on."""

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
        """Have it written; returns what the operation did when it is on disk.

        Raises:
            StoreError: What the operation reported, or why its batch could not be written.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[T] = loop.create_future()
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = []
            loop.call_soon(self._hand_over, loop)
        gathered.append((operation, written))
        return await written

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the thread what was brought in this turn of the event loop."""
        gathered = self._gathered.pop(loop, ())
        for start in range(0, len(gathered), MAX_BATCH):
            self._queue.put(gathered[start : start + MAX_BATCH])

    async def close(self) -> None:
        """Write what waits, then end the thread and the connection."""
        for loop in list(self._gathered):
            self._hand_over(loop)
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

    def _write(self, batch: Sequence[_Waiting]) -> Sequence[_Outcome]:
        """What came of each operation. Never raises: a dead thread would leave every caller waiting."""
        try:
            return self._transact(batch)
        except Exception as exc:
            may_have_happened = self._is_committing and not is_disk_full(exc)
            self._roll_back()
            if len(batch) > 1 and not isinstance(exc, sqlite3.OperationalError):
                # Not the disk, not a lock: a value that cannot be bound. Who brought it fails alone.
                return [outcome for waiting in batch for outcome in self._write([waiting])]
            return [_failure(exc, self._path, may_have_happened=may_have_happened) for _ in batch]

    def _transact(self, batch: Sequence[_Waiting]) -> Sequence[_Outcome]:
        cursor = self._cursor
        self._is_committing = False
        retry_while_busy(lambda: cursor.execute("BEGIN IMMEDIATE"), patience=self._patience)
        # The number is taken under the write lock, so numbers become visible in their order.
        cursor.execute("UPDATE meta SET seq = seq + 1")
        outcomes = [operation(cursor) for operation, _ in batch]
        # Nobody else has the lock, so this is not refused for one: SQLite promises that after BEGIN IMMEDIATE.
        self._is_committing = True
        cursor.execute("COMMIT")
        return outcomes

    def _roll_back(self) -> None:
        # After some failures (a full disk) SQLite has rolled back by itself.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _settle(self, batch: Sequence[_Waiting], outcomes: Sequence[_Outcome]) -> None:
        """Wake each event loop once, whatever the size of the batch: a wake-up costs as much as ten rows."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
        for (_, written), outcome in zip(batch, outcomes, strict=True):
            by_loop.setdefault(written.get_loop(), []).append((written, outcome))
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(_resolve, settled)

    def _tidy(self) -> None:
        """Give free pages back to the file system when there are many."""
        with suppress(sqlite3.Error):
            free: int = self._connection.execute("PRAGMA freelist_count").fetchall()[0][0]
            if free > SPARE_PAGES:
                # One step frees one page, and `execute` takes only one step of a statement without columns.
                self._connection.executescript(f"PRAGMA incremental_vacuum({TIDY_PAGES})")


def _resolve(settled: Sequence[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for written, outcome in settled:
        if written.done():
            continue
        if isinstance(outcome, StoreError):
            written.set_exception(outcome)
        else:
            written.set_result(outcome)


def _failure(exc: Exception, path: Path, *, may_have_happened: bool) -> StoreError:
    # One exception for each caller: a shared one would collect all their tracebacks.
    error = translate(exc, path)
    if isinstance(error, StoreUnavailable):
        error.may_have_happened = may_have_happened
    error.__cause__ = exc
    return error


# ---- notifier
# Hints between processes that share one file, found by looking at it.


NotifierRead: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Any]]
"""Runs one query and returns all its rows."""

_DATA_VERSION = "PRAGMA data_version"
_POSITION = "SELECT seq FROM meta"
_CHANGED = "SELECT id, version, seq FROM tasks INDEXED BY tasks_seq WHERE seq > ? ORDER BY seq LIMIT ?"

MAX_CHANGES = 5_000
"""Changes taken in one look, some milliseconds; more than one batch of the writer can have."""


class SqliteNotifier:
    """Gives this process's hints to its listeners at once, and those of other processes by polling."""

    def __init__(self, read: NotifierRead, *, interval: timedelta) -> None:
        self._read = read
        self._interval = interval.total_seconds()
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process; the others see the change in the file."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on. Those of the same origin may come late, when the file is looked at, instead of at once."""
        with self._fan.listen(origin=origin) as inbox:
            yield _Listener(inbox, self._read, self._interval)


class _Listener:
    """Waits for hints of this process and looks at the file in between.

    The look is part of waiting for the next hint rather than a background job: there is nothing to stop, and
    nobody polls for a listener that is busy or gone.
    """

    def __init__(self, inbox: Inbox, read: NotifierRead, interval: float) -> None:
        self._inbox = inbox
        self._read = read
        self._interval = interval
        self._given: dict[str, int] = {}
        self._now = asyncio.get_running_loop().time
        self._data_version: Sequence[Any] = read(_DATA_VERSION, ())
        self._position: int = read(_POSITION, ())[0][0]
        self._next_look = self._now() + interval

    def __aiter__(self) -> AsyncIterator[Hint]:
        return self

    async def __anext__(self) -> Hint:
        while True:
            # Asked for every hint; anyio would find out each time which event loop this is.
            if self._now() >= self._next_look:
                self._look()
            hint = self._inbox.pop()
            if hint is not None:
                self._given[hint.task_id] = hint.version
                return hint
            with anyio.move_on_after(self._next_look - self._now()):
                await self._inbox.wait()

    def _look(self) -> None:
        self._next_look = self._now() + self._interval
        try:
            data_version = self._read(_DATA_VERSION, ())
            if data_version != self._data_version and self._take_changes():
                self._data_version = data_version
        except (StoreError, UsageError):
            # Closed, or busy: a hint is worth less than the listener's work. The next look may do better.
            return

    def _take_changes(self) -> bool:
        """Put what changed into the inbox; whether that was all."""
        rows = self._read(_CHANGED, (self._position, MAX_CHANGES))
        for task_id, version, _ in rows:
            # A change of our own was told when it was published, which is after its commit: it is among these
            # rows at the latest in the first look after that, so one round of memory is enough.
            if self._given.get(from_text(task_id), 0) < version:
                self._inbox.put(Hint(from_text(task_id), version))
        self._given.clear()
        complete = len(rows) < MAX_CHANGES
        if rows:
            # A full answer may have cut a batch in two: then its number is asked for again.
            self._position = rows[-1][2] - (not complete)
        return complete
