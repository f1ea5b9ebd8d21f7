"""`SqliteStore`: tasks in one file, for all processes of one machine.

Durability: `synchronous=FULL` in WAL mode. What was acknowledged survives the death of the process and of the machine.
The price is one sync of the disk per commit, about 0.1 ms on an SSD and 10 ms on a spinning disk; one writer thread
shares it among all who wait (`file.py`), after which `NORMAL` would gain little and lose the last commits at a power
cut.

Space: deleted rows leave free pages, which new tasks fill. The file is made with `auto_vacuum=INCREMENTAL`, and the
writer gives pages back when many are free; a full `VACUUM` would stop all writers for seconds. The WAL is folded into
the file every 1,000 pages (4 MB, SQLite's default) and cut to 16 MB after a burst.

Weaknesses:

- One machine. WAL needs shared memory: no network file systems, no two machines on one file.
- One writer at a time, over all processes. Several processes may write, but they queue for the lock.
- Other processes hear of a change by polling (`SqliteNotifier`).
- The store's time is the clock of the machine. All processes on the file share it, so they agree; but when that clock
  is set, the time of all tasks moves with it: set forward by a day, results expire and timers end a day early.
- The file must not be moved or deleted while it is open: SQLite would go on writing into what was removed.
- If the sync of a commit fails, its callers are told that it may have happened. Nothing of it can be seen, but should
  all processes die right then, SQLite may find that commit complete when it recovers.

Each query names its index, so that no statistic can make one a scan of all tasks.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from anyio import to_thread

from mcp_tasks.errors import StoreCorrupt, StoreError, UsageError
from mcp_tasks.files import check_still
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.stores.base import (
    EVERYBODY,
    MOST_COUNTED,
    AnyOwner,
    Change,
    Created,
    Creation,
    Listing,
    Owners,
    Part,
    Place,
    Ready,
    Row,
    Share,
    Standing,
    Store,
    Sweep,
    Usage,
    narrowed,
    sql_deletion,
)
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.fairness import Turns
from mcp_tasks.stores.hints import Hint, RemoteNotifier
from mcp_tasks.stores.migrations import standing_of
from mcp_tasks.stores.sqlite import writes
from mcp_tasks.stores.sqlite.file import (
    Read,
    Reader,
    Values,
    Writer,
    connect,
    from_owner,
    from_text,
    retry_while_busy,
    to_optional,
    to_owner,
    to_text,
    translate,
)
from mcp_tasks.stores.sqlite.schema import SqliteVault, agree, migrations, prepare, schema_of_file
from mcp_tasks.stores.sqlite.writes import SqliteWaiting, row_of

T = TypeVar("T")

NO_LIMIT: Final = 2**62
"""More bytes than any value has."""

MAX_VARIABLES: Final = 500
"""Ids in one statement; builds of SQLite from before 2020 take 999."""

LOOKS: Final = 1_000
"""Tasks beyond those asked for that a listing passes over, because they have expired or are in another status: the
event loop waits meanwhile, a millisecond or two."""

# A large part is given only up to :most bytes, with its size: the size of a blob is read without the blob.
_OUTCOME_SIZE = "length(o.body) + ifnull(length(o.meta), 0)"
_PARTS: Final[Mapping[Part | None, tuple[str, str]]] = {
    None: ("0", ""),
    "request": (
        "length(r.request), CASE WHEN length(r.request) <= :most THEN r.request END",
        "LEFT JOIN requests r ON r.task = t.key",
    ),
    "outcome": (
        f"{_OUTCOME_SIZE}, CASE WHEN {_OUTCOME_SIZE} <= :most THEN o.body END, "
        f"CASE WHEN {_OUTCOME_SIZE} <= :most THEN o.meta END",
        "LEFT JOIN outcomes o ON o.task = t.key",
    ),
}
_READ: Final = {
    (part, is_owned): f"SELECT t.owner, t.namespace, t.state, {columns} FROM tasks t {join} WHERE t.id = :id {owned}"
    for part, (columns, join) in _PARTS.items()
    for is_owned, owned in ((False, ""), (True, "AND t.owner = :owner"))
}
# CROSS JOIN is SQLite's way of saying that the left side comes first.
_JOURNAL = """
SELECT s.size, t.owner, j.n, j.kind, j.key, CASE WHEN s.size <= :most THEN j.value END
FROM (
    SELECT j.task, sum(length(j.value)) AS size
    FROM tasks t CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key WHERE t.id = :id AND j.n > :after
) s CROSS JOIN tasks t ON t.key = s.task CROSS JOIN journal j INDEXED BY journal_task ON j.task = t.key
WHERE j.n > :after ORDER BY j.n
"""

# At most so many are looked at: the inner one gives its rows as the outer asks for them. If the page is not full then,
# a row without a namespace follows: the end of what was looked at. It is one statement, for if some were deleted
# between two, the end would lie behind tasks that were not looked at.
_LISTING = """
SELECT created, id, owner, namespace, state FROM (
    SELECT created, id, owner, namespace, state, status, expires FROM tasks INDEXED BY {index}
    WHERE {where} AND (created, id) {beyond} (:place, :id) ORDER BY {order} LIMIT :looks
)
WHERE (expires IS NULL OR expires > :now) {status}
UNION ALL
SELECT * FROM (
    SELECT created, id, NULL, NULL, NULL FROM tasks INDEXED BY {index}
    WHERE {where} AND (created, id) {beyond} (:place, :id) ORDER BY {order} LIMIT 1 OFFSET :looks - 1
)
LIMIT :limit
"""

# Sweeps read from their index alone and give ids: no damage in a task stops them. The condition of a partial index is
# written out as in the schema: SQLite uses it only if it sees that it holds. The number is `ready` of a task that can
# be started at any time, the earliest instant there is.
_QUEUED = """
SELECT created, id FROM tasks INDEXED BY tasks_queued
WHERE hand < 2 AND hand = {hand} AND namespace = :of AND (created, id) > (:place, :id)
"""
_WAITING, _HANDED = _QUEUED.format(hand=0), _QUEUED.format(hand=1)
_DUE = """
SELECT ready, id FROM tasks INDEXED BY tasks_due
WHERE ready > -62135596800000000 AND ready <= :now AND namespace = :of AND (ready, id) > (:place, :id)
"""
_CLAIMED = """
SELECT created, id FROM tasks INDEXED BY tasks_claimed WHERE worker = :of AND (created, id) > (:place, :id)
"""
# Those of both kinds are merged, not sorted: of each as much is read as is given.
_SWEEPS: Final[Mapping[tuple[str, bool | None], str]] = {
    ("queued", None): f"{_WAITING} UNION ALL {_HANDED} ORDER BY created, id",
    ("queued", False): f"{_WAITING} ORDER BY created, id",
    ("queued", True): f"{_HANDED} ORDER BY created, id",
    ("due", None): f"{_DUE} ORDER BY ready, id",
    ("claimed", None): f"{_CLAIMED} ORDER BY created, id",
}

# From queue to queue by seeks; counting reads the index alone. Queued tasks come first in each queue.
_BACKLOG = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM tasks INDEXED BY tasks_backlog WHERE ready IS NOT NULL AND namespace = :namespace
    UNION ALL
    SELECT (
        SELECT min(queue) FROM tasks INDEXED BY tasks_backlog
        WHERE ready IS NOT NULL AND namespace = :namespace AND queue > q.queue
    ) FROM queues q WHERE q.queue IS NOT NULL
)
SELECT q.queue, (
    SELECT count(*) FROM (
        SELECT 1 FROM tasks INDEXED BY tasks_backlog
        WHERE ready <= :now AND namespace = :namespace AND queue = q.queue LIMIT :most
    )
), (
    SELECT min(since) FROM tasks INDEXED BY tasks_backlog
    WHERE ready = -62135596800000000 AND namespace = :namespace AND queue = q.queue
), (
    SELECT min(ready) FROM tasks INDEXED BY tasks_backlog
    WHERE ready > -62135596800000000 AND ready <= :now AND namespace = :namespace AND queue = q.queue
)
FROM queues q WHERE q.queue IS NOT NULL
"""

# From the index alone. Triggers count the bytes beside tasks as they are written.
_OPEN = ", ".join(f"'{status.value}'" for status in TaskStatus if not status.is_final)
_USAGE = f"""
SELECT count(*), ifnull((SELECT bytes FROM stored WHERE namespace = :namespace AND owner = :owner), 0)
FROM (
    SELECT 1 FROM tasks INDEXED BY tasks_owner_status
    WHERE namespace = :namespace AND owner = :owner AND status IN ({_OPEN}) LIMIT :most
)
"""
_USAGE_OF_ALL = f"""
SELECT count(*), 0 FROM (
    SELECT 1 FROM tasks INDEXED BY tasks_status WHERE namespace = :namespace AND status IN ({_OPEN}) LIMIT :most
)
"""

# From worker to worker by seeks, however many tasks each has. A process serves one server, so that the first task that
# is looked at says whether it is of this one.
_WORKERS = """
WITH RECURSIVE claiming (worker) AS (
    SELECT min(worker) FROM tasks INDEXED BY tasks_claimed WHERE worker IS NOT NULL
    UNION ALL
    SELECT (SELECT min(worker) FROM tasks INDEXED BY tasks_claimed WHERE worker > h.worker)
    FROM claiming h WHERE h.worker IS NOT NULL
)
SELECT worker, beats FROM heartbeats WHERE namespace = :namespace
UNION ALL
SELECT t.worker, coalesce(h.beats, 0) FROM claiming t LEFT JOIN heartbeats h ON h.worker = t.worker
WHERE EXISTS (
    SELECT 1 FROM tasks INDEXED BY tasks_claimed WHERE worker = t.worker AND namespace = :namespace
)
"""

# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES = """
WITH RECURSIVE found(namespace) AS (
    SELECT min(namespace) FROM tasks
    UNION ALL
    SELECT (SELECT min(namespace) FROM tasks WHERE namespace > found.namespace)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM heartbeats ORDER BY 1
"""


class SqliteStore(Store):
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
        self._notifier = SqliteNotifier(self._place, self._rows, interval=poll_interval)
        self._turns: Turns = {}

    async def _open(self) -> None:
        self._reader, self._writer = await to_thread.run_sync(self._connect)

    async def _close(self) -> None:
        await self._notifier.stop()
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
        return await to_thread.run_sync(self._standing)

    def _standing(self) -> Standing:
        try:
            schema = schema_of_file(self.path) if self.path.exists() else 0
        except sqlite3.Error as exc:
            raise translate(exc, self.path) from exc
        return standing_of(schema, migrations())

    def notifier(self) -> SqliteNotifier:
        """Hints between the processes that share the file."""
        return self._notifier

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

    def _closed(self) -> UsageError:
        return UsageError(f"the store {self._place} is not open: `await store.open()` comes first")

    async def _write(self, operation: writes.Operation[T]) -> T:
        if self._writer is None:
            raise self._closed()
        return await self._writer.run(operation)

    def _rows(self, sql: str, values: Values) -> list[Any]:
        if self._reader is None:
            raise self._closed()
        return self._reader.rows(sql, values)

    async def _in_thread(self, work: Callable[[Read], T]) -> T:
        if self._reader is None:
            raise self._closed()
        return await self._reader.in_thread(work)

    # ---- writing

    async def _create(self, new: Creation) -> Created:
        return await self._write(writes.create(new))

    async def _save(self, change: Change) -> bool:
        return await self._write(writes.save(change))

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        return await self._write(writes.delete(task_id, expected, now))

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Row | None]]:
        # Mostly there is none, and a write, even of nothing, waits for the disk.
        if not self._rows(writes.ANY_EXPIRED, (now,)) and not self._rows(writes.ANY_KEY_OVER, (now,)):
            return []
        try:
            rows = await self._write(writes.forget_expired(now, limit, states=records))
        except StoreCorrupt:
            # One damaged page would keep all tasks that are next to it for good.
            keys = [key for (key,) in self._rows(writes.EXPIRED_KEYS, (now, limit))]
            rows = await writes.forget_one_by_one(self._write, keys, now, states=records)
        return [(version, from_text(row[0]), row_of(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        turns = self._turns
        if mark:
            return await self._write(
                writes.hand_out(namespace, share, queues=queues, limit=limit, turns=turns, decode=self._readable)
            )
        return await self._in_thread(
            lambda read: SqliteWaiting(read, namespace, self._readable).choose(share, queues, limit, turns)
        )

    async def hand_back(self, task_id: str) -> None:
        await self._write(writes.change_row(writes.HAND_BACK, task_id))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        return await self._write(writes.heartbeat(worker, namespace, beats))

    async def retire(self, worker: str) -> None:
        await self._write(writes.change_row(writes.RETIRE, worker))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        return await self._write(writes.set_note(namespace, name, seen, value))

    # ---- reading

    async def _read(
        self, task_id: str, part: Part | None = None, *, owner: AnyOwner = EVERYBODY, most: int | None = None
    ) -> tuple[Row, Sequence[Any]] | None:
        values: dict[str, Any] = {"id": to_text(task_id), "most": LARGE if most is None else most}
        if owner is not EVERYBODY:
            values["owner"] = to_owner(owner)
        sql = _READ[part, owner is not EVERYBODY]
        rows = self._rows(sql, values)
        if rows and most is None and (rows[0][3] or 0) > LARGE:
            rows = await self._in_thread(lambda read: read(sql, {**values, "most": NO_LIMIT}))
        for stored_owner, namespace, state, _, *parts in rows:
            return (task_id, from_owner(stored_owner), from_text(namespace), state), parts
        return None

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        values = {"id": to_text(task_id), "after": after, "most": LARGE}
        rows: Sequence[Any] = self._rows(_JOURNAL, values)
        if rows and (rows[0][0] or 0) > LARGE:
            rows = await self._in_thread(lambda read: read(_JOURNAL, {**values, "most": NO_LIMIT}))
        lines = [(number, kind, from_text(key), value) for _, _, number, kind, key, value in rows]
        return from_owner(rows[0][1]) if rows else None, lines

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Row]], Place | None]:
        field, status, newest_first = listing.field, listing.status, listing.newest_first
        # A session, or a task, has few tasks: their statuses are read from the rows, no index has to follow them.
        by_row = status is not None and field in ("session", "parent")
        found = [name for name in (field, "status" if status is not None and not by_row else "") if name]
        sql = _LISTING.format(
            index="_".join(("tasks", *found)) if found else "tasks_created",
            where=" AND ".join(f"{name} = :{name}" for name in ("namespace", *found)),
            status="AND status = :status" if by_row else "",
            beyond="<" if newest_first else ">",
            order="created DESC, id DESC" if newest_first else "created, id",
        )
        rows = self._rows(
            sql,
            {
                "namespace": to_text(listing.namespace),
                field: to_owner(listing.of) if field == "owner" else to_optional(listing.of),
                "status": status and status.value,
                "now": listing.now,
                "limit": listing.limit,
                "looks": listing.limit + LOOKS,
                **_behind(listing.after, 2**63 - 1 if newest_first else -(2**63)),
            },
        )
        last = None
        if rows and rows[-1][3] is None:
            # Much was passed over, and there may be more behind the last one that was.
            created, task_id, *_ = rows.pop()
            last = created, from_text(task_id)
        return [((created, from_text(row[0])), row_of(*row)) for created, *row in rows], last

    async def _ids(self, sweep: Sweep) -> Sequence[Place]:
        sql = f"{_SWEEPS[sweep.kind, sweep.handed_out]} LIMIT :limit"
        values = {"of": to_text(sweep.of), "now": sweep.now, "limit": sweep.limit, **_behind(sweep.after, -(2**63))}
        return [(micros, from_text(task_id)) for micros, task_id in self._rows(sql, values)]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        # Counting takes some milliseconds where many wait.
        values = {"namespace": to_text(namespace), "now": now, "most": MOST_COUNTED}
        rows = await self._in_thread(lambda read: read(_BACKLOG, values))
        return [(from_text(queue), *rest) for queue, *rest in rows]

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        values = {"namespace": to_text(namespace), "most": MOST_COUNTED, "owner": to_owner(narrowed(whose)[1])}
        sql = _USAGE_OF_ALL if whose is EVERYBODY else _USAGE
        ((count, size),) = await self._in_thread(lambda read: read(sql, values)) or [(0, 0)]
        return Usage(open_tasks=count, stored_bytes=size)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        if len(task_ids) == 1:
            # The look on the path of every poll.
            (task_id,) = task_ids
            rows = self._rows("SELECT version FROM tasks WHERE id = ?", (to_text(task_id),))
            return {task_id: rows[0][0]} if rows else {}
        found: dict[str, int] = {}
        ids = [to_text(task_id) for task_id in task_ids]
        for start in range(0, len(ids), MAX_VARIABLES):
            some = ids[start : start + MAX_VARIABLES]
            sql = f"SELECT id, version FROM tasks WHERE id IN ({', '.join('?' * len(some))})"
            found |= {from_text(task_id): version for task_id, version in self._rows(sql, some)}
        return found

    async def workers(self, namespace: str) -> dict[str, int]:
        rows = self._rows(_WORKERS, {"namespace": to_text(namespace)})
        return {from_text(worker): beats for worker, beats in rows}

    async def namespaces(self) -> Sequence[str]:
        return [from_text(namespace) for (namespace,) in self._rows(_NAMESPACES, ())]

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        values = {"key": to_text(key), "namespace": to_text(namespace), "owner": to_owner(owner)}
        rows = self._rows(f"SELECT id FROM tasks INDEXED BY tasks_key WHERE {writes.UNDER_KEY}", values)
        return from_text(rows[0][0]) if rows else None

    async def _note(self, namespace: str, name: str) -> object:
        sql = "SELECT value FROM notes WHERE namespace = ? AND name = ?"
        rows = self._rows(sql, (to_text(namespace), to_text(name)))
        return rows[0][0] if rows else None

    def _deletion(self, start: str, is_whole: bool) -> str:
        return sql_deletion("tasks", start, is_whole)


def _behind(place: Place | None, start: int) -> Mapping[str, Any]:
    """Behind which place a page starts, as the queries ask for it."""
    micros, task_id = (start, "") if place is None else place
    return {"place": micros, "id": to_text(task_id)}


# ---- notifier

MAX_CHANGES = 5_000
"""Changes taken in one look, some milliseconds; more than one batch of the writer can have."""

_CHANGED = "SELECT id, version, seq FROM tasks INDEXED BY tasks_seq WHERE seq > ? ORDER BY seq LIMIT ?"


class SqliteNotifier(RemoteNotifier):
    """Gives this process's hints to its listeners at once, and those of other processes by looking at the file.

    Args:
        read: Runs a query and returns all its rows.
    """

    def __init__(self, place: str, read: Callable[[str, Sequence[Any]], Sequence[Any]], *, interval: timedelta) -> None:
        super().__init__(place)
        self._read = read
        self._interval = interval.total_seconds()
        self._told: dict[str, int] = {}

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process; the others see the change in the file."""
        if self._listeners:
            self._told[hint.task_id] = hint.version
        await super().publish(hint, origin=origin)

    def _is_open(self) -> bool:
        # Raises if it is not.
        return bool(self._read("PRAGMA data_version", ()))

    def _passes(self, exc: Exception) -> bool:
        # Closed, or busy from the first look on. Hints of that time are lost.
        return isinstance(exc, StoreError | UsageError)

    async def _hear(self, connected: asyncio.Event) -> None:
        data_version: object = self._read("PRAGMA data_version", ())
        position: int = self._read("SELECT seq FROM meta", ())[0][0]
        connected.set()
        while True:
            await asyncio.sleep(self._interval)
            try:
                if (found := self._read("PRAGMA data_version", ())) == data_version:
                    continue
                rows = self._read(_CHANGED, (position, MAX_CHANGES))
            except StoreError:
                # Busy: the next look finds the same changes.
                continue
            for task_id, version, _ in rows:
                # A change of our own was told when it was published, which is after its commit: it is among these rows
                # at the latest in the first look after that, so one round of memory is enough.
                if self._told.get(from_text(task_id), 0) < version:
                    self._fan.put(Hint(from_text(task_id), version))
            self._told.clear()
            if len(rows) < MAX_CHANGES:
                data_version = found
            if rows:
                # A full answer may have cut a batch in two: then its number is asked for again.
                position = rows[-1][2] - (len(rows) == MAX_CHANGES)
