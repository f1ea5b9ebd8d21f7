"""A process that runs the tools of a server without clients: `tasks.work(server)` and `mcp-tasks worker` start it.

It takes tasks until it is told to stop. Then it drains: it takes nothing more, gives running tools their time, and
hands back the rest. The runtime does all that; this module starts it, passes signals on, and reports its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import anyio
from mcp.server import MCPServer, Server

from mcp_tasks.engines.base import Serves
from mcp_tasks.engines.remote import RemoteEngine
from mcp_tasks.errors import MissingExtra, StoreError
from mcp_tasks.model.machine import RunAskedOnCall, RunCompleted, RunFailed, RunParked, RunReleased, TaskCancelled
from mcp_tasks.model.values import check_duration
from mcp_tasks.runtime import Settings, TaskRuntime
from mcp_tasks.runtime.observers import Observed, TaskChange, Watcher
from mcp_tasks.server.lifecycle import AnyServer, Lifecycle, Setup
from mcp_tasks.server.options import chosen_queues
from mcp_tasks.server.signals import Orders
from mcp_tasks.stores import Store
from mcp_tasks.telemetry.metrics import Waiting, backlog_of
from mcp_tasks.telemetry.telemetry import Metrics

_WANTED: frozenset[type[Observed]] = frozenset(
    {RunReleased, RunParked, RunCompleted, RunFailed, RunAskedOnCall, TaskCancelled}
)


class Tally(Watcher):
    """Counts the fates of the runs that were in progress when the worker was told to stop.

    Attributes:
        finished: Ended within their time.
        handed_back: Can run again, and are queued for other workers.
        interrupted: May not run again, and have ended as interrupted.
        parked: Only waited, and continue to wait without a process.
        left_behind: Threads that did not end, and no longer own their task.
        cut_short: Whether a second signal ended the draining.
    """

    def __init__(self) -> None:
        self.finished: int = 0
        self.handed_back: int = 0
        self.interrupted: int = 0
        self.parked: int = 0
        self.left_behind: int = 0
        self.cut_short: bool = False
        self._running: frozenset[str] | None = None

    def begin(self, running: Iterable[str]) -> None:
        """Count from now on; these are running."""
        self._running = frozenset(running)

    def wanted(self) -> Collection[type[Observed]]:
        """The ends of runs."""
        return _WANTED

    def __call__(self, change: TaskChange) -> None:
        """Count the end of a run."""
        # Sweeps change tasks of other processes, too.
        if self._running is None or change.actor.kind == "sweep":
            return
        match change.event:
            case RunReleased():
                self.handed_back += 1
            case RunParked():
                self.parked += 1
            case RunFailed(reason="interrupted"):
                self.interrupted += 1
            case _:
                # A run that ended just before the signal may be reported only now.
                self.finished += change.task.id in self._running


State: TypeAlias = Literal["starting", "working", "draining", "stopped"]
"""The state of a worker."""

LOOK_LIMIT: Final = 2.0
"""Seconds in which the store must answer for a worker to be ready: probes usually wait for one to five."""


class Worker:
    """Runs tools of one server in this process. Made by `Tasks.worker`, and used once."""

    def __init__(self, lifecycle: Lifecycle, server: AnyServer, setup: Setup) -> None:
        self.server = server
        self.state: State = "starting"
        self.tally: Tally = Tally()
        self._lifecycle = lifecycle
        self._setup = replace(setup, observers=[*setup.observers, self.tally])
        self._runtime: TaskRuntime | None = None

    @property
    def store(self) -> Store | None:
        """The store of the tasks; None for the server's default file."""
        return self._setup.parts.store

    @property
    def drain(self) -> timedelta:
        """How long running tools have to end when the worker is told to stop."""
        return (self._setup.settings or Settings()).drains_for

    @property
    def has_started(self) -> bool:
        """Whether tasks have ever been taken."""
        return self._runtime is not None

    async def run(self, on_start: Callable[[TaskRuntime], Awaitable[None]] | None = None) -> None:
        """Run tools until the process gets SIGTERM or SIGINT, or this is cancelled; then drain.

        A second signal ends the draining: running tasks are handed back at once.

        Args:
            on_start: Called once tasks are taken.

        Raises:
            WiringError: The server does not have these tasks.
            StoreError: The store cannot be used; the message says why.
        """
        with Orders() as orders:
            working = asyncio.create_task(self._work(orders, on_start), name="mcp-tasks-worker")
            impatience = asyncio.create_task(self._obey(orders, working))
            try:
                await _ended(working)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is None or current.cancelling():
                    raise
                # `_obey` cancelled it because of a signal: that is a normal end.
            finally:
                impatience.cancel()
                self.state = "stopped"
                self.tally.left_behind = 0 if self._runtime is None else len(self._runtime.runs())

    async def problems(self) -> Sequence[str]:
        """Why this worker does not take tasks now; empty if it does."""
        runtime = self._runtime
        if self.state != "working" or runtime is None:
            return [self.state]
        found: list[str] = []
        if not runtime.lease.is_valid:
            found.append("the lease of this process could not be renewed in time")
        if runtime.is_draining:
            found.append("draining, as an operator asked")
        if isinstance(runtime.engine, RemoteEngine) and not runtime.engine.is_taking:
            found.append("the engine cannot be reached")
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                # Any id: only the answer matters.
                await runtime.store.get("ready?")
        except TimeoutError:
            found.append(f"the store did not answer within {LOOK_LIMIT:g} s")
        except StoreError as exc:
            found.append(f"the store cannot be reached: {exc}")
        return found

    def metrics(self) -> Metrics | None:
        """The metrics of this process for Prometheus, counted from the first call; None if `prometheus_client` is not
        installed."""
        try:
            return self._lifecycle.telemetry.metrics
        except MissingExtra:
            return None

    def at_work(self) -> int:
        """How many tools run here and do more than wait."""
        return 0 if self._runtime is None else len(self._runtime.at_work())

    async def backlog(self) -> Mapping[str, Waiting]:
        """The backlog of each queue of the server, whichever process runs the queue.

        Raises:
            StoreError: The store cannot be read now.
        """
        if self._runtime is not None:
            return await backlog_of(self._runtime)
        async with self._opened() as runtime:
            return await backlog_of(runtime)

    @asynccontextmanager
    async def rehearsing(self) -> AsyncGenerator[TaskRuntime]:
        """The runtime of this worker with its store and its engine open, running nothing. The server's own lifespan is
        not entered.

        Raises:
            WiringError: The server does not have these tasks.
            StoreError: The store cannot be used; the message says why.
        """
        async with self._opened() as runtime:
            try:
                await runtime.engine.start(None, Serves(namespace=runtime.namespace))
                yield runtime
            finally:
                await runtime.engine.stop(timedelta(0))

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[TaskRuntime]:
        runtime = await self._lifecycle.rehearse(self.server, self._setup)
        try:
            await runtime.open()
            yield runtime
        finally:
            await runtime.store.close()

    async def _work(self, orders: Orders, on_start: Callable[[TaskRuntime], Awaitable[None]] | None) -> None:
        async with self._lifecycle.living(self.server, self._setup) as runtime:
            self._runtime, self.state = runtime, "working"
            if on_start is not None:
                await on_start(runtime)
            try:
                await orders.stop.wait()
            finally:
                self.state = "draining"
                self.tally.begin(run.record.id for run in runtime.runs())

    async def _obey(self, orders: Orders, working: asyncio.Task[None]) -> None:
        """Cancel a start after the first signal, and a drain after the second."""
        await orders.stop.wait()
        if self.state != "starting":
            await orders.hurry.wait()
            self.tally.cut_short = True
        working.cancel()


class Working:
    """The methods of `Tasks` for a process without clients."""

    _lifecycle: Lifecycle

    def worker(
        self,
        server: MCPServer[Any] | Server[Any],
        *,
        concurrency: int | None = None,
        queues: Collection[str] | None = None,
        drain: timedelta | None = None,
        usual_drain: timedelta | None = None,
    ) -> Worker:
        """The worker that `work` runs, not started: for code that wants to ask for its state.

        Args:
            concurrency: As for `work`; so are `queues` and `drain`.
            usual_drain: The default of `drain` if the `settings` of the `Tasks` object have none.

        Raises:
            InvalidOption: An option has a value that it cannot have.
            UsageError: There is a concurrency, and the engine was passed as an object, which has its own.
        """
        setup = replace(self._lifecycle.setup, runs_tools=True)
        if queues is not None:
            setup = replace(setup, queues=chosen_queues(queues))
        if concurrency is not None:
            setup = replace(setup, parts=setup.parts.with_concurrency(concurrency))
        settings = setup.settings or Settings()
        limit = usual_drain if drain is None and settings.drain_timeout is None else drain
        if limit is not None:
            check_duration("drain", limit, zero=True)
            setup = replace(setup, settings=replace(settings, drain_timeout=limit))
        return Worker(self._lifecycle, server, setup)

    async def work(
        self,
        server: MCPServer[Any] | Server[Any],
        *,
        concurrency: int | None = None,
        queues: Collection[str] | None = None,
        drain: timedelta | None = None,
    ) -> None:
        """Run tools of the server without clients, until the process is told to stop (SIGTERM, SIGINT) or this is
        cancelled: `asyncio.run(tasks.work(server))`. `mcp-tasks worker module:server` does the same without a program
        of your own. It runs tools also where the `Tasks` object says `runs_tools=False`, which is for serving.

        Args:
            concurrency: How many tools run in this process at a time. Without it, as the `Tasks` object says.
            queues: Run only tools of these queues. Without it, as the `Tasks` object says.
            drain: How long running tools have to end when the process is told to stop, before they are handed back.
                Without it, `Settings.drain_timeout`.

        Raises:
            InvalidOption: An option has a value that it cannot have.
            UsageError: There is a concurrency, and the engine was passed as an object, which has its own. Or the tasks
                of the server run in this process already.
            WiringError: The server does not have these tasks.
            StoreError: The store cannot be used; the message says why.
        """
        await self.worker(server, concurrency=concurrency, queues=queues, drain=drain).run()

    def running(self, server: MCPServer[Any] | Server[Any]) -> AbstractAsyncContextManager[object]:
        """Keep tasks running while the block lasts, whether or not a client is connected:
        `async with tasks.running(server): await tasks.call(...)`.

        For scripts and tests that call a server in their own process. A server over Streamable HTTP runs its tasks by
        itself; where the SDK enters the server's lifespan for each connection (the old HTTP+SSE transport), they would
        stop with the last of them. Tools see the state of the lifespan that is entered here.

        Raises:
            WiringError: The server does not have these tasks.
        """
        return self._lifecycle.living(server)


async def _ended(working: asyncio.Task[None]) -> None:
    """Wait for it. If this is cancelled, cancel it and wait for its end."""
    try:
        await asyncio.wait({working})
    except asyncio.CancelledError:
        working.cancel()
        while not working.done():
            try:
                # A cancel scope of anyio cancels again at every step, which would interrupt the closing of the store.
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({working})
            except asyncio.CancelledError:
                working.cancel()
        if not working.cancelled():
            working.result()
        raise
    await working
