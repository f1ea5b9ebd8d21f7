# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Written for another `mcp` than the one that is installed beside our own tests.
"""The client of the Python SDK 1.x with its experimental tasks: `python older_sdk.py PLAN`."""

from __future__ import annotations

import asyncio
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from common import PARKED, PLAN, filled_in, related, visit
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client

warnings.simplefilter("ignore", DeprecationWarning)

asked: dict[str | None, list[str]] = defaultdict(list)
"""By task: the questions that came about it."""
heard: dict[str, list[str]] = defaultdict(list)
"""By task: the statuses that were pushed."""
silent = asyncio.Event()
"""Set when questions shall stay without an answer."""
unanswered = asyncio.Event()
"""Set when one does."""


async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    about = params.model_dump(by_alias=True).get("_meta")
    asked[related(about)].append(params.message)
    if silent.is_set():
        unanswered.set()
        await asyncio.Event().wait()
    if "keep.txt" in params.message:
        return types.ElicitResult(action="decline")
    return types.ElicitResult(action="accept", content=filled_in(params.requestedSchema))


async def hear(message: Any) -> None:
    root = getattr(message, "root", None)
    if isinstance(root, types.TaskStatusNotification):
        heard[root.params.taskId].append(root.params.status)


@asynccontextmanager
async def connected(*, answers: bool = True) -> AsyncIterator[tuple[ClientSession, types.InitializeResult]]:
    options: dict[str, Any] = {"elicitation_callback": answer} if answers else {}
    async with streams() as (read, write), ClientSession(read, write, message_handler=hear, **options) as session:
        yield session, await session.initialize()


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[Any, Any]]:
    if "url" in PLAN:
        async with streamable_http_client(PLAN["url"]) as opened:
            yield opened[0], opened[1]
    else:
        command, *arguments = PLAN["command"]
        async with stdio_client(StdioServerParameters(command=command, args=arguments, cwd=PLAN.get("cwd"))) as pair:
            yield pair


def shown(result: types.CallToolResult) -> dict[str, Any]:
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return {"text": block.text, "isError": result.isError}


async def refusal(attempt: Awaitable[Any]) -> dict[str, Any]:
    try:
        return {"accepted": str(await attempt)}
    except McpError as exc:
        return {"code": exc.error.code, "message": exc.error.message}


class Visitor:
    def __init__(self, session: ClientSession, greeting: types.InitializeResult) -> None:
        self.session = session
        self.tasks = session.experimental
        self.greeting = greeting

    def scenarios(self) -> dict[str, Callable[[], Awaitable[dict[str, Any]]]]:
        named = (
            *(self.handshake, self.plain, self.create, self.result, self.blocked, self.cancel, self.cancelled_result),
            *(self.question, self.two_questions, self.question_first, self.question_declined, self.question_pushed),
            *(self.list, self.failed, self.protocol_error, self.unknown, self.undeclared),
            *(self.required_plainly, self.forbidden_as_task),
        )
        return {scenario.__name__: scenario for scenario in named}

    async def handshake(self) -> dict[str, Any]:
        tools = (await self.session.list_tools()).tools
        capability = self.greeting.capabilities.tasks
        return {
            "tasks": None if capability is None else capability.model_dump(exclude_none=True),
            "support": {tool.name: tool.execution and tool.execution.taskSupport for tool in tools},
        }

    async def plain(self) -> dict[str, Any]:
        return shown(await self.session.call_tool("greet", {"name": "Ada"}))

    async def create(self) -> dict[str, Any]:
        return {"task": (await self._created("slow_compute", seconds=5, label="create")).model_dump(mode="json")}

    async def result(self) -> dict[str, Any]:
        task = await self._created("slow_compute", seconds=3, label="result")
        states = [state async for state in self.tasks.poll_task(task.taskId)]
        return {
            "statuses": [state.status for state in states],
            "messages": [state.statusMessage for state in states if state.statusMessage is not None],
            "heard": heard[task.taskId],
            **await self._result(task.taskId),
        }

    async def blocked(self) -> dict[str, Any]:
        return await self._result((await self._created("slow_compute", seconds=1, label="blocked")).taskId)

    async def question(self) -> dict[str, Any]:
        return await self._question("a.txt")

    async def two_questions(self) -> dict[str, Any]:
        return await self._asked("multi_input")

    async def question_first(self) -> dict[str, Any]:
        return await self._asked("test_tool_with_task")

    async def question_declined(self) -> dict[str, Any]:
        return await self._question("keep.txt")

    async def question_pushed(self) -> dict[str, Any]:
        """It asks for the result only at the end; the question has to find it without that."""
        task = await self._created("confirm_delete", filename="pushed.txt")
        await self._until(task.taskId, "completed")
        return {"asked": asked[task.taskId], **await self._result(task.taskId)}

    async def cancel(self) -> dict[str, Any]:
        task_id = (await self._created("park", seconds=PARKED)).taskId
        before = (await self.tasks.get_task(task_id)).status
        answer = (await self.tasks.cancel_task(task_id)).status
        after = (await self.tasks.get_task(task_id)).status
        again = await refusal(self.tasks.cancel_task(task_id))
        return {"before": before, "answer": answer, "after": after, "again": again}

    async def cancelled_result(self) -> dict[str, Any]:
        task_id = (await self._created("park", seconds=PARKED)).taskId
        waiting = asyncio.create_task(refusal(self._result(task_id)))
        await asyncio.sleep(0.2)
        await self.tasks.cancel_task(task_id)
        return await waiting

    async def list(self) -> dict[str, Any]:
        made = await asyncio.gather(
            *(self._created("slow_compute", seconds=0, label=f"list {number}") for number in range(12))
        )
        ids, pages = await self._listed()
        missing = [task for task in made if task.taskId not in ids]
        return {"missing": len(missing), "pages": pages, "twice": len(ids) - len(set(ids))}

    async def failed(self) -> dict[str, Any]:
        task = await self._created("failing_job")
        state = await self._until(task.taskId, "completed", "failed")
        shown = await self._result(task.taskId)
        return {"status": state.status, "statusMessage": state.statusMessage, **shown}

    async def protocol_error(self) -> dict[str, Any]:
        task = await self._created("protocol_error_job")
        state = await self._until(task.taskId, "completed", "failed")
        refused = await refusal(self._result(task.taskId))
        return {"status": state.status, "statusMessage": state.statusMessage, **refused}

    async def unknown(self) -> dict[str, Any]:
        return await refusal(self.tasks.get_task("no-such-task"))

    async def required_plainly(self) -> dict[str, Any]:
        return await refusal(self.session.call_tool("failing_job"))

    async def forbidden_as_task(self) -> dict[str, Any]:
        return await refusal(self._created("greet", name="Ada"))

    async def undeclared(self) -> dict[str, Any]:
        async with connected(answers=False) as (session, greeting):
            other = Visitor(session, greeting)
            task = await other._created("confirm_delete", filename="x")
            return (await other._until(task.taskId, "completed", "failed")).model_dump(mode="json")

    async def leave(self) -> dict[str, Any]:
        running = await self._created("slow_compute", seconds=3, label="left")
        ended = await self._created("slow_compute", seconds=0, label="ended")
        await self._until(ended.taskId, "completed")
        silent.set()
        question = await self._created("confirm_delete", filename="left.txt")
        # Nothing else is received while a callback of this client is at work.
        await unanswered.wait()
        return {"running": running.taskId, "ended": ended.taskId, "question": question.taskId}

    async def resume(self, left: dict[str, str]) -> dict[str, Any]:
        before = (await self.tasks.get_task(left["running"])).status
        keys = ("running", "ended", "question")
        results = await asyncio.gather(*(self._result(left[key]) for key in keys))
        ids, _ = await self._listed()
        return {
            "before": before,
            **dict(zip(keys, results, strict=True)),
            "asked": asked[left["question"]],
            "listed": all(left[key] in ids for key in keys),
        }

    async def _created(self, name: str, /, **arguments: object) -> types.Task:
        return (await self.tasks.call_tool_as_task(name, arguments)).task

    async def _until(self, task_id: str, *statuses: str) -> types.GetTaskResult:
        state = await self.tasks.get_task(task_id)
        while state.status not in statuses:
            await asyncio.sleep(0.1)
            state = await self.tasks.get_task(task_id)
        return state

    async def _result(self, task_id: str) -> dict[str, Any]:
        result = await self.tasks.get_task_result(task_id, types.CallToolResult)
        return {**shown(result), "related": related(result.meta) == task_id}

    async def _question(self, filename: str) -> dict[str, Any]:
        return await self._asked("confirm_delete", filename=filename)

    async def _asked(self, tool: str, **arguments: object) -> dict[str, Any]:
        task = await self._created(tool, **arguments)
        # As its own example does: poll until it needs input, and ask for the result then.
        state = await self._until(task.taskId, "input_required", "completed")
        return {"statuses": [state.status], **await self._result(task.taskId), "asked": asked[task.taskId]}

    async def _listed(self) -> tuple[list[str], int]:
        ids: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            page = await self.tasks.list_tasks(cursor)
            ids += [task.taskId for task in page.tasks]
            cursor, pages = page.nextCursor, pages + 1
        return ids, pages


async def main() -> None:
    async with connected() as (session, greeting):
        visitor = Visitor(session, greeting)
        left = PLAN.get("left")
        await visit(version("mcp"), {} if left else visitor.scenarios(), visitor.leave, visitor.resume)


if __name__ == "__main__":
    asyncio.run(main())
