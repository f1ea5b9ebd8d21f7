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
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from mcp_tasks.errors import StoreError
from mcp_tasks.model.record import Outcome, TaskRecord, TaskRequest
from mcp_tasks.model.values import check_duration, check_instance, check_number, database_place
from mcp_tasks.stores.backend import BaseStore, Change, Created, Creation, Listing, Place, sql_deletion
from mcp_tasks.stores.backend import Row as Kept
from mcp_tasks.stores.base import LARGEST, Owners, Ready, Share, Standing, Usage
from mcp_tasks.stores.codec import Codec, from_micros
from mcp_tasks.stores.postgres import queries, writes
from mcp_tasks.stores.postgres.database import (
    Connection,
    Database,
    PostgresNotifier,
    Session,
    is_passing,
    keeping_alive,
    migrations,
    name_of,
    prepare,
    schema_of,
    translate,
)
from mcp_tasks.stores.postgres.encryption import PostgresVault, agree
from mcp_tasks.stores.postgres.queries import from_owner, from_text, row_of, to_key, to_owner, to_text

T = TypeVar("T")


class PostgresStore(BaseStore):
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
        self._handing_out = writes.HandingOut()

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
        await agree(connection, self._place, self._codec)

    async def _close(self) -> None:
        await self._notifier.close()
        await self._pulse.close()
        await self._database.close()

    async def _ask_once(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Connect once by itself: the errors of a pool do not say what is wrong."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, fallback_application_name="mcp-tasks", **keeping_alive(self._url)
                ) as connection:
                    return await ask(connection)
            except StoreError:
                raise
            except (psycopg.Error, OSError) as exc:
                if not is_passing(exc) or asyncio.get_running_loop().time() >= deadline:
                    raise translate(exc, self._place) from exc
            await asyncio.sleep(0.2)

    async def now(self) -> datetime:
        ((micros,),) = await self._database.rows(queries.NOW, {})
        return from_micros(micros)

    async def standing(self) -> Standing:
        schema = await self._ask_once(lambda connection: schema_of(connection, self._place))
        if not schema:
            return "absent"
        return "current" if schema >= len(migrations()) else "older"

    @asynccontextmanager
    async def vault(self) -> AsyncGenerator[PostgresVault]:
        try:
            async with await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, fallback_application_name="mcp-tasks"
            ) as connection:
                await prepare(connection, self._place)
                yield PostgresVault(connection, self._place)
        except (psycopg.Error, OSError) as exc:
            raise translate(exc, self._place) from exc

    # Writing

    async def _create(self, new: Creation) -> Created:
        job = None if new.handing is None else new.handing.job
        create = writes.Create(new, job if job is not None and job.place == self.place else None)
        return await self._database.run(create.run)

    async def _save(self, change: Change) -> bool:
        return await self._database.run(lambda session: writes.save(session, change))

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        return await self._database.run(lambda session: writes.delete(session, task_id, expected, now))

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        sql = writes.FORGET_STATES if records else writes.FORGET_IDS
        rows = await self._database.rows(sql, {"now": now, "limit": limit}, writes=True)
        return [(version, from_text(row[0]), row_of(*row) if records else None) for version, *row in rows]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        async def run(session: Session) -> Sequence[Ready]:
            return await self._handing_out.run(session, namespace, share, queues=queues, mark=mark, limit=limit)

        return await self._database.run(run)

    async def hand_back(self, task_id: str) -> None:
        await self._database.rows(writes.HAND_BACK, {"id": to_text(task_id)}, writes=True)

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        values = {"worker": to_text(worker), "namespace": to_text(namespace), "beats": beats}
        return (await self._pulse.rows(writes.BEAT, values, writes=True))[0][0]

    async def retire(self, worker: str) -> None:
        await self._database.rows(writes.RETIRE, {"worker": to_text(worker)}, writes=True)

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        sql = writes.INSERT_NOTE if seen is None else writes.REPLACE_NOTE
        values = {"namespace": to_text(namespace), "name": to_text(name), "value": value, "found": seen}
        return bool(await self._database.rows(sql, values, writes=True))

    # Reading

    async def _get(self, task_id: str) -> Kept | None:
        rows = await self._database.rows(queries.GET, {"id": to_text(task_id)})
        return row_of(to_text(task_id), *rows[0]) if rows else None

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        rows = await self._database.rows(queries.GET_OWNED, {"id": to_text(task_id), "owner": to_owner(owner)})
        return self._record(row_of(to_text(task_id), *rows[0])) if rows else None

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        values = {"id": to_text(task_id), "largest": LARGEST}
        for *row, request in await self._database.rows(queries.GET_WITH_REQUEST, values):
            return self._with_request(row_of(to_text(task_id), *row), request)
        return None

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        values = {"id": to_text(task_id), "owner": to_owner(owner)}
        for *row, body, meta in await self._database.rows(queries.GET_WITH_OUTCOME, values):
            return await self._with_outcome(row_of(to_text(task_id), *row), body, meta)
        return None

    async def _request(self, task_id: str) -> tuple[str | None, object] | None:
        for owner, request in await self._database.rows(queries.REQUEST, {"id": to_text(task_id)}):
            return from_owner(owner), request
        return None

    async def _outcome(self, task_id: str) -> tuple[str | None, object, object] | None:
        for owner, body, meta in await self._database.rows(queries.OUTCOME, {"id": to_text(task_id)}):
            return from_owner(owner), body, meta
        return None

    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        rows = await self._database.rows(queries.JOURNAL, {"id": to_text(task_id), "after": after})
        lines = [(number, from_text(kind), from_text(key), value) for _, number, kind, key, value in rows]
        return from_owner(rows[0][0]) if rows else None, lines

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Kept]], None]:
        rows = await self._database.rows(*queries.listing(listing))
        return [((created, from_text(row[0])), row_of(*row)) for created, *row in rows], None

    async def _queued(
        self, namespace: str, handed_out: bool | None, after: Place | None, limit: int
    ) -> Sequence[Place]:
        return await self._places(queries.QUEUED[handed_out], after, limit, namespace=to_text(namespace))

    async def _due(self, namespace: str, now: int, after: Place | None, limit: int) -> Sequence[Place]:
        return await self._places(queries.DUE, after, limit, namespace=to_text(namespace), now=now)

    async def _claimed(self, worker: str, after: Place | None, limit: int) -> Sequence[Place]:
        return await self._places(queries.CLAIMED, after, limit, worker=to_text(worker))

    async def _places(self, sql: bytes, after: Place | None, limit: int, **values: Any) -> list[Place]:
        rows = await self._database.rows(sql, {**values, **queries.after(after), "limit": limit})
        return [(micros, from_text(task_id)) for micros, task_id in rows]

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        rows = await self._database.rows(queries.BACKLOG, {"namespace": to_text(namespace), "now": now})
        return [(from_text(queue), count, since, woken) for queue, count, since, woken in rows]

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        ((count, size),) = await self._database.rows(*queries.usage(namespace, whose))
        return Usage(open_tasks=count, stored_bytes=size)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        rows = await self._database.rows(queries.VERSIONS, {"ids": [to_text(task_id) for task_id in task_ids]})
        return {from_text(task_id): version for task_id, version in rows}

    async def workers(self, namespace: str) -> dict[str, int]:
        rows = await self._database.rows(queries.WORKERS, {"namespace": to_text(namespace)})
        return {from_text(worker): beats for worker, beats in rows}

    async def namespaces(self) -> Sequence[str]:
        return sorted(from_text(namespace) for (namespace,) in await self._database.rows(queries.NAMESPACES, {}))

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        place = {"key": to_key(key), "namespace": to_text(namespace), "owner": to_owner(owner)}
        return next((from_text(task_id) for (task_id,) in await self._database.rows(queries.UNDER_KEY, place)), None)

    async def _note(self, namespace: str, name: str) -> object:
        values = {"namespace": to_text(namespace), "name": to_text(name)}
        return next((value for (value,) in await self._database.rows(queries.NOTE, values)), None)

    def notifier(self) -> PostgresNotifier:
        """Hints between the processes that share the database."""
        return self._notifier

    def _deletion(self, start: str, is_whole: bool) -> str:
        return sql_deletion("mcp_tasks_tasks", to_text(start), is_whole)
