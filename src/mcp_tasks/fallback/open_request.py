"""A request of the SDK that is still open, as the run of its tool sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import NoBackChannelError
from pydantic import BaseModel

from mcp_tasks.adapters.sdk import RequestContext
from mcp_tasks.fallback.relay import ProgressRelay
from mcp_tasks.protocol.idempotency import without_key
from mcp_tasks.tools.open_calls import CloseStream
from mcp_tasks.tools.raw import raw_request


class OpenRequest:
    """What a tool sends, sent where a plain call would send it: an `OpenCall`. To be made where the request is handled.

    Args:
        relay: What keeps the order among the values of progress.
    """

    def __init__(self, ctx: RequestContext, relay: ProgressRelay) -> None:
        self._ctx = ctx
        self._relay = relay
        self.name: str | None = (ctx.params or {}).get("name")
        self.meta: Mapping[str, Any] = without_key(ctx.meta or {})
        self.request: Any = ctx.request
        self.user: Any = auth_context_var.get()
        self.close_stream: CloseStream | None = ctx.close_sse_stream
        self.close_connection_stream: CloseStream | None = ctx.close_standalone_sse_stream

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the call, if its caller asked for any."""
        await self._relay.report(progress, total, message)

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the request's own stream, or on that of its connection; a log entry only if this
        request asked for entries of its level."""
        if method == "notifications/message" and not self._wants(params or {}):
            return
        notification = _Notification(method=method, params=None if params is None else dict(params))
        await self._ctx.session.send_notification(cast(Any, notification), self._ctx.request_id if related else None)

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client on the stream of the call, if its era can be asked there."""
        if not self._ctx.session.can_send_request:
            return False
        try:
            await raw_request(self._ctx.session, "ping", {}, request_id=self._ctx.request_id, timeout=timeout)
        except NoBackChannelError:
            return False
        return True

    def _wants(self, entry: Mapping[str, Any]) -> bool:
        return entry.get("level") in allowed_log_levels(self._ctx.protocol_version, self._ctx.meta)


class _Notification(BaseModel):
    """Any notification: the session sends what is dumped from it."""

    method: str
    params: dict[str, Any] | None
