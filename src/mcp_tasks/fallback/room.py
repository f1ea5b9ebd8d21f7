"""The parts of this room for one server, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult
from mcp_types import CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.adapters.sdk import caller_of
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import LimitExceeded, StoreError, TasksError
from mcp_tasks.fallback.brought import BroughtAnswers
from mcp_tasks.fallback.calls import FallbackCalls, ToolCall
from mcp_tasks.fallback.companions import Companions, ToolWays
from mcp_tasks.fallback.gone import GoneCallers
from mcp_tasks.fallback.hosts import ANY_HOST, HOSTS, UNKNOWN_HOST, Host
from mcp_tasks.fallback.keys import StateKeys
from mcp_tasks.fallback.later import Later
from mcp_tasks.fallback.legs import Legs, put_around_boundary
from mcp_tasks.fallback.listing import Listing
from mcp_tasks.fallback.serving import ServingParts
from mcp_tasks.fallback.timing import KnownHosts
from mcp_tasks.fallback.ways import Fallback, ShownTo
from mcp_tasks.fallback.words import beyond_limit
from mcp_tasks.protocol import Caller, RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.tools.open_calls import OpenCalls
from mcp_tasks.tools.sdk_errors import to_mcp_error

logger: Final = get_logger(__name__)

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


class FallbackRoom:
    """Answers for callers that speak no tasks, on one server.

    Args:
        open_calls: Where runs find the calls that are open on them.
        ways: How calls of the server's tools are answered.
        hosts: What the author knows of hosts, beside and above what is known here.
        shown: Who is shown the companion tools.
        prefix: What their names begin with.
        is_stopping: Whether the process has been told to stop.
    """

    def __init__(
        self,
        parts: EraParts,
        *,
        open_calls: OpenCalls,
        ways: ToolWays,
        hosts: Mapping[str, Host],
        shown: ShownTo,
        prefix: str,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._protocol = parts.protocol
        self._ways = ways
        self._shown = shown
        self._has_warned = False
        self._keys = StateKeys(parts.runtime)
        self._legs = Legs(self._keys, owner=parts.protocol.owner, now=lambda: parts.runtime().now())
        later = Later()
        known = {**HOSTS, **hosts}
        unknown = known.pop(ANY_HOST, UNKNOWN_HOST)
        self._companions = Companions(
            parts.runtime, parts.protocol, ways, self._wait_for, hosts=known, shown=shown, prefix=prefix
        )
        self._calls = FallbackCalls(
            ServingParts(
                runtime=parts.runtime,
                open_calls=open_calls,
                limiting=parts.protocol.limiting,
                hosts=KnownHosts(by_name=known, unknown=unknown),
                stopping=parts.stopping,
                is_stopping=is_stopping,
                companions=self._companions.names_for,
                seal=self._legs.seal,
                answers=BroughtAnswers(parts.runtime, later),
                later=later,
                gone=GoneCallers(parts.stopping, later),
            )
        )
        self._listing = Listing(parts.protocol, ways, self._companions)

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts: see what its clients say and are answered."""
        put_around_boundary(server.middleware, self._legs.outside, self.inside)

    async def prepare(self, tools: Iterable[str]) -> None:
        """The server is about to start: see that its tools have no names of the companion tools, and that there is a
        key, which the first call that needs one may not have the time to make.

        Raises:
            UsageError: It has; the message says what to do.
        """
        await self._companions.check_names(tools)
        await self._warn_of_unanswerable()
        try:
            await self._keys.prepare()
        except StoreError as exc:
            logger.warning("the keys for requestState are not there yet: %s", exc)

    async def _warn_of_unanswerable(self) -> None:
        """Say once that models may answer what they have no tool to answer with."""
        if self._shown != "never" or self._has_warned:
            return
        if any(ways.model_may_answer for ways in await self._ways.all()):
            self._has_warned = True
            logger.warning(
                'model_may_answer=True has no effect with Tasks(companions="never"): a model answers with a companion '
                "tool, and there is none. What a tool asks that the client cannot be asked stays open for somebody else"
            )

    async def rotate_key(self) -> None:
        """Seal what calls bring along under a new key from now on."""
        await self._keys.rotate()

    async def inside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware after the SDK's boundary for states: what is listed, and what a tool's own state was."""
        if ctx.method == "tools/list":
            result = await call_next(ctx)
            return await self._listing.show(caller_of(ctx), result) if isinstance(result, dict) else result
        return await self._legs.inside(ctx, call_next)

    async def answer(self, call: ToolCall) -> HandlerResult:
        """Answer one request of a call of a tool.

        Raises:
            RpcError: What the tool raised, or why the request is refused.
            StoreError: The task could not be kept.
        """
        try:
            return _worded(call.ctx, await self._calls.answer(call))
        except LimitExceeded as exc:
            return self.beyond_limit(exc, call.request.name, call.ctx, call.caller)

    def beyond_limit(self, exc: LimitExceeded, tool: str, ctx: RequestContext, caller: Caller) -> HandlerResult:
        """What a call is answered with that may not become a task: nothing was started. A model reads the result of its
        call, and seldom an error of the protocol."""
        self._protocol.refused(caller, ctx.method, exc)
        return _worded(ctx, beyond_limit(tool, exc))

    def is_companion(self, name: str) -> bool:
        """Whether a tool of that name may be one of ours."""
        return self._companions.is_companion(name)

    async def answer_companion(self, params: CallToolRequestParams, ctx: RequestContext) -> HandlerResult | None:
        """Answer a call of a companion tool; None if it is not one here."""
        caller = caller_of(ctx)
        try:
            answer = await self._companions.answer(params.name, params.arguments or {}, ctx, caller)
            return None if answer is None else _worded(ctx, answer)
        except (RpcError, TasksError) as exc:
            self._protocol.refused(caller, "companion", exc)
            raise to_mcp_error(exc) from exc

    async def _wait_for(
        self, record: TaskRecord, ctx: RequestContext, caller: Caller, seconds: float, since: float
    ) -> dict[str, Any]:
        ways = await self._ways.of(record.name) or Fallback()
        return await self._calls.wait_for(record, ctx, caller, ways, timedelta(seconds=seconds), since)


def _worded(ctx: RequestContext, result: HandlerResult) -> HandlerResult:
    """The result with the mark that the newest era puts on every result."""
    if not isinstance(result, dict) or "resultType" in result or ctx.protocol_version not in _MODERN:
        return result
    return {"resultType": "complete", **result}
