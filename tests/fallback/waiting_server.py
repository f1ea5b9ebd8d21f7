"""A server whose calls wait for their tools and ask meanwhile, and answer with the task's id when the time is over.

    python -m tests.fallback.waiting_server stdio

The smallest thing that uses `CallQuestions` as an open call does. Beside its tools it answers to a few names by which a
test looks at tasks and meddles with them: `wait`, `cancel`, `answer`, `questions`, `unfinished`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams

from harness.rpc import PATIENCE
from harness.server import QUICK, Desk, Name
from harness.serving import serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.engines import LocalEngine
from mcp_tasks.fallback.questions import CallQuestions, asked_by
from mcp_tasks.legacy.client_tasks import elicit_as_task
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import Actor, TaskRecord, TaskStatus
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.sdk import RequestContext, caller_of, task_request
from mcp_tasks.stores.memory import MemoryStore
from tests.legacy.asking_server import build_asking

SOMEBODY = Actor("client", None)


class WaitingCalls:
    """Answers the calls of a server's tools with what its tasks come to."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self.runtime = runtime

    async def __call__(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        params = CallToolRequestParams.model_validate(dict(ctx.params or {}), by_name=False)
        arguments = params.arguments or {}
        match params.name:
            case "questions":
                return _said("none" if asked_by(self.runtime).is_empty else "some")
            case "unfinished":
                return _said(" ".join(run.record.id for run in self.runtime.runs()))
            case "wait":
                record = await self.runtime.find(arguments["task_id"])
            case "cancel":
                record = await self.runtime.find(arguments["task_id"])
                return _said((await self.runtime.cancel(record, "as told", actor=SOMEBODY)).status.value)
            case "answer":
                return await self._answer(arguments)
            case _:
                caller = caller_of(ctx)
                request = task_request(params, ctx, caller)
                record = await self.runtime.launch(request, owner=None, retention=timedelta(minutes=1))
        return await self._wait(record, ctx, cast("Mapping[str, Any]", ctx.meta or {}).get("seconds", PATIENCE))

    async def _answer(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        record = await self.runtime.find(arguments["task_id"])
        [key] = record.inputs.outstanding
        answer = {"action": "accept", "content": {"name": arguments["name"]}}
        await self.runtime.answer(record, {key: answer}, actor=SOMEBODY)
        return _said("answered")

    async def _wait(self, record: TaskRecord, ctx: RequestContext, seconds: float) -> dict[str, Any]:
        questions = CallQuestions(self.runtime, ctx)

        def over(seen: TaskRecord) -> bool:
            questions.look(seen)
            return seen.is_final or (bool(seen.inputs.outstanding) and not questions.reaches(seen))

        await self.runtime.wait_until(record.id, over, timedelta(seconds=seconds))
        await questions.leave()
        seen = await self.runtime.find(record.id)
        outcome = await self.runtime.outcome(record.id) if seen.is_final else None
        if outcome is None:
            return _said(f"{seen.status.value} {seen.id}")
        result = decode_json(outcome.body)
        return _said(f"{result['code']} {result['message']}") if seen.status is TaskStatus.FAILED else result


def _said(text: str) -> dict[str, Any]:
    # As every tool here that returns text has it in its output schema.
    structured = {"result": text}
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


@asynccontextmanager
async def waiting_server(desk: Desk | None = None) -> AsyncGenerator[tuple[MCPServer[Any], TaskRuntime]]:
    """The server, and what its calls run in."""
    tasks = Tasks("memory://", settings=replace(QUICK, look_interval=timedelta(seconds=0.1)))
    server = build_asking(tasks, desk)

    @server.tool()
    @tasks.task()
    async def ask_as_task(ctx: Context) -> str:
        """Ask as a task of the client, if it has any."""
        answer = await (await elicit_as_task(ctx, "What is your name?", Name)).result()
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    runtime = await tasks.runtime_for(
        server, store=MemoryStore(), engine=LocalEngine(), clock=lambda: datetime.now(UTC)
    )
    server.middleware.insert(0, WaitingCalls(runtime))
    await runtime.start()
    try:
        yield server, runtime
    finally:
        await runtime.stop()


async def main() -> None:
    """Serve the pipes of this process."""
    async with waiting_server() as (server, _):
        await serve_stdio(server)


if __name__ == "__main__":
    asyncio.run(main())
