"""Ids carried by Postgres, with procrastinate: a job is a row, which a worker fetches and deletes.

The row can be written in the transaction that writes the task (`ProcrastinateEngine.job`). Workers are woken by LISTEN
and NOTIFY, and poll once a second, so a delay may be exceeded by as much. procrastinate's own time-outs decide nothing:
a job is done as soon as its task is claimed. Jobs that a killed worker had fetched and not claimed go to another worker
once the heartbeat counts as lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, LiteralString, TypeAlias

import psycopg
from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from mcp_tasks._utils import shielded
from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.engines.remote import Deliver, RemoteEngine
from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import Statement, check_number, database_place

__all__ = ["Pace", "ProcrastinateCarrier", "ProcrastinateEngine"]

RUN: Final = "mcp_tasks.run"
UPKEEP: Final = "mcp_tasks.upkeep"

NAME: Final = "mcp-tasks"
"""The name of our workers."""

HANDLERS = 20
"""Ids that are being delivered at a time in one process: each waits for the store, not for the tool."""

TRIES = 8
"""How often an id that could not be taken is sent again. After that the sweeps find the task."""

CONNECTIONS = 6
"""Connections of one process to send with, and of one worker to take with."""

PATIENCE = 5.0
"""Seconds to wait for a connection."""


# ---- schema
# procrastinate's tables, in a schema of their own: created and brought up to date by the first process.

SCHEMA: Final[LiteralString] = "mcp_tasks_jobs"

_LOCK: Final = 0x6D63705F6A6F6273
"""The lock of processes that start at once: a number that no other program is likely to use."""

_TABLE: Final[LiteralString] = "mcp_tasks_migrations"
_APPLIED: Final = Identifier(SCHEMA, _TABLE)


async def prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    """Create the tables, or bring them up to date. One query if there is nothing to do."""
    known = _migrations()
    if known.keys() <= await _applied(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        applied = await _applied(connection)
        missing = sorted(known.keys() - applied)
        if not missing:
            return
        schema = Identifier(SCHEMA)
        if not applied:
            await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        await connection.execute(SQL("SET LOCAL search_path TO {}").format(schema))
        if applied:
            for name in missing:
                await connection.execute(known[name].read_bytes())
        else:
            await connection.execute(SchemaManager.get_schema())
            await connection.execute(SQL("CREATE TABLE {} (name text PRIMARY KEY)").format(_APPLIED))
        # A store in this database may write a job: its connections do not search for names in this schema.
        await connection.execute(
            f"ALTER FUNCTION {SCHEMA}.procrastinate_defer_jobs_v1({SCHEMA}.procrastinate_job_to_defer_v1[])"
            f" SET search_path TO {SCHEMA}"
        )
        note = SQL("INSERT INTO {} (name) SELECT unnest(%s::text[])").format(_APPLIED)
        await connection.execute(note, [missing])


def _migrations() -> dict[str, Path]:
    """procrastinate's migrations of older tables, by name.

    Each release has migrations to run before its code ("pre") and after the older code has gone ("post"). The newest
    "post" ones wait for a newer release: in a rolling update, older workers are still running.
    """
    files = {file.name: file for file in Path(SchemaManager.get_migrations_path()).glob("*.sql")}
    newest = max(name.partition("_")[0] for name in files)
    return {name: file for name, file in files.items() if "_post_" not in name or name.partition("_")[0] < newest}


async def _applied(connection: psycopg.AsyncConnection[Any]) -> set[str]:
    """The migrations that the tables have; none if there are no tables."""
    # Not by `to_regclass`: having looked before it waited for another process, it would use its first result.
    look = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    if await (await connection.execute(look, [SCHEMA, _TABLE])).fetchone() is None:
        return set()
    rows = await (await connection.execute(SQL("SELECT name FROM {}").format(_APPLIED))).fetchall()
    return {name for (name,) in rows}


# ---- jobs

_LARGEST: Final = 2**31 - 1
"""A priority is an integer of the database."""

# procrastinate's own function for jobs. Types are named because a row has no others. A delay is added to the clock of
# the database, which also decides when it is over: no machine's own clock takes part.
_DEFER: Final[LiteralString] = f"""
SELECT {SCHEMA}.procrastinate_defer_jobs_v1(ARRAY[ROW(
    %(job_queue)s::varchar, %(job_name)s::varchar, %(job_priority)s::integer, NULL::text, NULL::text,
    %(job_args)s::jsonb, clock_timestamp() + %(job_delay)s::interval
)]::{SCHEMA}.procrastinate_job_to_defer_v1[])
"""


def queue_of(namespace: str, queue: str, tool: str | None) -> str:
    """procrastinate's queue for a route. Names are cut: a channel of Postgres has 63 bytes, of which procrastinate
    takes 23."""
    whole = json.dumps([namespace, queue, tool]).encode()
    words = re.sub(r"[^A-Za-z0-9_]+", "-", queue if tool is None else f"{queue}-{tool}")
    return f"{words[:23]}.{hashlib.sha256(whole).hexdigest()[:16]}"


def _job_of(task_id: str, route: Route, namespace: str, delay: timedelta | None) -> dict[str, Any]:
    priority = max(-_LARGEST, min(route.priority, _LARGEST))
    return _job(queue_of(namespace, route.queue, route.tool), priority, delay, task_id=task_id)


def _job(queue: str, priority: int, delay: timedelta | None, **arguments: Any) -> dict[str, Any]:
    return {
        "job_queue": queue,
        "job_name": RUN,
        "job_priority": priority,
        "job_args": json.dumps(arguments),
        "job_delay": delay,
    }


# ---- procrastinate's logs
# Ids are no work of their own, and their tasks are logged elsewhere: only unexpected errors pass.

_LOGGERS: Final = ("app", "blueprints", "jobs", "manager", "periodic", "psycopg_connector", "tasks", "utils", "worker")

_is_ours: ContextVar[bool] = ContextVar("mcp_tasks_procrastinate", default=False)


@contextmanager
def quiet() -> Generator[None]:
    """In this block, and in everything that is started there, procrastinate is silent."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


class _Quiet(logging.Filter):
    """Decides which log records of procrastinate and its pools pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one does."""
        if not _is_ours.get():
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not isinstance(error, ConnectorException | psycopg.Error):
            return True
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_QUIET: Final = _Quiet()
for _name in ("psycopg.pool", *(f"procrastinate.{_part}" for _part in (*_LOGGERS, f"worker.{NAME}"))):
    logging.getLogger(_name).addFilter(_QUIET)


# ---- the worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often workers poll, and when a worker counts as dead.

    Attributes:
        poll: Between two polls for jobs that had no notification: delayed ones, above all.
        heartbeat: Between two heartbeats of a worker.
        dead: Without a heartbeat for so long, a worker counts as dead, and its fetched jobs go to another.
    """

    poll: timedelta = timedelta(seconds=1)
    heartbeat: timedelta = timedelta(seconds=5)
    dead: timedelta = timedelta(seconds=20)


class Worker:
    """Takes jobs from queues while there is room, and delivers their ids."""

    def __init__(self, connector: PsycopgConnector, deliver: Deliver, pace: Pace) -> None:
        self._pace = pace
        self._deliver = deliver
        self._connector = connector
        self._manager = _RoomFirst(connector, deliver)
        self._leaving = False
        self._app = App(connector=connector)
        self._app.job_manager = self._manager
        self._app.task(name=RUN, pass_context=True)(self._run)
        # Without a periodic task, procrastinate stops watching its listener and its heartbeat:
        # https://github.com/procrastinate-org/procrastinate/issues/1597
        upkeep = self._app.task(name=UPKEEP, queue=UPKEEP, queueing_lock=UPKEEP)(self._rescue)
        self._app.periodic(cron=f"* * * * * */{max(1, min(int(pace.dead.total_seconds()), 59))}")(upkeep)

    async def work(self, queues: Iterable[str]) -> None:
        """Take jobs until cancelled; then give back those that have not been taken."""
        worker = asyncio.create_task(
            self._app.run_worker_async(
                queues=[*queues, UPKEEP],
                name=NAME,
                concurrency=HANDLERS,
                delete_jobs="always",
                # The server handles signals.
                install_signal_handlers=False,
                fetch_job_polling_interval=self._pace.poll.total_seconds(),
                # Jobs are never aborted: a task is cancelled in the store.
                abort_job_polling_interval=3600.0,
                update_heartbeat_interval=self._pace.heartbeat.total_seconds(),
                stalled_worker_timeout=self._pace.dead.total_seconds(),
                shutdown_graceful_timeout=2.0,
            ),
            name="mcp-tasks-procrastinate",
        )
        try:
            await shielded(worker)
        except asyncio.CancelledError:
            self._leaving = True
            self._manager.leave()
            worker.cancel()
            await asyncio.wait({worker})
            raise

    async def _run(self, context: JobContext, task_id: str, tries: int = 0) -> None:
        """One job. It is done when the task is claimed, or need not be; otherwise the id is sent again."""
        has_arrived = False
        try:
            has_arrived = await self._deliver(task_id)
        finally:
            # Also when the time to stop is over: the run may have begun, and the next worker will see that.
            if not has_arrived and tries < TRIES:
                base, limit = timedelta(milliseconds=200), timedelta(seconds=10)
                pause = None if self._leaving else backoff(tries, base=base, limit=limit)
                job = context.job
                await _defer(self._connector, _job(job.queue, job.priority, pause, task_id=task_id, tries=tries + 1))

    async def _rescue(self, timestamp: int) -> None:
        """Give the jobs of dead workers to others. The run of a task that was claimed finds that out."""
        dead = self._pace.dead.total_seconds()
        # After a failure it is tried the next time: the worker has come back, or another one was faster.
        with suppress(ConnectorException):
            await self._manager.prune_stalled_workers(dead)
            for job in await self._manager.get_stalled_jobs(seconds_since_heartbeat=dead):
                with suppress(ConnectorException):
                    if job.task_name == RUN and job.attempts < TRIES:
                        await self._manager.retry_job(job)
                    else:
                        await self._manager.finish_job(job, status=Status.FAILED, delete_job=True)


class _RoomFirst(JobManager):
    """Fetches a job only when there is a slot for it: otherwise it is left to other workers."""

    def __init__(self, connector: PsycopgConnector, deliver: Deliver) -> None:
        super().__init__(connector)
        self._deliver = deliver
        self._wait: asyncio.Timeout | None = None

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """The next job, once there is room; None if there is no job, or nothing is taken here any more."""
        try:
            async with asyncio.timeout(None) as self._wait:
                has_room = await self._deliver.room()
        except TimeoutError:
            return None
        finally:
            self._wait = None
        return await super().fetch_job(queues, worker_id) if has_room else None

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Delete the job, if that is possible now. Otherwise it is found when this worker has ended."""
        try:
            await super().finish_job(job, status, delete_job)
        except ConnectorException:
            # Once more: most likely this connection was lost, and others work.
            with suppress(ConnectorException):
                await super().finish_job(job, status, delete_job)

    def leave(self) -> None:
        """Stop waiting for room."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0)


Pool: TypeAlias = AsyncConnectionPool[psycopg.AsyncConnection[Any]]

_SETTINGS: Final = {"search_path": SCHEMA, "plan_cache_mode": "force_custom_plan"}
"""The settings of every connection, whatever the URL says of them."""

_SET: Final = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)"


class ProcrastinateCarrier:
    """Carries ids through a Postgres database.

    Args:
        url: The database, `postgresql://…`. Jobs are kept there in a schema of their own, `mcp_tasks_jobs`.
        connections: How many connections a process has at most to send ids with, and a worker to take them with. A
            worker has one more, which listens.
        pace: How often workers poll.
    """

    abilities: Abilities = Abilities(remote=True, delay=True, priority=True)

    def __init__(self, url: str, *, connections: int = CONNECTIONS, pace: Pace | None = None) -> None:
        check_number("connections", connections, 1)
        self._parameters = _parameters(url)
        self.place: str = database_place(url)
        self._connections = connections
        self._pace = pace or Pace()
        self._namespace = ""
        self._pool: Pool | None = None

    def __repr__(self) -> str:
        return f"ProcrastinateCarrier({self.place!r})"

    async def open(self, namespace: str) -> None:
        """Connect, and create the tables if they are not there.

        Raises:
            StoreUnavailable: The database cannot be reached, or does not let us create the tables.
        """
        self._namespace = namespace
        if self._pool is not None:
            return
        pool = self._new_pool()
        try:
            # Without the pool first: a pool tries for long, and does not say why it cannot connect.
            async with await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True) as connection:
                await prepare(connection)
            with quiet():
                await pool.open(wait=True, timeout=PATIENCE)
        except psycopg.errors.InsufficientPrivilege as exc:
            await pool.close()
            raise StoreUnavailable(
                f"the jobs in {self.place} cannot be kept: {exc}. They have a schema of their own, {SCHEMA}: grant the "
                "user CREATE on the database for the first start"
            ) from exc
        except psycopg.Error as exc:
            await pool.close()
            raise self._unavailable(exc) from exc
        self._pool = pool

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Write the job. Both lanes share one queue, so neither blocks the other.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """
        if (pool := self._pool) is None:
            raise StoreUnavailable(f"the jobs in {self.place} cannot be reached: the engine is not started")
        job = _job_of(task_id, route, self._namespace, delay)
        try:
            with quiet():
                connector = await _connector(pool)
                try:
                    await _defer(connector, job)
                except ConnectorException:
                    # After a restart of the database, old connections fail, and only a check of each finds them. An
                    # id that is carried twice is harmless.
                    await pool.check()
                    await _defer(connector, job)
        except ConnectorException as exc:
            raise self._unavailable(exc) from exc

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Run a worker of procrastinate until cancelled.

        Raises:
            StoreUnavailable: The database cannot be reached any more.
        """
        queues = [queue_of(serves.namespace, queue, tool) for queue, tool in serves.routes()]
        with quiet():
            try:
                # First of all, because a pool tries for so long that the engine would count as taking.
                await (await psycopg.AsyncConnection.connect(**self._parameters)).close()
            except psycopg.Error as exc:
                raise self._unavailable(exc) from exc
            # That a job was fetched, or is done, need not survive a crash of the database: the job is then delivered
            # once more, and its task is found claimed. So these commits do not wait for the disk.
            async with self._new_pool(synchronous_commit="off") as pool:
                worker = Worker(await _connector(pool), deliver, self._pace)
                try:
                    await worker.work(queues)
                except ConnectorException as exc:
                    raise self._unavailable(exc) from exc

    async def close(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(timeout=PATIENCE)

    def _new_pool(self, **settings: str) -> Pool:
        every = {**_SETTINGS, **settings}

        async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
            # One round trip for each statement; a transaction would take three.
            await connection.set_autocommit(True)
            # Not among the parameters of the connection: poolers refuse those or leave them out.
            await connection.execute(_SET, [list(every), list(every.values())])

        return AsyncConnectionPool(
            kwargs=self._parameters,
            min_size=1,
            max_size=self._connections,
            timeout=PATIENCE,
            configure=configure,
            open=False,
            name="mcp-tasks-jobs",
        )

    def _unavailable(self, exc: ConnectorException | psycopg.Error) -> StoreUnavailable:
        return StoreUnavailable(f"the jobs in {self.place} cannot be reached: {exc.__cause__ or exc}")


class ProcrastinateEngine(RemoteEngine):
    """Runs tools in this process, at most `concurrency` at a time, as procrastinate brings their ids.

    Args:
        url: The database: `postgresql://…`.
        concurrency: How many tools run in this process at a time; runs waiting for input don't count.
        connections: How many connections a process has at most to send ids with, and a worker to take them with. A
            worker has one more, which listens.
        pace: How often workers poll.
    """

    def __init__(
        self,
        url: str,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        connections: int = CONNECTIONS,
        pace: Pace | None = None,
    ) -> None:
        carrier = ProcrastinateCarrier(url, connections=connections, pace=pace)
        super().__init__(carrier, concurrency)
        self._place = carrier.place

    def __repr__(self) -> str:
        return f"ProcrastinateEngine({self._place!r})"

    def job(self, task_id: str, *, route: Route, namespace: str) -> Statement:
        """The job of a task, for the transaction that writes the task in the same database."""
        return Statement(place=self._place, text=_DEFER, values=_job_of(task_id, route, namespace, None))


def _parameters(url: str) -> dict[str, Any]:
    """The connection's parameters: the URL's, and those that notice a dead connection."""
    try:
        asked = conninfo_to_dict(url)
    except psycopg.Error:
        # The cause is not passed on: it may quote the password.
        raise UsageError(
            "the URL of the engine is not one of Postgres; write postgresql://USER@HOST/DATABASE"
        ) from None
    defaults = {
        "application_name": "mcp-tasks jobs",
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }
    return {**defaults, **asked}


async def _defer(connector: PsycopgConnector, job: dict[str, Any]) -> None:
    await connector.execute_query_async(_DEFER, **job)


async def _connector(pool: Pool) -> PsycopgConnector:
    connector = PsycopgConnector()
    await connector.open_async(pool)
    return connector
