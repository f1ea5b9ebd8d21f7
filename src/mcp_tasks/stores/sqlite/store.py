"""`SqliteStore`: tasks in one file, for all processes of one machine.

Durability: `synchronous=FULL` in WAL mode. What was acknowledged survives the death of the process and of the
machine. The price is one sync of the disk per commit, about 0.1 ms on an SSD and 10 ms on a spinning disk;
one writer thread shares it among all who wait (`writer.py`), after which `NORMAL` would gain little and lose
the last commits at a power cut.

Space: deleted rows leave free pages, which new tasks fill. The file is made with `auto_vacuum=INCREMENTAL`,
and the writer gives pages back when many are free; a full `VACUUM` would stop all writers for seconds. The
WAL is folded into the file every 1,000 pages (4 MB, SQLite's default) and cut to 16 MB after a burst.

Weaknesses:

- One machine. WAL needs shared memory: no network file systems, no two machines on one file.
- One writer at a time, over all processes. Several processes may write, but they queue for the lock.
- Other processes hear of a change by polling (`notifier.py`).
- The file must not be moved or deleted while it is open: SQLite would go on writing into what was removed.
- If the sync of a commit fails, its callers are told that nothing was written. Should the machine die right
  then, SQLite may find that commit complete when it recovers.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UsageError
from mcp_tasks.stores.base import NEVER_SEEN, Page
from mcp_tasks.stores.codec import decode_entry, decode_record, encode_cursor, from_micros, to_micros
from mcp_tasks.stores.sqlite import operations, queries
from mcp_tasks.stores.sqlite.connection import connect, from_text, retry_while_busy, to_text, translate
from mcp_tasks.stores.sqlite.notifier import SqliteNotifier
from mcp_tasks.stores.sqlite.schema import prepare
from mcp_tasks.stores.sqlite.writer import Writer

READ_PATIENCE = 0.25
"""Seconds a read may wait for a lock. In WAL mode it waits only for a recovery after a crash, and the event
loop waits with it."""


class SqliteStore:
    """Keeps tasks in the SQLite file at `path`, which is made if it is not there.

    Args:
        busy_timeout: How long a write waits for another process that writes.
        poll_interval: How often a listener looks for changes of other processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: timedelta = timedelta(seconds=5),
        poll_interval: timedelta = timedelta(milliseconds=75),
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise UsageError("SqliteStore needs the path of a file; for tasks in memory use MemoryStore.")
        self.path = Path(path).expanduser()
        self._patience = busy_timeout.total_seconds()
        self._reader: sqlite3.Connection | None = None
        self._writer: Writer | None = None
        self._notifier = SqliteNotifier(self._read, interval=poll_interval)
        self._turn = anyio.Lock()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    async def open(self) -> None:
        """Make the file if need be, bring its schema up to date, and start the writer."""
        async with self._turn:
            if self._writer is None:
                self._reader, self._writer = await to_thread.run_sync(self._connect)

    async def close(self) -> None:
        """Write what waits and let go of the file."""
        # Shielded: `close` is called in `finally`, often because everything is being cancelled.
        with anyio.CancelScope(shield=True):
            async with self._turn:
                # Forgotten first: whoever comes from now on is told that the store is closed.
                reader, writer = self._reader, self._writer
                self._reader = self._writer = None
                if reader is not None:
                    reader.close()
                if writer is not None:
                    await writer.close()

    async def create(self, record: TaskRecord) -> None:
        """Keep a new task."""
        await self._opened().run(operations.create(record))

    async def save(self, record: TaskRecord, *, expected: int, entries: Sequence[JournalEntry] = ()) -> None:
        """Replace the record if it is still at version `expected`, and append to its journal."""
        await self._opened().run(operations.save(record, expected=expected, entries=entries))

    async def delete(self, task_id: str, *, expected: int) -> None:
        """Forget the task and its journal if it is still at version `expected`."""
        await self._opened().run(operations.delete(task_id, expected=expected))

    async def beat(self, holder: str, *, until: datetime) -> None:
        """Note that `holder` is alive."""
        await self._opened().run(operations.beat(holder, until=until))

    async def retire(self, holder: str) -> None:
        """Forget that `holder` was alive."""
        await self._opened().run(operations.retire(holder))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        rows = self._read(queries.GET, (to_text(task_id),))
        return decode_record(task_id, *rows[0]) if rows else None

    async def journal(self, task_id: str) -> Sequence[JournalEntry]:
        """The task's journal in the order of writing."""
        rows = self._read(queries.JOURNAL, (to_text(task_id),))
        return [decode_entry(kind, from_text(key), value) for kind, key, value in rows]

    async def list(
        self,
        *,
        owner: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Tasks in the order of creation, of one owner or all, in one status or any."""
        # One more than asked for tells whether there is a next page.
        found = self._records(*queries.listing(owner=owner, status=status, cursor=cursor, limit=limit + 1))
        page = found[:limit]
        return Page(records=page, cursor=encode_cursor(page[-1]) if page and len(found) > limit else None)

    async def queued(self, now: datetime, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks that could run at `now` and nobody has, oldest first."""
        return self._records(*queries.queued(now, limit=limit))

    async def held(self, holder: str, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks that `holder` has, oldest first."""
        return self._records(queries.HELD, (to_text(holder), limit))

    async def expired(self, now: datetime, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks whose time after the end is over, longest overdue first."""
        return self._records(queries.EXPIRED, (to_micros(now), limit))

    async def holders(self) -> dict[str, datetime]:
        """Every holder that ever beat or still has a task."""
        rows = self._read(queries.HOLDERS, ())
        return {from_text(name): NEVER_SEEN if until is None else from_micros(until) for name, until in rows}

    def notifier(self) -> SqliteNotifier:
        """Hints between the processes that share the file."""
        return self._notifier

    def _connect(self) -> tuple[sqlite3.Connection, Writer]:
        try:
            prepare(self.path, patience=self._patience)
            # No time-out for the writer's connection: it has its own way of waiting.
            writing = retry_while_busy(lambda: connect(self.path, timeout=0), patience=self._patience)
            try:
                reading = connect(self.path, timeout=READ_PATIENCE)
                reading.execute("PRAGMA query_only = ON")
            except BaseException:
                writing.close()
                raise
            return reading, Writer(writing, self.path, patience=self._patience)
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    def _opened(self) -> Writer:
        if self._writer is None:
            raise UsageError(f"the store {self.path} is not open: `await store.open()` comes first")
        return self._writer

    def _read(self, sql: str, values: queries.Values) -> Sequence[Any]:
        """All rows of one query, read on the event loop's own thread.

        A row by its key comes from the page cache in about 10 µs; the hop to a thread and back costs ten
        times that. WAL readers never wait for the writer. `fetchall` ends the statement and with it the read
        transaction: one left open would show the next read an old state, and keep the WAL from being folded.
        """
        if self._reader is None:
            raise UsageError(f"the store {self.path} is not open: `await store.open()` comes first")
        try:
            return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    def _records(self, sql: str, values: queries.Values) -> Sequence[TaskRecord]:
        rows = self._read(sql, values)
        return [decode_record(from_text(task_id), request, state) for task_id, request, state in rows]
