"""A client of the tasks of 2025-11-25 over a plain session, for tests that need no streams as `harness.older` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from harness.http import HttpWire, initialize
from harness.older import RELATED
from harness.rpc import Reply
from harness.schema import check_legacy_result

ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}

__all__ = ["ASKABLE", "RELATED", "OldTasks", "Session", "over_http"]


class Session(Protocol):
    """A client's connection."""

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a request and give its answer."""
        ...


class OldTasks:
    """A client of the older tasks."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a request and give its answer."""
        return await self.session.ask(method, params)

    async def try_create(self, tool: str, arguments: Mapping[str, Any] | None = None, **task: Any) -> Reply:
        """Call a tool as a task; gives whatever is answered."""
        return await self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), "task": task})

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task as it is now."""
        task = (await self.ask("tasks/get", {"taskId": task_id})).result
        check_legacy_result("GetTaskResult", task)
        assert task["taskId"] == task_id
        return task

    async def result(self, task_id: str) -> dict[str, Any]:
        """The result of the call behind a task."""
        result = (await self.ask("tasks/result", {"taskId": task_id})).result
        assert result["_meta"][RELATED] == {"taskId": task_id}
        return result

    async def listed(self) -> list[str]:
        """The ids of the tasks on the first page."""
        return [task["taskId"] for task in (await self.ask("tasks/list")).result["tasks"]]


async def over_http(wire: HttpWire, capabilities: Mapping[str, Any] = ASKABLE) -> OldTasks:
    """A client with a session over Streamable HTTP."""
    session, _ = await initialize(wire, capabilities)
    return OldTasks(session)
