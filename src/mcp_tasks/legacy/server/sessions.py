"""The sessions of clients: a stand-in that scopes listings and pushes nothing."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from typing import Any

from mcp.server import MCPServer, Server
from mcp.server.context import CallNext

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.core.record import TaskRecord


class Session:
    """One client's connection."""

    def __init__(self) -> None:
        self.id: str = secrets.token_urlsafe(16)
        self._adopted: dict[str, None] = {}

    def follow(self, record: TaskRecord, progress_token: str | int | None = None) -> None:
        """Push what happens to the task from now on."""

    def adopt(self, record: TaskRecord) -> None:
        """Take in a task that was made elsewhere."""
        self._adopted[record.id] = None

    def adopted(self) -> Sequence[str]:
        """The tasks that were taken in, in that order."""
        return list(self._adopted)


class Sessions:
    """The sessions of one server."""

    def __init__(self, parts: EraParts) -> None:
        self._sessions: dict[int, Session] = {}

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts."""

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> None:
        """Serve `notifications/initialized`."""
        await call_next(ctx)

    def of(self, ctx: RequestContext) -> Session | None:
        """The session of a request; None where there are none."""
        params = ctx.session.client_params
        if params is None:
            return None
        session = self._sessions.get(id(params))
        if session is None:
            session = self._sessions[id(params)] = Session()
            weakref.finalize(params, self._sessions.pop, id(params), None)
        return session
