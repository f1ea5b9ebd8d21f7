"""`Tasks`: the object a server author adds to a server built on the official SDK.

    tasks = Tasks()
    server = MCPServer("render-farm", **tasks.wiring())

    @server.tool()
    @tasks.task()
    async def render(scene: str, ctx: Context) -> str: ...

It decides which calls become tasks, and hands everything else on untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Never, TypeAlias, TypeVar, Unpack, cast, get_args, overload

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp_types import CallToolRequestParams

from mcp_tasks.encryption import Cipher
from mcp_tasks.engines import Engine
from mcp_tasks.errors import InvalidOption, WiringError
from mcp_tasks.fallback.options import Host, ShownTo, check_hosts
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.options import Fallback, TaskMode, TaskOptions, Ways, fallback_from
from mcp_tasks.model.values import (
    check_choice,
    check_duration,
    check_flag,
    check_function,
    check_instance,
    check_number,
    check_text,
)
from mcp_tasks.protocol.owners import Caller, Owners, authenticated, local_user
from mcp_tasks.protocol.shapes import EXTENSION_ID
from mcp_tasks.runtime import Observer, Settings, TaskRuntime
from mcp_tasks.server.calls import Augment, Components
from mcp_tasks.server.catalog import Catalogue, Kind, Mark
from mcp_tasks.server.creation import asks_by_returning, resolves_parameters, stop_at_body
from mcp_tasks.server.fast_path.listening import MOST_LISTENERS
from mcp_tasks.server.fast_path.requests import Counts
from mcp_tasks.server.lifecycle import (
    Lifecycle,
    Lifespan,
    Setup,
    TasksLifespan,
    Wiring,
    check_lifespan,
    half_wired,
    lifespan_of,
    without_tasks,
)
from mcp_tasks.server.local import LocalCalls
from mcp_tasks.server.options import (
    UNSET,
    ToolOptions,
    Unset,
    chosen_observers,
    chosen_parts,
    chosen_queues,
    default_ttl_from,
    options_from,
)
from mcp_tasks.server.tool_host import LowLevelHost, MCPServerHost
from mcp_tasks.server.tool_runner import ToolBody
from mcp_tasks.server.worker import Working
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import callers_globals, origin_of
from mcp_tasks.telemetry.telemetry import Metrics

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
RequestContext: TypeAlias = ServerRequestContext[Any, Any]
StateT = TypeVar("StateT")


class Tasks(LocalCalls, Working, Extension):
    """Makes tools of a server durable tasks (SEP-2663); prompts and resources too, where a caller can have them so.

    Args:
        store: Where tasks are kept: a URL (`sqlite:///tasks.db`, `postgresql://…`, `redis://…`, `memory://`), which
            chooses the engine too, a `Store`, or nothing for a SQLite file of the server's own in the user's state
            folder (`MCP_TASKS_URL` in the environment overrides that).
        default_mode: The mode of every tool, prompt and resource that is not marked; a mark says otherwise for one of
            them. Without it, only what is marked becomes a task.
        augment: A rule over the validated `tools/call` params, asked where the mode is `"optional"` and the server
            decides: the call becomes a task only if the rule agrees. `"required"` and `"forbidden"` stand above it.
            Without a `default_mode`, it decides for tools that are not marked as well.
        clock: Source of the current time, aware and in UTC, for tests. Without it, the clock of the store: so all
            processes that share a store agree on the time of a task, whatever the clocks of their machines say.
        default_ttl_ms: How long a finished task is kept, in milliseconds; None keeps it for as long as the store lives.
        default_ttl: The same as a `timedelta`. Without either, a day.
        max_ttl: The longest time for which the finished task of a call is kept. It cuts the `ttl` that a caller asks
            for (2025-11-25), that of the tool, and `default_ttl`. Without it, `Limits.ttl` (30 days) cuts what callers
            ask for, unless the tool's own `ttl` is longer.
        engine: Who runs the tools: an `Engine`, or a URL (`local`, `postgresql://…`, `redis://…`). Without one, what
            goes with the URL of the store, and a `LocalEngine` with a `Store` object.
        concurrency: How many tools run in this process at a time.
        grace: How long a call waits for its tool before it answers with a task; a tool that is quicker answers inline.
        principal: Who is calling, for the rule that a task belongs to who created it. By default the identity in the
            SDK's access token.
        require_name_header: Refuse `tasks/*` over HTTP without the `Mcp-Name` header that SEP-2663 asks clients for.
        send_input: Whether clients of 2025-11-25 may answer questions with `tasks/sendInput`, a method that is not part
            of the protocol, as `LocalTask.send_input` does in this process.
        settings: Leases, sweeps and time limits of the runtime.
        namespace: Which servers are the same server, and run each other's tasks; by default the server's name.
        max_wait: How long a question of any tool may stay unanswered before its task fails. `Limits.question_wait` is
            the most. A question with a `timeout` waits for that long instead.
        max_lost_runs: How many runs of a tool in a row may die with their process, without getting any further, before
            the task fails.
        runs_tools: Whether a process that serves runs tools too. One that does not leaves the running to workers that
            share its store (see `work`).
        queues: Of which queues this process runs tools, and workers that are not told otherwise; None for all.
        observers: Called with every change of a task, in a thread of their own.
        fallback: How calls of marked tools are answered whose caller speaks no tasks: as a `Fallback` says, as usual
            (`"auto"`), or as plain calls (`"inline"`). A mark may say otherwise for its tool.
        companions: Who is shown the companion tools `task_status`, `task_cancel` and `task_answer`: those who may need
            them (`"auto"`), everybody (`"always"`), or nobody (`"never"`).
        companion_prefix: What the names of the companion tools begin with, where a server has tools of those names.
        hosts: How long hosts wait for a call, by `clientInfo.name`; `"*"` for those that are not known. Adds to what is
            known already, and stands above it.
        limits: How much callers may take.
        require_owner: Whether every task has to have an owner, so that a request without one is refused, and code in
            this process names one. By default it is so on an `MCPServer` with `auth=`, where what comes over a pipe
            belongs to the user who runs the server. Say True where something else authenticates (a low-level server,
            middleware of your own): then whatever has no owner is refused, over a pipe too.
        cipher: Encrypts what the store keeps of tasks. For a store that a URL names; one that is given as an object is
            made with its own.
        audit: A file to which the audit log is appended, a JSON object a line. It goes to the logger
            `mcp_tasks.audit` too, or alone, if that has a handler or a level of its own.
        short_way: Whether polls, calls that become tasks and the like are answered before the SDK's own handling of a
            request, over Streamable HTTP. The answers are the same, and cost a fraction.
        max_listeners: How many streams of `subscriptions/listen` a process serves in that way at a time, at some 17 KiB
            each. Those beyond it are left to the SDK, which has a limit of its own: 1,024.

    Raises:
        InvalidOption: A duration is not a `timedelta`, or not a positive one.
        InvalidOption: Another argument has a value that it cannot have.
        UsageError: The store or its URL is not one, or the engine is not one.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        store: Store | str | None = None,
        *,
        default_mode: TaskMode | None = None,
        augment: Augment | None = None,
        clock: Callable[[], datetime] | None = None,
        default_ttl_ms: int | Unset | None = UNSET,
        default_ttl: timedelta | Unset | None = UNSET,
        max_ttl: timedelta | None = None,
        engine: Engine | str | None = None,
        concurrency: int | None = None,
        grace: timedelta | None = None,
        principal: Callable[[Caller], str | None] = authenticated,
        require_name_header: bool = False,
        send_input: bool = False,
        settings: Settings | None = None,
        namespace: str | None = None,
        max_wait: timedelta | None = None,
        max_lost_runs: int = 3,
        runs_tools: bool = True,
        queues: Collection[str] | None = None,
        observers: Sequence[Observer] = (),
        fallback: Ways = "auto",
        companions: ShownTo = "auto",
        companion_prefix: str = "",
        hosts: Mapping[str, Host] | None = None,
        limits: Limits | None = None,
        require_owner: bool | None = None,
        cipher: Cipher | None = None,
        audit: str | PathLike[str] | None = None,
        short_way: bool = True,
        max_listeners: int = MOST_LISTENERS,
    ) -> None:
        if clock is not None:
            check_function("clock", clock, "lambda: datetime.now(UTC)")
        check_function("principal", principal, "lambda caller: caller.principal")
        if default_mode is not None:
            check_choice("default_mode", default_mode, get_args(TaskMode))
        if augment is not None:
            check_function("augment", augment, "lambda params: params.name != 'ping'")
        if settings is not None:
            check_instance("settings", settings, Settings)
        if namespace is not None:
            check_text("namespace", namespace)
        check_flag("runs_tools", runs_tools)
        check_flag("require_name_header", require_name_header)
        check_flag("send_input", send_input)
        if limits is not None:
            check_instance("limits", limits, Limits)
        if require_owner is not None:
            check_flag("require_owner", require_owner)
        check_flag("short_way", short_way)
        check_number("max_listeners", max_listeners, 0)
        ttl = default_ttl_from(default_ttl_ms, default_ttl)
        if max_ttl is not None:
            check_duration("max_ttl", max_ttl)
        check_choice("companions", companions, get_args(ShownTo))
        check_hosts({} if hosts is None else hosts)
        usual = TaskOptions(
            ttl=ttl,
            grace=grace,
            max_wait=max_wait,
            max_lost_runs=max_lost_runs,
            fallback=fallback_from(fallback, Fallback()),
        )
        chosen_limits = limits or Limits()
        self._catalogue = Catalogue(
            usual, default_mode, max_ttl=max_ttl, longest=chosen_limits.ttl, augments=augment is not None
        )
        local_owner = None if require_owner else local_user()
        setup = Setup(
            parts=chosen_parts(store, engine, concurrency, cipher),
            clock=clock,
            settings=settings,
            namespace=namespace,
            origin=origin_of(callers_globals()),
            runs_tools=runs_tools,
            queues=chosen_queues(queues),
            observers=chosen_observers(observers),
            limits=chosen_limits,
            require_owner=require_owner,
            local_owner=local_owner,
            audit=audit,
        )
        self._lifecycle = Lifecycle(setup, self._catalogue)
        self._components = Components(
            self._catalogue,
            self._lifecycle,
            owners=Owners(
                principal,
                required=lambda: self._lifecycle.requires_owner,
                local=local_owner,
            ),
            require_name_header=require_name_header,
            send_input=send_input,
            limits=chosen_limits,
            augment=augment,
            hosts=hosts or {},
            companions=companions,
            companion_prefix=companion_prefix,
            fast_path=short_way,
            max_listeners=max_listeners,
        )
        self._is_wired = False

    # What the author calls

    def task(
        self, *misplaced: Never, name: str | None = None, kind: Kind = "tool", **options: Unpack[ToolOptions]
    ) -> Callable[[FunctionT], FunctionT]:
        """Mark a tool: its calls may become tasks. Goes under `@server.tool()`; the tool stays as it is.

        With `kind=`, mark a prompt or a resource in the same way, under `@server.prompt()` or `@server.resource(...)`.

        Args:
            name: The tool that is marked, by its name. Needed only where the function does not tell: for two functions
                of the same name, or for a tool that is a wrapper with a signature of its own. For a prompt or a
                resource, the name that it is registered under, if that is not the function's.
            kind: What the function is registered as.
            options: See `ToolOptions`.

        Raises:
            InvalidOption: The parentheses are missing, the name is not a keyword, or another function is marked under
                the same name.
            InvalidOption: There is no such option, or it has a value that it cannot have.
        """
        for wrong in misplaced:
            if isinstance(wrong, str):
                raise InvalidOption(f"the name is a keyword: @tasks.task(name={wrong!r})")
            raise InvalidOption("@tasks.task is called before it decorates: write @tasks.task(), with parentheses")
        if name is not None:
            check_text("name", name)
        check_choice("kind", kind, get_args(Kind))
        chosen = options_from("@tasks.task", options, self._catalogue.usual, also=["name", "kind"])

        def mark(function: FunctionT) -> FunctionT:
            if kind != "tool":
                self._catalogue.add(kind, Mark(name=name or function.__name__, options=chosen))
                return function
            resolves = resolves_parameters(function)
            self._catalogue.add(
                "tool",
                Mark(
                    name=name or function.__name__,
                    is_named=name is not None,
                    options=chosen,
                    function=function,
                    resolves=resolves,
                    declares_asking=asks_by_returning(function),
                ),
            )
            return cast(FunctionT, stop_at_body(function)) if resolves else function

        return mark

    def mark(self, name: str, *, kind: Kind = "tool", **options: Unpack[ToolOptions]) -> None:
        """Mark a tool by its name, for tools that are not functions. Replaces what was said of the tool before.

        With `kind=`, mark a prompt by its name, or a resource by its name, its URI, or the template of its URI.

        Raises:
            InvalidOption: There is no such option, or it has a value that it cannot have.
        """
        check_text("the name that tasks.mark takes", name)
        check_choice("kind", kind, get_args(Kind))
        chosen = options_from("tasks.mark", options, self._catalogue.usual, also=["kind"])
        self._catalogue.set(kind, name, chosen)

    @overload
    def wiring(self, *, extensions: Sequence[Extension] = ()) -> Wiring[dict[str, Any]]: ...

    @overload
    def wiring(self, lifespan: Lifespan[StateT], *, extensions: Sequence[Extension] = ()) -> Wiring[StateT]: ...

    def wiring(self, lifespan: Lifespan[Any] | None = None, *, extensions: Sequence[Extension] = ()) -> Wiring[Any]:
        """What an `MCPServer` needs to have tasks: `MCPServer("name", **tasks.wiring())`.

        Args:
            lifespan: The server's own lifespan, if it has one; tools see what it yields.
            extensions: Its other extensions.

        Raises:
            WiringError: The lifespan is not an async context manager, or this object is among the other extensions.
        """
        if any(extension is self for extension in extensions):
            raise WiringError(
                "tasks is already in its own wiring: write tasks.wiring(), and only other extensions in extensions=[]"
            )
        if lifespan is not None:
            check_lifespan(lifespan)
        self._is_wired = True
        self._components.stand_beside(extensions)
        own = TasksLifespan[MCPServer[Any]](self, self._lifecycle, MCPServerHost, lifespan)
        return {"extensions": [*extensions, self], "lifespan": own}

    def attach(self, server: Server[Any]) -> None:
        """Add tasks to a low-level `Server`. Call it once, before the server runs.

        Raises:
            WiringError: The server has no `tools/call` handler, or is an `MCPServer`.
        """
        if not isinstance(server, Server):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                "tasks.attach(server) is for a low-level mcp.server.Server. An MCPServer is made with its tasks: "
                f"MCPServer(..., **tasks.wiring()); got {server!r}"
            )
        entry = server.get_request_handler("tools/call")
        if entry is None:
            raise WiringError("tasks.attach(server) needs a server with on_call_tool; this one serves no tools/call")
        self._is_wired = True
        server.extensions[EXTENSION_ID] = self.settings()
        for binding in self.methods():
            server.add_request_handler(binding.method, binding.params_type, binding.handler)
        intercepted = self._components.adapter.own(compose_tool_call_handler([self], entry.handler))
        server.add_request_handler("tools/call", CallToolRequestParams, intercepted)
        host = LowLevelHost(server, entry.handler)
        server.lifespan = TasksLifespan[Server[Any]](self, self._lifecycle, lambda _: host, server.lifespan)

    @staticmethod
    def of(server: MCPServer[Any] | Server[Any]) -> Tasks:
        """The `Tasks` object that a server was made with, for who has only the server.

        Raises:
            WiringError: The server has no tasks.
        """
        lifespan = lifespan_of(server)
        if isinstance(lifespan, TasksLifespan) and isinstance(lifespan.owner, Tasks):
            return lifespan.owner
        raise without_tasks(server)

    @property
    def short_way(self) -> Counts:
        """How many requests were answered before the SDK saw them, by method, and why others were handed over to it."""
        return self._components.fast_path.counts

    @property
    def metrics(self) -> Metrics:
        """The metrics for Prometheus: `server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)`. Ask
        for it before the server starts: from then on everything is counted.

        Raises:
            MissingExtra: `prometheus_client` is not installed.
        """
        return self._lifecycle.telemetry.metrics

    async def rotate_state_key(self) -> None:
        """Use a new key from now on for what calls of clients without tasks bring along when they come back. What was
        sealed under earlier ones is still taken, for as long as it is valid. The key is kept in the store: one process
        rotates it for all that share the store.

        Raises:
            WiringError: The server is not running.
            StoreError: The store cannot be read or written now.
        """
        await self._components.fallback.rotate_key()

    # For tests of tools

    async def runtime_for(
        self, server: MCPServer[Any], *, store: Store, engine: Engine, clock: Callable[[], datetime], state: Any = None
    ) -> TaskRuntime:
        """A runtime for the server's tools on another store, engine and clock, not started. For tests of tools.

        Raises:
            WiringError: The event loop is not asyncio's.
        """
        body = ToolBody(MCPServerHost(server), [state], self._lifecycle.open_calls)
        return await self._lifecycle.new_runtime(body, server_name=server.name, store=store, engine=engine, clock=clock)

    # What the SDK calls

    def methods(self) -> Sequence[MethodBinding]:
        """The tasks methods. `tasks/result` and `tasks/list` are not among them.

        Raises:
            WiringError: The server was given this extension, but not its lifespan.
        """
        if not self._is_wired:
            # Arguments are evaluated before the call: had the wiring been passed, it would have been asked for.
            raise half_wired("extensions=[tasks]", "the lifespan that runs them")
        # Once for each wiring: another server that is given only the extension is half wired too.
        self._is_wired = False
        self._lifecycle.extension_given = True
        return self._components.adapter.methods

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Answer a call with a task if the tool, the client and the rule say so; otherwise hand it on."""
        return await self._components.calls.answer(params, ctx, call_next)
