"""`ListChanges`: telling clients of both eras that a list has changed, once for many changes (debouncing).

    changes = ListChanges()
    server = MCPServer("name", **changes.wiring(), **tasks.wiring())

    server.add_tool(...)                    # a hundred of them
    await ctx.notify_tools_changed()        # after each, if you like: clients hear of it once

The SDK has a bus for clients that listen (2026-07-28). This is such a bus with a window in front of it: what is
published while the window is open goes out once, when it closes. The window opens with the first change and is not
moved by the next, so changes that never end are told of too, and the last one always is.

Older clients do not listen; they are told on their session. Each session has one asyncio task for that, which is the
one that handles its `notifications/initialized`: the SDK ends it with the connection, so nothing is sent afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypedDict, cast

import anyio
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams

from mcp_tasks.model.values import check_duration
from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

# Long enough for a loop that adds tools one by one, too short for a person to notice.
_WINDOW: Final = timedelta(milliseconds=50)
_LONGEST: Final = timedelta(minutes=1)
_LISTS: Final = ("tools", "prompts", "resources")


class ChangesWiring(TypedDict):
    """The arguments of an `MCPServer` whose changes are told once: `MCPServer("name", **changes.wiring())`."""

    subscriptions: SubscriptionBus
    middleware: Sequence[ServerMiddleware[Any]]


class ListChanges:
    """Tells clients that tools, prompts or resources came or went: once for all changes within a window.

    It is a `SubscriptionBus`, so `ctx.notify_tools_changed()` and its kin publish on it; where there is no `ctx`, so
    does `await changes.publish(ToolsListChanged())`. Equal events within the window are one. What is published reaches
    clients that listen (2026-07-28) and every open session of older ones, which are told in the handshake that it will.
    What a tool sends by `ctx.session.send_tool_list_changed()` goes to its own session at once, as the SDK has it.

    Args:
        bus: Where events go after the window; the SDK's bus of one process unless you have one that spans several.
        window: For how long changes are collected. Zero collects what is published without a pause.

    Raises:
        InvalidOption: The window is not a `timedelta`, is negative, or is longer than a minute.
    """

    def __init__(self, bus: SubscriptionBus | None = None, *, window: timedelta = _WINDOW) -> None:
        self._window = check_duration("window", window, zero=True, longest=_LONGEST).total_seconds()
        self._bus: SubscriptionBus = InMemorySubscriptionBus() if bus is None else bus
        # In the order of their first publishing, each once.
        self._pending: dict[ServerEvent, None] = {}
        self._closing: asyncio.Task[None] | None = None
        self._sessions: set[int] = set()

    # What the author calls

    def wiring(self, *, middleware: Sequence[ServerMiddleware[Any]] = ()) -> ChangesWiring:
        """What an `MCPServer` needs for it: `MCPServer("name", **changes.wiring(), **tasks.wiring())`.

        Args:
            middleware: The server's other middleware.
        """
        return {"subscriptions": self, "middleware": [self.middleware, *middleware]}

    def attach(self, server: Server[Any]) -> None:
        """The same for a low-level `Server`. Call it once, before the server runs; it serves `subscriptions/listen`."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, ListenHandler(self))
        server.middleware.append(self.middleware)

    # What the SDK calls

    async def publish(self, event: ServerEvent) -> None:
        """Tell of a change when the window closes; opens one if none is open."""
        self._pending[event] = None
        if self._closing is None or self._closing.done():
            # In no context: it is neither part of the tool that published nor cancelled with it.
            self._closing = asyncio.get_running_loop().create_task(self._close_window(), context=Context())

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Have a listener called with what goes out."""
        return self._bus.subscribe(listener)

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Says in older handshakes that changes are told of, and tells of them while such a session is open."""
        if ctx.method == "initialize":
            result = await call_next(ctx)
            # Without sessions (stateless HTTP) there is nowhere to send it.
            return _with_list_changed(result) if ctx.session.can_send_request else result
        if ctx.method == "notifications/initialized" and ctx.request_id is None:
            return await self._serve_session(ctx, call_next)
        return await call_next(ctx)

    # The window

    async def _close_window(self) -> None:
        try:
            await anyio.sleep(self._window)
        finally:
            # Also when the process stops meanwhile: what begins after that has its own changes.
            events, self._pending, self._closing = self._pending, {}, None
        for event in events:
            try:
                await self._bus.publish(event)
            except Exception:
                logger.error("clients could not be told of %s", type(event).__name__, exc_info=quietly())

    # Sessions of older clients

    async def _serve_session(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        # The same object for every message of a connection; none without a handshake.
        client = ctx.session.client_params
        if client is None or id(client) in self._sessions:
            return await call_next(ctx)
        self._sessions.add(id(client))
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._tell, ctx.session)
                # Beside it, not after it: others may stay in this notification for as long as the session lives too.
                return await call_next(ctx)
        finally:
            self._sessions.discard(id(client))

    async def _tell(self, session: ServerSession) -> None:
        changed: dict[ServerEvent, None] = {}
        news = anyio.Event()

        def note(event: ServerEvent) -> None:
            changed[event] = None
            news.set()

        forget = self.subscribe(note)
        try:
            while True:
                await news.wait()
                news = anyio.Event()
                # Taken before it is sent: what changes while a slow client reads is told of again.
                events, changed = changed, {}
                for event in events:
                    await _send(session, event)
        finally:
            forget()


async def _send(session: ServerSession, event: ServerEvent) -> None:
    match event:
        case ToolsListChanged():
            await session.send_tool_list_changed()
        case PromptsListChanged():
            await session.send_prompt_list_changed()
        case ResourcesListChanged():
            await session.send_resource_list_changed()
        case _:
            # A resource's content: older clients subscribe to that by its URI, with the server.
            pass


def _with_list_changed(result: HandlerResult) -> HandlerResult:
    """The answer to `initialize`, with `listChanged` for each list that the server has."""
    if not isinstance(result, Mapping):
        return result
    answer = cast("Mapping[str, Any]", result)
    capabilities = dict(answer.get("capabilities") or {})
    for name in _LISTS:
        if capabilities.get(name) is not None:
            capabilities[name] = {**capabilities[name], "listChanged": True}
    return {**answer, "capabilities": capabilities}
