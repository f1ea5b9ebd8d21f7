"""`Tasks`: the object a server author adds to a server built on the official SDK.

    tasks = Tasks()
    server = MCPServer("render-farm", extensions=[tasks], lifespan=tasks.lifespan)

    @server.tool()
    @tasks.task()
    async def render(scene: str, ctx: Context) -> str: ...

It decides which calls become tasks, and hands everything else on untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar, cast

import anyio
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.mcpserver.server import require_client_extension
from mcp.server.request_state import authenticated_principal
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core import TaskRecord, TaskStatus
from mcp_tasks.engines import Engine
from mcp_tasks.errors import TasksError, UsageError, WiringError
from mcp_tasks.runtime import Settings, TaskRuntime
from mcp_tasks.server.body import LowLevelHost, MCPServerHost, questions_of
from mcp_tasks.server.guard import (
    ANNOUNCE_AFTER,
    STARTED_VERSION,
    BodyReached,
    asks_by_returning,
    only_parameters,
    resolves_parameters,
    settled_before_body,
    stop_at_body,
)
from mcp_tasks.server.handlers import TaskHandlers
from mcp_tasks.server.options import UNSET, Recover, TaskMode, TaskOptions, Unset
from mcp_tasks.server.request import task_request
from mcp_tasks.server.rpc_errors import to_mcp_error
from mcp_tasks.server.service import TaskService
from mcp_tasks.stores import Store
from mcp_tasks.wire import EXTENSION_ID, AnyParams, render_created

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

    Raises:
        ValueError: A duration is not positive.
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
    ) -> None:
        self._augment = augment
        self._default_ttl = _default_ttl(default_ttl_ms, default_ttl)
        self._grace = grace
        self._principal = principal
        self._options: dict[str, TaskOptions] = {}
        self._service = TaskService(
            store=store,
            engine=engine,
            concurrency=concurrency,
            clock=clock,
            settings=settings,
            options=self._options,
            principal=principal,
        )
        self._handlers = TaskHandlers(
            self._service.runtime, principal=principal, require_name_header=require_name_header
        )
        self._lifespan_given = False

    # What the author calls

    def task(
        self,
        *,
        name: str | None = None,
        mode: TaskMode = "optional",
        ttl: timedelta | Unset | None = UNSET,
        recover: Recover | None = None,
        max_runtime: timedelta | None = None,
        poll_interval: timedelta | None = None,
        grace: timedelta | None = None,
        hold: timedelta | None = None,
        asks_first: bool | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Mark a tool: its calls may become tasks. Goes under `@server.tool()`; the tool stays as it is.

        Args:
            name: The name the tool is registered under, if it is not the function's.
            mode: `"optional"`: a task for clients that declare the extension, a plain call for others.
                `"required"`: always a task; clients that cannot have one are refused. `"forbidden"`: never.
            ttl: How long the task is kept after it ended; None for as long as the store lives.
            recover: `"rerun"`: start the tool again if its process dies; `"fail"`: end the task as interrupted. Without
                it the tool's own `readOnlyHint` or `idempotentHint` says that it may run again.
            max_runtime: Stop the work after this long, and say so.
            poll_interval: A fixed interval to suggest to clients, instead of one that grows with the task's age.
            grace: How long a call waits for this tool before it answers with a task.
            hold: How long a run that can be started again stays in memory while it waits for an answer.
            asks_first: The tool may begin by returning an `InputRequiredResult`, to be answered on the call itself,
                before there is a task. Without it, a tool whose return annotation says so.
        """

        def mark(function: FunctionT) -> FunctionT:
            resolves = resolves_parameters(function)
            self._options[name or function.__name__] = TaskOptions(
                mode=mode,
                ttl=ttl,
                recover=recover,
                max_runtime=max_runtime,
                poll_interval=poll_interval,
                grace=grace,
                hold=hold,
                asks_first=asks_by_returning(function) if asks_first is None else asks_first,
                resolves=resolves,
            )
            return cast(FunctionT, stop_at_body(function)) if resolves else function

        return mark

    def mark(self, name: str, **options: Any) -> None:
        """Mark a tool by its name, for tools that are no functions. Takes what `task` takes."""
        self._options[name] = TaskOptions(**options)

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
            WiringError: A marked tool is not there.
        """
        host = MCPServerHost(server)
        return await self._service.new_runtime(host, lambda: state, store=store, engine=engine, clock=clock)

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
        options = self._options_for(params)
        if options is None:
            return await call_next(ctx)
        if not _declares_tasks(ctx):
            if options.mode == "required":
                raise _tasks_required(ctx, params.name)
            return await call_next(ctx)
        try:
            if options.resolves:
                try:
                    async with only_parameters():
                        return settled_before_body(await call_next(ctx), params.name)
                except BodyReached:
                    pass
            return await self._answer_with_task(params, ctx, options)
        except TasksError as exc:
            raise to_mcp_error(exc) from exc

    def _options_for(self, params: CallToolRequestParams) -> TaskOptions | None:
        """How this call becomes a task, or None for one that does not."""
        options = self._options.get(params.name)
        if options is None:
            return TaskOptions() if self._augment is not None and self._augment(params) else None
        if options.mode == "optional" and self._augment is not None and not self._augment(params):
            return None
        return None if options.mode == "forbidden" else options

    async def _answer_with_task(
        self, params: CallToolRequestParams, ctx: RequestContext, options: TaskOptions
    ) -> HandlerResult:
        runtime = self._service.runtime()
        guards = self._service.guards
        # SEP-2663: not answered before the task is durably created; `launch` returns no sooner.
        record = await runtime.launch(
            task_request(params, ctx),
            owner=self._principal(ctx),
            ttl=self._default_ttl if isinstance(options.ttl, Unset) else options.ttl,
            poll_interval=options.poll_interval,
            before_start=guards.open if options.asks_first else None,
        )
        if options.asks_first:
            asked = await self._asked_on_call(runtime, record)
            if asked is not None:
                return asked
        grace = self._grace if options.grace is None else options.grace
        if grace:
            # A caller that goes away meanwhile leaves the task: closing a stream cancels the request, never its task.
            finished = await runtime.wait_until(record.id, lambda task: task.is_final, grace)
            if finished is not None and finished.status is not TaskStatus.CANCELLED:
                await runtime.discard(finished)
                return _inline(finished)
        return render_created(record, runtime.now())

    async def _asked_on_call(self, runtime: TaskRuntime, record: TaskRecord) -> HandlerResult:
        """What the tool asks by returning, before it works; None if it works."""
        guards = self._service.guards
        try:
            await runtime.wait_until(record.id, lambda task: task.version > STARTED_VERSION, ANNOUNCE_AFTER)
        except anyio.get_cancelled_exc_class():
            guards.close(record.id)
            with anyio.CancelScope(shield=True):
                # The caller went away while the tool may still ask it something; nobody could ever answer that.
                await runtime.cancel(record, "The caller went away before the task was announced")
            raise
        asked = guards.close(record.id)
        if asked is not None:
            withdrawn = await runtime.wait_until(record.id, lambda task: task.is_final, ANNOUNCE_AFTER)
            if withdrawn is not None:
                await runtime.discard(withdrawn)
            questions_of(asked, record.request.client_capabilities)
        return asked


def _inline(record: TaskRecord) -> HandlerResult:
    """What the plain call would have answered."""
    if record.error is not None:
        error = record.error
        raise MCPError(code=error["code"], message=error["message"], data=error.get("data"))
    return dict(record.result or {})


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
        chosen = None if ms is None else timedelta(milliseconds=ms)
    if chosen is not None and chosen <= timedelta(0):
        raise ValueError(f"the default ttl must be a positive duration, got {chosen}")
    return chosen


def _modern_only(binding: MethodBinding) -> Callable[[RequestContext, Any], Any]:
    """The handler behind the version gate that `MCPServer` puts before an extension's methods."""

    async def gated(ctx: RequestContext, params: Any) -> HandlerResult:
        if ctx.protocol_version not in _MODERN:
            raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=binding.method)
        return await binding.handler(ctx, params)

    return gated
