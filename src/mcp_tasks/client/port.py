"""One task of a server as its handle drives it: the seam between handles and the eras of the protocol.

A handle knows how to wait, what a ledger keeps and who answers questions. What is said to the server for that is the
port's: `client.modern` for 2026-07-28, and whatever `client.eras` passes in for older versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from mcp_types import ErrorData, JSONRPCMessage

from mcp_tasks.client.mailbox import Mailbox
from mcp_tasks.core.json import JsonObject
from mcp_tasks.wire.parse import TaskSnapshot


class TaskPort(Protocol):
    """One task of a server, over one connection.

    Attributes:
        immediate_response: What a server of 2025-11-25 gave the model to read while the task runs.
    """

    immediate_response: str | None

    async def get(self) -> TaskSnapshot:
        """Look at the task, and at its outcome once it has one.

        Raises:
            UnknownTask: The server does not know the task (any more).
            InvalidResponse: The server answered with something that is not a valid task.
            MCPError: The server, or the connection to it, failed.
        """
        ...

    async def state(self) -> TaskSnapshot:
        """As `get`, but a task that has ended may come without its outcome, if that cannot be had now."""
        ...

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Give the server answers to questions of the task, by their keys.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The task asks nothing of the kind, or not over this connection.
            MCPError: The server refuses an answer.
        """
        ...

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Put a question of the task to the client's own callbacks.

        Raises:
            InvalidResponse: It is not a valid question.
            MCPError: The callback refuses.
        """
        ...

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Answer a question with an error, where the protocol version allows that. Whether it does.

        Raises:
            MCPError: The connection has ended.
        """
        ...

    async def cancel(self) -> None:
        """Ask for the task to be cancelled.

        Raises:
            UnknownTask: The server does not know the task (any more).
            UsageError: The server does not cancel tasks.
        """
        ...

    def join(self, box: Mailbox, *, questions: bool) -> AbstractAsyncContextManager[None]:
        """While this is entered, whatever becomes known of the task is put into the box.

        Args:
            questions: Whether somebody is there to answer. Questions of an older server go to one who fetches them,
                and some send each only once.
        """
        ...


Finish: TypeAlias = Callable[[TaskSnapshot, str], Awaitable[JsonObject]]
"""Sees a task that a call became to its end: the task as it was made, the tool's name, and the tool's result."""


class OlderTasks(Protocol):
    """Tasks of an era that the SDK's session does not know, over one connection.

    Attributes:
        finish: Sees the tasks to their ends that the session's own calls become; without it, they become none.
    """

    finish: Finish | None

    @property
    def is_offered(self) -> bool:
        """Whether the server speaks this era, and takes calls of tools as tasks."""
        ...

    @property
    def is_spoken(self) -> bool:
        """Whether the server speaks this era, and has tasks at all."""
        ...

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """As a handler of the wire."""
        ...

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """As a handler of the wire."""
        ...

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        *,
        ttl: timedelta | None,
        timeout: float | None,
        meta: Mapping[str, Any] | None = None,
    ) -> TaskSnapshot | JsonObject | None:
        """Call a tool as a task: the task, the result if the server answered inline, None if the tool takes no tasks.

        Args:
            timeout: Seconds for the server to answer, which is not to end the task.

        Raises:
            MCPError: The call failed.
        """
        ...

    def task(self, task_id: str) -> TaskPort:
        """The task of that id. Nothing is sent."""
        ...

    def tasks(self) -> AsyncIterator[TaskSnapshot]:
        """The tasks that the server lists, without their outcomes.

        Raises:
            UsageError: The server does not list tasks.
        """
        ...
