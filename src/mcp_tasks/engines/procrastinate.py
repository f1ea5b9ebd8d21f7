"""Ids carried by Postgres, with procrastinate: a job is a row, which a worker fetches and deletes.

The row can be written in the very transaction that writes the task (`ProcrastinateEngine.job`). Workers are woken by
LISTEN and NOTIFY, and look for themselves once a second, which is also by how much a delay may be exceeded.
procrastinate's own time-outs decide nothing: a job is done as soon as its task is claimed. What a worker had fetched
and not claimed when it was killed is given to another once its heartbeat counts as lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Generator, Iterable, Sequence
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

# ---- procrastinate schema
# procrastinate's tables, in a schema of their own: made and brought up to date by whichever process comes first.


SCHEMA: Final[LiteralString] = "mcp_tasks_jobs"

_LOCK: Final = 0x6D63705F6A6F6273
"""Whom processes that start at once wait for: a number that nobody else is likely to have chosen."""

_TABLE: Final[LiteralString] = "mcp_tasks_migrations"
_APPLIED: Final = Identifier(SCHEMA, _TABLE)


async def prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    """Make the tables, or bring them up to date. Costs one look where there is nothing to do."""
    known = _migrations()
    if known.keys() <= await _applied(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        applied = await _applied(connection)
        missing = sorted(known.keys() - applied)
        if not missing:
            return
        if applied:
            await _search_here(connection)
            for name in missing:
                await connection.execute(known[name].read_bytes())
        else:
            await _create(connection)
        await _work_from_anywhere(connection)
        note = SQL("INSERT INTO {} (name) SELECT unnest(%s::text[])").format(_APPLIED)
        await connection.execute(note, [missing])


def _migrations() -> dict[str, Path]:
    """What procrastinate has to bring older tables up to date, by name.

    Each release has migrations for before its code comes ("pre") and for after the older code has gone ("post"). The
    newest "post" ones wait until there is a newer release: a fleet is rolled, and older workers are still at work.
    """
    files = {file.name: file for file in Path(SchemaManager.get_migrations_path()).glob("*.sql")}
    newest = max(_release(name) for name in files)
    return {name: file for name, file in files.items() if "_post_" not in name or _release(name) < newest}


def _release(name: str) -> str:
    return name.partition("_")[0]


async def _applied(connection: psycopg.AsyncConnection[Any]) -> set[str]:
    """Which migrations the tables have seen; none if there are no tables."""
    # Not by `to_regclass`: having looked before it waited for another, it goes by what it saw then.
    look = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    if await (await connection.execute(look, [SCHEMA, _TABLE])).fetchone() is None:
        return set()
    rows = await (await connection.execute(SQL("SELECT name FROM {}").format(_APPLIED))).fetchall()
    return {name for (name,) in rows}


async def _create(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(SCHEMA)))
    await _search_here(connection)
    await connection.execute(SchemaManager.get_schema())
    await connection.execute(SQL("CREATE TABLE {} (name text PRIMARY KEY)").format(_APPLIED))


async def _search_here(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(SQL("SET LOCAL search_path TO {}").format(Identifier(SCHEMA)))


async def _work_from_anywhere(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let a job be written by whoever keeps tasks in this database: its connections do not look for names here."""
    await connection.execute(
        f"ALTER FUNCTION {SCHEMA}.procrastinate_defer_jobs_v1({SCHEMA}.procrastinate_job_to_defer_v1[])"
        f" SET search_path TO {SCHEMA}"
    )


# ---- procrastinate jobs
# A task's id as a job of procrastinate: in which queue it stands, and how it is written.


RUN: Final = "mcp_tasks.run"
UPKEEP: Final = "mcp_tasks.upkeep"

TRIES = 8
"""How often an id is sent again that could not be taken. After that it is for the sweeps, which have more patience."""

_LARGEST: Final = 2**31 - 1
"""A priority is an integer of the database."""

# The function is what procrastinate itself defers jobs with. Types are named because a row has no others to go by. A
# delay is added to the clock of the database, which also decides when it is over: no machine's own clock takes part.
_DEFER: Final[LiteralString] = f"""
SELECT {SCHEMA}.procrastinate_defer_jobs_v1(ARRAY[ROW(
    %(job_queue)s::varchar, %(job_name)s::varchar, %(job_priority)s::integer, NULL::text, NULL::text,
    %(job_args)s::jsonb, clock_timestamp() + %(job_delay)s::interval
)]::{SCHEMA}.procrastinate_job_to_defer_v1[])
"""


def queue_of(namespace: str, queue: str, tool: str | None) -> str:
    """The queue of a route. Names that people chose are cut short: a channel of Postgres has 63 bytes, of which
    procrastinate takes 23."""
    whole = json.dumps([namespace, queue, tool]).encode()
    words = re.sub(r"[^A-Za-z0-9_]+", "-", queue if tool is None else f"{queue}-{tool}")
    return f"{words[:23]}.{hashlib.sha256(whole).hexdigest()[:16]}"


def queues_of(serves: Serves) -> Sequence[str]:
    """The queues that a worker takes from."""
    return [queue_of(serves.namespace, queue, tool) for queue, tool in serves.routes()]


def job_of(task_id: str, *, route: Route, namespace: str, delay: timedelta | None) -> dict[str, Any]:
    """What has a worker of the route run the task, after a delay if there is one."""
    return _job(queue_of(namespace, route.queue, route.tool), _priority(route), delay, task_id=task_id)


def again(job: Job, tries: int, *, at_once: bool) -> dict[str, Any] | None:
    """The job once more; None if it was tried often enough."""
    if tries >= TRIES:
        return None
    pause = None if at_once else backoff(tries, base=timedelta(milliseconds=200), limit=timedelta(seconds=10))
    return _job(job.queue, job.priority, pause, **{**job.task_kwargs, "tries": tries + 1})


async def defer(connector: PsycopgConnector, job: dict[str, Any]) -> None:
    """Write a job.

    Raises:
        ConnectorException: The database cannot be reached.
    """
    await connector.execute_query_async(_DEFER, **job)


def written(task_id: str, *, route: Route, namespace: str, place: str) -> Statement:
    """A job as a statement, for somebody else's transaction."""
    return Statement(place=place, text=_DEFER, values=job_of(task_id, route=route, namespace=namespace, delay=None))


def _job(queue: str, priority: int, delay: timedelta | None, **arguments: Any) -> dict[str, Any]:
    return {
        "job_queue": queue,
        "job_name": RUN,
        "job_priority": priority,
        "job_args": json.dumps(arguments),
        "job_delay": delay,
    }


def _priority(route: Route) -> int:
    return max(-_LARGEST, min(route.priority, _LARGEST))


# ---- procrastinate quiet
# procrastinate and its pools, without what they say about themselves: our ids are no work of their own, and the tasks
# they stand for are told of elsewhere.


NAME: Final = "mcp-tasks"
"""Of our workers."""

_LOGGERS: Final = ("app", "blueprints", "jobs", "manager", "periodic", "psycopg_connector", "tasks", "utils", "worker")

_is_ours: ContextVar[bool] = ContextVar("mcp_tasks_procrastinate", default=False)


@contextmanager
def quiet() -> Generator[None]:
    """In the block, and in whatever is started there, procrastinate is quiet."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


class _Quiet(logging.Filter):
    """Decides what is let through of what procrastinate logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is."""
        if not _is_ours.get():
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not isinstance(error, ConnectorException | psycopg.Error):
            return True
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_QUIET: Final = _Quiet()
for _name in ("psycopg.pool", *(f"procrastinate.{_part}" for _part in (*_LOGGERS, f"worker.{NAME}"))):
    logging.getLogger(_name).addFilter(_QUIET)


# ---- procrastinate worker
# A worker of procrastinate that hands ids to the slots of this process.


HANDLERS = 20
"""Ids that are being delivered at a time in one process: each waits for the store, not for the tool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often workers look, and when one counts as dead.

    Attributes:
        poll: Between two looks for jobs that no notification told of: delayed ones, above all.
        heartbeat: Between two signs of life of a worker.
        dead: Without one for so long, a worker counts as dead, and another is given what it had fetched.
    """

    poll: timedelta = timedelta(seconds=1)
    heartbeat: timedelta = timedelta(seconds=5)
    dead: timedelta = timedelta(seconds=20)


class Worker:
    """Takes jobs from queues, as there is room, and hands their ids on."""

    def __init__(self, connector: PsycopgConnector, deliver: Deliver, pace: Pace) -> None:
        self._pace = pace
        self._deliver = deliver
        self._connector = connector
        self._manager = _RoomFirst(connector, deliver)
        self._leaving = False
        self._app = _App(connector, self._manager)
        self._app.task(name=RUN, pass_context=True)(self._run)
        # Besides what it does, it keeps procrastinate watching its own listener and heartbeat, which it stops doing
        # where nothing is periodic: https://github.com/procrastinate-org/procrastinate/issues/1597
        upkeep = self._app.task(name=UPKEEP, queue=UPKEEP, queueing_lock=UPKEEP)(self._rescue)
        self._app.periodic(cron=f"* * * * * */{max(1, min(int(pace.dead.total_seconds()), 59))}")(upkeep)

    async def work(self, queues: Iterable[str]) -> None:
        """Take jobs until cancelled; then let go of those that have not been taken."""
        worker = asyncio.create_task(self._work([*queues, UPKEEP]), name="mcp-tasks-procrastinate")
        try:
            await shielded(worker)
        except asyncio.CancelledError:
            self._leaving = True
            self._manager.leave()
            worker.cancel()
            await asyncio.wait({worker})
            raise

    async def _work(self, queues: Iterable[str]) -> None:
        await self._app.run_worker_async(
            queues=queues,
            name=NAME,
            concurrency=HANDLERS,
            delete_jobs="always",
            # Signals are the server's.
            install_signal_handlers=False,
            fetch_job_polling_interval=self._pace.poll.total_seconds(),
            # Nobody asks for a job to be aborted: a task is cancelled in the store.
            abort_job_polling_interval=3600.0,
            update_heartbeat_interval=self._pace.heartbeat.total_seconds(),
            stalled_worker_timeout=self._pace.dead.total_seconds(),
            shutdown_graceful_timeout=2.0,
        )

    async def _run(self, context: JobContext, task_id: str, tries: int = 0) -> None:
        """One job: it is done when the task is claimed, or need not be."""
        try:
            has_arrived = await self._deliver(task_id)
        except asyncio.CancelledError:
            # Its time to leave is over. The run may have begun; that it has is for others to find.
            await self._send_again(context.job, tries)
            raise
        if not has_arrived:
            await self._send_again(context.job, tries)

    async def _send_again(self, job: Job, tries: int) -> None:
        if (next_job := again(job, tries, at_once=self._leaving)) is not None:
            await defer(self._connector, next_job)

    async def _rescue(self, timestamp: int) -> None:
        """Give to others what dead workers had fetched. A task that was claimed is found to be, and that is all."""
        dead = self._pace.dead.total_seconds()
        # Whatever fails has its turn the next time: its worker has come back, say, or another one was quicker.
        with suppress(ConnectorException):
            await self._manager.prune_stalled_workers(dead)
            for job in await self._manager.get_stalled_jobs(seconds_since_heartbeat=dead):
                with suppress(ConnectorException):
                    await self._rescue_job(job)

    async def _rescue_job(self, job: Job) -> None:
        if job.task_name == RUN and job.attempts < TRIES:
            await self._manager.retry_job(job)
        else:
            await self._manager.finish_job(job, status=Status.FAILED, delete_job=True)


class _RoomFirst(JobManager):
    """Fetches a job only when there is a slot for it: what would only wait here is left to other workers."""

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
        """Delete the job, if that can be done now. Otherwise it is found when this worker has ended."""
        try:
            await super().finish_job(job, status, delete_job)
        except ConnectorException:
            # Once more: most likely the connection was lost, and others are there.
            with suppress(ConnectorException):
                await super().finish_job(job, status, delete_job)

    def leave(self) -> None:
        """Wait for room no longer."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0)


class _App(App):
    """An app whose jobs are managed by ours."""

    def __init__(self, connector: PsycopgConnector, manager: JobManager) -> None:
        super().__init__(connector=connector)
        self.job_manager = manager


Pool: TypeAlias = AsyncConnectionPool[psycopg.AsyncConnection[Any]]

_SETTINGS: Final = {"search_path": SCHEMA, "plan_cache_mode": "force_custom_plan"}
"""Of every connection, whatever the URL says of them."""

_SET: Final = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)"

CONNECTIONS = 6
"""Of one process to send with, and as many to take with."""

PATIENCE = 5.0
"""Seconds to wait for a connection."""


class ProcrastinateCarrier:
    """Carries ids through a Postgres database.

    Args:
        url: The database, `postgresql://…`. Jobs are kept there in a schema of their own, `mcp_tasks_jobs`.
        connections: How many connections a process has at most to send ids with, and a worker to take them with. A
            worker has one more, which listens.
        pace: How often workers look.
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
        """Connect, and make the tables if they are not there.

        Raises:
            StoreUnavailable: The database cannot be reached, or does not let us make the tables.
        """
        self._namespace = namespace
        if self._pool is not None:
            return
        pool = self._new_pool()
        try:
            # By itself first: a pool tries again for long, and keeps to itself why it cannot connect.
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
            raise StoreUnavailable(f"the jobs in {self.place} cannot be reached: {exc}") from exc
        self._pool = pool

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Write the job. Those of both lanes stand in one line, so neither keeps the other from running.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """
        pool, job = self._opened(), job_of(task_id, route=route, namespace=self._namespace, delay=delay)
        try:
            with quiet():
                await _defer(pool, job)
        except ConnectorException as exc:
            raise self._unavailable(exc) from exc

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Run a worker of procrastinate until cancelled.

        Raises:
            StoreUnavailable: The database cannot be reached any more.
        """
        with quiet():
            await self._take(deliver, serves)

    async def _take(self, deliver: Deliver, serves: Serves) -> None:
        await self._look()
        # That a job was fetched, or is done, need not survive a crash of the database: it is brought once more then,
        # and its task found to be claimed. So nobody waits for the disk.
        async with self._new_pool(synchronous_commit="off") as pool:
            worker = Worker(await _connector(pool), deliver, self._pace)
            try:
                await worker.work(queues_of(serves))
            except ConnectorException as exc:
                raise self._unavailable(exc) from exc

    async def _look(self) -> None:
        """See that the database is there.

        If it is not, that is known at once: a pool goes on trying for so long that the engine would count as taking.
        """
        try:
            await (await psycopg.AsyncConnection.connect(**self._parameters)).close()
        except psycopg.Error as exc:
            raise self._unavailable(exc) from exc

    async def close(self) -> None:
        """Let go of the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(timeout=PATIENCE)

    def _new_pool(self, **settings: str) -> Pool:
        async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
            # One round trip for each statement, where a transaction would take three.
            await connection.set_autocommit(True)
            # Not among the parameters of the connection: poolers refuse those or leave them out.
            all_of_them = {**_SETTINGS, **settings}
            await connection.execute(_SET, [list(all_of_them), list(all_of_them.values())])

        return AsyncConnectionPool(
            kwargs=self._parameters,
            min_size=1,
            max_size=self._connections,
            timeout=PATIENCE,
            configure=configure,
            open=False,
            name="mcp-tasks-jobs",
        )

    def _opened(self) -> Pool:
        if self._pool is None:
            raise StoreUnavailable(f"the jobs in {self.place} cannot be reached: the engine is not started")
        return self._pool

    def _unavailable(self, exc: ConnectorException | psycopg.Error) -> StoreUnavailable:
        return StoreUnavailable(f"the jobs in {self.place} cannot be reached: {exc.__cause__ or exc}")


class ProcrastinateEngine(RemoteEngine):
    """Runs tools in this process, at most `concurrency` at a time, as procrastinate brings their ids.

    Args:
        url: The database: `postgresql://…`.
        concurrency: How many tools run in this process at a time; runs waiting for input don't count.
        connections: How many connections a process has at most to send ids with, and a worker to take them with. A
            worker has one more, which listens.
        pace: How often workers look.
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
        return written(task_id, route=route, namespace=namespace, place=self._place)


def _parameters(url: str) -> dict[str, Any]:
    """How to connect: as the URL says, and noticing when the other side is gone."""
    try:
        asked = conninfo_to_dict(url)
    except psycopg.Error:
        # What is wrong is not passed on: it may quote the password.
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


async def _defer(pool: Pool, job: dict[str, Any]) -> None:
    connector = await _connector(pool)
    try:
        await defer(connector, job)
    except ConnectorException:
        # The database was restarted, say: the connections of before are of no use, and are told from others only by
        # asking each. An id that is carried twice is harmless.
        await pool.check()
        await defer(connector, job)


async def _connector(pool: Pool) -> PsycopgConnector:
    connector = PsycopgConnector()
    await connector.open_async(pool)
    return connector
