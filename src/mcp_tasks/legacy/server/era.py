"""`LegacyEra`: what a server of the SDK says and answers to clients of 2025-11-25."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.adapters.sdk import caller_of
from mcp_tasks.errors import TasksError
from mcp_tasks.legacy.server.creation import Creation
from mcp_tasks.legacy.server.methods import Methods
from mcp_tasks.legacy.server.owned_sessions import OwnedSessions
from mcp_tasks.legacy.server.relay import Relay
from mcp_tasks.legacy.server.sessions import Sessions
from mcp_tasks.legacy.shapes import VERSION
from mcp_tasks.protocol.errors import RpcError, discreet
from mcp_tasks.tools.sdk_errors import to_mcp_error

_Handler: TypeAlias = Callable[[RequestContext, CallNext], Awaitable[HandlerResult]]

_REQUESTS: Mapping[str, tuple[str, str]] = {
    "tools/call": ("tools", "call"),
    "prompts/get": ("prompts", "get"),
    "resources/read": ("resources", "read"),
}
"""How `capabilities.tasks.requests` names the methods."""


class LegacyEra:
    """Tasks of 2025-11-25 on one server."""

    versions: frozenset[str] = frozenset({VERSION})

    def __init__(self, parts: EraParts) -> None:
        self._parts = parts
        self._sessions = Sessions(parts)
        self._owned_sessions = OwnedSessions(parts.protocol)
        self._creation = Creation(parts, self._sessions)
        self._is_stateless = False
        methods = Methods(parts, self._sessions, Relay(parts, self._sessions))
        self._handlers: Mapping[str, _Handler] = {
            "tools/list": self._list_tools,
            "tasks/get": _answering(methods.get),
            "tasks/result": _answering(methods.result),
            "tasks/list": _answering(methods.list),
            "tasks/cancel": _answering(methods.cancel),
            "notifications/initialized": self._sessions.serve,
            **({"tasks/sendInput": _answering(methods.send_input)} if parts.send_input else {}),
        }

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts: see how it is served."""
        self._is_stateless = _is_stateless(server)
        self._sessions.start(server)
        self._owned_sessions.put_before(server)

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Declare `capabilities.tasks`."""
        requests: dict[str, dict[str, Any]] = {}
        for method in sorted(self._parts.offers.methods() & _REQUESTS.keys()):
            group, verb = _REQUESTS[method]
            requests.setdefault(group, {})[verb] = {}
        tasks: dict[str, Any] = {"cancel": {}, "requests": requests}
        if self._can_list(ctx):
            tasks["list"] = {}
        result["capabilities"] = {**result.get("capabilities", {}), "tasks": tasks}

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message: what has nothing to do with tasks goes on as it is."""
        if ctx.method in _REQUESTS:
            task = None if ctx.params is None else ctx.params.get("task")
            # A plain call of a tool, first: it is what is called most, and whether it must be a task the server says by
            # itself, to every era.
            if (task is None and ctx.method == "tools/call") or not _is_open(ctx):
                return await call_next(ctx)
            with _answered():
                if task is not None:
                    return await self._creation.answer(task, ctx, call_next)
                await self._creation.check_plain(ctx)
            return await call_next(ctx)
        handler = self._handlers.get(ctx.method)
        return await (call_next(ctx) if handler is None else handler(ctx, call_next))

    async def _list_tools(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """`tools/list`, with whether each tool may be called as a task."""
        result = await call_next(ctx)
        if isinstance(result, dict):
            for tool in cast("list[dict[str, Any]]", result.get("tools", [])):
                await self._describe(tool)
        return result

    async def _describe(self, tool: dict[str, Any]) -> None:
        offer = await self._parts.offers.find("tools/call", tool["name"])
        support = "forbidden" if offer is None else offer.support
        # Left out, it means forbidden. What a server's own listing says of it holds only where it is true.
        if support != "forbidden" or "taskSupport" in tool.get("execution", {}):
            tool["execution"] = {**tool.get("execution", {}), "taskSupport": support}

    def _can_list(self, ctx: RequestContext) -> bool:
        """Whether there is anything by which a caller's tasks can be told from those of others."""
        # A server over a session manager of the author's own cannot be asked how it is served. There, a handshake that
        # begins with a guess other than the newest version came without a session.
        is_stateless = self._is_stateless or ctx.protocol_version != LATEST_HANDSHAKE_VERSION
        return ctx.request is None or not is_stateless or self._parts.protocol.has_owner(caller_of(ctx))


def _is_open(ctx: RequestContext) -> bool:
    """Whether the caller may ask for anything yet: after its handshake, or without one where there are no sessions.

    A connection that can be spoken to is one that has a handshake. What comes before it is for the SDK to refuse.
    """
    return ctx.session.client_params is not None or not ctx.session.can_send_request


def _is_stateless(server: MCPServer[Any] | Server[Any]) -> bool:
    try:
        return server.session_manager.stateless
    except RuntimeError:
        # Not served over Streamable HTTP, or not by an app of its own.
        return False


def _answering(method: Callable[[RequestContext], Awaitable[dict[str, Any]]]) -> _Handler:
    async def handler(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if not _is_open(ctx):
            return await call_next(ctx)
        with _answered(), discreet(ctx.method):
            return await method(ctx)

    return handler


@contextmanager
def _answered() -> Generator[None]:
    """In here, a refusal of ours is raised as the SDK knows it."""
    try:
        yield
    except (RpcError, TasksError) as exc:
        raise to_mcp_error(exc) from exc
