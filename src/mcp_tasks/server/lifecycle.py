"""The life of tasks in a server: started with it, stopped with it.

The SDK enters a server's lifespan once per HTTP app, once per stdio run, and once per in-memory client. So starts
are counted: the first one starts the runtime, the last one stops it, and those between share it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar, cast
from weakref import WeakKeyDictionary

from mcp.server import MCPServer, Server
from mcp.server.context import ServerMiddleware
from mcp.server.extension import Extension

from mcp_tasks.engines import Engine
from mcp_tasks.errors import UsageError, WiringError
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.errors import describe
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import Observer, Settings, TaskRuntime
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.fast_path.requests import Counts
from mcp_tasks.server.options import Parts
from mcp_tasks.server.signals import Stopping, hurried_by_sigterm
from mcp_tasks.server.tool_host import MCPServerHost, ToolHost
from mcp_tasks.server.tool_runner import OpenCalls, ToolBody
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import default_store
from mcp_tasks.telemetry.telemetry import Telemetry

logger: Final = get_logger(__name__)

# ---- wiring

StateT = TypeVar("StateT")
ServerT = TypeVar("ServerT", MCPServer[Any], Server[Any])
AnyServer: TypeAlias = MCPServer[Any] | Server[Any]

Lifespan: TypeAlias = Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]
"""A lifespan of an `MCPServer`: entered when it starts, left when it stops. Tools see the state that it yields."""


class Wiring(TypedDict, Generic[StateT]):
    """The arguments of an `MCPServer` that has tasks: `MCPServer("name", **tasks.wiring())`."""

    extensions: Sequence[Extension]
    lifespan: Lifespan[StateT]


class TasksLifespan(Generic[ServerT]):
    """The lifespan of a server that has tasks. A server shows its lifespan, so this is how its tasks are found.

    Attributes:
        owner: The `Tasks` object.
        host: The server as a source of tools.
    """

    def __init__(
        self,
        owner: object,
        lifecycle: Lifecycle,
        host: Callable[[ServerT], ToolHost],
        inner: Callable[[ServerT], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        self.owner = owner
        self.host = host
        self._lifecycle = lifecycle
        self._inner = inner

    @asynccontextmanager
    async def __call__(self, server: ServerT) -> AsyncGenerator[Any]:
        """Run tasks inside the server's own lifespan: its state is there before the first tool runs and until the last
        one has ended."""
        # Before the author's own begins anything.
        _require_asyncio()
        async with (
            _without_state() if self._inner is None else self._inner(server) as state,
            self._lifecycle.running(server, self.host(server), state),
        ):
            yield state


@asynccontextmanager
async def _without_state() -> AsyncGenerator[dict[str, Any]]:
    yield {}


def lifespan_of(server: AnyServer) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The lifespan that is entered when the server starts.

    Raises:
        WiringError: There is none, so the server has no tasks.
    """
    lifespan = server.settings.lifespan if isinstance(server, MCPServer) else server.lifespan
    if lifespan is None:
        raise without_tasks(server)
    return lifespan


def without_tasks(server: AnyServer) -> WiringError:
    """The error for a server without tasks."""
    how = (
        "make it with MCPServer(..., **tasks.wiring())"
        if isinstance(server, MCPServer)
        else "call tasks.attach(server)"
    )
    return WiringError(f"server {server.name!r} has no tasks: {how}")


def check_lifespan(lifespan: object) -> None:
    """Refuse a lifespan that the SDK could not enter.

    Raises:
        WiringError: It is not a function that returns a context manager.
    """
    name = getattr(lifespan, "__name__", repr(lifespan))
    if inspect.isasyncgenfunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise WiringError(
            f"tasks.wiring(lifespan={name}): a lifespan is an async context manager, and this function only yields. "
            "Write @asynccontextmanager (from contextlib) above it"
        )
    if not callable(lifespan):
        raise WiringError(
            f"tasks.wiring(lifespan=...) takes a function of the server, decorated with @asynccontextmanager; got "
            f"{lifespan!r}"
        )


def half_wired(given: str, missing: str) -> WiringError:
    """The error for a server that has only a part of the wiring."""
    return WiringError(
        f"the server was given {given} without {missing}. Write MCPServer(..., **tasks.wiring()), which is both. A "
        "lifespan of your own goes into it as tasks.wiring(lifespan=yours), other extensions as "
        "tasks.wiring(extensions=[...])"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The options of a server's runtime.

    Attributes:
        parts: The store and the engine.
        origin: Tells the default file of this server from those of other servers with the same name.
        namespace: Servers with the same one are the same server; None for the server's name.
        runs_tools: Whether this process runs tools, or only serves.
        queues: The queues whose tools it runs; None for all.
        limits: Limits of what callers may use.
        require_owner: Whether every task has to have an owner; None if so on a server that requires authentication.
        local_owner: The owner of tasks that come over a pipe, where every task has to have one.
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
    """One server's runtime, and its present users."""

    def __init__(self, setup: Setup, catalogue: Catalogue) -> None:
        self.extension_given: bool = False
        self.middleware: ServerMiddleware[Any] | None = None
        self.on_start: Sequence[Callable[[AnyServer], None]] = ()
        self.check_start: Callable[[], Awaitable[None]] | None = None
        self.open_calls: OpenCalls = OpenCalls()
        self.counts: Counts = Counts()
        self.telemetry: Telemetry = Telemetry(setup.audit, served=lambda: self.counts, knows=catalogue.knows)
        self.setup: Setup = setup
        self.requires_owner: bool = setup.require_owner is True
        self._catalogue = catalogue
        self._store = setup.parts.store
        self._stopping = Stopping()
        self._runtime: TaskRuntime | None = None
        self._body: ToolBody | None = None
        self._server: AnyServer | None = None
        # Of the lifespans entered now. The first is usually the last to be left: the process's own, not a client's.
        self._states: list[Any] = []
        # Starting and stopping wait for each other. A lock belongs to one event loop, a `Tasks` object may not.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def runtime(self) -> TaskRuntime:
        """The running runtime.

        Raises:
            WiringError: The server accepts requests, but its lifespan was never entered, or has been left.
        """
        if self._runtime is not None:
            return self._runtime
        if self._server is not None:
            raise WiringError(
                f"tasks are not running: server {self._server.name!r} has stopped, or is about to start. Its stored "
                "tasks are available again when it runs"
            )
        why = (
            "tasks are not running: the server was not started with the lifespan of tasks.wiring(). A lifespan of "
            'your own goes into it: MCPServer("name", **tasks.wiring(lifespan=yours)). A script that calls a '
            "server in its own process runs them itself: async with tasks.running(server)"
        )
        # The client gets the error too, but only the operator can do something about it.
        logger.error("%s", why)
        raise WiringError(why)

    def body(self) -> ToolBody:
        """Calls the tools of the running server.

        Raises:
            WiringError: It is not running.
        """
        self.runtime()
        return cast(ToolBody, self._body)

    async def stopping(self) -> None:
        """Return once the process is told to stop, or the last user of the runtime leaves."""
        await self._stopping.event.wait()

    async def exiting(self) -> None:
        """Return once the process has to exit. A stop waits for callers of this, as long as for running tools."""
        await self._stopping.exiting()

    def is_stopping(self) -> bool:
        """Whether the process has been told to stop."""
        return self._stopping.event.is_set()

    @asynccontextmanager
    async def living(self, server: AnyServer, setup: Setup | None = None) -> AsyncGenerator[TaskRuntime]:
        """The server with its own lifespan, without clients; with `setup`, on a runtime of that setup.

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
        """The runtime that the server would have with this setup. Neither it nor the server is started.

        Raises:
            WiringError: The server does not have these tasks.
        """
        lifespan = lifespan_of(server)
        if isinstance(lifespan, TasksLifespan):
            host: ToolHost = cast("TasksLifespan[Any]", lifespan).host(server)
        elif isinstance(server, MCPServer):
            # The author may have put our lifespan into another. If not, the start will say so.
            host = MCPServerHost(server)
        else:
            raise without_tasks(server)
        usual, self.setup = self.setup, setup
        try:
            return await self._own_runtime(server.name, ToolBody(host, self._states, self.open_calls))
        finally:
            self.setup = usual

    async def new_runtime(
        self, body: ToolBody, *, server_name: str, store: Store, engine: Engine, clock: Callable[[], datetime] | None
    ) -> TaskRuntime:
        """A runtime for these tools, not started.

        Raises:
            WiringError: The event loop is not asyncio's.
        """
        _require_asyncio()
        setup, host = self.setup, body.host
        self.requires_owner = host.requires_authentication if setup.require_owner is None else setup.require_owner
        await host.prepare()
        await self._catalogue.open(host)
        namespace = server_name if setup.namespace is None else setup.namespace
        runtime = TaskRuntime(
            store=store,
            engine=engine,
            body=body,
            policy=self._catalogue.options,
            describe=describe,
            clock=clock,
            namespace=namespace,
            settings=setup.settings,
            runs_tools=setup.runs_tools,
            queues=setup.queues,
            tools=self._catalogue.marked_tools,
            observers=[*self.telemetry.observers(namespace), *setup.observers],
            tracing=self.telemetry.traces,
            limits=setup.limits,
            requires_owner=self.requires_owner,
        )
        runtime.quota.free = setup.local_owner
        return runtime

    @asynccontextmanager
    async def running(self, server: AnyServer, host: ToolHost, state: Any) -> AsyncGenerator[None]:
        """Run the tasks of the server while the block lasts."""
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
                    self._body = ToolBody(host, self._states, self.open_calls)
                    runtime = await self._own_runtime(server.name, self._body)
                    await runtime.start()
                    self.telemetry.begin(runtime, self._catalogue.names())
                    logger.info("tasks of %r are kept in %s, and run by %s", server.name, runtime.store, runtime.engine)
                    self._stopping = Stopping(runtime.settings.drains_for.total_seconds(), runtime.begin_drain)
                    self._runtime = runtime
                # Each time: a web server may have installed handlers since the last.
                self._stopping.watch()
            except BaseException:
                self._states.pop()
                raise

    async def _own_runtime(self, server_name: str, body: ToolBody) -> TaskRuntime:
        """A runtime with the store, the engine and the clock of the setup."""
        parts = self.setup.parts
        if self._store is None:
            self._store = default_store(server_name, self.setup.origin, parts.cipher)
        store = self.telemetry.timed(self._store)
        return await self.new_runtime(
            body, server_name=server_name, store=store, engine=parts.engine, clock=self.setup.clock
        )

    async def _leave(self, state: Any) -> None:
        # By identity: two clients of a server may have equal states, and each must remove its own.
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
                # The state goes last: running tools have it until they have ended.
                self._states.pop(place)

    def _turn(self) -> asyncio.Lock:
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


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
