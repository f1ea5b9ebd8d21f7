"""One thread that does all writing, and commits for many callers at once.

A durable commit waits for the disk, and the disk takes the same time for one row as for a thousand. So
callers put operations into a queue; the thread takes everything that waits, runs it in one transaction,
commits once, and wakes each event loop once. What the callers of one turn of an event loop bring goes into the queue
together, or the thread would be at work on the first while the others are on their way. Under load the batches grow by
themselves: no timer, no delay for a caller who is alone.

Rules of this file:

1. An operation reports its own outcome (a conflict, an id that is taken) as a value; the others in its batch
   do not notice.
2. When the disk or a lock fails a batch, it is rolled back, each of its callers gets `StoreUnavailable`, and the
   thread goes on with the next batch. A commit that fails may have happened: its last page may be in the WAL although
   the sync failed, and SQLite finds the commit complete if it recovers the WAL after a crash. A commit that fails
   because the disk is full has not happened: its last page is not there. When a value cannot be kept, its caller gets
   `ValueNotStorable`, and the others are written without it.
3. A caller that was cancelled while it waited is skipped; its operation may still have been written.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from anyio import to_thread

from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.stores.sqlite.connection import is_disk_full, retry_while_busy, translate

T = TypeVar("T")

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
