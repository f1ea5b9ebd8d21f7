"""Ids carried by Postgres, with procrastinate: a job is a row, which a worker fetches and deletes.

The row can be written in the very transaction that writes the task (`ProcrastinateEngine.job`). Workers are woken by
LISTEN and NOTIFY, and look for themselves once a second, which is also by how much a delay may be exceeded.
procrastinate's own time-outs decide nothing: a job is done as soon as its task is claimed. What a worker had fetched
and not claimed when it was killed is given to another once its heartbeat counts as lost.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeAlias

import psycopg
from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from mcp_tasks.core.statement import Statement, database_place
from mcp_tasks.core.values import check_number
from mcp_tasks.engines.base import Abilities, Lane, Route, Serves
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.engines.procrastinate_jobs import defer, job_of, queues_of, written
from mcp_tasks.engines.procrastinate_quiet import quiet
from mcp_tasks.engines.procrastinate_schema import SCHEMA, prepare
from mcp_tasks.engines.procrastinate_worker import Pace, Worker
from mcp_tasks.engines.remote import Deliver, RemoteEngine
from mcp_tasks.errors import StoreUnavailable, UsageError

__all__ = ["Pace", "ProcrastinateCarrier", "ProcrastinateEngine"]

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
