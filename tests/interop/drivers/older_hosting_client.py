# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""A client of the Python SDK 1.x that hosts elicitation as tasks, against our server: says what happened, as JSON.

python older_hosting_client.py COMMAND ARGUMENT...
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.experimental.task_handlers import ExperimentalTaskHandlers
from mcp.client.stdio import stdio_client
from mcp.shared.experimental.tasks.in_memory_task_store import InMemoryTaskStore

warnings.simplefilter("ignore", DeprecationWarning)


class Host:
    def __init__(self, group: TaskGroup) -> None:
        self.asked: list[str] = []
        self._group = group
        self._store = InMemoryTaskStore()

    def handlers(self) -> ExperimentalTaskHandlers:
        return ExperimentalTaskHandlers(
            get_task=self.get, get_task_result=self.result, list_tasks=self.list, augmented_elicitation=self.elicit
        )

    async def elicit(self, context: Any, params: Any, metadata: Any) -> Any:
        self.asked.append(params.message)
        task = await self._store.create_task(metadata)
        self._group.start_soon(self._answer, task.taskId)
        return types.CreateTaskResult(task=task)

    async def _answer(self, task_id: str) -> None:
        await anyio.sleep(0.3)
        await self._store.store_result(task_id, types.ElicitResult(action="accept", content={"ok": True}))
        await self._store.update_task(task_id, status="completed")

    async def get(self, context: Any, params: Any) -> Any:
        task = await self._store.get_task(params.taskId)
        if task is None:
            return types.ErrorData(code=-32602, message="Task not found")
        return types.GetTaskResult(**task.model_dump())

    async def result(self, context: Any, params: Any) -> Any:
        result = await self._store.get_result(params.taskId)
        return types.GetTaskPayloadResult.model_validate(result.model_dump(by_alias=True))

    async def list(self, context: Any, params: Any) -> Any:
        tasks, cursor = await self._store.list_tasks(None)
        return types.ListTasksResult(tasks=tasks, nextCursor=cursor)


async def plain(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


async def main() -> None:
    command, *arguments = sys.argv[1:]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    outcomes: dict[str, Any] = {}
    async with anyio.create_task_group() as group:
        host = Host(group)
        async with (
            stdio_client(server) as (read, write),
            ClientSession(
                read, write, elicitation_callback=plain, experimental_task_handlers=host.handlers()
            ) as session,
        ):
            await session.initialize()

            async def call(tool: str, **given: Any) -> str:
                return " ".join(block.text for block in (await session.call_tool(tool, given)).content)

            outcomes["approve"] = await call("approve", question="Approve?")
            task_id = await call("begin", question="Later?")
            outcomes["listed"] = task_id in await call("listed")
            outcomes["fetch"] = await call("fetch", task_id=task_id, seconds=20)
            created = await session.experimental.call_tool_as_task("publish", {}, ttl=60_000)
            result = await session.experimental.get_task_result(created.task.taskId, types.CallToolResult)
            outcomes["in_task"] = result.content[0].text
            outcomes["asked"] = host.asked
        group.cancel_scope.cancel()
    print(json.dumps(outcomes))


anyio.run(main)
