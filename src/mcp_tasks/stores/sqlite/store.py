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

import logging
import os
import sqlite3
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskUnreadable, UsageError
from mcp_tasks.stores.base import Hint, IdPage, Page
from mcp_tasks.stores.codec import decode_entry, decode_record, encode_cursor
from mcp_tasks.stores.sqlite import operations, queries
from mcp_tasks.stores.sqlite.connection import (
    Values,
    connect,
    fetch,
    from_text,
    retry_while_busy,
    to_text,
    translate,
)
from mcp_tasks.stores.sqlite.notifier import SqliteNotifier
from mcp_tasks.stores.sqlite.schema import prepare
from mcp_tasks.stores.sqlite.writer import Writer

READ_PATIENCE = 0.25
"""Seconds a read may wait for a lock. In WAL mode it waits only for a recovery after a crash, and the event
loop waits with it."""

MAX_REPORTED = 1_000
"""Unreadable tasks remembered as logged; beyond that some are logged again."""

logger = logging.getLogger(__name__)


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
        self._reported: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    async def open(self, namespace: str = "") -> None:
        """Make the file if need be, bring its schema up to date, and start the writer."""
        async with self._turn:
            if self._writer is None:
                self._reader, self._writer = await to_thread.run_sync(self._connect, namespace)

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

    async def beat(self, holder: str, *, namespace: str) -> None:
        """Renew the lease of `holder`."""
        await self._opened().run(operations.beat(holder, namespace=namespace))

    async def retire(self, holder: str) -> None:
        """Forget the heartbeat of `holder`."""
        await self._opened().run(operations.retire(holder))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        rows = self._read(queries.GET, (to_text(task_id),))
        return _record(task_id, *rows[0]) if rows else None

    async def journal(self, task_id: str) -> Sequence[JournalEntry]:
        """The task's journal in the order of writing."""
        rows = self._read(queries.JOURNAL, (to_text(task_id),))
        return [
            decode_entry(task_id, kind, from_text(key), value, owner=_optional(owner))
            for owner, kind, key, value in rows
        ]

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
        rows = self._read(*queries.listing(owner=owner, status=status, cursor=cursor, limit=limit + 1))
        return Page(records=self._readable(rows[:limit]), cursor=_cursor(rows, limit))

    async def queued(self, namespace: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        return _page(self._read(*queries.queued(namespace, cursor=cursor, limit=limit + 1)), limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""
        return _page(self._read(*queries.due(namespace, now, cursor=cursor, limit=limit + 1)), limit)

    async def held(self, holder: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `holder` has, in the order of creation."""
        return _page(self._read(*queries.held(holder, cursor=cursor, limit=limit + 1)), limit)

    async def expired(self, now: datetime, *, limit: int) -> Sequence[Hint]:
        """Id and version of tasks whose time after the end is over, longest overdue first."""
        rows = self._read(*queries.expired(now, limit=limit))
        return [Hint(from_text(task_id), version) for task_id, version in rows]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        rows = [row for query in queries.versions(task_ids) for row in self._read(*query)]
        return {from_text(task_id): version for task_id, version in rows}

    async def holders(self, namespace: str) -> dict[str, int]:
        """Every holder that beats for the namespace or has a task in it, and how often it has beaten."""
        rows = self._read(queries.HOLDERS, {"namespace": to_text(namespace)})
        return {from_text(holder): beats for holder, beats in rows}

    def notifier(self) -> SqliteNotifier:
        """Hints between the processes that share the file."""
        return self._notifier

    def _connect(self, namespace: str) -> tuple[sqlite3.Connection, Writer]:
        try:
            prepare(self.path, namespace=namespace, patience=self._patience)
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

    def _read(self, sql: str, values: Values) -> Sequence[Any]:
        """All rows of one query, read on the event loop's own thread.

        A row by its key comes from the page cache in about 10 µs; the hop to a thread and back costs ten
        times that. WAL readers never wait for the writer.
        """
        if self._reader is None:
            raise UsageError(f"the store {self.path} is not open: `await store.open()` comes first")
        try:
            return fetch(self._reader, sql, values)
        except (sqlite3.Error, OverflowError) as exc:
            raise translate(exc, self.path) from exc

    def _readable(self, rows: Sequence[Any]) -> list[TaskRecord]:
        """The records of a listing. What cannot be read is left out and logged once."""
        records: list[TaskRecord] = []
        for _, *row in rows:
            try:
                records.append(_record(*row))
            except TaskUnreadable as exc:
                self._report(exc)
        return records

    def _report(self, unreadable: TaskUnreadable) -> None:
        if unreadable.task_id in self._reported:
            return
        if len(self._reported) == MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[unreadable.task_id] = None
        logger.error(
            "%s. Listings leave it out, and all other tasks in %s are unaffected. To delete it: "
            "DELETE FROM tasks WHERE id = '%s'",
            unreadable,
            self.path,
            unreadable.task_id.replace("'", "''"),
        )


def _record(
    task_id: str | bytes, owner: str | bytes | None, namespace: str | bytes, request: str, state: str
) -> TaskRecord:
    return decode_record(from_text(task_id), request, state, namespace=from_text(namespace), owner=_optional(owner))


def _optional(text: str | bytes | None) -> str | None:
    return None if text is None else from_text(text)


def _cursor(rows: Sequence[Any], limit: int) -> str | None:
    """Where the next page starts, if there is a row that is not on this one."""
    return encode_cursor(rows[limit - 1][0], from_text(rows[limit - 1][1])) if len(rows) > limit > 0 else None


def _page(rows: Sequence[Any], limit: int) -> IdPage:
    return IdPage(ids=[from_text(task_id) for _, task_id in rows[:limit]], cursor=_cursor(rows, limit))
