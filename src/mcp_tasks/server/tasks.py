"""`Tasks`: the object a server author adds to a server built on the official SDK.

    tasks = Tasks()
    server = MCPServer("render-farm", extensions=[tasks], lifespan=tasks.lifespan)

    @server.tool()
    @tasks.task()
    async def render(scene: str, ctx: Context) -> str: ...

It decides which calls become tasks, and hands everything else on untouched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Never, TypeAlias, TypeVar, cast

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.mcpserver.server import require_client_extension
from mcp.server.request_state import authenticated_principal
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core.durations import check_duration
from mcp_tasks.engines import Engine
from mcp_tasks.errors import InvalidDuration, InvalidMark, TasksError, UsageError, WiringError
from mcp_tasks.runtime import Settings, TaskRuntime
from mcp_tasks.server.body import LowLevelHost, MCPServerHost
from mcp_tasks.server.creation import answer_with_task
from mcp_tasks.server.guard import (
    ANNOUNCE_AFTER,
    BodyReached,
    asks_by_returning,
    only_parameters,
    resolves_parameters,
    settled_before_body,
    stop_at_body,
)
from mcp_tasks.server.handlers import TaskHandlers
from mcp_tasks.server.marks import Mark
from mcp_tasks.server.options import UNSET, Recover, TaskMode, TaskOptions, Unset
from mcp_tasks.server.request import task_request
from mcp_tasks.server.rpc_errors import to_mcp_error
from mcp_tasks.server.service import TaskService
from mcp_tasks.stores import Store
from mcp_tasks.stores.origin import origin_of
from mcp_tasks.wire import EXTENSION_ID, AnyParams

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
StateT = TypeVar("StateT")
Lifespan: TypeAlias = Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]

DEFAULT_TTL = timedelta(days=1)
"""How long a finished task is kept: long enough to come back for it tomorrow, short enough not to pile up."""

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


def utc_now() -> datetime:
    """The time, as everything here tells it."""
    return datetime.now(UTC)


class Tasks(Extension):
    """Makes tools of a server durable tasks (SEP-2663).

    Args:
        store: Where tasks are kept: a URL (`sqlite:///tasks.db`, `memory://`), a `Store`, or nothing for a SQLite
            file of the server's own in the user's state folder (`MCP_TASKS_URL` in the environment overrides that).
        augment: A rule over the validated `tools/call` params. Given one, it decides for tools that are not marked
            as well; a marked tool becomes a task only if it agrees. `mode="required"` and `"forbidden"` stand above it.
        clock: Source of the current time, aware and in UTC.
        default_ttl_ms: How long a finished task is kept, in milliseconds; None keeps it for as long as the store lives.
        default_ttl: The same as a `timedelta`. Without either, a day.
        engine: Who runs the tools. Without one, a `LocalEngine`.
        concurrency: How many tools the local engine runs at a time.
        grace: How long a call waits for its tool before it answers with a task; a tool that is quicker answers inline.
        principal: Who is calling, for the rule that a task belongs to who created it. By default the identity in the
            SDK's access token.
        require_name_header: Refuse `tasks/*` over HTTP without the `Mcp-Name` header that SEP-2663 asks clients for.
        settings: Leases, sweeps and time limits of the runtime.
        namespace: Which servers are the same server, and run each other's tasks; by default the server's name.
        max_wait: How long a question of any tool may stay unanswered before its task fails. Without it, for ever.
        max_lost_runs: How many runs of a tool in a row may die with their process, without getting any further, before
            the task fails.

    Raises:
        InvalidDuration: A duration is not a `timedelta`, or not a positive one.
        UsageError: The store or its URL is not one.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        store: Store | str | None = None,
        *,
        augment: Callable[[CallToolRequestParams], bool] | None = None,
        clock: Callable[[], datetime] = utc_now,
        default_ttl_ms: int | Unset | None = UNSET,
        default_ttl: timedelta | Unset | None = UNSET,
        engine: Engine | None = None,
        concurrency: int | None = None,
        grace: timedelta | None = None,
        principal: Callable[[RequestContext], str | None] = authenticated_principal,
        require_name_header: bool = False,
        settings: Settings | None = None,
        namespace: str | None = None,
        max_wait: timedelta | None = None,
        max_lost_runs: int = 3,
    ) -> None:
        self._augment = augment
        self._default_ttl = _default_ttl(default_ttl_ms, default_ttl)
        self._grace = None if grace is None else check_duration("grace", grace, zero=True)
        self._principal = principal
        self._service = TaskService(
            store=store,
            engine=engine,
            concurrency=concurrency,
            clock=clock,
            settings=settings,
            principal=principal,
            namespace=namespace,
            origin=origin_of(_callers_globals()),
            usual=TaskOptions(max_wait=max_wait, max_lost_runs=max_lost_runs),
        )
        self._handlers = TaskHandlers(
            self._service.runtime, principal=principal, require_name_header=require_name_header
        )
        self._lifespan_given = False

    # What the author calls

    def task(
        self,
        *misplaced: Never,
        name: str | None = None,
        mode: TaskMode = "optional",
        ttl: timedelta | Unset | None = UNSET,
        recover: Recover | None = None,
        max_runtime: timedelta | None = None,
        poll_interval: timedelta | None = None,
        grace: timedelta | None = None,
        park_after: timedelta | None = None,
        max_wait: timedelta | None = None,
        max_lost_runs: int | None = None,
        asks_first: bool | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Mark a tool: its calls may become tasks. Goes under `@server.tool()`; the tool stays as it is.

        Args:
            name: The tool that is marked, by its name. Needed only where the function does not tell: for two functions
                of the same name, or for a tool that is a wrapper with a signature of its own.
            mode: `"optional"`: a task for clients that declare the extension, a plain call for others.
                `"required"`: always a task; clients that cannot have one are refused. `"forbidden"`: never.
            ttl: How long the task is kept after it ended; None for as long as the store lives.
            recover: `"rerun"`: start the tool again if its process dies; `"fail"`: end the task as interrupted. Without
                it the tool's own `readOnlyHint` or `idempotentHint` says that it may run again.
            max_runtime: Stop the work after this long, and say so.
            poll_interval: A fixed interval to suggest to clients, instead of one that grows with the task's age.
            grace: How long a call waits for this tool before it answers with a task.
            park_after: How long a run that can be started again stays in memory while it waits for an answer.
            max_wait: How long a question of the tool may stay unanswered before the task fails, and says so.
            max_lost_runs: How many runs in a row may die with their process, without getting any further, before the
                task fails and says so.
            asks_first: The tool may begin by returning an `InputRequiredResult`, to be answered on the call itself,
                before there is a task. Without it, a tool whose return annotation says so.

        Raises:
            InvalidMark: The parentheses are missing, or another function is marked under the same name.
            InvalidOption: An option has a value that it cannot have.
        """
        if misplaced:
            raise InvalidMark("@tasks.task is called before it decorates: write @tasks.task(), with parentheses")
        options = TaskOptions(
            mode=mode,
            ttl=ttl,
            recover=recover,
            max_runtime=max_runtime,
            poll_interval=poll_interval,
            grace=grace,
            park_after=hold,
            max_wait=max_wait,
            max_lost_runs=max_lost_runs,
            asks_first=bool(asks_first),
        )

        def mark(function: FunctionT) -> FunctionT:
            asks = asks_by_returning(function) if asks_first is None else asks_first
            resolves = resolves_parameters(function)
            self._service.marks.add(
                Mark(
                    name=name or function.__name__,
                    is_named=name is not None,
                    options=replace(options, asks_first=asks),
                    function=function,
                    resolves=resolves,
                )
            )
            return cast(FunctionT, stop_at_body(function)) if resolves else function

        return mark

    def mark(self, name: str, **options: Any) -> None:
        """Mark a tool by its name, for tools that are no functions. Takes what `task` takes, and replaces what was
        said of the tool before.

        Raises:
            InvalidOption: An option has a value that it cannot have.
        """
        self._service.marks.set(name, TaskOptions(**options))

    @property
    def lifespan(self) -> Lifespan[dict[str, Any]]:
        """What runs tasks while the server runs: `MCPServer(..., lifespan=tasks.lifespan)`."""
        self._lifespan_given = True
        return self._service.lifespan

    def with_lifespan(self, lifespan: Lifespan[StateT]) -> Lifespan[StateT]:
        """The same around a lifespan of your own; tools see what yours yields."""
        self._lifespan_given = True
        return self._service.around(lifespan)

    async def runtime_for(
        self, server: MCPServer[Any], *, store: Store, engine: Engine, clock: Callable[[], datetime], state: Any = None
    ) -> TaskRuntime:
        """A runtime for the server's tools on another store, engine and clock, not started. For tests of tools.

        Raises:
            WiringError: The event loop is not asyncio's.
        """
        host = MCPServerHost(server)
        return await self._service.new_runtime(
            host, lambda: state, server_name=server.name, store=store, engine=engine, clock=clock
        )

    async def check_marked(self, name: str) -> None:
        """Whether calls of the tool of that name can become tasks. For tests of tools.

        Raises:
            UsageError: There is no such tool, or it is not marked.
        """
        tool = await self._service.tool(name)
        if tool is None:
            raise UsageError(f"the server has no tool {name!r}")
        if self._augment is None and (tool.mark is None or tool.mark.options.mode == "forbidden"):
            raise UsageError(f"tool {name!r} never becomes a task: it is not marked with @tasks.task()")

    def attach(self, server: Server[Any]) -> None:
        """Add tasks to a low-level `Server`, in place of `extensions=` and `lifespan=`. Call it once, before it runs.

        Raises:
            WiringError: The server has no `tools/call` handler.
        """
        entry = server.get_request_handler("tools/call")
        if entry is None:
            raise WiringError("tasks.attach(server) needs a server with on_call_tool; this one serves no tools/call")
        self._lifespan_given = True
        server.extensions[EXTENSION_ID] = self.settings()
        for binding in self.methods():
            server.add_request_handler(binding.method, binding.params_type, _modern_only(binding))
        intercepted = compose_tool_call_handler([self], entry.handler)
        server.add_request_handler("tools/call", CallToolRequestParams, intercepted)
        server.lifespan = self._service.around_lowlevel(server.lifespan, LowLevelHost(server, entry.handler))

    # What the SDK calls

    def methods(self) -> Sequence[MethodBinding]:
        """The tasks methods, on the wire that has them. `tasks/result` and `tasks/list` are not among them.

        Raises:
            WiringError: The server was given this extension, but not its lifespan.
        """
        if not self._lifespan_given:
            # Arguments are evaluated before the call: had the lifespan been passed, it would have been asked for.
            raise WiringError(
                "tasks are wired with two arguments and one is missing: "
                "MCPServer(..., extensions=[tasks], lifespan=tasks.lifespan), "
                "or lifespan=tasks.with_lifespan(yours) if the server has a lifespan of its own"
            )
        self._service.extension_given = True
        return [
            # Any params: the SDK validates them before it looks at the version, and on a wire without tasks a method
            # is unknown whatever its params are. The handlers validate.
            MethodBinding("tasks/get", AnyParams, self._handlers.get, protocol_versions=_MODERN),
            MethodBinding("tasks/update", AnyParams, self._handlers.update, protocol_versions=_MODERN),
            MethodBinding("tasks/cancel", AnyParams, self._handlers.cancel, protocol_versions=_MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Answer a call with a task if the tool, the client and the rule say so; otherwise hand it on."""
        mark = await self._mark_for(params)
        if mark is None:
            return await call_next(ctx)
        if not _declares_tasks(ctx):
            if mark.options.mode == "required":
                raise _tasks_required(ctx, params.name)
            return await call_next(ctx)
        if not mark.resolves and not mark.takes(params.arguments or {}):
            # The SDK refuses them before it enters the tool: the plain call's answer, at once, and no task.
            return await call_next(ctx)
        try:
            if mark.resolves:
                try:
                    async with only_parameters():
                        return settled_before_body(await call_next(ctx), params.name)
                except BodyReached:
                    pass
            options = mark.options
            grace = self._grace if options.grace is None else options.grace
            if mark.may_refuse(params.arguments or {}):
                # It shows as soon as the tool begins; then the refusal is the answer, and no task is left.
                grace = max(grace or ANNOUNCE_AFTER, ANNOUNCE_AFTER)
            return await answer_with_task(
                self._service.runtime(),
                self._service.guards,
                task_request(params, ctx),
                owner=self._principal(ctx),
                ttl=self._default_ttl if isinstance(options.ttl, Unset) else options.ttl,
                grace=grace,
                options=options,
            )
        except TasksError as exc:
            raise to_mcp_error(exc) from exc

    async def _mark_for(self, params: CallToolRequestParams) -> Mark | None:
        """What makes this call a task, or None for one that stays a plain call."""
        tool = await self._service.tool(params.name)
        if tool is None:
            return None
        if tool.mark is None:
            agreed = self._augment is not None and self._augment(params)
            return Mark(name=params.name, options=TaskOptions(), schema=tool.schema) if agreed else None
        mode = tool.mark.options.mode
        if mode == "optional" and self._augment is not None and not self._augment(params):
            return None
        return None if mode == "forbidden" else tool.mark


def _declares_tasks(ctx: RequestContext) -> bool:
    # SEP-2663: the declaration on this very request counts, and under 2025-11-25 it means nothing.
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in _MODERN and declared is not None and EXTENSION_ID in declared


def _tasks_required(ctx: RequestContext, tool: str) -> MCPError:
    if ctx.protocol_version not in _MODERN:
        # 2025-11-25, "Tool-Level Negotiation": a tool that must be a task and is not called as one is not there.
        return MCPError(code=METHOD_NOT_FOUND, message=f"Tool {tool!r} can only be called as a task")
    try:
        require_client_extension(ctx, EXTENSION_ID)
    except MCPError as exc:
        return exc
    raise AssertionError("unreachable: the caller saw that the extension is not declared")


def _default_ttl(ms: int | Unset | None, ttl: timedelta | Unset | None) -> timedelta | None:
    if not isinstance(ms, Unset) and not isinstance(ttl, Unset):
        raise UsageError("give default_ttl or default_ttl_ms, not both")
    if not isinstance(ttl, Unset):
        chosen = ttl
    elif isinstance(ms, Unset):
        chosen = DEFAULT_TTL
    else:
        chosen = None if ms is None else _from_milliseconds(ms)
    return None if chosen is None else check_duration("default_ttl", chosen)


def _from_milliseconds(ms: object) -> timedelta:
    try:
        if isinstance(ms, int) and not isinstance(ms, bool):
            return timedelta(milliseconds=ms)
    except OverflowError:
        pass
    raise InvalidDuration(
        f"default_ttl_ms must be a whole number of milliseconds, got {ms!r}: write default_ttl=timedelta(days=1), or "
        "None to keep tasks for as long as the store lives"
    )


def _modern_only(binding: MethodBinding) -> Callable[[RequestContext, Any], Any]:
    """The handler behind the version gate that `MCPServer` puts before an extension's methods."""

    async def gated(ctx: RequestContext, params: Any) -> HandlerResult:
        if ctx.protocol_version not in _MODERN:
            raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=binding.method)
        return await binding.handler(ctx, params)

    return gated


def _callers_globals() -> Mapping[str, Any]:
    """The module that makes the `Tasks` object: the nearest one that is not ours."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("mcp_tasks."):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals
