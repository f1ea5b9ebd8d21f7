"""The connections to a Postgres: a broken one is replaced, and its work is tried again.

A connection that the server has hung up on is found before it is used, by looking at its socket, which costs no round
trip. One that breaks under a statement leaves open whether that was carried out; so the work is done again, told that
it is `again`, and finds out by itself what the first attempt did (see `writes.py`).
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import select
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import (
    EncryptionMismatch,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.quiet import get_logger
from mcp_tasks.stores.base import Hint, Inbox, Meanings, meaning_of
from mcp_tasks.stores.hints import RemoteNotifier
from mcp_tasks.stores.migrations import compatible_from, scripts_of, this_release

logger: Final = get_logger(__name__)

T = TypeVar("T")

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
Query: TypeAlias = tuple[bytes, dict[str, Any]]
"""A statement and its values."""
Row: TypeAlias = tuple[Any, ...]

# ---- errors

_LOST: Final = ("08", "57P01", "57P02", "57P03", "57P05")
"""The connection is gone, or the server is going or coming."""

_UNANSWERED: Final = ("08", "57P01", "57P02")
"""The server ended the connection under the statement, which may be committed: a shutdown also ends the wait for a
standby, and that comes after the commit."""


def is_lost(exc: Exception) -> bool:
    """Whether the connection broke: the statement that was under way may have been carried out or not."""
    if isinstance(exc, PoolTimeout) or not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    # An error that came from the server has a number; one of the driver has none.
    return exc.sqlstate is None or exc.sqlstate.startswith(_LOST)


def is_unanswered(exc: Exception) -> bool:
    """Whether a statement was sent and no answer came: the server may have carried it out."""
    if isinstance(exc, PoolTimeout | TooManyRequests):
        return False
    if isinstance(exc, TimeoutError):
        # Given up here. The server was not told, and may still be at it.
        return True
    return is_lost(exc) and (cast(psycopg.Error, exc).sqlstate or "08").startswith(_UNANSWERED)


def is_collision(exc: Exception) -> bool:
    """Whether two transactions were in each other's way, and this one was rolled back."""
    return isinstance(exc, psycopg.Error) and (exc.sqlstate or "").startswith("40")


def is_passing(exc: Exception) -> bool:
    """Whether the server said on connecting that it will soon be there."""
    text = str(exc)
    return any(words in text for words in ("starting up", "shutting down", "recovery mode", "not yet accepting"))


def translate(exc: Exception, place: str, *, may_have_happened: bool = False) -> StoreError:
    """The error of ours for an exception. Raise it `from exc`."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    error = _translated(exc, place, text)
    if isinstance(error, StoreUnavailable):
        error.may_have_happened = may_have_happened
    return error


def _translated(exc: Exception, place: str, text: str) -> StoreError:
    if isinstance(exc, PoolTimeout | TooManyRequests):
        return StoreUnavailable(
            f"{place} gave no connection in time: it cannot be reached, or all connections are busy. Look whether the "
            "database runs; if it does, allow more connections."
        )
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{place} did not answer in time. Look whether the database is stopped or overloaded.")
    if isinstance(exc, UnicodeError | OverflowError):
        return ValueNotStorable(f"a value is of a kind that {place} cannot keep ({type(exc).__name__}: {exc})")
    state = exc.sqlstate or "" if isinstance(exc, psycopg.Error) else ""
    if state and (error := meaning_of(state, _MEANINGS, place, text)) is not None:
        return error
    if isinstance(exc, psycopg.DataError):
        return ValueNotStorable(f"{place} cannot keep a value ({text})")
    if state or not isinstance(exc, psycopg.OperationalError | OSError):
        return StoreUnavailable(f"{place} cannot be used: {text}")
    # Errors while one connects come without a number.
    return meaning_of(text, _CONNECTING, place, text, fits=str.__contains__) or StoreUnavailable(
        f"{place} cannot be reached. Start the database, or correct host and port in the URL ({text})"
    )


_MEANINGS: Final[Meanings] = {
    "22": (ValueNotStorable, "cannot keep a value"),
    "25006": (
        StoreUnavailable,
        "is read-only. Give the URL of the primary, or several hosts and target_session_attrs=read-write.",
    ),
    "28": (StoreUnavailable, "refuses the user. Correct user and password in the URL."),
    "3D000": (StoreUnavailable, "is not there. Create the database, or correct its name in the URL."),
    "42501": (
        StoreUnavailable,
        "does not let the user do this. For the first start grant it CREATE on the database and on the schema, and all "
        "on its tables.",
    ),
    "42P01": (StoreCorrupt, "has lost tables of the store. Restore a backup, or restart to have them made."),
    "42703": (StoreCorrupt, "has tables of another shape. Restore a backup, or choose another database."),
    "53100": (StoreUnavailable, "cannot grow: its disk is full. Make room and try again."),
    "53300": (StoreUnavailable, "takes no more connections. Raise max_connections, or give each process fewer."),
    "54": (ValueNotStorable, "cannot keep a value, because it is too large"),
    "57014": (StoreUnavailable, "cancelled the statement. Look at its statement_timeout, and try again."),
    "MT001": (EncryptionMismatch, "has been encrypted since this process opened it. Restart it with the keys."),
    "XX001": (StoreCorrupt, "is damaged. Restore a backup."),
    "XX002": (StoreCorrupt, "is damaged. REINDEX it, or restore a backup."),
}

_CONNECTING: Final[Meanings] = {
    words: (StoreUnavailable, meaning)
    for words, meaning in {
        "password authentication failed": (
            "refuses the user or the password. Correct them in the URL, with %40 for an @"
        ),
        "no password supplied": "wants a password. Put it into the URL (postgresql://USER:PASSWORD@HOST/DATABASE)",
        "no pg_hba.conf entry": "lets this user not in from here. Look at its pg_hba.conf",
        "FATAL: role ": "does not know the user. Correct it in the URL, or create it",
        "FATAL: database ": "is not there. Create the database (createdb), or correct its name in the URL",
        "too many clients": "takes no more connections. Raise max_connections, or give each process fewer",
        "starting up": "is starting. Try again",
        "shutting down": "is shutting down. Try again when it is back",
    }.items()
}


# ---- connections

POOL_NAME: Final = "mcp-tasks of "
"""The beginning of the names of our pools."""

QUIET_FOR: Final = 60.0
"""Seconds between two lines about a database that is away."""

LONGEST_STATEMENT: Final = 20.0
"""Seconds after which a statement is given up: the server hangs, or another session holds a lock for ever."""

_ASK_AGAIN: Final = 1.0
"""Seconds after which the pool is asked anew. It tries to connect when it is asked, and rests between."""

_SETTINGS: Final = {
    # Every statement here has an index that gives its rows, and in their order. The planner's estimate of
    # the number of queued tasks is always out of date, so it is told to consider nothing else; jit follows its costs.
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


class _Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """One of ours."""


class _QuietPools(logging.Filter):
    """Replaces what our pools log by one line a minute that says what is wrong: while a database is away they have
    several lines a second. Other pools are heard as before."""

    def __init__(self) -> None:
        super().__init__()
        self._said = -QUIET_FOR

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        is_ours = any(
            isinstance(arg, _Connection) or (isinstance(arg, str) and arg.startswith(POOL_NAME)) for arg in args
        )
        if not is_ours or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        errors = [arg for arg in args if isinstance(arg, Exception)]
        now = time.monotonic()
        if errors and now - self._said >= QUIET_FOR:
            self._said = now
            logger.warning("Postgres cannot be reached now, and is tried again until it can: %s", errors[0])
        return False


_QUIET: Final = _QuietPools()


def connect(url: str, name: str = "mcp-tasks") -> Awaitable[Connection]:
    """One connection beside the pools, in autocommit mode."""
    return psycopg.AsyncConnection.connect(url, **_options(url, name))


def _options(url: str, name: str) -> dict[str, Any]:
    # How to find out that a network is cut, where the URL says nothing of it.
    alive = {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    given = conninfo_to_dict(url)
    wanted = {option: value for option, value in alive.items() if option not in given}
    return {"autocommit": True, "fallback_application_name": name, **wanted}


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

    async def transaction(
        self, *queries: Query, then: Callable[[list[list[Row]]], Sequence[Query]] | None = None
    ) -> list[Row]:
        """Run the statements as one transaction in one round trip; the rows of the last.

        Args:
            then: Statements that follow from the rows, in the same transaction and a second round trip.
        """
        self._database.round_trips += 1 if then is None else 2
        connection = self._connection
        async with connection.pipeline() as pipeline:
            await connection.execute(b"BEGIN")
            cursors = [await connection.execute(sql, values, binary=True) for sql, values in queries]
            if then is not None:
                await pipeline.sync()
                following = then([await _rows(cursor) for cursor in cursors])
                cursors = [await connection.execute(sql, values, binary=True) for sql, values in following]
            await connection.execute(b"COMMIT")
        return await _rows(cursors[-1]) if cursors else []

    async def rollback(self) -> None:
        """End a transaction of which a statement failed."""
        self._database.round_trips += 1
        await self._connection.rollback()


class Database:
    """A pool of connections to one database.

    Attributes:
        place: Its name in messages: without the password.
        round_trips: How often a statement, or several at once, went to the server and back.
    """

    def __init__(self, url: str, place: str, *, connections: int, patience: float) -> None:
        self.place = place
        self.round_trips = 0
        self._url = url
        self._connections = connections
        self._patience = patience
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._discarding = BackgroundTasks()

    async def open(self) -> None:
        """Start the pool. The caller has seen that the database is there."""
        logging.getLogger("psycopg.pool").addFilter(_QUIET)
        self._pool = AsyncConnectionPool(
            self._url,
            connection_class=_Connection,
            kwargs=_options(self._url, "mcp-tasks"),
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
        while self._under_way:
            self._idle = asyncio.Event()
            await self._idle.wait()
        await asyncio.gather(*self._discarding)
        await pool.close()

    async def rows(self, sql: bytes, values: dict[str, Any], *, writes: bool = False) -> Sequence[Row]:
        """The rows of a statement that only reads, or that may run twice."""
        return await self.run(lambda session: session.rows(sql, values), writes=writes)

    async def run(self, work: Callable[[Session], Awaitable[T]], *, writes: bool = True) -> T:
        """Do the work on a connection; if that breaks, on another, for as long as the patience lasts.

        Args:
            writes: Whether it changes something.

        Raises:
            StoreError: It could not be done, or the work raised it.
        """
        pool = self._pool
        if pool is None:
            raise UsageError(f"the store {self.place} is not open: `await store.open()` comes first")
        self._under_way += 1
        try:
            return await self._persist(pool, work, writes=writes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

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
                # An error of a later attempt says nothing of an earlier one whose answer was lost.
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
            # A caller that is being cancelled may not wait, and a connection that is not given back is missing for
            # good.
            self._discarding.start(_discard(pool, connection))
            raise
        await pool.putconn(connection)
        return done

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


async def _discard(pool: AsyncConnectionPool[Connection], connection: Connection) -> None:
    """Close a connection, whatever state it is in, and have the pool make another: that takes milliseconds."""
    await connection.close()
    with suppress(psycopg.Error):
        await pool.putconn(connection)


async def _rows(cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.description is not None else []


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


# ---- notifier

CHANNEL: Final = "mcp_tasks"
_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', payload) FROM unnest(%(payloads)s::text[]) AS payload".encode()

LARGEST_PAYLOAD: Final = 7_900
"""Bytes. Postgres takes fewer than 8,000."""

_TOGETHER_FOR: Final = 0.01
"""Seconds between two tellings. The first hint is told at once; those that follow closely go together, and of one task
only the newest. Each telling is a round trip, and a busy process would make one of every change."""


class PostgresNotifier(RemoteNotifier):
    """Carries hints between processes by LISTEN and NOTIFY."""

    def __init__(self, url: str, database: Database) -> None:
        super().__init__(database.place)
        self._url = url
        self._database = database
        # Hints of this process come back to it, and its listeners have heard them.
        self._me = secrets.token_hex(8)
        self._untold = Inbox()
        self._telling: asyncio.Task[None] | None = None

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process, and soon those of the others."""
        await super().publish(hint, origin=origin)
        self._untold.put(hint)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def close(self) -> None:
        """Tell what waits, and stop."""
        await self.stop()
        telling, self._telling = self._telling, None
        if telling is not None:
            await asyncio.gather(telling, return_exceptions=True)

    def _passes(self, exc: Exception) -> bool:
        return isinstance(exc, psycopg.Error | OSError)

    async def _hear(self, connected: asyncio.Event) -> None:
        async with await connect(self._url, "mcp-tasks hints") as connection:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            connected.set()
            async for notify in connection.notifies():
                self._take(notify.payload)

    def _take(self, payload: str) -> None:
        sender, _, hints = payload.partition(" ")
        if sender == self._me:
            return
        try:
            for task_id, version in json.loads(hints):
                self._fan.put(Hint(str(task_id), int(version)))
        except (ValueError, TypeError):
            logger.debug("%s: not a hint of ours: %r", self._place, payload[:100])

    async def _tell(self) -> None:
        """Tell all that waits, and what comes meanwhile in one go after it."""
        while payloads := self._payloads():
            try:
                await self._database.rows(_NOTIFY, {"payloads": payloads})
            except (StoreError, UsageError) as exc:
                # A hint is worth less than the work that caused it.
                logger.debug("%s: hints were not told: %s", self._place, exc)
            await asyncio.sleep(_TOGETHER_FOR)

    def _payloads(self) -> list[str]:
        lists: list[list[str]] = []
        size = 0
        while (hint := self._untold.pop()) is not None:
            # ASCII, whatever is in the id.
            line = json.dumps([hint.task_id, hint.version])
            if len(line) > LARGEST_PAYLOAD:
                continue
            size += len(line) + 1
            if not lists or size > LARGEST_PAYLOAD:
                lists.append([])
                size = len(line) + 1
            lists[-1].append(line)
        return [f"{self._me} [{','.join(lines)}]" for lines in lists]


# ---- schema

_LOCK: Final = int.from_bytes(b"mcptasks", "big", signed=True)

# Read from the catalogue: `to_regclass` remembers what was not there, also when another process has made it meanwhile.
_IDENTITY: Final = b"""
SELECT bool_or(relname = 'mcp_tasks_meta') IS TRUE, bool_or(relname = 'mcp_tasks_tasks') IS TRUE
FROM pg_catalog.pg_class
WHERE relname IN ('mcp_tasks_meta', 'mcp_tasks_tasks') AND relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(oid)
"""
_CREATE_META: Final = b"""
CREATE TABLE mcp_tasks_meta (schema integer NOT NULL, compatible_from integer NOT NULL, release text NOT NULL);
INSERT INTO mcp_tasks_meta (schema, compatible_from, release) VALUES (0, 0, '');
"""
_UPDATE_META: Final = b"""
UPDATE mcp_tasks_meta SET schema = %(schema)s, compatible_from = %(compatible_from)s, release = %(release)s
"""


@cache
def migrations() -> tuple[str, ...]:
    """The SQL scripts in their order."""
    return scripts_of("mcp_tasks.stores.postgres")


async def prepare(connection: Connection, place: str) -> None:
    """Make the tables of this release, on a connection in autocommit mode that is for nothing else.

    Raises:
        StoreCorrupt: There are tables of these names that are not ours, or those of a newer release.
        psycopg.Error: Postgres refused; the caller translates.
    """
    if await schema_of(connection, place) >= len(migrations()):
        return
    # Of the session and not of the transaction: one that began before another process made the tables may know from
    # its cache that they are not there. The lock goes with the connection, which is closed after this.
    await connection.execute(b"SELECT pg_advisory_lock(%(lock)s)", {"lock": _LOCK})
    async with connection.transaction():
        # Asked again under the lock: another process may have been first.
        schema = await schema_of(connection, place)
        if schema >= len(migrations()):
            return
        if schema == 0:
            await connection.execute(_CREATE_META)
        for script in migrations()[schema:]:
            await connection.execute(script.encode())
        done = {"schema": len(migrations()), "release": this_release()}
        await connection.execute(_UPDATE_META, done | {"compatible_from": compatible_from(migrations())})


async def schema_of(connection: Connection, place: str) -> int:
    """The schema number, 0 if there is nothing yet; raises if it is not ours to use."""
    ((has_meta, has_tasks),) = await (await connection.execute(_IDENTITY)).fetchall()
    if not has_meta:
        if has_tasks:
            raise StoreCorrupt(
                f"{place} has a table mcp_tasks_tasks and no mcp_tasks_meta, so it is of another application, or part "
                "of a backup. Choose another database or search_path, or restore all tables."
            )
        return 0
    try:
        found = await connection.execute(b"SELECT schema, compatible_from, release FROM mcp_tasks_meta")
        rows = await found.fetchall()
    except psycopg.errors.UndefinedColumn as exc:
        raise StoreCorrupt(f"{place} has a table mcp_tasks_meta of another application. Choose another.") from exc
    if len(rows) != 1:
        raise StoreCorrupt(f"{place} has {len(rows)} rows in mcp_tasks_meta instead of one. Restore a backup.")
    schema, first, release = rows[0]
    if schema > len(migrations()) and first > len(migrations()):
        raise StoreCorrupt(
            f"{place} has schema {schema}, and this release knows up to {len(migrations())}. "
            f"Use mcp-tasks {release} or a newer one."
        )
    return int(schema)


_NO_URL: Final = (
    "this is not the URL of a Postgres database. It is postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where special "
    "characters of user and password are written with a percent sign (%40 for @, %2F for /)"
)


def name_of(url: str) -> str:
    """The URL as it may be shown.

    Raises:
        UsageError: It is not the URL of a Postgres. The driver's message is not repeated: it shows parts of the URL,
            and if the password has an @ or a / in it, parts of that.
    """
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, AttributeError):  # AttributeError: it is no string
        raise UsageError(_NO_URL) from None
    user, host, port, name = (str(parts.get(part) or "") for part in ("user", "host", "port", "dbname"))
    # A password with such a character in it is read as host, port or database, and would be shown.
    if not re.fullmatch(r"[\d,]*", port) or set("@/:") & set(name):
        raise UsageError(_NO_URL)
    return f"postgresql://{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{name}"
