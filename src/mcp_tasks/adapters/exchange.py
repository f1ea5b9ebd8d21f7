"""The POST that a request came in over Streamable HTTP, where somebody watches it, and whether there is one at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from starlette.types import Receive, Scope

from mcp_tasks.adapters.era import RequestContext

_EXCHANGE: Final = "mcp_tasks.exchange"
"""Where in the scope of a POST its exchange is found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One POST and its answer.

    Attributes:
        can_resume: Whether a client that left can still come back for the rest of the answer.
        over: Set when the answer has been sent, or the SDK has noticed that the client has left.
        receive: What tells that the client has left, where the SDK does not look: it does so only while it streams.
    """

    can_resume: bool
    receive: Receive | None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ended(self) -> None:
        """Return when it is over."""
        if self.receive is None:
            await self.over.wait()
            return
        while (await self.receive())["type"] != "http.disconnect":
            # The rest of the request; the SDK has read all that there is.
            pass


def watch_exchange(scope: Scope, exchange: Exchange) -> None:
    """Let the handler of a POST know of its exchange."""
    scope[_EXCHANGE] = exchange


def exchange_of(ctx: RequestContext) -> Exchange | None:
    """The POST that a request came in; None if it is not known when that is over."""
    scope: Any = getattr(ctx.request, "scope", None)
    return None if scope is None else scope.get(_EXCHANGE)


def http_session_of(ctx: RequestContext) -> str | None:
    """The Streamable HTTP session of a message, whose streams are watched; None for any other."""
    # Only where the SDK has checked the header: elsewhere it is whatever a client makes of it.
    return None if exchange_of(ctx) is None else _session_header(ctx)


def is_pipe(ctx: RequestContext) -> bool:
    """Whether a message came over a connection that carries everything in both directions, for as long as it lasts."""
    return _session_header(ctx) is None


def _session_header(ctx: RequestContext) -> str | None:
    headers: Any = getattr(ctx.request, "headers", None)
    return None if headers is None else headers.get(MCP_SESSION_ID_HEADER)
