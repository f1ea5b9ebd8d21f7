"""What is needed of a connection to drive tasks over it; a `Wire` of the client has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from mcp_types import ErrorData, JSONRPCMessage, RequestId

from mcp_tasks.wire.parse import TaskSnapshot


class Connection(Protocol):
    """One connection to a server, beside the session."""

    @property
    def is_closed(self) -> bool: ...
    def new_id(self) -> str: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]: ...
    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    async def reply(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None: ...
    async def deliver(self, message: JSONRPCMessage) -> None: ...
    async def forward(self, message: JSONRPCMessage) -> None: ...
    async def answer(self, request_id: RequestId, outcome: Mapping[str, Any] | ErrorData) -> None: ...


class Box(Protocol):
    """Where a wait for a task is told what becomes known of it."""

    def show(self, snapshot: TaskSnapshot) -> None: ...
    def over(self) -> None: ...
