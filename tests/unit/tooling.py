"""A `TaskRuntime` that runs the tools of a server, without the server being served."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mcp.server import MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from mcp_types.version import LATEST_MODERN_VERSION

from harness import stored
from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import JsonObject, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import NOBODY
from mcp_tasks.protocol.errors import describe
from mcp_tasks.runtime import Settings, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.launch import new_task_id
from mcp_tasks.server.tool_host import MCPServerHost, ToolHost
from mcp_tasks.server.tool_runner import OpenCalls, ToolBody
from mcp_tasks.stores import MemoryStore, Store

LIMIT = 5.0
"""Seconds after which a test that waits has failed."""

# No test waits at its end for a tool that waits for the test.
QUICK = Settings(drain_timeout=timedelta(0), stop_timeout=timedelta(seconds=LIMIT), progress_interval=timedelta(0))

CAN_BE_ASKED: JsonObject = {"elicitation": {"form": {}}}
NAMESPACE = "tooling"


def new_server() -> MCPServer[Any]:
    """A server without tools."""
    return MCPServer(NAMESPACE, log_level="CRITICAL")


def call_of(
    tool: str,
    *,
    version: str = LATEST_MODERN_VERSION,
    capabilities: JsonObject = CAN_BE_ASKED,
    info: JsonObject | None = None,
) -> TaskRequest:
    """A call of a tool, by a client that can be asked with forms unless said otherwise."""
    return TaskRequest(
        name=tool, arguments={}, protocol_version=version, client_capabilities=capabilities, client_info=info
    )


def who_is_it() -> InputRequiredResult:
    """A question that a tool asks by returning."""
    schema: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
    question = ElicitRequestFormParams(message="Who is it?", requested_schema=schema)
    return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state="asked")


@asynccontextmanager
async def running_tools(
    source: MCPServer[Any] | ToolHost,
    *,
    store: Store | None = None,
    runs_tools: bool = True,
    policy: ToolPolicy | None = None,
    calls: OpenCalls | None = None,
    new_id: Callable[[], str] = new_task_id,
    **settings: timedelta,
) -> AsyncGenerator[TaskRuntime]:
    """A runtime for the tools of a server, started, and stopped at the end."""
    host = MCPServerHost(source) if isinstance(source, MCPServer) else source
    await host.prepare()

    async def policy_of(method: str, name: str) -> ToolPolicy | None:
        return policy or ToolPolicy()

    runtime = TaskRuntime(
        store=store or MemoryStore(),
        engine=LocalEngine(10),
        body=ToolBody(host, lambda: None, calls),
        policy=policy_of,
        describe=describe,
        clock=lambda: datetime.now(UTC),
        namespace=NAMESPACE,
        settings=replace(QUICK, **settings),
        runs_tools=runs_tools,
        new_id=new_id,
    )
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def all_tasks(runtime: TaskRuntime) -> list[TaskRecord]:
    """Every task that the store has."""
    return await stored.all_tasks(runtime.store, NAMESPACE)


async def outcome_of(runtime: TaskRuntime, task_id: str) -> Any:
    """What the task ended with, and its `_meta`."""
    outcome = await runtime.outcome(task_id)
    assert outcome is not None
    return decode_json(outcome.body), None if outcome.meta is None else decode_json(outcome.meta)


async def until(runtime: TaskRuntime, task_id: str, condition: Callable[[TaskRecord], bool]) -> TaskRecord:
    """The task once the condition holds for it."""
    record = await runtime.wait_until(task_id, condition, timedelta(seconds=LIMIT))
    assert record is not None
    return record


async def until_status(runtime: TaskRuntime, task_id: str, status: TaskStatus) -> TaskRecord:
    """The task once it has that status."""
    return await until(runtime, task_id, lambda task: task.status is status)


async def finish(runtime: TaskRuntime, request: TaskRequest) -> TaskRecord:
    """Call a tool as a task, and wait until that has ended."""
    created = await runtime.launch(request, owner=None, retention=None)
    return await until(runtime, created.id, lambda task: task.is_final)


async def answer_the_question(runtime: TaskRuntime, task_id: str) -> None:
    """Answer the one question that a task asks, or is going to ask."""
    asking = await until_status(runtime, task_id, TaskStatus.INPUT_REQUIRED)
    [key] = asking.inputs.outstanding
    await runtime.answer(asking, {key: {"action": "accept", "content": {"name": "Ada"}}}, actor=NOBODY)
