"""The life of tasks in a server: started with it, stopped with it.

The SDK enters a server's lifespan once per HTTP app, once per stdio run, and once per in-memory client. So starts
are counted: the first one starts the runtime, the last one stops it, and those between share it.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from os import PathLike
from types import FrameType
from typing import Any, Final, Generic, Self, TypeAlias, TypedDict, TypeVar, cast
from weakref import WeakKeyDictionary

from mcp.server import MCPServer, Server
from mcp.server.context import ServerMiddleware
from mcp.server.extension import Extension

from mcp_tasks.engines import Engine
from mcp_tasks.errors import UsageError, WiringError
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.errors import describe
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import Observer, Settings, TaskRuntime
from mcp_tasks.runtime.child_process import kill_children
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.fast_path.requests import Counts
from mcp_tasks.server.options import Parts
from mcp_tasks.server.tool_host import MCPServerHost, ToolHost
from mcp_tasks.server.tool_runner import OpenCalls, ToolBody
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import default_store
from mcp_tasks.telemetry.telemetry import Telemetry

# ---- stopping
# Noticing that the process is told to stop, before its web server waits for what will not end by itself.


logger: Final = get_logger(__name__)

Handler: TypeAlias = Callable[[int, FrameType | None], object]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LAST_WORDS: Final = 0.1
"""Seconds for whoever is about to be told something. Nothing but the event loop and a socket is in the way."""


class Stopping:
    """Whether the process is about to stop.

    Args:
        patience: Seconds for which a stop waits for requests that await `exiting`.
        drain: Has tools end meanwhile, and no more of them start.

    Attributes:
        event: Set once the process is told to stop.
    """

    def __init__(self, patience: float = 0.0, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._patience = patience
        self._drain = drain
        self._exit = asyncio.Event()
        self._waiting = 0
        self._idle = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._installed: list[tuple[signal.Signals, Handler, Handler]] = []
        self._held: list[Callable[[], object]] = []

    def watch(self) -> None:
        """Go before the handlers that are installed. Does nothing where there are none, or off the main thread.

        Called again, it goes before those that were installed since: who starts tasks first and a web server then has
        the handlers of that one in front of ours.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            is_ours = any(previous is ours for _, ours, _ in self._installed)
            if callable(previous) and previous is not signal.default_int_handler and not is_ours:
                ours = self._before(previous, self._loop)
                self._installed.append((number, ours, previous))
                signal.signal(number, ours)

    async def exiting(self) -> None:
        """Return once the process has to exit. Until then a stop waits for whoever awaits this, for its patience."""
        self._waiting += 1
        try:
            await self._exit.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle.set()

    def end(self) -> None:
        """The last server of the process stops: nothing waits any more."""
        self.event.set()
        self._exit.set()
        if self._keeping is not None:
            self._keeping.cancel()
        self.unwatch()

    def unwatch(self) -> None:
        """Put back what was there, unless somebody else has put something there meanwhile."""
        for number, ours, previous in reversed(self._installed):
            if signal.getsignal(number) is ours:
                signal.signal(number, previous)
        self._installed.clear()
        # Last: a handler may end all of this.
        self._hand_on()

    def _before(self, previous: Handler, loop: asyncio.AbstractEventLoop) -> Handler:
        def begin() -> None:
            self.event.set()
            if self._waiting and self._patience:
                self._keeping = loop.create_task(self._keep(loop), name="mcp-tasks-stopping")
            else:
                self._leave(loop)

        def handler(number: int, frame: FrameType | None) -> None:
            self._held.append(partial(previous, number, frame))
            if len(self._held) == 1 and not self.event.is_set():
                # Somebody may have put this back after the end of the loop.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(begin)
                    return
            # Who says it twice means it, and the loop may be busy for long.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._exit.set)
            self._hand_on()

        return handler

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let requests wait for the end of their tasks while those are drained."""
        try:
            async with asyncio.timeout(self._patience):
                if self._drain is not None:
                    await self._drain()
                # They may have left before, and come back.
                while self._waiting:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass
        except Exception:
            logger.error("a drain could not begin; the process stops at once", exc_info=quietly())
        self._leave(loop)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._exit.set()
        loop.call_later(_LAST_WORDS, self._hand_on)

    def _hand_on(self) -> None:
        while self._held:
            self._held.pop(0)()


@contextmanager
def hurried_by_sigterm() -> Generator[asyncio.Event]:
    """An event for SIGTERM, where that would end the process on the spot; it ends when this is left.

    A stdio host closes the input of its server, and sends this two seconds later if the server is still there: in the
    middle of a drain, of which everything is lost that has not been handed over.
    """
    hurry = asyncio.Event()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield hurry
        return
    signal.signal(signal.SIGTERM, lambda _number, _frame: hurry.set())
    try:
        yield hurry
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if hurry.is_set():
            # The process ends here, and nothing that is registered for its end happens.
            kill_children()
            signal.raise_signal(signal.SIGTERM)


def _end_now(number: int, _frame: FrameType | None) -> None:
    """End the process as this signal usually does, and its child processes before that."""
    kill_children()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class Orders:
    """What a process that only works is told by signals: SIGTERM or SIGINT to stop, and a second one to hurry. A third
    does what it does to any process, but leaves no child processes.

    Where there are no signals to handle (Windows, or off the main thread), it is for the caller to cancel.
    """

    def __init__(self) -> None:
        self.stop: asyncio.Event = asyncio.Event()
        self.hurry: asyncio.Event = asyncio.Event()
        self._previous: dict[signal.Signals, Handler | int | None] = {}

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            for number in _SIGNALS:
                previous = signal.getsignal(number)
                loop.add_signal_handler(number, self._told)
                self._previous[number] = previous
        except (NotImplementedError, RuntimeError, ValueError):
            self._previous.clear()
        return self

    def __exit__(self, *exc: object) -> None:
        self._let_go(self._previous)

    def _told(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            return
        self.hurry.set()
        self._let_go({})
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end_now)

    def _let_go(self, restored: Mapping[signal.Signals, Handler | int | None]) -> None:
        """Handle signals no more, and put back what was there."""
        for number in self._previous:
            asyncio.get_running_loop().remove_signal_handler(number)
            if (previous := restored.get(number)) is not None:
                signal.signal(number, previous)
        self._previous = {}


# ---- wiring
# How tasks are put into a server: as one thing, so that it cannot be half done.


StateT = TypeVar("StateT")
ServerT = TypeVar("ServerT", MCPServer[Any], Server[Any])
AnyServer: TypeAlias = MCPServer[Any] | Server[Any]

Lifespan: TypeAlias = Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]
"""A lifespan of an `MCPServer`: entered when it starts, left when it stops, and its state is what tools see."""


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
        enter: Callable[[ServerT], AbstractAsyncContextManager[Any]],
        host: Callable[[ServerT], ToolHost],
    ) -> None:
        self.owner = owner
        self.host = host
        self._enter = enter

    def __call__(self, server: ServerT) -> AbstractAsyncContextManager[Any]:
        """The lifespan, to be entered."""
        return self._enter(server)


def lifespan_of(server: AnyServer) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """What is entered when the server starts.

    Raises:
        WiringError: Nothing is, so it has no tasks.
    """
    lifespan = server.settings.lifespan if isinstance(server, MCPServer) else server.lifespan
    if lifespan is None:
        raise without_tasks(server)
    return lifespan


def without_tasks(server: AnyServer) -> WiringError:
    """The error for a server that has none."""
    how = (
        "make it with MCPServer(..., **tasks.wiring())" if isinstance(server, MCPServer) else "say tasks.attach(server)"
    )
    return WiringError(f"server {server.name!r} has no tasks: {how}")


def check_lifespan(lifespan: object) -> None:
    """Refuse a lifespan that the SDK could not enter.

    Raises:
        WiringError: It is not a function that gives a context manager.
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
    """The error for a server that has only a part of it."""
    return WiringError(
        f"the server was given {given} without {missing}. Write MCPServer(..., **tasks.wiring()), which is both. A "
        "lifespan of your own goes into it as tasks.wiring(lifespan=yours), other extensions as "
        "tasks.wiring(extensions=[...])"
    )


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
        self.telemetry: Telemetry = Telemetry(setup.audit, served=lambda: self.counts, knows=catalogue.knows)
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
            policy=self._catalogue.options,
            describe=describe,
            clock=clock,
            namespace=namespace,
            settings=self.setup.settings,
            runs_tools=self.setup.runs_tools,
            queues=self.setup.queues,
            tools=self._catalogue.marked_tools,
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
        self.telemetry.begin(runtime, self._catalogue.names())
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
