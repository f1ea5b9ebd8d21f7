"""The life of tasks in a server: started with it, stopped with it.

The SDK enters a server's lifespan once per HTTP app, once per stdio run, and once per in-memory client. So starts
are counted: the first one starts the runtime, the last one stops it, and those between share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from mcp.server import MCPServer, Server
from mcp.server.context import ServerMiddleware

from mcp_tasks.adapters.asgi import Counts
from mcp_tasks.core.limits import Limits
from mcp_tasks.engines import Engine
from mcp_tasks.errors import UsageError, WiringError
from mcp_tasks.protocol.errors import describe
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import Observer, Settings, TaskRuntime
from mcp_tasks.server.backlog import backlog_of
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.choice import Parts
from mcp_tasks.server.stopping import Stopping, hurried_by_sigterm
from mcp_tasks.server.wiring import AnyServer, Lifespan, TasksLifespan, half_wired, lifespan_of, without_tasks
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import default_store
from mcp_tasks.telemetry.gauges import Queued
from mcp_tasks.telemetry.room import Telemetry
from mcp_tasks.tools.body import ToolBody
from mcp_tasks.tools.host import MCPServerHost, ToolHost
from mcp_tasks.tools.open_calls import OpenCalls

logger: Final = get_logger(__name__)

StateT = TypeVar("StateT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the runtime of a server is made of.

    Attributes:
        parts: The store and the engine.
        origin: What tells the file of a server that was given no store from those of others of the same name.
        namespace: Which servers are the same server; None for those of the same name.
        runs_tools: Whether this process runs tools, or only serves.
        queues: Of which queues; None for all.
        limits: How much callers may take.
        require_owner: Whether every task has to have an owner; None if so on a server that requires authentication.
        local_owner: Whom the tasks of a pipe belong to, where every task has to have an owner.
        audit: The file to which the audit log is appended, if there is one.
    """

    parts: Parts
    clock: Callable[[], datetime] | None
    settings: Settings | None
    namespace: str | None
    origin: str
    runs_tools: bool
    observers: Sequence[Observer]
    queues: Collection[str] | None = None
    limits: Limits = field(default_factory=Limits)
    require_owner: bool | None = None
    local_owner: str | None = None
    audit: str | PathLike[str] | None = None


class Lifecycle:
    """One server's runtime, and who uses it now."""

    def __init__(self, setup: Setup, catalogue: Catalogue) -> None:
        self.extension_given: bool = False
        self.middleware: ServerMiddleware[Any] | None = None
        self.on_start: Sequence[Callable[[AnyServer], None]] = ()
        self.check_start: Callable[[], Awaitable[None]] | None = None
        self.open_calls: OpenCalls = OpenCalls()
        self.counts: Counts = Counts()
        self.telemetry: Telemetry = Telemetry(
            setup.audit, backlog=_queued, served=lambda: self.counts, knows=catalogue.marks.knows
        )
        self.setup: Setup = setup
        self.requires_owner: bool = setup.require_owner is True
        self._catalogue = catalogue
        self._store = setup.parts.store
        self._stopping = Stopping()
        self._runtime: TaskRuntime | None = None
        self._body: ToolBody | None = None
        self._server: AnyServer | None = None
        self._states: list[Any] = []
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def runtime(self) -> TaskRuntime:
        """The running runtime.

        Raises:
            WiringError: The server answers requests, but its lifespan was never entered, or has been left.
        """
        if self._runtime is None and self._server is not None:
            raise WiringError(
                f"tasks are not running: server {self._server.name!r} has stopped, or is about to start. What is kept "
                "in its store is there again when it runs"
            )
        if self._runtime is None:
            why = (
                "tasks are not running: the server was not started with the lifespan of tasks.wiring(). A lifespan of "
                'your own goes into it: MCPServer("name", **tasks.wiring(lifespan=yours)). A script that calls a '
                "server in its own process runs them itself: async with tasks.running(server)"
            )
            # The client hears of it too, but only whoever runs the server can do something about it.
            logger.error("%s", why)
            raise WiringError(why)
        return self._runtime

    def body(self) -> ToolBody:
        """What calls the tools of the running server.

        Raises:
            WiringError: It is not running.
        """
        self.runtime()
        return cast(ToolBody, self._body)

    async def stopping(self) -> None:
        """Return once the process is told to stop, or the last user of the runtime leaves."""
        await self._stopping.event.wait()

    async def exiting(self) -> None:
        """Return once the process has to exit. A stop waits for whoever awaits this, as long as for running tools."""
        await self._stopping.exiting()

    def is_stopping(self) -> bool:
        """Whether that is so by now."""
        return self._stopping.event.is_set()

    @asynccontextmanager
    async def lifespan(self, server: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
        """Run tasks for a server that has no lifespan of its own."""
        async with self._running(server, MCPServerHost(server), {}):
            yield {}

    def around(self, lifespan: Lifespan[StateT]) -> Lifespan[StateT]:
        """Run tasks inside a lifespan: its state is there before the first tool runs and until the last one ended."""

        @asynccontextmanager
        async def wrapped(server: MCPServer[StateT]) -> AsyncGenerator[StateT]:
            # Before the author's own begins anything.
            _require_asyncio()
            async with lifespan(server) as state, self._running(server, MCPServerHost(server), state):
                yield state

        return wrapped

    def around_lowlevel(
        self, lifespan: Callable[[Server[Any]], AbstractAsyncContextManager[Any]], host: ToolHost
    ) -> Callable[[Server[Any]], AbstractAsyncContextManager[Any]]:
        """The same for a low-level server."""

        @asynccontextmanager
        async def wrapped(server: Server[Any]) -> AsyncGenerator[Any]:
            _require_asyncio()
            async with lifespan(server) as state, self._running(server, host, state):
                yield state

        return wrapped

    @asynccontextmanager
    async def living(self, server: AnyServer, setup: Setup | None = None) -> AsyncGenerator[TaskRuntime]:
        """The server alive, its own lifespan included, with nobody served.

        With `setup`, the runtime is made of that for as long as the block lasts.

        Raises:
            WiringError: The server does not have these tasks.
            UsageError: There is a setup, and the tasks run already with another.
        """
        lifespan = lifespan_of(server)
        if setup is not None and self._states:
            raise UsageError(
                f"the tasks of server {server.name!r} run in this process already: a worker is a process of its own"
            )
        usual, self.setup = self.setup, setup or self.setup
        try:
            async with lifespan(server):
                if self._server is not server or self._runtime is None:
                    raise WiringError(f"server {server.name!r} was not made with these tasks; nothing would be run")
                yield self._runtime
        finally:
            self.setup = usual

    async def rehearse(self, server: AnyServer, setup: Setup) -> TaskRuntime:
        """The runtime that the server would have with this setup. It is not started, and nor is the server.

        Raises:
            WiringError: The server does not have these tasks.
        """
        lifespan = lifespan_of(server)
        if isinstance(lifespan, TasksLifespan):
            host: ToolHost = cast("TasksLifespan[Any]", lifespan).host(server)
        elif isinstance(server, MCPServer):
            # Its author may have put our lifespan into another. Who starts it is told if not.
            host = MCPServerHost(server)
        else:
            raise without_tasks(server)
        usual, self.setup = self.setup, setup
        try:
            return await self._new_runtime(server.name, host)
        finally:
            self.setup = usual

    async def new_runtime(
        self,
        host: ToolHost,
        lifespan_state: Callable[[], Any],
        *,
        server_name: str,
        store: Store,
        engine: Engine,
        clock: Callable[[], datetime] | None,
    ) -> TaskRuntime:
        """A runtime for the tools of `host`, not started.

        Raises:
            WiringError: The event loop is not asyncio's.
        """
        _require_asyncio()
        said = self.setup.require_owner
        self.requires_owner = host.requires_authentication if said is None else said
        await host.prepare()
        await self._catalogue.open(host)
        namespace = server_name if self.setup.namespace is None else self.setup.namespace
        runtime = TaskRuntime(
            store=store,
            engine=engine,
            body=ToolBody(host, lifespan_state, self.open_calls),
            policy=self._catalogue.policy,
            describe=describe,
            clock=clock,
            namespace=namespace,
            settings=self.setup.settings,
            runs_tools=self.setup.runs_tools,
            queues=self.setup.queues,
            tools=self._catalogue.policies,
            observers=[*self.telemetry.observers(namespace), *self.setup.observers],
            tracing=self.telemetry.traces,
            limits=self.setup.limits,
            requires_owner=self.requires_owner,
        )
        runtime.quota.free = self.setup.local_owner
        return runtime

    @asynccontextmanager
    async def _running(self, server: AnyServer, host: ToolHost, state: Any) -> AsyncGenerator[None]:
        _require_asyncio()
        await self._enter(server, host, state)
        try:
            if self.check_start is not None:
                await self.check_start()
            if self.middleware is not None and self.middleware not in server.middleware:
                server.middleware.append(self.middleware)
            for started in self.on_start:
                started(server)
            yield
        finally:
            await self._leave(state)

    async def _enter(self, server: AnyServer, host: ToolHost, state: Any) -> None:
        if not self.extension_given:
            raise half_wired("the lifespan of tasks", "the extension")
        async with self._turn():
            if self._states and self._server is not server:
                name = None if self._server is None else self._server.name
                raise WiringError(f"this Tasks object already serves {name!r}; make one for each server")
            self._server = server
            self._states.append(state)
            try:
                if self._runtime is None:
                    self._runtime = await self._start(server.name, host)
                    patience = self._runtime.settings.drains_for.total_seconds()
                    self._stopping = Stopping(patience, self._runtime.begin_drain)
                # Each time: a web server may handle signals since the last.
                self._stopping.watch()
            except BaseException:
                self._states.pop()
                raise

    async def _start(self, server_name: str, host: ToolHost) -> TaskRuntime:
        self._body = ToolBody(host, self._state, self.open_calls)
        runtime = await self._new_runtime(server_name, host)
        await runtime.start()
        self.telemetry.begin(runtime, self._catalogue.marks.names())
        logger.info("tasks of %r are kept in %s, and run by %s", server_name, runtime.store, runtime.engine)
        return runtime

    async def _new_runtime(self, server_name: str, host: ToolHost) -> TaskRuntime:
        if self._store is None:
            self._store = default_store(server_name, self.setup.origin, self.setup.parts.cipher)
        return await self.new_runtime(
            host,
            self._state,
            server_name=server_name,
            store=self.telemetry.timed(self._store),
            engine=self.setup.parts.engine,
            clock=self.setup.clock,
        )

    def _state(self) -> Any:
        """What the lifespan gave: of those that are entered now the first, which is usually the last to be left (the
        process's own, not a client's)."""
        return self._states[0]

    async def _leave(self, state: Any) -> None:
        # By identity: two clients of a server may have equal states, and each must take its own away.
        async with self._turn():
            place = next(index for index, known in enumerate(self._states) if known is state)
            try:
                if len(self._states) == 1 and self._runtime is not None:
                    runtime, self._runtime = self._runtime, None
                    self._stopping.end()
                    try:
                        with hurried_by_sigterm() as hurry:
                            await runtime.stop(hurry)
                    finally:
                        self.telemetry.end()
            finally:
                # The state goes last: tools that are still running have it until they have ended.
                self._states.pop(place)

    def _turn(self) -> asyncio.Lock:
        """Starting and stopping wait for each other. A lock belongs to one event loop, a `Tasks` object may not."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


async def _queued(runtime: TaskRuntime) -> Mapping[str, Queued]:
    waiting = await backlog_of(runtime)
    return {queue: Queued(found.ready, found.age.total_seconds()) for queue, found in waiting.items()}


def _require_asyncio() -> None:
    try:
        if asyncio.current_task() is not None:
            return
    except RuntimeError:
        pass
    raise WiringError(
        "mcp-tasks runs on asyncio, and this server is started on another event loop (trio). Start it with "
        'anyio.run(..., backend="asyncio"), asyncio.run(...) or server.run(...); nothing was created'
    )
