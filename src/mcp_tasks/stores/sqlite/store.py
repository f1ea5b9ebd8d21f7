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
- Other processes hear of a change by polling (`notifier.py`).
- The store's time is the clock of the machine. All processes on the file share it, so they agree; but when that clock
  is set, the time of all tasks moves with it: set forward by a day, results expire and timers end a day early.
- The file must not be moved or deleted while it is open: SQLite would go on writing into what was removed.
- If the sync of a commit fails, its callers are told that it may have happened. Nothing of it can be seen, but
  should all processes die right then, SQLite may find that commit complete when it recovers.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from anyio import to_thread

from mcp_tasks.errors import KeySpent, StoreCorrupt, TaskUnreadable, UsageError
from mcp_tasks.files import check_still
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores.base import (
    Backlog,
    Forgotten,
    Handing,
    IdPage,
    Owners,
    Page,
    Ready,
    Share,
    Standing,
    Usage,
    Whose,
    WorkLimits,
)
from mcp_tasks.stores.codec import (
    Codec,
    UnreadableLog,
    earliest,
    encode_cursor,
    encoded_entries,
    encoded_outcome,
    encoded_request,
    if_readable,
    made_before,
    saved_before,
    sql_deletion,
)
from mcp_tasks.stores.fairness import Turns
from mcp_tasks.stores.sqlite import operations, queries
from mcp_tasks.stores.sqlite import operations as expiring
from mcp_tasks.stores.sqlite.file import (
    Reader,
    SqliteNotifier,
    Values,
    Writer,
    connect,
    from_text,
    retry_while_busy,
    to_text,
    translate,
)
from mcp_tasks.stores.sqlite.operations import SqliteWaiting
from mcp_tasks.stores.sqlite.schema import migrations, prepare, schema_of_file
from mcp_tasks.stores.sqlite.sealing import agree

# ---- inspecting
# What is asked of a file beyond its tasks: whether it is a task store, whose tasks are in it, what has a key.


# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES: Final = """
WITH RECURSIVE found(namespace) AS (
    SELECT min(namespace) FROM tasks
    UNION ALL
    SELECT (SELECT min(namespace) FROM tasks WHERE namespace > found.namespace)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM heartbeats ORDER BY 1
"""
_UNDER_KEY: Final = """
SELECT id FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND ifnull(owner, 0) = ifnull(?, 0)
"""


class Inspecting(ABC):
    """The part of `SqliteStore` that is for operators, and for what is looked up by its key."""

    path: Path

    async def standing(self) -> Standing:
        """Whether the file is there, and has the schema of this release. Makes and changes nothing."""
        return await to_thread.run_sync(_standing_of, self.path)

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order."""
        return [from_text(namespace) for (namespace,) in self._rows(_NAMESPACES, ())]

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        place = to_text(key), to_text(namespace), None if owner is None else to_text(owner)
        return next((from_text(task_id) for (task_id,) in self._rows(_UNDER_KEY, place)), None)

    @abstractmethod
    def _rows(self, sql: str, values: Values) -> list[Any]: ...


def _standing_of(path: Path) -> Standing:
    if not path.exists():
        return "absent"
    try:
        schema = schema_of_file(path)
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    if schema == 0:
        return "absent"
    return "current" if schema >= len(migrations()) else "older"


T = TypeVar("T")

NO_LIMIT = 2**62
"""More bytes than any value has."""


class SqliteStore(Inspecting):
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
        self._codec = codec or Codec()
        self._patience = busy_timeout.total_seconds()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._notifier = SqliteNotifier(self._rows, interval=poll_interval)
        self._turn = anyio.Lock()
        self._turns = Turns()
        self._unreadable = UnreadableLog(str(self.path), sql_deletion("tasks"))

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
                    await reader.close()
                if writer is not None:
                    await writer.close()

    async def now(self) -> datetime:
        """The time of this machine."""
        return datetime.now(UTC)

    async def create(
        self,
        record: TaskRecord,
        request: TaskRequest,
        *,
        key: str | None = None,
        key_until_end: bool = False,
        key_outlives: timedelta | None = None,
        handing: Handing | None = None,
    ) -> TaskRecord:
        """Keep a new task, unless one stands under its key."""
        if handing is not None:
            handing.handed = handing.carried = False
        state = self._codec.encode_state(record)
        encoded = await encoded_request(self._codec, record.id, request)
        share = None if handing is None else handing.share
        created = await self._opened(self._writer).run(
            operations.create(
                record,
                state=state,
                request=encoded,
                key=key,
                key_until_end=key_until_end,
                key_outlives=key_outlives,
                share=share,
            )
        )
        if created.spent:
            raise KeySpent(None if created.child is None else from_text(created.child))
        if handing is not None:
            handing.handed = created.handed
        if created.exists:
            return await made_before(self.get, record)
        return record if created.standing is None else self._record(*created.standing)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        """Replace the record if it is still at version `expected`, with what is kept beside it."""
        state = self._codec.encode_state(record)
        lines = await encoded_entries(self._codec, record.id, entries)
        kept = await encoded_outcome(self._codec, record.id, outcome)
        saved = await self._opened(self._writer).run(
            operations.save(record, expected=expected, state=state, lines=lines, outcome=kept, limits=limits)
        )
        return record if saved else await saved_before(self.get, record, expected)

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        """Forget the task with all that is kept beside it if it is still at version `expected`."""
        await self._opened(self._writer).run(operations.delete(task_id, expected=expected, now=now))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        """Renew the lease of `worker`."""
        return await self._opened(self._writer).run(operations.heartbeat(worker, namespace=namespace, beats=beats))

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`."""
        await self._opened(self._writer).run(operations.retire(worker))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        rows = self._rows(queries.GET, (to_text(task_id),))
        return self._record(task_id, *rows[0]) if rows else None

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now, for its owner."""
        rows = self._rows(queries.GET_OWNED, (to_text(task_id), None if owner is None else to_text(owner)))
        return self._record(task_id, *rows[0]) if rows else None

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for."""

        def decode(rows: Sequence[Any]) -> TaskRequest | None:
            for _, owner, request in rows:
                return self._codec.decode_request(task_id, request, owner=_optional(owner))
            return None

        return await self._beside(queries.REQUEST, {"id": to_text(task_id)}, decode)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended."""

        def decode(rows: Sequence[Any]) -> Outcome | None:
            for _, owner, body, meta in rows:
                return self._codec.decode_outcome(task_id, body, meta, owner=_optional(owner))
            return None

        return await self._beside(queries.OUTCOME, {"id": to_text(task_id)}, decode)

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`, in the order of writing."""

        def decode(rows: Sequence[Any]) -> Sequence[JournalEntry]:
            return [
                self._codec.decode_entry(task_id, kind, from_text(key), value, number=number, owner=_optional(owner))
                for _, owner, number, kind, key, value in rows
            ]

        return await self._beside(queries.JOURNAL, {"id": to_text(task_id), "after": after}, decode)

    async def list(
        self,
        namespace: str,
        whose: Whose,
        *,
        now: datetime,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        """Tasks of the namespace in the order of creation, in one status or any."""
        # One more than asked for tells whether there is a next page.
        query = queries.listing(
            namespace, whose, now=now, status=status, cursor=cursor, limit=limit + 1, newest_first=newest_first
        )
        rows = self._rows(*query)
        following = queries.cursor_of(rows, limit)
        if rows and rows[-1][3] is None:
            # Much was passed over, and there may be more behind the last one that was.
            created, task_id, *_ = rows.pop()
            following = encode_cursor(created, from_text(task_id))
        records = self._unreadable.readable(self._record, (row[1:] for row in rows[:limit]))
        return Page(records=records, cursor=following)

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks of the namespace: open ones are counted in an index, bytes by triggers."""
        query = queries.usage(namespace, whose)
        ((count, size),) = await self._opened(self._reader).in_thread(lambda read: read(*query)) or [(0, 0)]
        return Usage(open_tasks=count, stored_bytes=size)

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Queued tasks that are not handed out: of the highest priority first, and owners by turns."""
        turns, decode = self._turns, self._decoded_or_none
        if mark:
            return await self._opened(self._writer).run(
                operations.hand_out(namespace, share, queues=queues, limit=limit, turns=turns, decode=decode)
            )
        return await self._opened(self._reader).in_thread(
            lambda read: SqliteWaiting(read, namespace, decode).choose(share, queues, limit, turns)
        )

    async def hand_back(self, task_id: str) -> None:
        """The task waits for `hand_out` again, if it is queued."""
        await self._opened(self._writer).run(operations.hand_back(task_id))

    async def backlog(self, namespace: str, now: datetime) -> dict[str, Backlog]:
        """What waits in each queue of the namespace that has something waiting."""
        query = queries.backlog(namespace, now)
        # Counting takes some milliseconds where many wait.
        rows = await self._opened(self._reader).in_thread(lambda read: read(*query))
        return {
            from_text(queue): Backlog(ready=ready, since=earliest(*since)) for queue, ready, *since in rows if ready
        }

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        query = queries.queued(namespace, handed_out=handed_out, cursor=cursor, limit=limit + 1)
        return queries.page_of(self._rows(*query), limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""
        return queries.page_of(self._rows(*queries.due(namespace, now, cursor=cursor, limit=limit + 1)), limit)

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return queries.page_of(self._rows(*queries.claimed(worker, cursor=cursor, limit=limit + 1)), limit)

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Forget tasks whose time after the end is over, longest overdue first."""
        # Mostly there is none, and a write, even of nothing, waits for the disk.
        if not self._rows(*expiring.any_expired(now)) and not self._rows(*expiring.any_key_over(now)):
            return []
        writer = self._opened(self._writer)
        try:
            rows = await writer.run(expiring.forget_expired(now, limit=limit, states=records))
        except StoreCorrupt:
            # One damaged page would keep all tasks that are next to it for good.
            keys = [key for (key,) in self._rows(*expiring.keys(now, limit=limit))]
            rows = await expiring.forget_one_by_one(writer, keys, now, states=records)
        return [
            Forgotten(from_text(row[0]), version, if_readable(self._record, *row) if records else None)
            for version, *row in rows
        ]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        if len(task_ids) == 1:
            # The look on the path of every poll.
            (task_id,) = task_ids
            rows = self._rows(queries.VERSION, (to_text(task_id),))
            return {task_id: rows[0][0]} if rows else {}
        rows = [row for query in queries.versions(task_ids) for row in self._rows(*query)]
        return {from_text(task_id): version for task_id, version in rows}

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten."""
        rows = self._rows(queries.WORKERS, {"namespace": to_text(namespace)})
        return {from_text(worker): beats for worker, beats in rows}

    async def note(self, namespace: str, name: str) -> bytes | None:
        """The note of this name that the server has, or None."""
        rows = self._rows(queries.NOTE, (to_text(namespace), to_text(name)))
        return self._codec.decode_note(namespace, name, rows[0][0]) if rows else None

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected`."""

        def decode(data: object) -> bytes | None:
            return None if data is None else self._codec.decode_note(namespace, name, data)

        encoded = self._codec.encode_note(namespace, name, value)
        found = await self._opened(self._writer).run(
            operations.set_note(namespace, name, value=encoded, is_expected=lambda data: decode(data) == expected)
        )
        return found is operations.KEPT or decode(found) == value

    def notifier(self) -> SqliteNotifier:
        """Hints between the processes that share the file."""
        return self._notifier

    def _connect(self, namespace: str) -> tuple[Reader, Writer]:
        try:
            known = prepare(self.path, namespace=namespace, patience=self._patience)
            # No time-out for the writer's connection: it has its own way of waiting.
            writing = retry_while_busy(lambda: connect(self.path, timeout=0), patience=self._patience)
            try:
                retry_while_busy(lambda: agree(writing, self._codec, self.path), patience=self._patience)
                reader = Reader(self.path)
                try:
                    check_still(self.path, known)
                except BaseException:
                    reader.abandon()
                    raise
            except BaseException:
                writing.close()
                raise
            return reader, Writer(writing, self.path, patience=self._patience)
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise UsageError(f"the store {self.path} is not open: `await store.open()` comes first")
        return part

    def _rows(self, sql: str, values: Values) -> list[Any]:
        return self._opened(self._reader).rows(sql, values)

    async def _beside(self, sql: str, values: Mapping[str, Any], decode: Callable[[Sequence[Any]], T]) -> T:
        """What is kept beside a task's row: read and decoded here if it is small, and in a thread if it is large."""
        rows = self._rows(sql, {**values, "limit": LARGE})
        if not rows or (rows[0][0] or 0) <= LARGE:
            return decode(rows)
        everything = {**values, "limit": NO_LIMIT}
        return await self._opened(self._reader).in_thread(lambda read: decode(read(sql, everything)))

    def _record(
        self, task_id: str | bytes, owner: str | bytes | None, namespace: str | bytes, state: object
    ) -> TaskRecord:
        return self._codec.decode_state(
            from_text(task_id), state, namespace=from_text(namespace), owner=_optional(owner)
        )

    def _decoded_or_none(self, task_id: str, owner: Any, namespace: Any, state: object) -> TaskRecord | None:
        try:
            return self._record(task_id, owner, namespace, state)
        except TaskUnreadable as exc:
            self._unreadable.report(exc)
            return None


def _optional(text: str | bytes | None) -> str | None:
    return None if text is None else from_text(text)
