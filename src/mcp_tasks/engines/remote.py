"""An engine whose ids are carried by another system: a database's queue, a stream, a broker.

`RemoteEngine` is all that such engines have in common, `Carrier` the little that differs: one small file for each
system. An id is carried to one of the workers, which waits for a free slot, starts the run, and says that the id has
arrived as soon as the store knows who has the task. From then on the task's life is the lease's and the sweeps', and no
time-out of the carrier decides anything: a run of hours is never carried again because it is long, and a worker that
drains holds nothing that another would be given.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import timedelta
from math import inf
from typing import Final, Protocol

from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Engine, Execute, Lane, Route, Serves
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY, LocalEngine
from mcp_tasks.errors import UsageError
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import POSTGRES, REDIS, needing_extra, shown, with_plain_scheme
from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

PATIENCE = 1.0
"""Seconds that an id which has arrived waits for a slot here before it is sent on: another worker may have one."""

SETTLED = 1.0
"""Seconds that a carrier which failed must go on for before it counts as working again: one that cannot be reached
fails sooner."""

SENDING = 1.0
"""Seconds that whoever submits an id waits for it to be sent. It goes on after that."""

LEAVING = 5.0
"""Seconds that a carrier has to end its taking. What it has not sent on by then is for the sweeps to find."""

STEADY = 10.0
"""Seconds of taking after which the next failure counts as the first."""


class Deliver(Protocol):
    """Takes the ids that arrive in a worker. None of it raises."""

    async def __call__(self, task_id: str) -> bool:
        """Take an id that has arrived. True once it need not be carried any more; False if it is to be sent again after
        a moment: there is no room for it here now, or the store could not be asked."""
        ...

    async def room(self) -> bool:
        """Return when there is room for one more; False once nothing is taken here any more.

        A carrier that asks before it fetches leaves to others what would only wait here.
        """
        ...


class Carrier(Protocol):
    """What carries ids from process to process, at least once each. All of it may raise: the engine goes on."""

    abilities: Abilities
    """What it can do. `remote` is True."""

    async def open(self, namespace: str) -> None:
        """Be ready to send; opening an open carrier does nothing."""
        ...

    async def send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        """Have the id carried to a worker that serves the route, after the delay. Durable on return."""
        ...

    async def take(self, deliver: Deliver, serves: Serves) -> None:
        """Hand what arrives to `deliver`, several at a time, until cancelled; then end within a moment. What has not
        been delivered by then stays for others."""
        ...

    async def close(self) -> None:
        """Let go of everything. Safe twice, and before `open`."""
        ...


class RemoteEngine:
    """Runs tools in this process, at most `concurrency` at a time, as a carrier brings their ids.

    Args:
        carrier: What carries ids between the processes.
        concurrency: How many tools run in this process at a time; runs waiting for input don't count.
    """

    def __init__(self, carrier: Carrier, concurrency: int = DEFAULT_CONCURRENCY) -> None:
        self.carrier = carrier
        self.abilities: Abilities = carrier.abilities
        self._local = LocalEngine(concurrency)
        self._taking: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()
        self._sending: set[asyncio.Task[None]] = set()
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
        """Nothing waits here: ids wait where they are carried."""
        return 0

    @property
    def has_room(self) -> bool:
        """Not for this process to say: an id may be carried to another."""
        return False

    @property
    def is_taking(self) -> bool:
        """Whether the carrier was last found to work. True until it has failed."""
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
        """Have the id carried. If it cannot be now, a sweep submits it again.

        Nobody waits for long: the task is in the store, and whoever made it wants to know of it.
        """
        # Not in the context of a tool that made the task: it is no part of it.
        sending = asyncio.create_task(
            self._send(task_id, route=route, lane=lane, delay=delay), context=self._context.copy()
        )
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        await asyncio.wait({sending}, timeout=SENDING)

    async def _send(self, task_id: str, *, route: Route, lane: Lane, delay: timedelta | None) -> None:
        try:
            await self.carrier.send(task_id, route=route, lane=lane, delay=delay)
        except Exception as exc:
            logger.warning("task %s… could not be submitted now: %s", task_id[:12], what(exc))

    async def drain(self, timeout: timedelta) -> None:
        """Take nothing more, and give what runs up to `timeout` to end."""
        # First: what has arrived and waits for a slot is sent on to others while the carrier ends its taking.
        self._local.close()
        clock = asyncio.get_running_loop().time
        until = clock() + timeout.total_seconds()
        await self._stop_taking()
        await self._local.drain(timedelta(seconds=max(0.0, until - clock())))

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop, and let go of the carrier."""
        try:
            await self.drain(timeout)
            if self._sending:
                await asyncio.wait(self._sending, timeout=SENDING)
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
                logger.log(level, "tasks are not taken for a moment: %s", what(exc))
            await asyncio.sleep(
                backoff(failures, base=timedelta(milliseconds=100), limit=timedelta(seconds=5)).total_seconds()
            )


class _Arrivals:
    """What a carrier hands ids to: the slots of this process."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local

    async def __call__(self, task_id: str) -> bool:
        """Start the run of an id that has arrived, and wait until the store knows who has the task."""
        return await self._local.take(task_id, PATIENCE)

    async def room(self) -> bool:
        """Wait for a free slot."""
        return await self._local.room()


# ---- url
# One URL decides who runs the tools: this process alone, or a fleet of workers that a database or a broker feeds.


LOCAL: Final = "local"

_OF_ONE_MACHINE: Final = ("sqlite:", "memory:")


def engine_beside(url: str, concurrency: int) -> Engine:
    """The engine that goes with the URL of a store: the local one beside those of one machine.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: What the engine needs is not installed.
    """
    return engine_from_url(LOCAL if with_plain_scheme(url).startswith(_OF_ONE_MACHINE) else url, concurrency)


def engine_from_url(url: str, concurrency: int) -> Engine:
    """The engine that a URL names: `local`, `postgresql://…` or `redis://…`.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: What the engine needs is not installed.
    """
    url = with_plain_scheme(url)
    if url == LOCAL:
        return LocalEngine(concurrency)
    if url.startswith(POSTGRES):
        return _procrastinate(url, concurrency)
    if url.startswith(REDIS):
        return RemoteEngine(_docket(url, concurrency), concurrency)
    raise UsageError(f"{shown(url)} names no engine; use 'local', postgresql://…, redis://…, or pass an Engine object")


def _procrastinate(url: str, concurrency: int) -> Engine:
    with needing_extra("carrying tasks by Postgres", "postgres"):
        from mcp_tasks.engines.procrastinate import ProcrastinateEngine
    return ProcrastinateEngine(url, concurrency)


def _docket(url: str, concurrency: int) -> Carrier:
    with needing_extra("carrying tasks by Redis", "redis"):
        from mcp_tasks.engines.docket import BATCH, DocketCarrier
    return DocketCarrier(url, batch=min(concurrency, BATCH))
