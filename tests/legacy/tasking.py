"""A client of the tasks of 2025-11-25 over a plain session, for tests that need no streams as `harness.older` has."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from harness.http import HttpWire, initialize
from harness.older import RELATED
from harness.rpc import Reply
from harness.schema import check_legacy_result

ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}

__all__ = ["ASKABLE", "RELATED", "OldTasks", "Session", "over_http"]


class Session(Protocol):
    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply: ...


class OldTasks:
    def __init__(self, session: Session) -> None:
        self.session = session

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        return await self.session.ask(method, params)

    async def try_create(self, tool: str, arguments: Mapping[str, Any] | None = None, **task: Any) -> Reply:
        return await self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), "task": task})

    async def get(self, task_id: str) -> dict[str, Any]:
        task = (await self.ask("tasks/get", {"taskId": task_id})).result
        check_legacy_result("GetTaskResult", task)
        assert task["taskId"] == task_id
        return task

    async def result(self, task_id: str) -> dict[str, Any]:
        result = (await self.ask("tasks/result", {"taskId": task_id})).result
        assert result["_meta"][RELATED] == {"taskId": task_id}
        return result

    async def listed(self) -> list[str]:
        return [task["taskId"] for task in (await self.ask("tasks/list")).result["tasks"]]


async def over_http(wire: HttpWire, capabilities: Mapping[str, Any] = ASKABLE) -> OldTasks:
    session, _ = await initialize(wire, capabilities)
    return OldTasks(session)
