"""Which calls of tools become tasks, and what they are answered with."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeAlias, cast

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from mcp_tasks.errors import LimitExceeded, TasksError
from mcp_tasks.fallback.options import Host, ShownTo
from mcp_tasks.fallback.request_state import comes_back
from mcp_tasks.fallback.service import FallbackService, ToolCall
from mcp_tasks.legacy.server import LegacyEra
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.answers import turns_of
from mcp_tasks.protocol.dialect import Dialects, ModernDialect
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.limits import Limiting
from mcp_tasks.protocol.listen import StreamEnds
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller, Owners, check_first, take_key
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.server.catalog import ArgumentsRefused, Catalogue, Served, is_more_than_small
from mcp_tasks.server.creation import (
    ANNOUNCE_AFTER,
    CallAnswer,
    answer_call,
    settle_parameters,
)
from mcp_tasks.server.fast_path.app import Launch, ShortWay
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.sdk import Era, EraParts, SdkAdapter, caller_of, request_meta, task_request
from mcp_tasks.server.slow_clients import Readers
from mcp_tasks.server.tool_runner import to_mcp_error

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
Settle: TypeAlias = Callable[[], Awaitable[HandlerResult | None]]
Augment: TypeAlias = Callable[[CallToolRequestParams], bool]


class Calls:
    """Answers calls of tools with tasks, where the tool, the client and the author's rule say so."""

    def __init__(
        self,
        catalogue: Catalogue,
        protocol: TasksProtocol,
        adapter: SdkAdapter,
        runtime: Callable[[], TaskRuntime],
        fallback: FallbackService,
        augment: Augment | None,
    ) -> None:
        self._catalogue = catalogue
        self._protocol = protocol
        self._adapter = adapter
        self._runtime = runtime
        self._fallback = fallback
        self._augment = augment

    async def answer(self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer a call with a task, or in the way that its caller can follow, or hand it on."""
        if self._fallback.is_companion(params.name):
            answer = await self._fallback.answer_companion(params, ctx)
            if answer is not None:
                return answer
        # First, because a tool that is not marked pays for this on every call.
        if self.is_plain(params.name) and not comes_back():
            return await _plain_call(ctx, call_next)
        tool = await self._tool_for(params)
        if comes_back():
            # Its task is there, whatever the tool is marked with by now and the client declares this time.
            return await self._resume(tool or Served(options=self._catalogue.usual), params, ctx, caller_of(ctx))
        if tool is None:
            return await _plain_call(ctx, call_next)
        caller = caller_of(ctx)
        takes_tasks = self._protocol.takes_tasks(caller)
        if not takes_tasks and tool.options.mode == "required":
            raise to_mcp_error(self._protocol.cannot_take(caller, params.name))
        if not takes_tasks and not self._is_waited_for(tool, ctx):
            return _refusal(tool.problem_with(params.arguments or {}), params.name) or await _plain_call(ctx, call_next)
        try:
            # Before anything is done with its arguments, which are the caller's, and may be many.
            request, owner = task_request(params, ctx, caller), self._protocol.owner(caller)
            await self._protocol.limiting.create(owner, request, connection=caller.connection)
            problem = tool.problem_with(request.arguments)
            if problem is not None:
                # The plain call's answer, at once, and no task.
                return _refusal(problem, params.name) or await call_next(ctx)
            settle = partial(settle_parameters, partial(call_next, ctx), params.name) if tool.resolves else None
            if not takes_tasks:
                return await self._without_tasks(tool, request, owner, ctx, caller, settle)
            settled = None if settle is None else await settle()
            if settled is not None:
                return settled
            answer = await self._launch(tool, owner, request, self._grace(tool, request.arguments))
            return await self._adapter.answer(caller, answer)
        except (RpcError, TasksError) as exc:
            if isinstance(exc, LimitExceeded) and not takes_tasks:
                return self._fallback.beyond_limit(exc, params.name, ctx, caller)
            self._protocol.refused(caller, ctx.method, exc)
            raise to_mcp_error(exc) from exc

    def is_plain(self, name: str) -> bool:
        """Whether calls of the tool are known not to become tasks."""
        return self._augment is None and self._catalogue.is_plain(name)

    def plan(self, caller: Caller, request: TaskRequest) -> Launch | None:
        """How to make the task of a call that becomes one at once; None for any other call."""
        if self._augment is not None or self._fallback.is_companion(request.name):
            return None
        tool = self._catalogue.known_tool(request.name)
        tool = tool if tool is not None and tool.support != "forbidden" else None
        if tool is None or not self._protocol.takes_tasks(caller):
            return None
        if tool.resolves or tool.asks_first or tool.options.join_running or is_more_than_small(request.arguments):
            # What is not small is looked at once its caller may have a task, and that counts once.
            return None
        if not tool.takes(request.arguments) or self._grace(tool, request.arguments):
            return None
        return partial(self._make_task, tool, caller, request)

    def can_become_task(self, tool: Served) -> bool:
        """Whether any call of a tool can become a task."""
        return tool.support != "forbidden" if tool.is_marked else self._augment is not None

    async def _make_task(self, tool: Served, caller: Caller, request: TaskRequest) -> TaskRecord:
        owner = self._protocol.owner(caller)
        await self._protocol.limiting.create(owner, request, connection=caller.connection)
        answer = await self._launch(tool, owner, request, None)
        if not isinstance(answer, TaskRecord):
            raise TypeError(f"a call that is answered with its task at once came to {type(answer).__name__}")
        return answer

    async def _launch(
        self, tool: Served, owner: str | None, request: TaskRequest, grace: timedelta | None
    ) -> CallAnswer:
        options = tool.options
        request, key = take_key(request, owner, asks_first=tool.asks_first)
        return await answer_call(
            self._runtime(),
            LaunchSpec(
                request=request,
                owner=owner,
                retention=tool.retention,
                poll_interval=options.poll_interval,
            ),
            asks_first=tool.asks_first,
            grace=grace,
            joined=_joined_under(tool, request.name, request.arguments),
            key=key,
        )

    def _grace(self, tool: Served, arguments: Mapping[str, Any]) -> timedelta | None:
        grace = tool.options.grace
        if tool.may_refuse(arguments):
            # It shows as soon as the tool begins; then the refusal is the answer, and no task is left.
            return max(grace or ANNOUNCE_AFTER, ANNOUNCE_AFTER)
        return grace

    async def _resume(
        self, tool: Served, params: CallToolRequestParams, ctx: RequestContext, caller: Caller
    ) -> HandlerResult:
        try:
            # As whoever asks about a task: it may bring answers, and come back as often as it likes.
            owner = await self._protocol.admit(caller, turns_of(_brought(ctx)))
            return await self._without_tasks(tool, task_request(params, ctx, caller), owner, ctx, caller)
        except (RpcError, TasksError) as exc:
            self._protocol.refused(caller, ctx.method, exc)
            raise to_mcp_error(exc) from exc

    async def _without_tasks(
        self,
        tool: Served,
        request: TaskRequest,
        owner: str | None,
        ctx: RequestContext,
        caller: Caller,
        settle: Settle | None = None,
    ) -> HandlerResult:
        request, key = take_key(request, owner, asks_first=tool.asks_first)
        call = ToolCall(
            ctx=ctx,
            caller=caller,
            request=request,
            ways=tool.options.fallback,
            owner=owner,
            retention=tool.retention,
            poll_interval=tool.options.poll_interval,
            settle=settle,
            asks_first=tool.asks_first,
            joined=_joined_under(tool, request.name, request.arguments),
            key=key,
            max_wait=tool.options.max_wait,
        )
        return await self._fallback.answer(call)

    def _is_waited_for(self, tool: Served, ctx: RequestContext) -> bool:
        """Whether a call of a caller without tasks is more than a plain call."""
        ways = tool.options.fallback
        return ways.modern if self._protocol.speaks(ctx.protocol_version) else ways.older

    async def _tool_for(self, params: CallToolRequestParams) -> Served | None:
        """The tool of a call that becomes a task; None for a call that stays a plain one."""
        tool = await self._catalogue.tool(params.name)
        if tool is None or tool.options.mode == "forbidden":
            return None
        if not tool.is_marked:
            return tool if self._augment is not None and self._augment(params) else None
        if tool.options.mode == "optional" and self._augment is not None and not self._augment(params):
            return None
        return tool


async def _plain_call(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    try:
        check_first(request_meta(ctx))
    except TasksError as exc:
        raise to_mcp_error(exc) from exc
    return await call_next(ctx)


def _brought(ctx: RequestContext) -> Mapping[str, Any]:
    answers = (ctx.params or {}).get("inputResponses")
    return cast("Mapping[str, Any]", answers) if isinstance(answers, Mapping) else {}


def _refusal(problem: Exception | None, name: str) -> CallToolResult | None:
    """What the SDK answers to arguments that do not fit, before it enters the tool. Said here: the SDK would look for
    every problem again, and write all of them down. What else may be wrong is for the SDK to say."""
    if not isinstance(problem, ArgumentsRefused):
        return None
    logger.info("tool %r rejected its arguments", name)
    text = f"Error executing tool {name}: {problem}"
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _joined_under(tool: Served, name: str, arguments: Mapping[str, Any]) -> str | None:
    """What makes the call the same as another one of its owner, for a tool that is to be started once for both."""
    if not tool.options.join_running:
        return None
    told = json.dumps([name, arguments], sort_keys=True)
    return f"call:{sha256(told.encode()).hexdigest()}"


# ---- eras
# The older eras that a server speaks: the one place of this room that names them.


def older_eras(parts: EraParts) -> Sequence[Era]:
    """The eras before the extension, for one server."""
    return (LegacyEra(parts),)


# ---- doors
# The ways in to the tasks of a server, put together: the SDK's door with the older eras, the answers for callers that
# speak no tasks, and the short way.


class Doors:
    """What requests come in by, for one `Tasks` object. The arguments are those that an author gives to it.

    Attributes:
        adapter: The SDK's door.
        calls: Which calls of tools become tasks.
        fallback: The answers for callers that speak no tasks.
        short_way: What answers before the SDK sees a request; there even if it is not put before anything.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        lifecycle: Lifecycle,
        *,
        owners: Owners,
        require_name_header: bool,
        send_input: bool,
        limits: Limits,
        augment: Augment | None,
        hosts: Mapping[str, Host],
        companions: ShownTo,
        companion_prefix: str,
        short_way: bool,
        max_listeners: int,
    ) -> None:
        protocol = TasksProtocol(
            lifecycle.runtime,
            dialects=Dialects([ModernDialect()]),
            owners=owners,
            limiting=Limiting(limits, free=owners.local),
            require_name_header=require_name_header,
            stream_ends=StreamEnds(limits.stream_life),
        )
        parts = EraParts(
            runtime=lifecycle.runtime,
            protocol=protocol,
            offers=catalogue,
            stopping=lifecycle.stopping,
            exiting=lifecycle.exiting,
            open_calls=lifecycle.open_calls,
            send_input=send_input,
        )
        eras = older_eras(parts)
        self.adapter: SdkAdapter = SdkAdapter(protocol, lifecycle.stopping, eras)
        self.fallback: FallbackService = FallbackService(
            parts,
            open_calls=lifecycle.open_calls,
            catalogue=catalogue,
            hosts=hosts,
            shown=companions,
            prefix=companion_prefix,
            is_stopping=lifecycle.is_stopping,
        )
        self.calls: Calls = Calls(catalogue, protocol, self.adapter, lifecycle.runtime, self.fallback, augment)
        self.short_way: ShortWay = ShortWay(
            protocol, self.calls, self.adapter.is_own, lifecycle.stopping, max_listeners
        )
        lifecycle.counts = self.short_way.counts
        self._harmless: frozenset[str] = frozenset()
        lifecycle.middleware = self.adapter.middleware
        lifecycle.check_start = lambda: self.fallback.prepare(catalogue.names())
        # The last to be put before the SDK's app is the first to see a request.
        lifecycle.on_start = [
            *(era.start for era in eras),
            self.fallback.start,
            *([self._put_short_way] if short_way else []),
            Readers(protocol).put_before,
        ]

    def stand_beside(self, extensions: Sequence[Extension]) -> None:
        """Take note of a server's other extensions: those that intercept no calls leave them to the short way."""
        self._harmless = frozenset(
            each.identifier for each in extensions if type(each).intercept_tool_call is Extension.intercept_tool_call
        )

    def _put_short_way(self, server: MCPServer[Any] | Server[Any]) -> None:
        self.short_way.put_before(server, self._harmless)
