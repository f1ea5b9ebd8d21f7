"""`SqliteStore`: tasks in one file, for all processes of one machine.

Durability: `synchronous=FULL` in WAL mode. What was acknowledged survives the death of the process and of the
machine. The price is one sync of the disk per commit, about 0.1 ms on an SSD and 10 ms on a spinning disk;
one writer thread shares it among all who wait (`file.py`), after which `NORMAL` would gain little and lose
the last commits at a power cut.

Space: deleted rows leave free pages, which new tasks fill. The file is made with `auto_vacuum=INCREMENTAL`,
and the writer gives pages back when many are free; a full `VACUUM` would stop all writers for seconds. The
WAL is folded into the file every 1,000 pages (4 MB, SQLite's default) and cut to 16 MB after a burst.

Weaknesses:

- One machine. WAL needs shared memory: no network file systems, no two machines on one file.
- One writer at a time, over all processes. Several processes may write, but they queue for the lock.
- Other processes hear of a change by polling (`SqliteNotifier`).
- The store's time is the clock of the machine. All processes on the file share it, so they agree; but when that clock
  is set, the time of all tasks moves with it: set forward by a day, results expire and timers end a day early.
- The file must not be moved or deleted while it is open: SQLite would go on writing into what was removed.
- If the sync of a commit fails, its callers are told that it may have happened. Nothing of it can be seen, but
  should all processes die right then, SQLite may find that commit complete when it recovers.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from anyio import to_thread

from mcp_tasks.errors import StoreCorrupt, TaskUnreadable, UsageError
from mcp_tasks.files import check_still
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.backend import BaseStore, Change, Created, Creation, Listing, Place, Row, sql_deletion
from mcp_tasks.stores.base import MOST_COUNTED, Owners, Ready, Share, Standing, Usage
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.fairness import Turns
from mcp_tasks.stores.sqlite import operations, queries
from mcp_tasks.stores.sqlite.encryption import SqliteVault, agree
from mcp_tasks.stores.sqlite.file import (
    Reader,
    SqliteNotifier,
    Values,
    Writer,
    connect,
    from_owner,
    from_text,
    retry_while_busy,
    to_owner,
    to_text,
    translate,
)
from mcp_tasks.stores.sqlite.operations import SqliteWaiting, row_of
from mcp_tasks.stores.sqlite.schema import migrations, prepare, schema_of_file

T = TypeVar("T")

NO_LIMIT: Final = 2**62
"""More bytes than any value has."""


class SqliteStore(BaseStore):
    """Keeps tasks in the SQLite file at `path`, which is made if it is not there.

    Args:
        codec: How what is kept of a task becomes bytes; give it a cipher to have it encrypted.
        busy_timeout: How long a write waits for another process that writes.
        poll_interval: How often a listener looks for changes of other processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        busy_timeout: timedelta = timedelta(seconds=5),
        poll_interval: timedelta = timedelta(milliseconds=75),
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise UsageError("SqliteStore needs the path of a file; for tasks in memory use MemoryStore.")
        self.path: Path = Path(path).expanduser()
        super().__init__(str(self.path), codec)
        self._patience = busy_timeout.total_seconds()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._notifier = SqliteNotifier(self._rows, interval=poll_interval)
        self._turns = Turns()

    async def _open(self) -> None:
        self._reader, self._writer = await to_thread.run_sync(self._connect)

    async def _close(self) -> None:
        # Forgotten first: a call that comes from now on is told that the store is closed.
        reader, writer = self._reader, self._writer
        self._reader = self._writer = None
        if reader is not None:
            await reader.close()
        if writer is not None:
            await writer.close()

    def _connect(self) -> tuple[Reader, Writer]:
        try:
            known = prepare(self.path, patience=self._patience)
            # No time-out for the writer's connection: it has its own way of waiting.
            writing = retry_while_busy(lambda: connect(self.path, timeout=0), patience=self._patience)
            with ExitStack() as undo:
                undo.callback(writing.close)
                retry_while_busy(lambda: agree(writing, self._codec, self.path), patience=self._patience)
                reader = Reader(self.path)
                undo.callback(reader.abandon)
                check_still(self.path, known)
                undo.pop_all()
            return reader, Writer(writing, self.path, patience=self._patience)
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    async def standing(self) -> Standing:
        return await to_thread.run_sync(self._schema)

    def _schema(self) -> Standing:
        if not self.path.exists():
            return "absent"
        try:
            schema = schema_of_file(self.path)
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc
        if schema == 0:
            return "absent"
        return "current" if schema >= len(migrations()) else "older"

    @asynccontextmanager
    async def vault(self) -> AsyncGenerator[SqliteVault]:
        if not self.path.exists():
            raise UsageError(f"there is no file {self._place!r}: no server has kept tasks there yet")
        try:
            prepare(self.path, patience=1)
            with closing(connect(self.path, timeout=0)) as connection:
                yield SqliteVault(connection, self._place)
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    # Writing

    async def _create(self, new: Creation) -> Created:
        return await self._write(operations.create(new))

    async def _save(self, change: Change) -> bool:
        return await self._write(operations.save(change))

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        return await self._write(operations.delete(task_id, expected, now))

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Row | None]]:
        # Mostly there is none, and a write, even of nothing, waits for the disk.
        if not self._rows(operations.ANY_EXPIRED, (now,)) and not self._rows(operations.ANY_KEY_OVER, (now,)):
            return []
        try:
            rows = await self._write(operations.forget_expired(now, limit, states=records))
        except StoreCorrupt:
            # One damaged page would keep all tasks that are next to it for good.
            keys = [key for (key,) in self._rows(operations.EXPIRED_KEYS, (now, limit))]
            rows = await operations.forget_one_by_one(self._opened(self._writer), keys, now, states=records)
        return [(version, from_text(row[0]), row_of(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        turns, decode = self._turns, self._reported_or_record
        if mark:
            return await self._write(
                operations.hand_out(namespace, share, queues=queues, limit=limit, turns=turns, decode=decode)
            )
        return await self._opened(self._reader).in_thread(
            lambda read: SqliteWaiting(read, namespace, decode).choose(share, queues, limit, turns)
        )

    async def hand_back(self, task_id: str) -> None:
        await self._write(operations.hand_back(task_id))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        return await self._write(operations.heartbeat(worker, namespace, beats))

    async def retire(self, worker: str) -> None:
        await self._write(operations.retire(worker))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        return await self._write(operations.set_note(namespace, name, seen, value))

    # Reading

    async def _get(self, task_id: str) -> Row | None:
        rows = self._rows(queries.GET, (to_text(task_id),))
        return row_of(task_id, *rows[0]) if rows else None

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        rows = self._rows(queries.GET_OWNED, (to_text(task_id), to_owner(owner)))
        return self._record(row_of(task_id, *rows[0])) if rows else None

    async def _request(self, task_id: str) -> tuple[str | None, object] | None:
        rows = await self._beside(queries.REQUEST, {"id": to_text(task_id)})
        return (from_owner(rows[0][1]), rows[0][2]) if rows else None

    async def _outcome(self, task_id: str) -> tuple[str | None, object, object] | None:
        rows = await self._beside(queries.OUTCOME, {"id": to_text(task_id)})
        return (from_owner(rows[0][1]), rows[0][2], rows[0][3]) if rows else None

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        rows = await self._beside(queries.JOURNAL, {"id": to_text(task_id), "after": after})
        lines = [(number, kind, from_text(key), value) for _, _, number, kind, key, value in rows]
        return from_owner(rows[0][1]) if rows else None, lines

    async def _beside(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        """What is kept beside a task's row: read here if it is small, and in a thread if it is large."""
        rows = self._rows(sql, {**values, "limit": LARGE})
        if not rows or (rows[0][0] or 0) <= LARGE:
            return rows
        return await self._opened(self._reader).in_thread(lambda read: read(sql, {**values, "limit": NO_LIMIT}))

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Row]], Place | None]:
        rows = self._rows(*queries.listing(listing))
        last = None
        if rows and rows[-1][3] is None:
            # Much was passed over, and there may be more behind the last one that was.
            created, task_id, *_ = rows.pop()
            last = created, from_text(task_id)
        return [((created, from_text(row[0])), row_of(*row)) for created, *row in rows], last

    async def _queued(
        self, namespace: str, handed_out: bool | None, after: Place | None, limit: int
    ) -> Sequence[Place]:
        return self._places(queries.QUEUED[handed_out], after, limit, namespace=to_text(namespace))

    async def _due(self, namespace: str, now: int, after: Place | None, limit: int) -> Sequence[Place]:
        return self._places(queries.DUE, after, limit, namespace=to_text(namespace), now=now)

    async def _claimed(self, worker: str, after: Place | None, limit: int) -> Sequence[Place]:
        return self._places(queries.CLAIMED, after, limit, worker=to_text(worker))

    def _places(self, sql: str, after: Place | None, limit: int, **values: Any) -> list[Place]:
        rows = self._rows(sql, {**values, **queries.after(after), "limit": limit})
        return [(micros, from_text(task_id)) for micros, task_id in rows]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        values = {"namespace": to_text(namespace), "now": now, "most": MOST_COUNTED}
        # Counting takes some milliseconds where many wait.
        rows = await self._opened(self._reader).in_thread(lambda read: read(queries.BACKLOG, values))
        return [(from_text(queue), *rest) for queue, *rest in rows]

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        query = queries.usage(namespace, whose)
        ((count, size),) = await self._opened(self._reader).in_thread(lambda read: read(*query)) or [(0, 0)]
        return Usage(open_tasks=count, stored_bytes=size)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        if len(task_ids) == 1:
            # The look on the path of every poll.
            (task_id,) = task_ids
            rows = self._rows(queries.VERSION, (to_text(task_id),))
            return {task_id: rows[0][0]} if rows else {}
        rows = [row for query in queries.versions(task_ids) for row in self._rows(*query)]
        return {from_text(task_id): version for task_id, version in rows}

    async def workers(self, namespace: str) -> dict[str, int]:
        rows = self._rows(queries.WORKERS, {"namespace": to_text(namespace)})
        return {from_text(worker): beats for worker, beats in rows}

    async def namespaces(self) -> Sequence[str]:
        return [from_text(namespace) for (namespace,) in self._rows(queries.NAMESPACES, ())]

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        place = to_text(key), to_text(namespace), to_owner(owner)
        return next((from_text(task_id) for (task_id,) in self._rows(queries.UNDER_KEY, place)), None)

    async def _note(self, namespace: str, name: str) -> object:
        rows = self._rows(queries.NOTE, (to_text(namespace), to_text(name)))
        return rows[0][0] if rows else None

    def notifier(self) -> SqliteNotifier:
        """Hints between the processes that share the file."""
        return self._notifier

    def _reported_or_record(self, row: Row) -> TaskRecord | None:
        try:
            return self._record(row)
        except TaskUnreadable as exc:
            self._report(exc)
            return None

    def _deletion(self, start: str, is_whole: bool) -> str:
        return sql_deletion("tasks", start, is_whole)

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise UsageError(f"the store {self._place} is not open: `await store.open()` comes first")
        return part

    async def _write(self, operation: operations.Operation[T]) -> T:
        return await self._opened(self._writer).run(operation)

    def _rows(self, sql: str, values: Values) -> list[Any]:
        return self._opened(self._reader).rows(sql, values)
