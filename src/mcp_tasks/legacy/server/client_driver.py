"""Driving a task that a client hosts: create it, poll it, fetch its result. The requestor's side of 2025-11-25.

A client is a stranger: what it says of its task is checked. It is polled at the interval that it suggests, however long
that is, and from the first time on: the answer to the creation says how the task is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT

from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidResponse, TaskWasCancelled, UnknownTask
from mcp_tasks.legacy.shapes import plain_data, read_task
from mcp_tasks.wire.parse import TaskSnapshot
from mcp_tasks.wire.render import milliseconds

ANSWER_LIMIT: Final = 30.0
"""Seconds for a client to answer what it can answer at once: everything but the request itself."""

MAX_SILENCES: Final = 3
"""How many looks in a row may go unanswered before the client counts as gone."""

DEFAULT_POLL: Final = timedelta(seconds=1)
FASTEST_POLL: Final = timedelta(milliseconds=50)
"""Whatever a client suggests, this is no busy loop."""

MAX_PAGES: Final = 1000
"""Pages of a listing: a client that never stops turning them is not followed further."""


class Send(Protocol):
    """Sends a request to the client, and gives its result as it came."""

    async def __call__(self, method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]: ...


class Driver:
    """Drives the tasks that one client hosts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._seen: dict[str, tuple[TaskSnapshot, float]] = {}

    async def create(self, method: str, params: Mapping[str, Any], ttl: timedelta | None) -> TaskSnapshot:
        """Have the client take a request as a task.

        Raises:
            InvalidResponse: It answered with something else.
            MCPError: It refused.
        """
        result = await self._send(method, {**params, "task": task_params(ttl)}, ANSWER_LIMIT)
        created = result.get("task")
        if not isinstance(created, Mapping):
            raise InvalidResponse(f"the client declared tasks for {method}, and answered with something else")
        return self._saw(_checked(result["task"]))

    async def get(self, task_id: str) -> TaskSnapshot:
        """The task as it is now.

        Raises:
            UnknownTask: The client does not have it.
        """
        return self._saw(_same(task_id, await self._about(task_id, "tasks/get")))

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel the task.

        Raises:
            UnknownTask: The client does not have it.
            MCPError: The client refused, for one because it has ended.
        """
        try:
            return self._saw(_same(task_id, await self._send("tasks/cancel", {"taskId": task_id}, ANSWER_LIMIT)))
        except MCPError as exc:
            if exc.error.code != INVALID_PARAMS:
                raise
            # The same code for one that is not there and one that has ended: a look tells them apart.
            await self.get(task_id)
            raise

    async def list(self) -> AsyncGenerator[TaskSnapshot]:
        """The tasks that the client hosts for this server, a page after the other."""
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._send("tasks/list", {} if cursor is None else {"cursor": cursor}, ANSWER_LIMIT)
            tasks: object = page.get("tasks")
            if not isinstance(tasks, list):
                raise InvalidResponse("the client answered tasks/list without tasks")
            for task in cast("list[object]", tasks):
                yield _checked(task)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return

    async def result(self, task_id: str) -> dict[str, Any]:
        """The result of the request, once the task has ended.

        Raises:
            UnknownTask: The client does not have the task.
            TaskWasCancelled: It was cancelled.
            MCPError: The request ended in this error; or the client is gone.
        """
        if task_id not in self._seen:
            await self.get(task_id)
        state, at = self._seen[task_id]
        while not state.is_final:
            await anyio.sleep(at + pause(state).total_seconds() - anyio.current_time())
            await self._look(task_id)
            state, at = self._seen[task_id]
        if state.status is TaskStatus.CANCELLED:
            raise TaskWasCancelled(task_id, state.message)
        try:
            return await self._send("tasks/result", {"taskId": task_id}, ANSWER_LIMIT)
        except MCPError as exc:
            raise MCPError(exc.error.code, exc.error.message, plain_data(exc.error.data)) from exc

    def _saw(self, state: TaskSnapshot) -> TaskSnapshot:
        self._seen[state.id] = (state, anyio.current_time())
        return state

    async def _look(self, task_id: str) -> TaskSnapshot:
        """Look at the task; one lost answer is not the end."""
        for _ in range(MAX_SILENCES - 1):
            try:
                return await self.get(task_id)
            except MCPError as exc:
                if exc.error.code != REQUEST_TIMEOUT:
                    raise
        return await self.get(task_id)

    async def _about(self, task_id: str, method: str) -> dict[str, Any]:
        # No related-task: 2025-11-25 has the id in the params as the only truth.
        try:
            return await self._send(method, {"taskId": task_id}, ANSWER_LIMIT)
        except MCPError as exc:
            if exc.error.code == INVALID_PARAMS:
                raise UnknownTask(task_id, "The client has no such task") from exc
            raise


def task_params(ttl: timedelta | None) -> dict[str, Any]:
    """What makes a request one for a task."""
    return {} if ttl is None else {"ttl": milliseconds(ttl)}


def _same(task_id: str, data: Any) -> TaskSnapshot:
    state = _checked(data)
    if state.id != task_id:
        raise InvalidResponse("the client answered with another task than the one it was asked for")
    return state


def _checked(data: object) -> TaskSnapshot:
    try:
        return read_task(data)
    except InvalidResponse as exc:
        raise InvalidResponse("the client answered with something that is not a valid task") from exc


def pause(state: TaskSnapshot) -> timedelta:
    """How long to wait until the next look: as the client suggests."""
    return max(state.poll_interval or DEFAULT_POLL, FASTEST_POLL)
