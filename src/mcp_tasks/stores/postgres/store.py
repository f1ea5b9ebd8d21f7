"""`PostgresStore`: tasks in a Postgres database, for all processes of a fleet.

Durability: that of the database. What was acknowledged has been committed, and survives the death of every process and
a restart of the database; where `synchronous_commit` is off, our connections set it to on. Replication is the
database's business: with asynchronous standbys a failover may lose the last commits.

The database may go away and come back: connections are replaced, and a verb that meets a broken one is tried again for
`patience`; after that it raises `StoreUnavailable`, and works again when the database does.

Weaknesses:

- If a connection breaks under a write, and the database stays away for longer than `patience`, the write may have been
  made: `StoreUnavailable` says so (`may_have_happened`).
- A pooler between us and the database must keep sessions (PgBouncer's `pool_mode=session`): hints need LISTEN, and
  statements are prepared.
- Ids, owners, namespaces, sessions and names of tools are in indexes, which take some 2,700 bytes in all: longer ones
  are refused as `ValueNotStorable`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

import anyio
import psycopg

from mcp_tasks.errors import KeySpent, StoreError
from mcp_tasks.model.json import LARGE
from mcp_tasks.model.record import JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import check_duration, check_instance, check_number, database_place
from mcp_tasks.stores.base import (
    LARGEST,
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
    encoded_entries,
    encoded_outcome,
    encoded_request,
    from_micros,
    if_readable,
    in_thread_if,
    made_before,
    saved_before,
    sql_deletion,
)
from mcp_tasks.stores.postgres import queries, writes
from mcp_tasks.stores.postgres.database import (
    Connection,
    Database,
    PostgresNotifier,
    Row,
    Session,
    is_passing,
    keeping_alive,
    migrations,
    name_of,
    prepare,
    schema_of,
    translate,
)
from mcp_tasks.stores.postgres.queries import from_owner, from_text, to_key, to_owner, to_text
from mcp_tasks.stores.postgres.sealing import agree
from mcp_tasks.stores.postgres.writes import Create, HandingOut

# ---- inspecting
# What is asked of a database beyond its tasks: whether it has our tables, whose tasks are there, what has a key.


T = TypeVar("T")

# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES: Final = b"""
WITH RECURSIVE found(namespace) AS (
    (SELECT namespace FROM mcp_tasks_tasks ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT task.namespace FROM mcp_tasks_tasks task WHERE task.namespace > found.namespace
            ORDER BY task.namespace LIMIT 1)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM mcp_tasks_heartbeats
"""
_UNDER_KEY: Final = b"""
SELECT id FROM mcp_tasks_tasks WHERE idempotency_key = %(key)s AND namespace = %(namespace)s AND owner = %(owner)s
"""


class Inspecting(ABC):
    """The part of `PostgresStore` that is for operators, and for what is looked up by its key."""

    _database: Database

    async def has_tables(self) -> bool:
        """Whether tasks have ever been kept there. Makes nothing, and may be asked before `open`."""
        return await self.standing() != "absent"

    async def standing(self) -> Standing:
        """Whether our tables are there, and have the schema of this release. Makes and changes nothing."""
        schema = await self._ask_once(schema_of)
        if not schema:
            return "absent"
        return "current" if schema >= len(migrations()) else "older"

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order."""
        return sorted(from_text(namespace) for (namespace,) in await self._database.rows(_NAMESPACES, {}))

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        place = {"key": to_key(key), "namespace": to_text(namespace), "owner": to_owner(owner)}
        return next((from_text(task_id) for (task_id,) in await self._database.rows(_UNDER_KEY, place)), None)

    @abstractmethod
    async def _ask_once(self, ask: Callable[[Connection, str], Awaitable[T]]) -> T: ...


class PostgresStore(Inspecting):
    """Keeps tasks in the Postgres database at `url`, in tables of its own, which are made if they are not there.

    Args:
        url: As libpq takes it: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?options`.
        codec: How what is kept of a task becomes bytes; give it a cipher to have it encrypted.
        connections: How many connections this process has at most, besides one for its heartbeat and one that listens
            for hints.
        patience: How long a verb tries to get a connection, and to do again what a broken one left open.

    Attributes:
        place: Which database it is, as `Statement.place` says it.
    """

    def __init__(
        self,
        url: str,
        *,
        codec: Codec | None = None,
        connections: int = 10,
        patience: timedelta = timedelta(seconds=10),
    ) -> None:
        check_number("connections", connections, 1)
        check_duration("patience", patience, zero=True)
        if codec is not None:
            check_instance("codec", codec, Codec)
        self._url = url
        self._name = name_of(url)
        self.place: str = database_place(url)
        self._codec = codec or Codec()
        self._patience = patience.total_seconds()
        self._database = Database(url, self._name, connections=connections, patience=self._patience)
        # A connection of its own: however many calls wait for theirs, a process that is alive says so in time.
        self._pulse = Database(url, self._name, connections=1, patience=self._patience)
        self._notifier = PostgresNotifier(url, self._database)
        self._handing_out = HandingOut()
        self._turn = anyio.Lock()
        self._is_open = False
        self._unreadable = UnreadableLog(self._name, sql_deletion("mcp_tasks_tasks", to_text))

    def __repr__(self) -> str:
        return f"PostgresStore({self._name!r})"

    @property
    def round_trips(self) -> int:
        """How often this store has gone to the database and back, hints included."""
        return self._database.round_trips + self._pulse.round_trips

    async def open(self, namespace: str = "") -> None:
        """Connect, bring the tables up to date, and start the pool."""
        async with self._turn:
            if not self._is_open:
                await self._ask_once(self._prepare)
                await self._database.open()
                await self._pulse.open()
                self._is_open = True

    async def _prepare(self, connection: Connection, place: str) -> None:
        await prepare(connection, place)
        await agree(connection, place, self._codec)

    async def close(self) -> None:
        """Finish what was asked for and close all connections."""
        # Shielded: `close` is called in `finally`, often because everything is being cancelled.
        with anyio.CancelScope(shield=True):
            async with self._turn:
                self._is_open = False
                await self._notifier.close()
                await self._pulse.close()
                await self._database.close()

    async def now(self) -> datetime:
        """The time of the database's server. One round trip."""
        ((micros,),) = await self._database.rows(queries.NOW, {})
        return from_micros(micros)

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
        """Keep a new task, unless one stands under its key; its job with it, if that is for this database."""
        job = None
        if handing is not None:
            handing.handed = handing.carried = False
            job = handing.job if handing.job is not None and handing.job.place == self.place else None
        state = self._codec.encode_state(record)
        encoded = await encoded_request(self._codec, record.id, request)
        new = Create(
            record,
            state=state,
            request=encoded,
            key=key,
            key_until_end=key_until_end,
            key_outlives=key_outlives,
            handing=handing,
            job=job,
        )
        await self._database.run(new.run)
        if new.is_spent:
            raise KeySpent(None if new.child is None else from_text(new.child))
        if new.exists:
            return await made_before(self.get, record)
        return record if new.standing is None else self._record(*new.standing)

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
        save = writes.Save(record, expected=expected, state=state, lines=lines, outcome=kept, limits=limits)
        return record if await self._database.run(save.run) else await saved_before(self.get, record, expected)

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        """Forget the task with all that is kept beside it if it is still at version `expected`."""
        await self._database.run(lambda session: writes.delete(session, task_id, expected=expected, now=now))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None. One round trip."""
        rows = await self._database.rows(queries.GET, {"id": to_text(task_id)})
        return self._record(to_text(task_id), *rows[0]) if rows else None

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now, for its owner. One round trip."""
        rows = await self._database.rows(queries.GET_OWNED, {"id": to_text(task_id), "owner": to_owner(owner)})
        return self._record(to_text(task_id), *rows[0]) if rows else None

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        """The record as of now and its request, unless that is large. One round trip."""
        values = {"id": to_text(task_id), "largest": LARGEST}
        for *row, request in await self._database.rows(queries.GET_WITH_REQUEST, values):
            record = self._record(to_text(task_id), *row)
            if request is None:
                return record, None
            return record, self._codec.decode_request(task_id, request, owner=record.owner)
        return None

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        """The record as of now, and how the task ended, for its owner. One round trip."""
        values = {"id": to_text(task_id), "owner": to_owner(owner)}
        rows = await self._database.rows(queries.GET_WITH_OUTCOME, values)
        for *row, body, _ in rows:
            record = self._record(to_text(task_id), *row)
            if body is None:
                return record, None
            return record, await self._outcome(task_id, [(row[0], *rows[0][-2:])])
        return None

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for."""
        rows = await self._database.rows(queries.REQUEST, {"id": to_text(task_id)})

        def decode() -> TaskRequest | None:
            for owner, request in rows:
                return self._codec.decode_request(task_id, request, owner=from_owner(owner))
            return None

        return await self._decoded(rows, decode)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended."""
        return await self._outcome(task_id, await self._database.rows(queries.OUTCOME, {"id": to_text(task_id)}))

    async def _outcome(self, task_id: str, rows: Sequence[Row]) -> Outcome | None:
        def decode() -> Outcome | None:
            for owner, body, meta in rows:
                return self._codec.decode_outcome(task_id, body, meta, owner=from_owner(owner))
            return None

        return await self._decoded(rows, decode)

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`."""
        rows = await self._database.rows(queries.JOURNAL, {"id": to_text(task_id), "after": after})

        def decode() -> Sequence[JournalEntry]:
            return [
                self._codec.decode_entry(
                    task_id, from_text(kind), from_text(key), value, number=number, owner=from_owner(owner)
                )
                for owner, number, kind, key, value in rows
            ]

        return await self._decoded(rows, decode)

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
        rows = await self._database.rows(*query)
        records = self._unreadable.readable(self._record, (row[1:] for row in rows[:limit]))
        return Page(records=records, cursor=queries.cursor_of(rows, limit))

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks of the namespace. One round trip."""
        ((count, size),) = await self._database.rows(*queries.usage(namespace, whose))
        return Usage(open_tasks=count, stored_bytes=size)

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Queued tasks that are not handed out: of the highest priority first, and owners by turns."""

        async def run(session: Session) -> Sequence[Ready]:
            return await self._handing_out.run(session, namespace, share, queues=queues, mark=mark, limit=limit)

        return await self._database.run(run)

    async def hand_back(self, task_id: str) -> None:
        """The task waits for `hand_out` again, if it is queued."""
        await self._database.rows(writes.HAND_BACK, {"id": to_text(task_id)}, writes=True)

    async def backlog(self, namespace: str, now: datetime) -> Mapping[str, Backlog]:
        """What waits in each queue of the namespace that has something waiting."""
        rows = await self._database.rows(*queries.backlog(namespace, now))
        return {
            from_text(queue): Backlog(ready=ready, since=earliest(*since)) for queue, ready, *since in rows if ready
        }

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        query = queries.queued(namespace, handed_out=handed_out, cursor=cursor, limit=limit + 1)
        return queries.page_of(await self._database.rows(*query), limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""
        return queries.page_of(
            await self._database.rows(*queries.due(namespace, now, cursor=cursor, limit=limit + 1)), limit
        )

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return queries.page_of(
            await self._database.rows(*queries.claimed(worker, cursor=cursor, limit=limit + 1)), limit
        )

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Forget tasks whose time after the end is over, longest overdue first. One round trip."""
        rows = await self._database.rows(*writes.forget_expired(now, limit=limit, states=records), writes=True)
        return [
            Forgotten(from_text(row[0]), version, if_readable(self._record, *row) if records else None)
            for version, *row in rows
        ]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        rows = await self._database.rows(queries.VERSIONS, {"ids": [to_text(task_id) for task_id in task_ids]})
        return {from_text(task_id): version for task_id, version in rows}

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        """Renew the lease of `worker`."""
        values = {"worker": to_text(worker), "namespace": to_text(namespace), "beats": beats}
        return (await self._pulse.rows(writes.BEAT, values, writes=True))[0][0]

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten."""
        rows = await self._database.rows(queries.WORKERS, {"namespace": to_text(namespace)})
        return {from_text(worker): beats for worker, beats in rows}

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`."""
        await self._database.rows(writes.RETIRE, {"worker": to_text(worker)}, writes=True)

    async def note(self, namespace: str, name: str) -> bytes | None:
        """The note of this name that the server has, or None."""
        rows = await self._database.rows(queries.NOTE, {"namespace": to_text(namespace), "name": to_text(name)})
        return self._codec.decode_note(namespace, name, rows[0][0]) if rows else None

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected`."""
        encoded = self._codec.encode_note(namespace, name, value)
        place = {"namespace": to_text(namespace), "name": to_text(name)}

        async def run(session: Session) -> bool:
            rows = await session.rows(queries.NOTE, place)
            found = rows[0][0] if rows else None
            # By what it says: encrypted bytes differ each time, whatever is in them.
            known = None if found is None else self._codec.decode_note(namespace, name, found)
            if known != expected:
                return known == value
            sql = writes.INSERT_NOTE if found is None else writes.REPLACE_NOTE
            return bool(await session.rows(sql, {**place, "value": encoded, "found": found}))

        return await self._database.run(run)

    def notifier(self) -> PostgresNotifier:
        """Hints between the processes that share the database."""
        return self._notifier

    async def _ask_once(self, ask: Callable[[Connection, str], Awaitable[T]]) -> T:
        """Connect once by itself: the errors of a pool do not say what is wrong."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, fallback_application_name="mcp-tasks", **keeping_alive(self._url)
                ) as connection:
                    return await ask(connection, self._name)
            except StoreError:
                raise
            except (psycopg.Error, OSError) as exc:
                if not is_passing(exc) or asyncio.get_running_loop().time() >= deadline:
                    raise translate(exc, self._name) from exc
            await asyncio.sleep(0.2)

    async def _decoded(self, rows: Sequence[Row], decode: Callable[[], T]) -> T:
        """What was read, decoded here if it is small and in a thread if it is large."""
        size = sum(len(part) for row in rows for part in row if isinstance(part, bytes))
        return await in_thread_if(size > LARGE, decode)

    def _record(self, task_id: str, owner: str, namespace: str, state: object) -> TaskRecord:
        return self._codec.decode_state(
            from_text(task_id), state, namespace=from_text(namespace), owner=from_owner(owner)
        )
