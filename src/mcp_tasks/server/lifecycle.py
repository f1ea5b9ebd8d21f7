"""The life of tasks in a server: started with it, stopped with it.

The SDK enters a server's lifespan once per HTTP app, once per stdio run, and once per in-memory client. So starts
are counted: the first one starts the runtime, the last one stops it, and those between share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from mcp.server import MCPServer, Server
from mcp_types import Tool

from mcp_tasks.engines import Engine, LocalEngine
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.errors import UsageError, WiringError
from mcp_tasks.runtime import Settings, TaskRuntime, ToolPolicy
from mcp_tasks.server.body import MCPServerHost, ToolBody, ToolHost
from mcp_tasks.server.guard import Guards
from mcp_tasks.server.marks import Marks, ServedTool
from mcp_tasks.server.options import TaskOptions
from mcp_tasks.server.push import TaskPush
from mcp_tasks.server.request import ignore_task_param
from mcp_tasks.server.rpc_errors import describe
from mcp_tasks.server.stopping import Stopping
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import default_store, store_from_url

logger = logging.getLogger(__name__)

StateT = TypeVar("StateT")

_STORE_VERBS = tuple(name for name, verb in vars(Store).items() if callable(verb) and not name.startswith("_"))


class TaskService:
    """One server's runtime, and who uses it now."""

    def __init__(
        self,
        *,
        store: Store | str | None,
        engine: Engine | None,
        concurrency: int | None,
        clock: Callable[[], datetime],
        settings: Settings | None,
        principal: Callable[[Any], str | None],
        namespace: str | None,
        origin: str,
        usual: TaskOptions,
    ) -> None:
        if engine is not None and concurrency is not None:
            raise UsageError("concurrency is for the local engine; give it to the engine you pass instead")
        self.extension_given = False
        self._namespace = namespace
        self._origin = origin
        self._usual = usual
        self.guards = Guards()
        self.marks = Marks()
        self.push = TaskPush(self.runtime, principal, lambda: self._stopping.event)
        self._stopping = Stopping()
        self._store = _as_store(store)
        self._engine = engine or LocalEngine(DEFAULT_CONCURRENCY if concurrency is None else concurrency)
        self._clock = clock
        self._settings = settings
        self._runtime: TaskRuntime | None = None
        self._host: ToolHost | None = None
        self._server: MCPServer[Any] | Server[Any] | None = None
        self._states: list[Any] = []
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def runtime(self) -> TaskRuntime:
        """The running runtime.

        Raises:
            WiringError: The server answers requests, but its lifespan was never entered.
        """
        if self._runtime is None:
            raise WiringError("tasks are not running: the server was not started with lifespan=tasks.lifespan")
        return self._runtime

    @asynccontextmanager
    async def lifespan(self, server: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
        """Run tasks for a server that has no lifespan of its own."""
        async with self._running(server, MCPServerHost(server), {}):
            yield {}

    def around(
        self, lifespan: Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]
    ) -> Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]:
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
    async def _running(self, server: MCPServer[Any] | Server[Any], host: ToolHost, state: Any) -> AsyncGenerator[None]:
        _require_asyncio()
        for middleware in (ignore_task_param, self.push):
            if middleware not in server.middleware:
                server.middleware.append(middleware)
        await self._enter(server, host, state)
        try:
            yield
        finally:
            await self._leave(state)

    async def _enter(self, server: MCPServer[Any] | Server[Any], host: ToolHost, state: Any) -> None:
        if not self.extension_given:
            raise WiringError(
                "tasks are wired with two arguments and one is missing: "
                "MCPServer(..., extensions=[tasks], lifespan=tasks.lifespan)"
            )
        async with self._turn():
            if self._states and self._server is not server:
                name = None if self._server is None else self._server.name
                raise WiringError(f"this Tasks object already serves {name!r}; make one for each server")
            self._server = server
            self._states.append(state)
            if self._runtime is None:
                try:
                    self._runtime = await self._start(server.name, host)
                    self._stopping = Stopping()
                    self._stopping.watch()
                except BaseException:
                    self._states.pop()
                    raise

    async def _start(self, server_name: str, host: ToolHost) -> TaskRuntime:
        if self._store is None:
            self._store = default_store(server_name, self._origin)
        runtime = await self.new_runtime(
            host,
            lambda: self._states[-1],
            server_name=server_name,
            store=self._store,
            engine=self._engine,
            clock=self._clock,
        )
        await runtime.start()
        logger.info("tasks of %r are kept in %s", server_name, self._store)
        return runtime

    async def new_runtime(
        self,
        host: ToolHost,
        lifespan_state: Callable[[], Any],
        *,
        server_name: str,
        store: Store,
        engine: Engine,
        clock: Callable[[], datetime],
    ) -> TaskRuntime:
        """A runtime for the tools of `host`, not started.

        Raises:
            WiringError: The event loop is not asyncio's.
        """
        _require_asyncio()
        self._host = host
        await host.prepare()
        if await self._list_tools(host) or host.publishes_schemas:
            # A low-level server that lists nothing has not said that there is nothing.
            self.marks.warn_of_unused()
        return TaskRuntime(
            store=store,
            engine=engine,
            body=ToolBody(host, lifespan_state, self.guards),
            policy=self._policy,
            describe=describe,
            clock=clock,
            namespace=server_name if self._namespace is None else self._namespace,
            settings=self._settings,
        )

    async def _leave(self, state: Any) -> None:
        # By identity: two clients of a server may have equal states, and each must take its own away.
        async with self._turn():
            place = next(index for index, known in enumerate(self._states) if known is state)
            try:
                if len(self._states) == 1 and self._runtime is not None:
                    runtime, self._runtime = self._runtime, None
                    self._stopping.event.set()
                    self._stopping.unwatch()
                    await runtime.stop()
            finally:
                # The state goes last: tools that are still running have it until they have ended.
                self._states.pop(place)

    def _turn(self) -> asyncio.Lock:
        """Starting and stopping wait for each other. A lock belongs to one event loop, a `Tasks` object may not."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def tool(self, name: str) -> ServedTool | None:
        """The tool that clients call by this name; None if the server is known to have none."""
        if self._host is None or not self._host.publishes_schemas:
            # Names are all there is, so there is no need to ask the author's own listing on every call.
            return self.marks.named(name)
        if self.marks.find(name) is None:
            # Added or marked while the server runs.
            await self._list_tools(self._host)
        return self.marks.find(name)

    async def _policy(self, name: str) -> ToolPolicy | None:
        if self.marks.find(name) is None and self._host is not None:
            await self._list_tools(self._host)
        tool = await self.tool(name)
        if tool is None:
            return None
        return tool.policy(self._usual)

    async def _list_tools(self, host: ToolHost) -> Sequence[Tool]:
        tools = await host.tools()
        if host.publishes_schemas:
            self.marks.serve(tools)
        else:
            self.marks.serve_by_name(tools)
        return tools


def _as_store(store: Store | str | None) -> Store | None:
    if store is None or not isinstance(store, str):
        if missing := [verb for verb in _STORE_VERBS if store is not None and not hasattr(store, verb)]:
            raise UsageError(f"{store!r} is no task store: it lacks {', '.join(missing)} (see mcp_tasks.stores.Store)")
        return store
    return store_from_url(store)


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
