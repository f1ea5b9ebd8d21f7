"""Calls of the session that become tasks although the session knows of none: `client.call_tool`, as it is.

Such a call does not go out as it is. The tool is called as a task, the task is seen to its end, and the session gets
the tool's result as the answer to its call. Giving the call up, by a time-out or otherwise, gives up the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCNotification, JSONRPCRequest, RequestId

from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import TasksError
from mcp_tasks.legacy.client.connection import Connection

Outcome: TypeAlias = Callable[[JSONRPCRequest], Awaitable[JsonObject | None]]
"""Sees a call to its end as a task: the tool's result, or None if the tool takes no tasks."""


class DrivenCalls:
    """The calls of one session that are under way as tasks."""

    def __init__(self, wire: Connection, outcome: Outcome) -> None:
        self._wire = wire
        self._outcome = outcome
        self._calls: dict[RequestId, asyncio.Task[None]] = {}

    def begin(self, request: JSONRPCRequest) -> None:
        """Take a call over."""
        self._calls[request.id] = self._wire.spawn(self._drive(request))

    def cancelled(self, notification: JSONRPCNotification) -> bool:
        """The session gives a request up; whether it is one of ours."""
        call = self._calls.get((notification.params or {}).get("requestId", ""))
        if call is None:
            return False
        call.cancel()
        return True

    async def _drive(self, request: JSONRPCRequest) -> None:
        try:
            answer = await self._answer(request)
        finally:
            del self._calls[request.id]
        if answer is None:
            await self._wire.forward(request)
        else:
            await self._wire.answer(request.id, answer)

    async def _answer(self, request: JSONRPCRequest) -> JsonObject | ErrorData | None:
        try:
            return await self._outcome(request)
        except MCPError as exc:
            return exc.error
        except TasksError as exc:
            # The session has room for a JSON-RPC error only; which of ours it is, is in its data.
            return ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"mcp-tasks/error": type(exc).__name__})
        except Exception as exc:
            return ErrorData(code=INTERNAL_ERROR, message=f"the call could not be seen to its end: {exc!r}")
