"""Which calls of tools become tasks, and how they are answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeAlias

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from mcp_tasks.errors import LimitExceeded, TasksError
from mcp_tasks.fallback.options import Host, ShownTo
from mcp_tasks.fallback.request_state import comes_back
from mcp_tasks.fallback.service import FallbackService, ToolCall
from mcp_tasks.legacy.server import LegacyEra
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import TaskRequest
from mcp_tasks.protocol.answers import turns_of
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.limits import Limiting
from mcp_tasks.protocol.listen import StreamEnds
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Owners, check_first
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.catalog import ArgumentsRefused, Catalogue, Served
from mcp_tasks.server.creation import ANNOUNCE_AFTER, answer_call, settle_parameters
from mcp_tasks.server.fast_path.app import FastPath
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.sdk import EraParts, SdkAdapter, caller_of, encode_answer, request_meta, task_request
from mcp_tasks.server.slow_clients import ReadLimits
from mcp_tasks.server.tool_runner import to_mcp_error

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
Augment: TypeAlias = Callable[[CallToolRequestParams], bool]


class Calls:
    """Answers calls of tools with tasks, where the tool, the client and the author's rule say so."""

    def __init__(
        self,
        catalogue: Catalogue,
        protocol: TasksProtocol,
        runtime: Callable[[], TaskRuntime],
        fallback: FallbackService,
        augment: Augment | None,
    ) -> None:
        self._catalogue = catalogue
        self._protocol = protocol
        self._runtime = runtime
        self._fallback = fallback
        self._augment = augment

    async def answer(self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer a call with a task, or in the way that its caller can follow, or hand it on."""
        name, arguments, is_resumed = params.name, params.arguments or {}, comes_back()
        if name in self._catalogue.companions:
            answer = await self._fallback.answer_companion(params, ctx)
            if answer is not None:
                return answer
        # First, because a tool that is not marked pays for this on every call.
        known = self._catalogue.known_tool(name)
        if known is not None and known.is_plain and not is_resumed:
            return await _plain_call(ctx, call_next)
        tool = await self._tool_for(params)
        if is_resumed:
            # Its task is there, whatever the tool is marked with by now and the client declares this time.
            return await self._resume(tool or Served(options=self._catalogue.usual), params, ctx)
        if tool is None:
            return await _plain_call(ctx, call_next)
        caller = caller_of(ctx)
        if not caller.takes_tasks:
            if tool.options.mode == "required":
                raise to_mcp_error(self._protocol.cannot_take(caller, name))
            fallback = tool.options.fallback
            if not (fallback.modern if caller.version.has_extension else fallback.older):
                return _refusal(tool.problem_with(arguments), name) or await _plain_call(ctx, call_next)
        try:
            request = task_request(params, ctx, caller)
            owner = await self._protocol.let_in(caller, request)
            problem = tool.problem_with(arguments)
            if problem is not None:
                # The plain call's answer, at once, and no task.
                return _refusal(problem, name) or await call_next(ctx)
            settle = partial(settle_parameters, partial(call_next, ctx), name) if tool.resolves else None
            settled = await settle() if settle is not None and caller.takes_tasks else None
            if settled is not None:
                return settled
            spec = self._protocol.spec(request, owner, tool.options, retention=tool.retention)
            joined = _joined_under(tool, request)
            if not caller.takes_tasks:
                call = ToolCall(ctx=ctx, caller=caller, spec=spec, options=tool.options, settle=settle, joined=joined)
                return await self._fallback.answer(call)
            grace = tool.options.grace
            if tool.may_refuse(arguments):
                # It shows as soon as the tool begins; then the refusal is the answer, and no task is left.
                grace = max(grace or ANNOUNCE_AFTER, ANNOUNCE_AFTER)
            runtime = self._runtime()
            return await encode_answer(
                await answer_call(runtime, spec, asks_first=tool.asks_first, grace=grace, joined=joined)
            )
        except (RpcError, TasksError) as exc:
            if isinstance(exc, LimitExceeded) and not caller.takes_tasks:
                return self._fallback.beyond_limit(exc, name, ctx, caller)
            self._protocol.refused(caller, ctx.method, exc)
            raise to_mcp_error(exc) from exc

    def can_become_task(self, tool: Served) -> bool:
        """Whether any call of a tool can become a task."""
        return tool.support != "forbidden" if tool.is_marked else self._augment is not None

    async def _resume(self, tool: Served, params: CallToolRequestParams, ctx: RequestContext) -> HandlerResult:
        """Go on with a call of several requests."""
        caller = caller_of(ctx)
        try:
            # Like a request about a task: it may bring answers, and come back as often as it likes.
            answers: JsonObject = object_in(ctx.params or {}, "inputResponses") or {}
            owner = await self._protocol.admit(caller, turns_of(answers))
            request = task_request(params, ctx, caller)
            spec = self._protocol.spec(request, owner, tool.options, retention=tool.retention)
            call = ToolCall(
                ctx=ctx, caller=caller, spec=spec, options=tool.options, joined=_joined_under(tool, request)
            )
            return await self._fallback.answer(call)
        except (RpcError, TasksError) as exc:
            self._protocol.refused(caller, ctx.method, exc)
            raise to_mcp_error(exc) from exc

    async def _tool_for(self, params: CallToolRequestParams) -> Served | None:
        """The tool of a call that becomes a task; None for a call that stays a plain one."""
        tool = await self._catalogue.tool(params.name)
        if tool is None or tool.options.mode == "forbidden":
            return None
        if self._augment is None:
            return tool if tool.is_marked else None
        decides = not tool.is_marked or tool.options.mode == "optional"
        return tool if not decides or self._augment(params) else None


async def _plain_call(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    try:
        check_first(request_meta(ctx))
    except TasksError as exc:
        raise to_mcp_error(exc) from exc
    return await call_next(ctx)


def _refusal(problem: Exception | None, name: str) -> CallToolResult | None:
    """The SDK's answer to arguments that do not fit, before it enters the tool. It is given here because the SDK would
    look for every problem again, and write all of them down. Other problems are for the SDK to report."""
    if not isinstance(problem, ArgumentsRefused):
        return None
    logger.info("tool %r rejected its arguments", name)
    text = f"Error executing tool {name}: {problem}"
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _joined_under(tool: Served, request: TaskRequest) -> str | None:
    """The key of calls of its owner that are the same as this one, for a tool that is to be started once for both."""
    if not tool.options.join_running:
        return None
    told = json.dumps([request.name, request.arguments], sort_keys=True)
    return f"call:{sha256(told.encode()).hexdigest()}"


class Components:
    """The parts of one `Tasks` object that requests come in by. The arguments are those that an author gives to it.

    Attributes:
        adapter: The handlers and the middleware of the SDK.
        calls: Answers calls of tools.
        fallback: Answers callers that speak no tasks.
        fast_path: Answers before the SDK sees a request; there even if it is not put before anything.
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
        fast_path: bool,
        max_listeners: int,
    ) -> None:
        protocol = TasksProtocol(
            lifecycle.runtime,
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
        # The one line that names an older version: without it, and its import, the package can be deleted.
        eras = (LegacyEra(parts),)
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
        catalogue.companions = self.fallback.companion_names()
        self.calls: Calls = Calls(catalogue, protocol, lifecycle.runtime, self.fallback, augment)
        self.fast_path: FastPath = FastPath(
            protocol, catalogue, self.adapter.own_handlers, lifecycle.stopping, max_listeners
        )
        lifecycle.counts = self.fast_path.counts
        lifecycle.middleware = self.adapter.middleware
        lifecycle.check_start = lambda: self.fallback.prepare(catalogue.names())
        # The last to be put before the SDK's app is the first to see a request.
        lifecycle.on_start = [
            *(era.start for era in eras),
            self.fallback.start,
            *([self._put_fast_path] if fast_path else []),
            ReadLimits(protocol).put_before,
        ]
        self._harmless: frozenset[str] = frozenset()

    def stand_beside(self, extensions: Sequence[Extension]) -> None:
        """Take note of a server's other extensions: those that intercept no calls do not need the SDK's handling."""
        self._harmless = frozenset(
            each.identifier for each in extensions if type(each).intercept_tool_call is Extension.intercept_tool_call
        )

    def _put_fast_path(self, server: MCPServer[Any] | Server[Any]) -> None:
        self.fast_path.put_before(server, self._harmless)
