"""`ListChanges`: one notification for many changes of a list (debouncing), for clients of both protocol versions.

    changes = ListChanges()
    server = MCPServer("name", **changes.wiring(), **tasks.wiring())

    server.add_tool(...)                    # a hundred of them
    await ctx.notify_tools_changed()        # after each, if you like: clients get one notification

The SDK has a bus for clients that listen (2026-07-28). This is such a bus with a window in front of it: events that are
published while the window is open go out once, when it closes. The window opens with the first change and is not
moved by the next, so endless changes are sent too, and the last one always is.

Older clients do not listen; they get notifications on their session. Each session has one asyncio task for that, which
handles its `notifications/initialized`: the SDK ends it with the connection, so nothing is sent afterwards.
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
    """The arguments of an `MCPServer` with debounced changes: `MCPServer("name", **changes.wiring())`."""

    subscriptions: SubscriptionBus
    middleware: Sequence[ServerMiddleware[Any]]


class ListChanges:
    """Tells clients that tools, prompts or resources were added or removed: once for all changes within a window.

    It is a `SubscriptionBus`, so `ctx.notify_tools_changed()` and its kin publish on it; without a `ctx`, so does
    `await changes.publish(ToolsListChanged())`. Equal events within the window are one. Events reach clients that
    listen (2026-07-28) and every open session of older clients, whose handshake announces them. The SDK sends
    `ctx.session.send_tool_list_changed()` of a tool to its own session at once.

    Args:
        bus: Where events go after the window; the SDK's bus of one process unless you have one that spans several.
        window: For how long changes are collected. Zero collects events that are published without a pause.

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

    def wiring(self, *, middleware: Sequence[ServerMiddleware[Any]] = ()) -> ChangesWiring:
        """The arguments of an `MCPServer`: `MCPServer("name", **changes.wiring(), **tasks.wiring())`.

        Args:
            middleware: The server's other middleware.
        """
        return {"subscriptions": self, "middleware": [self.middleware, *middleware]}

    def attach(self, server: Server[Any]) -> None:
        """The same for a low-level `Server`. Call it once, before the server runs; it serves `subscriptions/listen`."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, ListenHandler(self))
        server.middleware.append(self.middleware)

    async def publish(self, event: ServerEvent) -> None:
        """Send an event when the window closes; opens a window if none is open."""
        self._pending[event] = None
        if self._closing is None or self._closing.done():
            # In an empty context: it is neither part of the tool that published nor cancelled with it.
            self._closing = asyncio.get_running_loop().create_task(self._close_window(), context=Context())

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Call a listener with each event that goes out."""
        return self._bus.subscribe(listener)

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Announce notifications in older handshakes, and send them while such a session is open."""
        if ctx.method == "initialize":
            result = await call_next(ctx)
            # Without sessions (stateless HTTP) notifications cannot be sent.
            return _with_list_changed(result) if ctx.session.can_send_request else result
        if ctx.method == "notifications/initialized" and ctx.request_id is None:
            return await self._serve_session(ctx, call_next)
        return await call_next(ctx)

    async def _close_window(self) -> None:
        try:
            await anyio.sleep(self._window)
        finally:
            # Also when the process stops meanwhile: a later start has changes of its own.
            events, self._pending, self._closing = self._pending, {}, None
        for event in events:
            try:
                await self._bus.publish(event)
            except Exception:
                logger.error("could not send %s to clients", type(event).__name__, exc_info=quietly())

    async def _serve_session(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        # The same object for every message of a connection; none without a handshake.
        client = ctx.session.client_params
        if client is None or id(client) in self._sessions:
            return await call_next(ctx)
        self._sessions.add(id(client))
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._tell, ctx.session)
                # Beside it, not after it: other middleware may handle this notification as long as the session lives.
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
                # Taken before it is sent: a change while a slow client reads is sent again.
                events, changed = changed, {}
                for event in events:
                    match event:
                        case ToolsListChanged():
                            await session.send_tool_list_changed()
                        case PromptsListChanged():
                            await session.send_prompt_list_changed()
                        case ResourcesListChanged():
                            await session.send_resource_list_changed()
                        case _:
                            # The content of a resource: older clients subscribe to its URI at the server.
                            pass
        finally:
            forget()


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
