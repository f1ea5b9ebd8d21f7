"""The connections to a Postgres: who breaks is replaced, and what was under way is tried again.

A connection that the server has hung up on is found before it is used, by looking at its socket, which costs no round
trip. One that breaks under a statement leaves open whether that was carried out; so the work is done again, told that
it is `again`, and finds out by itself what came of the first time (see `writes.py`).
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.stores.postgres.failures import is_collision, is_lost, is_unanswered, translate
from mcp_tasks.stores.postgres.pool_log import POOL_NAME, Pooled, keep_pools_quiet

T = TypeVar("T")

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
Query: TypeAlias = tuple[bytes, dict[str, Any]]
"""A statement and its values."""
Row: TypeAlias = tuple[Any, ...]

LONGEST_STATEMENT: Final = 20.0
"""Seconds after which a statement is given up: the server hangs, or somebody holds a lock for ever."""

_ASK_AGAIN: Final = 1.0
"""Seconds after which the pool is asked anew. It tries to connect when it is asked, and rests between."""

_SETTINGS: Final = {
    # Every statement here has an index that gives its rows, and in their order. What the planner believes of the
    # number of queued tasks is always out of date, so it is told not to consider anything else; jit follows its costs.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # A plan that is kept was made when there were few tasks, and any index would do.
    "plan_cache_mode": "force_custom_plan",
    # Compare-and-swap looks again at a row that it had to wait for. The other levels fail instead.
    "default_transaction_isolation": "read committed",
}
CONFIGURE: Final = "SELECT {}, {}".format(
    ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items()),
    # Durable on return, also where the database is set to be quicker than that.
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END",
).encode()


class Session:
    """One connection for one piece of work.

    Attributes:
        again: Whether the work may have been done before, on a connection that broke.
    """

    def __init__(self, connection: Connection, database: Database, *, again: bool) -> None:
        self._connection = connection
        self._database = database
        self.again = again

    async def rows(self, sql: bytes, values: dict[str, Any]) -> list[Row]:
        """The rows of one statement, which is a transaction by itself, in one round trip."""
        self._database.round_trips += 1
        return await _rows(await self._connection.execute(sql, values, binary=True))

    async def transaction(self, *queries: Query) -> list[Row]:
        """Run the statements as one transaction in one round trip; the rows of the last."""
        self._database.round_trips += 1
        connection = self._connection
        async with connection.pipeline():
            await connection.execute(b"BEGIN")
            cursors = [await connection.execute(sql, values, binary=True) for sql, values in queries]
            await connection.execute(b"COMMIT")
        return await _rows(cursors[-1])

    async def in_two_parts(self, *queries: Query, then: Callable[[list[list[Row]]], Sequence[Query]]) -> list[Row]:
        """Run the statements in one round trip, and those that follow from their rows in another, as one transaction.

        Gives the rows of the last.
        """
        self._database.round_trips += 2
        connection = self._connection
        async with connection.pipeline() as pipeline:
            await connection.execute(b"BEGIN")
            cursors = [await connection.execute(sql, values, binary=True) for sql, values in queries]
            await pipeline.sync()
            rows = [await _rows(cursor) for cursor in cursors]
            cursors = [await connection.execute(sql, values, binary=True) for sql, values in then(rows)]
            await connection.execute(b"COMMIT")
        return await _rows(cursors[-1]) if cursors else []

    async def rollback(self) -> None:
        """End a transaction of which a statement failed."""
        self._database.round_trips += 1
        await self._connection.rollback()


class _Connection(Pooled, psycopg.AsyncConnection[tuple[Any, ...]]):
    """One of ours."""


class Database:
    """A pool of connections to one database.

    Attributes:
        place: What to call it in messages: without the password.
        round_trips: How often a statement, or several at once, went to the server and back.
    """

    def __init__(self, url: str, place: str, *, connections: int, patience: float) -> None:
        self.place = place
        self.round_trips = 0
        self._url = url
        self._connections = connections
        self._patience = patience
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._at_work = 0
        self._at_rest = asyncio.Event()
        self._discarding = set[asyncio.Future[None]]()

    async def open(self) -> None:
        """Start the pool. That the database is there has been seen by whoever calls this."""
        keep_pools_quiet()
        self._pool = AsyncConnectionPool(
            self._url,
            connection_class=_Connection,
            kwargs={"autocommit": True, "fallback_application_name": "mcp-tasks", **keeping_alive(self._url)},
            min_size=1,
            max_size=self._connections,
            configure=_configure,
            check=_check,
            # It gives up soon, and begins anew when it is asked: the longer it tries, the longer it rests between.
            reconnect_timeout=_ASK_AGAIN,
            timeout=self._patience,
            open=False,
            name=f"{POOL_NAME}{self.place}",
        )
        await self._pool.open()

    async def close(self) -> None:
        """Let what was asked for come to its end, and close all connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        while self._at_work:
            self._at_rest = asyncio.Event()
            await self._at_rest.wait()
        await asyncio.gather(*self._discarding)
        await pool.close()

    async def run(self, work: Callable[[Session], Awaitable[T]], *, writes: bool = True) -> T:
        """Do the work on a connection; if that breaks, on another, for as long as the patience lasts.

        Args:
            writes: Whether it changes something.

        Raises:
            StoreError: It could not be done, or the work raised it.
        """
        pool = self._opened()
        self._at_work += 1
        try:
            return await self._persist(pool, work, writes=writes)
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._at_rest.set()

    async def rows(self, sql: bytes, values: dict[str, Any], *, writes: bool = False) -> Sequence[Row]:
        """The rows of a statement that only reads, or that may run twice."""
        return await self.run(lambda session: session.rows(sql, values), writes=writes)

    def _opened(self) -> AsyncConnectionPool[Connection]:
        if self._pool is None:
            raise UsageError(f"the store {self.place} is not open: `await store.open()` comes first")
        return self._pool

    async def _persist(
        self, pool: AsyncConnectionPool[Connection], work: Callable[[Session], Awaitable[T]], *, writes: bool
    ) -> T:
        deadline = asyncio.get_running_loop().time() + self._patience
        again = may_have_happened = False
        while True:
            try:
                return await self._attempt(pool, work, again, deadline)
            except StoreError:
                raise
            except Exception as exc:
                # What a later attempt is told says nothing of an earlier one whose answer was lost.
                may_have_happened = may_have_happened or (writes and is_unanswered(exc))
                passes = is_lost(exc) or is_collision(exc)
                if not passes or asyncio.get_running_loop().time() >= deadline:
                    raise translate(exc, self.place, may_have_happened=may_have_happened) from exc
                again = again or is_lost(exc)

    async def _attempt(
        self,
        pool: AsyncConnectionPool[Connection],
        work: Callable[[Session], Awaitable[T]],
        again: bool,
        deadline: float,
    ) -> T:
        connection = await self._connection(pool, deadline)
        try:
            async with asyncio.timeout(LONGEST_STATEMENT):
                done = await work(Session(connection, self, again=again))
        except StoreError:
            await pool.putconn(connection)
            raise
        except BaseException:
            # Who is being cancelled may not wait, and a connection that is not given back is missing for good.
            self._discard(pool, connection)
            raise
        await pool.putconn(connection)
        return done

    def _discard(self, pool: AsyncConnectionPool[Connection], connection: Connection) -> None:
        """Close a connection, whatever state it is in, and have the pool make another: that takes milliseconds."""

        async def give_back() -> None:
            await connection.close()
            with suppress(psycopg.Error):
                await pool.putconn(connection)

        task = asyncio.ensure_future(give_back())
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def _connection(self, pool: AsyncConnectionPool[Connection], deadline: float) -> Connection:
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await pool.getconn(timeout=max(0.01, min(_ASK_AGAIN, left)))
            except PoolTimeout:
                if left <= _ASK_AGAIN:
                    raise
            except PoolClosed as exc:
                raise UsageError(f"the store {self.place} was closed") from exc


async def _rows(cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.description is not None else []


def keeping_alive(url: str) -> dict[str, Any]:
    """How to find out that a network is cut, where the URL says nothing of it."""
    wanted = {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    given = conninfo_to_dict(url)
    return {name: value for name, value in wanted.items() if name not in given}


async def _configure(connection: Connection) -> None:
    await connection.execute(CONFIGURE)


async def _check(connection: Connection) -> None:
    """Raises if the server has hung up: nothing is expected from it, so what can be read tells that, or is a notice."""
    while _is_readable(connection.pgconn.socket):
        connection.pgconn.consume_input()


def _is_readable(socket: int) -> bool:
    if not hasattr(select, "poll"):  # Windows, where any number may be selected
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
