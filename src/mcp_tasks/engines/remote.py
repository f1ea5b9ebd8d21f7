"""An engine whose ids another system carries: a database's queue, a stream, a broker.

`RemoteEngine` is the part that such engines share, `Carrier` the part that differs: one file for each system. An id is
carried to one of the workers, which waits for a free slot, starts the run, and confirms the delivery as soon as the
store knows who has the task. From then on lease and sweeps look after the task, and no time-out of the carrier decides
anything: a long run is never delivered again, and a draining worker holds nothing that another would be given.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import timedelta
from math import inf
from typing import Final, Protocol

from mcp_tasks._utils import BackgroundTasks, short_id
from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Engine, Execute, Lane, Route, Serves
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY, LocalEngine
from mcp_tasks.errors import UsageError
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import POSTGRES, REDIS, needing_extra, shown, with_plain_scheme
from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

PATIENCE = 1.0
"""Seconds that a delivered id waits for a slot here before it is sent on: another worker may have a free one."""

SETTLED = 1.0
"""Seconds that a carrier must run after a failure before it counts as working: an unreachable one fails sooner."""

SENDING = 1.0
"""Seconds that `submit` waits for an id to be sent. Sending continues after that."""

LEAVING = 5.0
"""Seconds that a carrier has to end its `take`. Sweeps find the ids that it has not sent on by then."""

STEADY = 10.0
"""Seconds of `take` after which the next failure counts as the first."""


class Deliver(Protocol):
    """Takes the ids that arrive in a worker. None of its methods raises."""

    async def __call__(self, task_id: str) -> bool:
        """Take an id that has arrived. True once it need not be carried any more; False if it is to be sent again after
        a moment: there is no room for it here now, or the store is unavailable."""
        ...

    async def room(self) -> bool:
        """Return when there is room for one more; False once nothing is taken here any more.

        A carrier that waits for this before it fetches leaves ids to other workers instead of holding them here.
        """
        ...


class Carrier(Protocol):
    """Carries ids from process to process, at least once each. All methods may raise: the engine goes on."""

    abilities: Abilities
    """What it can do. `remote` is True."""

    async def open(self, namespace: str) -> None:
        """Be ready to send; opening an open carrier does nothing."""
        ...

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Have the id carried to a worker that serves the route, after the delay. Durable on return."""
        ...

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Pass arriving ids to `deliver`, several at a time, until cancelled; then end within a moment. Ids that have
        not been delivered by then stay for other workers."""
        ...

    async def close(self) -> None:
        """Close everything. Safe twice, and before `open`."""
        ...


class RemoteEngine:
    """Runs tools in this process, at most `concurrency` at a time, as a carrier brings their ids.

    Args:
        carrier: Carries ids between the processes.
        concurrency: How many tools run in this process at a time; runs waiting for input don't count.
    """

    def __init__(self, carrier: Carrier, concurrency: int = DEFAULT_CONCURRENCY) -> None:
        self.carrier = carrier
        self.abilities: Abilities = carrier.abilities
        self._local = LocalEngine(concurrency)
        self._taking: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()
        self._sending = BackgroundTasks()
        self._has_failed = False
        self._taking_since = inf

    def __repr__(self) -> str:
        return f"RemoteEngine({self.carrier!r})"

    @property
    def concurrency(self) -> int:
        """How many tools run in this process at a time."""
        return self._local.concurrency

    @property
    def backlog(self) -> int:
        """Always 0: ids wait in the carrier."""
        return 0

    @property
    def has_room(self) -> bool:
        """Always False: an id may be carried to another process."""
        return False

    @property
    def is_taking(self) -> bool:
        """Whether the carrier works, as far as this process knows. True until it has failed."""
        return not self._has_failed or asyncio.get_running_loop().time() - self._taking_since > SETTLED

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to take ids for `execute`; None to send only."""
        self._context = contextvars.copy_context()
        await self._stop_taking()
        await self.carrier.open(serves.namespace)
        await self._local.start(execute)
        if execute is not None:
            self._taking = asyncio.create_task(self._keep_taking(serves), name="mcp-tasks-carrier")

    async def submit(
        self,
        task_id: str,
        *,
        lane: Lane = "new",
        owner: str | None = None,
        route: Route = ANYWHERE,
        delay: timedelta | None = None,
    ) -> None:
        """Have the id carried. If that fails, a sweep submits it again.

        This does not wait for long: the task is in the store, and the caller waits for its id.
        """
        # Not in the context of a tool that created the task: sending is not part of the tool.
        sending = self._sending.start(
            self._send(task_id, route=route, lane=lane, delay=delay), context=self._context.copy()
        )
        await asyncio.wait({sending}, timeout=SENDING)

    async def _send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        try:
            await self.carrier.send(task_id, route=route, lane=lane, delay=delay)
        except Exception as exc:
            logger.warning("task %s could not be submitted now: %s", short_id(task_id), what(exc))

    async def drain(self, timeout: timedelta) -> None:
        """Take nothing more, and give runs up to `timeout` to end."""
        # First: ids that wait for a slot are sent on to other workers while the carrier ends its `take`.
        self._local.close()
        clock = asyncio.get_running_loop().time
        until = clock() + timeout.total_seconds()
        await self._stop_taking()
        await self._local.drain(timedelta(seconds=max(0.0, until - clock())))

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for runs that were told to stop, and close the carrier."""
        try:
            await self.drain(timeout)
            if self._sending:
                await asyncio.wait([*self._sending], timeout=SENDING)
        finally:
            await self.carrier.close()

    async def _stop_taking(self) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.cancel()
            await asyncio.wait({taking}, timeout=LEAVING)

    async def _keep_taking(self, serves: Serves) -> None:
        """Take for as long as this process runs tools, however often the carrier fails or is restarted."""
        clock = asyncio.get_running_loop().time
        deliver, failures = _Arrivals(self._local), 0
        while True:
            began = self._taking_since = clock()
            try:
                await self.carrier.take(deliver, serves)
                failures = 0
            except Exception as exc:
                self._has_failed, self._taking_since = True, inf
                failures = 1 if clock() - began > STEADY else failures + 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "this worker cannot take tasks from the engine, and will retry: %s", what(exc))
            await asyncio.sleep(
                backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=5)).total_seconds()
            )


class _Arrivals:
    """Passes carried ids to the slots of this process."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self.room = local.room

    async def __call__(self, task_id: str) -> bool:
        return await self._local.take(task_id, PATIENCE)


LOCAL: Final = "local"

_OF_ONE_MACHINE: Final = ("sqlite:", "memory:")


def engine_beside(url: str, concurrency: int) -> Engine:
    """The engine that goes with the URL of a store: the local one beside stores of one machine.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: A package that the engine needs is not installed.
    """
    return engine_from_url(LOCAL if with_plain_scheme(url).startswith(_OF_ONE_MACHINE) else url, concurrency)


def engine_from_url(url: str, concurrency: int) -> Engine:
    """The engine that a URL names: `local`, `postgresql://…` or `redis://…`.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: A package that the engine needs is not installed.
    """
    url = with_plain_scheme(url)
    if url == LOCAL:
        return LocalEngine(concurrency)
    if url.startswith(POSTGRES):
        with needing_extra("carrying tasks by Postgres", "postgres"):
            from mcp_tasks.engines.procrastinate import ProcrastinateEngine
        return ProcrastinateEngine(url, concurrency)
    if url.startswith(REDIS):
        with needing_extra("carrying tasks by Redis", "redis"):
            from mcp_tasks.engines.docket import BATCH, DocketCarrier
        return RemoteEngine(DocketCarrier(url, batch=min(concurrency, BATCH)), concurrency)
    raise UsageError(f"{shown(url)} names no engine; use 'local', postgresql://…, redis://…, or pass an Engine object")
