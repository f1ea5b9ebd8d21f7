"""The tasks methods of the 2025-11-25 wire by hand, over any way to a server, with answers checked by the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import anyio

from harness.http import HttpWire, LegacyHttpWire, initialize
from harness.rpc import PATIENCE, Reply, hello, legacy_request
from harness.schema import check_legacy_result
from harness.stdio import StdioWire

RELATED: Final = "io.modelcontextprotocol/related-task"
ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}


class Session(Protocol):
    """A client's connection."""

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a request and give its answer."""
        ...


class StdioSession:
    """The 2025-11-25 wire over pipes."""

    def __init__(self, wire: StdioWire) -> None:
        self._wire = wire

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a request and give its answer."""
        return await self._wire.send(legacy_request(method, params))


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

    async def create(self, tool: str, arguments: Mapping[str, Any] | None = None, **task: Any) -> dict[str, Any]:
        """The task of a call."""
        created = (await self.try_create(tool, arguments, **task)).result
        check_legacy_result("CreateTaskResult", created)
        return created["task"]

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

    async def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; gives what it is then."""
        task = (await self.ask("tasks/cancel", {"taskId": task_id})).result
        check_legacy_result("CancelTaskResult", task)
        return task

    async def page(self, cursor: str | None = None) -> dict[str, Any]:
        """One page of the list."""
        page = (await self.ask("tasks/list", {} if cursor is None else {"cursor": cursor})).result
        check_legacy_result("ListTasksResult", page)
        return page

    async def listed(self) -> list[str]:
        """The ids of all tasks that are listed, over all pages."""
        page = await self.page()
        ids = [task["taskId"] for task in page["tasks"]]
        while "nextCursor" in page:
            page = await self.page(page["nextCursor"])
            ids += [task["taskId"] for task in page["tasks"]]
        return ids

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """Poll until the task has one of the statuses."""
        with anyio.fail_after(PATIENCE):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] in ("working", "input_required"), task
                await anyio.sleep(0.005)
        return task


async def over_http(wire: HttpWire, capabilities: Mapping[str, Any] = ASKABLE) -> OldTasks:
    """A client with a session over Streamable HTTP."""
    session, _ = await initialize(wire, capabilities)
    return OldTasks(session)


def without_session(wire: HttpWire) -> OldTasks:
    """A client of a server that has no sessions."""
    return OldTasks(LegacyHttpWire(wire, None))


async def over_stdio(wire: StdioWire, capabilities: Mapping[str, Any] = ASKABLE) -> tuple[OldTasks, dict[str, Any]]:
    """A client over pipes, and the answer to its handshake."""
    session = StdioSession(wire)
    welcome = await session.ask("initialize", hello(capabilities))
    await wire.notify("notifications/initialized")
    return OldTasks(session), welcome.result
