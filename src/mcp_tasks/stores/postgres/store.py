"""`PostgresStore`: tasks in a Postgres database, for all processes of a fleet.

Durability: that of the database. What was acknowledged has been committed, and survives the death of every process and
    a
restart of the database; where `synchronous_commit` is off, our connections set it to on. Replication is the database's
business: with asynchronous standbys a failover may lose the last commits.

The database may go away and come back: connections are replaced, and a verb that meets a broken one is tried again for
`patience`; after that it raises `StoreUnavailable`, and works again when the database does.

Weaknesses:

- If a connection breaks under a write, and the database stays away for longer than `patience`, the write may have been
  made: `StoreUnavailable` says so (`may_have_happened`).
- A pooler between us and the database must keep sessions (PgBouncer's `pool_mode=session`): hints need LISTEN, and
  statements are prepared.
- Ids, owners, namespaces, sessions and names of tools are in indexes, which take some 2,700 bytes in all: longer ones
  are refused as `ValueNotStorable`.

Each query has an index that gives its rows in their order (see `database.py`).
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg
from psycopg.errors import InsufficientPrivilege

from mcp_tasks.errors import StoreError
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.model.values import check_duration, check_instance, check_number, database_place
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
    Share,
    Standing,
    Store,
    Sweep,
    Usage,
    narrowed,
    sql_deletion,
)
from mcp_tasks.stores.base import Row as Kept
from mcp_tasks.stores.codec import Codec, from_micros
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, SqlVault, Value, is_encrypted, sql_samples
from mcp_tasks.stores.migrations import standing_of
from mcp_tasks.stores.postgres import writes
from mcp_tasks.stores.postgres.database import (
    Connection,
    Database,
    PostgresNotifier,
    Row,
    Session,
    connect,
    is_passing,
    migrations,
    name_of,
    prepare,
    schema_of,
    translate,
)
from mcp_tasks.stores.postgres.writes import (
    AT_ANY_TIME,
    from_owner,
    from_text,
    row_of,
    to_key,
    to_optional,
    to_owner,
    to_text,
)

T = TypeVar("T")

_PARTS: Final[Mapping[Part | None, tuple[str, str]]] = {
    None: ("", ""),
    "request": (
        ", r.request",
        "LEFT JOIN mcp_tasks_requests r ON r.task = t.key "
        "AND (%(most)s::bigint IS NULL OR octet_length(r.request) <= %(most)s::bigint)",
    ),
    "outcome": (", o.body, o.meta", "LEFT JOIN mcp_tasks_outcomes o ON o.task = t.key"),
}
_READ: Final = {
    (part, is_owned): (
        f"SELECT t.owner, t.namespace, t.state{columns} FROM mcp_tasks_tasks t {join} WHERE t.id = %(id)s {owned}"
    ).encode()
    for part, (columns, join) in _PARTS.items()
    for is_owned, owned in ((False, ""), (True, "AND t.owner = %(owner)s"))
}
_JOURNAL = b"""
SELECT t.owner, j.n, j.kind, j.key, j.value FROM mcp_tasks_tasks t JOIN mcp_tasks_journal j ON j.task = t.key
WHERE t.id = %(id)s AND j.n > %(after)s ORDER BY j.task, j.n
"""

_LISTING = """
SELECT created, id, owner, namespace, state FROM mcp_tasks_tasks
WHERE {where} AND (created, {id}) {beyond} (%(place)s, %(id)s) AND (expires IS NULL OR expires > %(now)s)
ORDER BY created {way}, {id} {way} LIMIT %(limit)s
"""

# Sweeps give ids: what a task holds is not decoded, so that no damage in it stops a sweep.
_QUEUED = f"""
SELECT created, id FROM mcp_tasks_tasks
WHERE ready = {AT_ANY_TIME} AND namespace = %(of)s AND handed = {{handed}} AND (created, id) > (%(place)s, %(id)s)
ORDER BY created, id LIMIT %(limit)s
"""
_HANDED, _WAITING = _QUEUED.format(handed="true"), _QUEUED.format(handed="false")
_SWEEPS: Final[Mapping[tuple[str, bool | None], str]] = {
    ("queued", True): _HANDED,
    ("queued", False): _WAITING,
    ("queued", None): (
        f"SELECT * FROM (({_HANDED}) UNION ALL ({_WAITING})) both_kinds ORDER BY created, id LIMIT %(limit)s"
    ),
    ("due", None): f"""
SELECT ready, id FROM mcp_tasks_tasks
WHERE ready > {AT_ANY_TIME} AND ready <= %(now)s AND namespace = %(of)s AND (ready, id) > (%(place)s, %(id)s)
ORDER BY ready, id LIMIT %(limit)s
""",
    ("claimed", None): """
SELECT created, id FROM mcp_tasks_tasks WHERE worker = %(of)s AND (created, id) > (%(place)s, %(id)s)
ORDER BY created, id LIMIT %(limit)s
""",
}

# Queued tasks come first in each queue. Those that were to wake come behind them, in the order of this index alone.
_READY = "t.ready IS NOT NULL AND t.namespace = %(namespace)s"
_BACKLOG = f"""
WITH RECURSIVE queues AS (
    (SELECT t.queue FROM mcp_tasks_tasks t WHERE {_READY} ORDER BY t.queue, t.ready, t.since LIMIT 1)
    UNION ALL
    SELECT following.queue FROM queues, LATERAL (
        SELECT t.queue FROM mcp_tasks_tasks t
        WHERE {_READY} AND t.queue > queues.queue ORDER BY t.queue, t.ready, t.since LIMIT 1
    ) following
)
SELECT queue, (
    SELECT count(*) FROM (
        SELECT FROM mcp_tasks_tasks t
        WHERE {_READY} AND t.queue = queues.queue AND t.ready <= %(now)s LIMIT {MOST_COUNTED}
    ) counted
), (
    SELECT t.since FROM mcp_tasks_tasks t
    WHERE {_READY} AND t.queue = queues.queue AND t.ready = {AT_ANY_TIME} ORDER BY t.ready, t.since LIMIT 1
), (
    SELECT t.ready FROM mcp_tasks_tasks t
    WHERE {_READY} AND t.queue = queues.queue AND (t.ready, t.since) > ({AT_ANY_TIME}, 9223372036854775807)
        AND t.ready <= %(now)s
    ORDER BY t.ready, t.since LIMIT 1
) FROM queues
""".encode()


def _open(sql: str) -> str:
    parts = [sql.format(status=status.value) for status in TaskStatus if not status.is_final]
    return " UNION ALL ".join(f"({part} LIMIT {MOST_COUNTED})" for part in parts) + f" LIMIT {MOST_COUNTED}"


# Each in the order of the one index that is meant.
_OPEN_OF_OWNER = """
SELECT size FROM mcp_tasks_tasks WHERE namespace = %(namespace)s AND owner = %(owner)s AND status = '{status}'
ORDER BY created, id COLLATE "POSIX"
"""
_OPEN_OF_ALL = """
SELECT 0 AS size FROM mcp_tasks_tasks WHERE namespace = %(namespace)s AND status = '{status}' ORDER BY created, id
"""
_USAGE = f"""
SELECT count(*), coalesce(sum(size), 0)::bigint + coalesce((
    SELECT sum(kept) FROM (
        SELECT kept FROM mcp_tasks_tasks
        WHERE kept IS NOT NULL AND namespace = %(namespace)s AND owner = %(owner)s ORDER BY kept
    ) ended
), 0)::bigint FROM ({_open(_OPEN_OF_OWNER)}) open
""".encode()
_USAGE_OF_ALL = f"SELECT count(*), 0 FROM ({_open(_OPEN_OF_ALL)}) open".encode()

_WORKERS = b"""
WITH RECURSIVE busy AS (
    (
        SELECT worker FROM mcp_tasks_tasks
        WHERE worker IS NOT NULL AND namespace = %(namespace)s ORDER BY worker LIMIT 1
    )
    UNION ALL
    SELECT following.worker FROM busy, LATERAL (
        SELECT t.worker FROM mcp_tasks_tasks t
        WHERE t.worker > busy.worker AND t.namespace = %(namespace)s ORDER BY t.worker LIMIT 1
    ) following
)
SELECT worker, beats FROM mcp_tasks_heartbeats WHERE namespace = %(namespace)s
UNION ALL
SELECT h.worker, coalesce(b.beats, 0) FROM busy h LEFT JOIN mcp_tasks_heartbeats b ON b.worker = h.worker
"""

# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES = b"""
WITH RECURSIVE found(namespace) AS (
    (SELECT namespace FROM mcp_tasks_tasks ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT task.namespace FROM mcp_tasks_tasks task WHERE task.namespace > found.namespace
            ORDER BY task.namespace LIMIT 1)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM mcp_tasks_heartbeats
"""


class PostgresStore(Store):
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
        super().__init__(name_of(url), codec)
        self._url = url
        self.place: str = database_place(url)
        self._patience = patience.total_seconds()
        self._database = Database(url, self._place, connections=connections, patience=self._patience)
        # A connection of its own: however many calls wait for theirs, a process that is alive says so in time.
        self._pulse = Database(url, self._place, connections=1, patience=self._patience)
        self._notifier = PostgresNotifier(url, self._database)
        self._dispatch = writes.Dispatch()

    @property
    def round_trips(self) -> int:
        """How often this store has gone to the database and back, hints included."""
        return self._database.round_trips + self._pulse.round_trips

    async def _open(self) -> None:
        await self._ask_once(self._prepare)
        await self._database.open()
        await self._pulse.open()

    async def _prepare(self, connection: Connection) -> None:
        await prepare(connection, self._place)
        await PostgresVault(connection, self._place).agree(self._codec)

    async def _close(self) -> None:
        await self._notifier.close()
        await self._pulse.close()
        await self._database.close()

    async def _ask_once(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Connect once by itself: the errors of a pool do not say what is wrong."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                async with await connect(self._url) as connection:
                    return await ask(connection)
            except StoreError:
                raise
            except (psycopg.Error, OSError) as exc:
                if not is_passing(exc) or asyncio.get_running_loop().time() >= deadline:
                    raise translate(exc, self._place) from exc
            await asyncio.sleep(0.2)

    async def now(self) -> datetime:
        # Not `now()`, which is when the transaction began.
        sql = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ((micros,),) = await self._rows(sql)
        return from_micros(micros)

    async def standing(self) -> Standing:
        return standing_of(await self._ask_once(lambda connection: schema_of(connection, self._place)), migrations())

    def notifier(self) -> PostgresNotifier:
        """Hints between the processes that share the database."""
        return self._notifier

    @asynccontextmanager
    async def vault(self) -> AsyncGenerator[PostgresVault]:
        try:
            async with await connect(self._url) as connection:
                await prepare(connection, self._place)
                yield PostgresVault(connection, self._place)
        except (psycopg.Error, OSError) as exc:
            raise translate(exc, self._place) from exc

    async def _rows(self, sql: bytes, **values: Any) -> Sequence[Row]:
        return await self._database.rows(sql, values)

    async def _changed(self, sql: bytes, **values: Any) -> Sequence[Row]:
        return await self._database.rows(sql, values, writes=True)

    # ---- writing

    async def _create(self, new: Creation) -> Created:
        job = None if new.handing is None else new.handing.job
        create = writes.Create(new, job if job is not None and job.place == self.place else None)
        return await self._database.run(create.run)

    async def _save(self, change: Change) -> bool:
        return await self._database.run(lambda session: writes.save(session, change))

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        return await self._database.run(lambda session: writes.delete(session, task_id, expected, now))

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        rows = await self._changed(writes.FORGET_STATES if records else writes.FORGET_IDS, now=now, limit=limit)
        return [(version, from_text(row[0]), row_of(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        async def run(session: Session) -> Sequence[Ready]:
            return await self._dispatch.run(session, namespace, share, queues=queues, mark=mark, limit=limit)

        return await self._database.run(run)

    async def hand_back(self, task_id: str) -> None:
        await self._changed(writes.HAND_BACK, id=to_text(task_id))

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        values = {"worker": to_text(worker), "namespace": to_text(namespace), "beats": beats}
        return (await self._pulse.rows(writes.BEAT, values, writes=True))[0][0]

    async def retire(self, worker: str) -> None:
        await self._changed(writes.RETIRE, worker=to_text(worker))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        sql = writes.INSERT_NOTE if seen is None else writes.REPLACE_NOTE
        return bool(await self._changed(sql, namespace=to_text(namespace), name=to_text(name), value=value, found=seen))

    # ---- reading

    async def _read(
        self, task_id: str, part: Part | None = None, *, owner: AnyOwner = EVERYBODY, most: int | None = None
    ) -> tuple[Kept, Sequence[Any]] | None:
        sql, of = _READ[part, owner is not EVERYBODY], None if owner is EVERYBODY else to_owner(owner)
        for stored_owner, namespace, state, *parts in await self._rows(sql, id=to_text(task_id), owner=of, most=most):
            return (task_id, from_owner(stored_owner), from_text(namespace), state), parts
        return None

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        rows = await self._rows(_JOURNAL, id=to_text(task_id), after=after)
        lines = [(number, from_text(kind), from_text(key), value) for _, number, kind, key, value in rows]
        return from_owner(rows[0][0]) if rows else None, lines

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Kept]], None]:
        field, status, place = listing.field, listing.status, listing.after
        beyond, way, start = ("<", "DESC", 2**63 - 1) if listing.newest_first else (">", "ASC", -(2**63))
        where = "namespace = %(namespace)s" + (f" AND {field} = %(of)s" if field else "")
        # As in the index of owners, and in no other.
        order = 'id COLLATE "POSIX"' if field == "owner" else "id"
        # A session, or a task, has few tasks: their statuses are read from the rows, and no index has to follow them.
        of_few = field in ("session", "parent")
        parts = [
            _LISTING.replace("{where}", f"{where} AND status = '{one.value}'" if one else where)
            for one in ([status] if status is not None or of_few else TaskStatus)
        ]
        sql = parts[0]
        if len(parts) > 1:
            union = " UNION ALL ".join(f"({part})" for part in parts)
            sql = f"SELECT * FROM ({union}) parts ORDER BY created {{way}}, id {{way}} LIMIT %(limit)s"
        micros, task_id = place or (start, "")
        rows = await self._rows(
            sql.format(id=order, beyond=beyond, way=way).encode(),
            namespace=to_text(listing.namespace),
            of=to_owner(listing.of) if field == "owner" else to_optional(listing.of),
            now=listing.now,
            limit=listing.limit,
            place=micros,
            id=to_text(task_id),
        )
        return [((created, from_text(row[0])), row_of(*row)) for created, *row in rows], None

    async def _ids(self, sweep: Sweep) -> Sequence[Place]:
        micros, task_id = sweep.after or (-(2**63), "")
        rows = await self._rows(
            _SWEEPS[sweep.kind, sweep.handed_out].encode(),
            of=to_text(sweep.of),
            now=sweep.now,
            limit=sweep.limit,
            place=micros,
            id=to_text(task_id),
        )
        return [(place, from_text(task_id)) for place, task_id in rows]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        rows = await self._rows(_BACKLOG, namespace=to_text(namespace), now=now)
        return [(from_text(queue), count, since, woken) for queue, count, since, woken in rows]

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        sql, owner = _USAGE_OF_ALL if whose is EVERYBODY else _USAGE, to_owner(narrowed(whose)[1])
        ((count, size),) = await self._rows(sql, namespace=to_text(namespace), owner=owner)
        return Usage(open_tasks=count, stored_bytes=size)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        ids = [to_text(task_id) for task_id in task_ids]
        rows = await self._rows(b"SELECT id, version FROM mcp_tasks_tasks WHERE id = ANY(%(ids)s)", ids=ids)
        return {from_text(task_id): version for task_id, version in rows}

    async def workers(self, namespace: str) -> dict[str, int]:
        rows = await self._rows(_WORKERS, namespace=to_text(namespace))
        return {from_text(worker): beats for worker, beats in rows}

    async def namespaces(self) -> Sequence[str]:
        return sorted(from_text(namespace) for (namespace,) in await self._rows(_NAMESPACES))

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        sql = f"SELECT id FROM mcp_tasks_tasks WHERE {writes.UNDER_KEY}".encode()
        rows = await self._rows(sql, key=to_key(key), namespace=to_text(namespace), owner=to_owner(owner))
        return from_text(rows[0][0]) if rows else None

    async def _note(self, namespace: str, name: str) -> object:
        sql = b"SELECT value FROM mcp_tasks_notes WHERE namespace = %(namespace)s AND name = %(name)s"
        rows = await self._rows(sql, namespace=to_text(namespace), name=to_text(name))
        return rows[0][0] if rows else None

    def _deletion(self, start: str, is_whole: bool) -> str:
        return sql_deletion("mcp_tasks_tasks", to_text(start), is_whole)


# ---- encryption
# `VACUUM FULL` removes earlier rows where something was not encrypted; what Postgres itself still has of them elsewhere
# (its log, backups) is described in docs/encryption.md.

_ADD_NOTE: Final = "INSERT INTO mcp_tasks_notes (namespace, name, value) VALUES (?, ?, ?) ON CONFLICT"
_GROW: Final = "UPDATE mcp_tasks_tasks SET size = size + ?, kept = kept + ? WHERE key = ?"
_REFUSE: Final = b"""
CREATE OR REPLACE FUNCTION mcp_tasks_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the task store is encrypted' USING ERRCODE = 'MT001';
END
$$
"""
_COLUMNS: Final = (
    ("tasks", "state"),
    ("requests", "request"),
    # With it, always: `meta`. It is encrypted after it, by itself.
    ("outcomes", "body"),
    ("journal", "value"),
    ("notes", "value"),
)


class PostgresVault(SqlVault):
    """The tables, on a connection in autocommit mode.

    From the moment the tables are marked, Postgres itself refuses what is not encrypted: a process that opened them
    while they were plain cannot go on. A trigger, and not a constraint: that would put the row it refuses into
    Postgres's log.
    """

    def __init__(self, connection: Connection, place: str) -> None:
        super().__init__(place, "mcp_tasks_", from_text)
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> Sequence[Any]:
        found = await self._connection.execute(sql.replace("?", "%s").encode(), values, binary=True)
        return [] if found.description is None else await found.fetchall()

    async def sample(self) -> Sample | None:
        for sql, bound_to in sql_samples("mcp_tasks_"):
            for *names, value in await self.rows(sql):
                return bound_to(*map(from_text, names)), value
        return None

    async def mark(self, note: bytes) -> None:
        add = f"{_ADD_NOTE} DO NOTHING"
        try:
            async with self._connection.transaction():
                # No other process writes until this is done, so what is seen now is all that is there.
                await self.refuse_plain()
                found = await self.sample()
                # If there is anything plain by now, the second look of `agree` refuses it.
                if found is None or is_encrypted(found[1]):
                    await self.rows(add, NAMESPACE, NAME, note)
                else:
                    raise psycopg.Rollback
        except InsufficientPrivilege:
            # The tables are another user's.
            await self.rows(add, NAMESPACE, NAME, note)

    async def write_note(self, note: bytes) -> None:
        sql = f"{_ADD_NOTE} (namespace, name) DO UPDATE SET value = excluded.value"
        await self.rows(sql, NAMESPACE, NAME, note)

    async def heartbeats(self) -> Mapping[str, int]:
        found = await self.rows("SELECT worker, beats FROM mcp_tasks_heartbeats")
        return {from_text(worker): beats for worker, beats in found}

    async def refuse_plain(self) -> None:
        async with self._connection.transaction():
            await self._connection.execute(_REFUSE)
            for table, column in _COLUMNS:
                await self.rows(f"DROP TRIGGER IF EXISTS mcp_tasks_sealed ON mcp_tasks_{table}")
                await self.rows(
                    f"CREATE TRIGGER mcp_tasks_sealed BEFORE INSERT OR UPDATE OF {column} ON mcp_tasks_{table} "
                    f"FOR EACH ROW WHEN (substring(NEW.{column} from 1 for 1) <> '\\x00'::bytea) "
                    "EXECUTE FUNCTION mcp_tasks_sealed()"
                )

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        sql, values = self.update(value, None if key is None else to_text(key), new)
        async with self._connection.transaction():
            done = await self._connection.execute(sql.replace("?", "%s").encode(), values, binary=True)
            table, _, by = value.where
            grown = len(new) - len(value.data)
            if done.rowcount and table in ("requests", "outcomes", "journal"):
                # Encrypted bytes are longer.
                await self.rows(_GROW, grown, grown, by["task"])
        return done.rowcount > 0

    async def clean(self, *, was_plain: bool) -> None:
        for table, _ in _COLUMNS if was_plain else ():
            await self._connection.execute(f"VACUUM (FULL) mcp_tasks_{table}".encode())
