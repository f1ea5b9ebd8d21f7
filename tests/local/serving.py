"""A server with a little of everything that can be a task, for code in its own process."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

from harness.server import QUICK, Name
from mcp_tasks import Tasks, current_task
from mcp_tasks.server import LocalSnapshot, LocalTask

LIMIT = 10
"""Seconds to wait for what takes none."""

FULL = "Error executing tool broken: the disk is full"
"""What the SDK makes of a tool's error."""

__all__ = ["FULL", "LIMIT", "QUICK", "Confirmed", "Office", "new_office", "open_office", "until"]


class Confirmed(BaseModel):
    confirmed: bool


@dataclass
class Office:
    tasks: Tasks
    server: MCPServer[Any]
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Any] = field(default_factory=list[Any])


def new_office(**options: Any) -> Office:
    tasks = Tasks(options.pop("store", "memory://"), settings=QUICK, **options)
    office = Office(tasks, MCPServer("office", **tasks.wiring()))
    add_tools(office)
    add_asking_tools(office)
    add_returning_tools(office)
    add_reads(office)
    return office


@asynccontextmanager
async def open_office(**options: Any) -> AsyncGenerator[Office]:
    office = new_office(**options)
    async with office.tasks.running(office.server):
        yield office


async def until(task: LocalTask[Any], condition: Callable[[LocalSnapshot], bool]) -> LocalSnapshot:
    with anyio.fail_after(LIMIT):
        while not condition(seen := await task.fetch()):  # noqa: ASYNC110 - fetching is what is tested
            await anyio.sleep(0.01)
    return seen


def add_tools(office: Office) -> None:
    server, tasks = office.server, office.tasks

    @server.tool()
    @tasks.task(ttl=timedelta(hours=6))
    async def report(id: int, ctx: Context) -> dict[str, Any]:  # noqa: A002 - document 004's example
        await ctx.report_progress(1, 3, f"Loading release {id}")
        office.seen.append(current_task().id)
        return {"id": id, "status": "ready"}

    @server.tool()
    @tasks.task()
    async def slow(ctx: Context) -> str:
        await ctx.report_progress(2, 3, "Rendering report")
        await office.gate.wait()
        return "done"

    @server.tool()
    @tasks.task(mode="required", poll_interval=timedelta(seconds=1))
    def deploy(environment: str) -> str:
        return f"deployed to {environment}"

    @server.tool()
    @tasks.task(mode="forbidden")
    def ping() -> str:
        return "pong"

    @server.tool()
    def plain() -> str:
        return "plain"

    @server.tool()
    @tasks.task()
    def broken() -> str:
        raise ToolError("the disk is full")

    @server.tool()
    @tasks.task()
    def refusing() -> str:
        raise MCPError(-32099, "not today", {"why": "closed"})


def add_asking_tools(office: Office) -> None:
    server, tasks = office.server, office.tasks

    @server.tool()
    @tasks.task()
    async def approve(ctx: Context) -> str:
        answer = await ctx.elicit("Deploy to production?", Confirmed)
        return f"{answer.action} {getattr(answer, 'data', None)}"

    @server.tool()
    @tasks.task()
    async def asks_late(ctx: Context) -> str:
        await office.gate.wait()
        return (await ctx.elicit("Still there?", Confirmed)).action

    @server.tool()
    @tasks.task()
    async def two_questions(ctx: Context) -> list[str]:
        async def ask(what: str) -> str:
            return (await ctx.elicit(what, Confirmed)).action

        return list(await asyncio.gather(ask("First?"), ask("Second?")))

    @server.tool()
    @tasks.task()
    async def write(ctx: Context) -> str:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="Write."))
        written = await ctx.session.create_message([message], max_tokens=9)  # pyright: ignore[reportDeprecated]
        assert isinstance(written.content, TextContent)
        return written.content.text


def add_returning_tools(office: Office) -> None:
    """What asks by returning, and a tool that calls such a one."""
    server, tasks = office.server, office.tasks

    def name_in(ctx: Context) -> str | None:
        answer = (ctx.input_responses or {}).get("who")
        return str((answer.content or {})["name"]) if isinstance(answer, ElicitResult) else None

    def asking(state: str | None = None) -> InputRequiredResult:
        params = ElicitRequestFormParams(message="Who?", requested_schema=Name.model_json_schema())
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)}, request_state=state)

    @server.tool()
    @tasks.task()
    async def greet(ctx: Context) -> str | InputRequiredResult:
        name = name_in(ctx)
        return asking() if name is None else f"Hello, {name}! ({current_task().id})"

    @server.prompt()
    @tasks.task(kind="prompt")
    async def welcome(ctx: Context) -> Any:
        name = name_in(ctx)
        return asking("state") if name is None else f"Welcome {name}, {ctx.request_state}."

    @server.tool()
    @tasks.task()
    async def outer() -> str:
        result = await tasks.call("greet")
        return result.content[0].text if isinstance(result.content[0], TextContent) else ""


def add_reads(office: Office) -> None:
    server, tasks = office.server, office.tasks

    @server.tool(name="echo")
    @tasks.task(name="echo")
    def echo_tool() -> str:
        return "tool"

    @server.prompt(name="echo")
    @tasks.task(kind="prompt", name="echo")
    async def echo_prompt(title: str, ctx: Context) -> str:
        await ctx.report_progress(1, 1, "rendered")
        office.seen.append(current_task().id)
        return f"Ship {title}."

    @server.resource("memo://echo", name="echo")
    @tasks.task(kind="resource", name="echo")
    async def echo_resource() -> str:
        office.seen.append(current_task().id)
        return "1.2.3"

    @server.resource("memo://{day}/notes")
    @tasks.task(kind="resource", ttl=timedelta(minutes=5))
    async def notes(day: str) -> bytes:
        return f"notes of {day}".encode()

    @server.prompt()
    def plain_prompt() -> str:
        return "plain"

    @server.prompt()
    @tasks.task(kind="prompt")
    def broken_prompt() -> str:
        raise RuntimeError("no template")

    @server.resource("memo://broken")
    @tasks.task(kind="resource")
    def broken_resource() -> str:
        raise RuntimeError("secret path")

    @server.resource("memo://plain")
    def plain_resource() -> str:
        return "plain"
