"""A server whose marked tools write down what happens to them, on one door or several.

    python -m tests.fallback.matrix.server '{"folder": "/tmp/x", "doors": [{"kind": "sse", "fd": 5}]}'

Without doors it serves its pipes. Each door is a server of its own. A tool that waits does so for a file that a test
makes; every line of the log is one thing that happened to one job.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel

from harness.auth import Tokens, server_with
from harness.serving import serving_until_told
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.fallback.options import Fallback, Host, Ways

REPEATABLE = ToolAnnotations(idempotent_hint=True)
CUSTOM_ERROR = -32099
SHORT = Fallback(wait=timedelta(seconds=0.2), heartbeat=timedelta(seconds=0.1))
"""For tools that outlast a wait: the rest of the calls here must not, however busy the machine is."""

SHORT_OF_LEGS = Fallback(wait=timedelta(seconds=0.15), heartbeat=timedelta(seconds=0.1), legs=2)


class Name(BaseModel):
    """Somebody's name."""

    name: str


class Age(BaseModel):
    """Somebody's age in years."""

    age: int


class Corner(BaseModel):
    """A place on a plane."""

    x: float
    y: float


class Shape(BaseModel):
    """Some places: a schema with definitions of its own."""

    corners: list[Corner]
    title: str | None = None


class Log:
    """Where a job is written down, and held up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, event: str, job: str) -> str:
        """Write one line; one write in append mode, so lines of several processes do not mix."""
        with (self._folder / "log").open("a") as file:
            file.write(f"{event} {job}\n")
        return event

    async def gate(self, job: str, gate: str = "go") -> None:
        """Wait for a test."""
        opened = self._folder / f"{job}.{gate}"
        while not opened.exists():  # noqa: ASYNC110 - another process makes the file, and looking costs little
            await anyio.sleep(0.05)


def resolve_name() -> Elicit[Name]:
    """Who it is, asked before the tool's body."""
    return Elicit("Who goes there?", Name)


def resolve_age(who: Annotated[Name, Resolve(resolve_name)]) -> Elicit[Age]:
    """How old that one is, asked when it is known who it is."""
    return Elicit(f"How old is {who.name}?", Age)


def build(config: Mapping[str, Any]) -> MCPServer[Any]:
    """One server as the configuration says."""
    log = Log(Path(config["folder"]))
    tasks = _tasks(config.get("tasks", {}), config.get("store", "memory://"))
    server = server_with(tasks, "matrix", Tokens() if config.get("auth") else None)

    async def count(ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            arguments: Mapping[str, Any] = (ctx.params or {}).get("arguments") or {}
            log.note("request", str(arguments.get("job")))
        return await call_next(ctx)

    server.middleware.insert(0, count)
    _add_quick_tools(server, tasks, log)
    _add_waiting_tools(server, tasks, log)
    _add_asking_tools(server, tasks, log)
    _add_failing_tools(server, tasks, log)
    _add_structured_tools(server, tasks, log)
    _add_operator(server, tasks)
    _add_gated_tool(server, tasks, log, "gated", "auto")
    for name, ways in config.get("gated", {}).items():
        _add_gated_tool(server, tasks, log, name, _ways(ways))
    return server


def _tasks(said: Mapping[str, Any], store: str) -> Tasks:
    options = dict(said)
    ways = _ways(options.pop("fallback", "auto"))
    hosts = {
        name: Host(**{key: _value(key, value) for key, value in host.items()})
        for name, host in options.pop("hosts", {}).items()
    }
    settings = Settings(
        drain_timeout=timedelta(0),
        stop_timeout=timedelta(seconds=1),
        progress_interval=timedelta(0),
    )
    # Room for all clients at once: nobody is to wait in line behind tools that wait for a test.
    return Tasks(store, settings=settings, fallback=ways, hosts=hosts, concurrency=500, **options)


def _ways(said: Mapping[str, Any] | Literal["auto", "inline"]) -> Ways:
    return said if isinstance(said, str) else Fallback(**{name: _value(name, value) for name, value in said.items()})


def _value(name: str, value: Any) -> Any:
    durations = ("wait", "heartbeat", "answer_within", "limit")
    return timedelta(seconds=value) if name in durations and value is not None else value


def _add_quick_tools(server: MCPServer[Any], tasks: Tasks, log: Log) -> None:
    @server.tool()
    @tasks.task()
    def quick(job: str) -> str:
        """Be done at once."""
        log.note("start", job)
        return f"{job} is done"

    @server.tool()
    @tasks.task(mode="required")
    def required(job: str) -> str:
        """Always a task."""
        log.note("start", job)
        return f"{job} is done"

    @server.tool()
    @tasks.task(fallback="inline")
    async def inline(job: str) -> str:
        """A plain call for those who speak no tasks."""
        log.note("start", job)
        await anyio.sleep(0.3)
        return f"{job} is done"


def _add_waiting_tools(server: MCPServer[Any], tasks: Tasks, log: Log) -> None:
    @server.tool(annotations=REPEATABLE)
    @tasks.task(fallback=SHORT)
    async def slow(job: str, ctx: Context) -> str:
        """Take several waits."""
        log.note("start", job)
        for step in range(1, 5):
            await anyio.sleep(0.25)
            log.note("step", job)
            await ctx.report_progress(step, 4, f"step {step} of 4")
        return f"{job} is done"

    @server.tool()
    @tasks.task(fallback=SHORT_OF_LEGS)
    async def long(job: str) -> str:
        """Take longer than anybody waits."""
        # Before the start, which is what is waited for.
        log.note(f"task={current_task().id}", job)
        log.note("start", job)
        try:
            await log.gate(job)
        except asyncio.CancelledError:
            log.note("stopped", job)
            raise
        return f"{job} is done"

    @server.tool()
    @tasks.task(join_running=True, fallback=SHORT_OF_LEGS)
    async def joined(job: str, number: int = 0) -> str:
        """Be started once for all who want the same."""
        log.note("start", job)
        await log.gate(job)
        return f"{job} is done"

    @server.tool()
    @tasks.task(join_running=True, fallback=Fallback(when_caller_leaves="cancel"))
    async def joined_and_dropped(job: str) -> str:
        """The same, for as long as anybody waits for it."""
        log.note("start", job)
        try:
            await log.gate(job)
        except asyncio.CancelledError:
            log.note("stopped", job)
            raise
        return f"{job} is done"

    @server.tool(annotations=REPEATABLE)
    @tasks.task(fallback=SHORT)
    async def stepped(job: str) -> str:
        """Two steps with a gate between them, each of which is to run once."""
        return await two_steps(job)

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def slow_steps(job: str) -> str:
        """The same, in calls that wait as long as they usually do."""
        return await two_steps(job)

    async def two_steps(job: str) -> str:
        log.note("start", job)
        await current_task().step("one", log.note, "one", job)
        await log.gate(job)
        await current_task().step("two", log.note, "two", job)
        log.note("end", job)
        return f"{job} is done"


def _add_gated_tool(server: MCPServer[Any], tasks: Tasks, log: Log, name: str, ways: Ways) -> None:
    @server.tool(name)
    @tasks.task(name=name, fallback=ways)
    async def gated(job: str, ctx: Context, ask: bool = False) -> str:
        """Wait, in calls that are answered as the configuration says."""
        log.note("start", job)
        if ask:
            await ctx.elicit("What is your name?", Name)
        try:
            await log.gate(job)
        except asyncio.CancelledError:
            log.note("stopped", job)
            raise
        log.note("end", job)
        return f"{job} is done"


def _add_asking_tools(server: MCPServer[Any], tasks: Tasks, log: Log) -> None:
    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def asks(job: str, ctx: Context) -> str:
        """Ask in the middle."""
        log.note("start", job)
        await current_task().step("one", log.note, "one", job)
        answer = await ctx.elicit("What is your name?", Name)
        await current_task().step("two", log.note, "two", job)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def asks_often(job: str, ctx: Context) -> str:
        """Ask more often than a client comes back in one call."""
        log.note("start", job)
        names = [await ctx.elicit(f"Name number {number}?", Name) for number in range(1, 13)]
        return ", ".join(each.data.name for each in names if each.action == "accept")

    @server.tool(annotations=REPEATABLE)
    @tasks.task()
    async def asks_the_client(job: str, ctx: Context) -> str:
        """Ask the client's model, and for its roots."""
        log.note("start", job)
        question = SamplingMessage(role="user", content=TextContent(type="text", text="What is six times seven?"))
        answer = await ctx.session.create_message([question], max_tokens=10)  # pyright: ignore[reportDeprecated]
        roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        said = answer.content.text if isinstance(answer.content, TextContent) else "nothing"
        return f"{said} in {', '.join(str(root.uri) for root in roots.roots)}"

    @server.tool(annotations=REPEATABLE)
    @tasks.task(fallback=Fallback(model_may_answer=True))
    async def asks_anybody(job: str, ctx: Context) -> str:
        """Ask a person, or whoever may answer for one."""
        log.note("start", job)
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    @server.tool()
    @tasks.task()
    async def asks_before(job: str, who: Annotated[Name, Resolve(resolve_name)]) -> str:
        """Have the SDK ask before the body."""
        log.note("start", job)
        return f"Hello, {who.name}!"

    @server.tool()
    @tasks.task(fallback=SHORT)
    async def asks_before_twice(
        job: str, who: Annotated[Name, Resolve(resolve_name)], age: Annotated[Age, Resolve(resolve_age)]
    ) -> str:
        """Have the SDK ask before the body, and again when that is answered; then take a while."""
        log.note("start", job)
        await log.gate(job)
        return f"{who.name} is {age.age}"

    @server.tool()
    @tasks.task()
    async def asks_by_returning(job: str, ctx: Context) -> str | InputRequiredResult:
        """Ask by returning a question and being called again."""
        answer = (ctx.input_responses or {}).get("who")
        if not isinstance(answer, ElicitResult):
            log.note("asked", job)
            question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state=job)
        log.note("start", job)
        return f"Hello, {(answer.content or {})['name']} of {ctx.request_state}!"


def _add_failing_tools(server: MCPServer[Any], tasks: Tasks, log: Log) -> None:
    @server.tool()
    @tasks.task()
    def fails(job: str) -> str:
        """Fail as tools fail."""
        log.note("start", job)
        raise ToolError(f"{job} did not work out")

    @server.tool()
    @tasks.task()
    def breaks(job: str) -> str:
        """Fail with a JSON-RPC error."""
        log.note("start", job)
        raise MCPError(code=CUSTOM_ERROR, message=f"{job} may not", data={"hint": "ask again"})

    @server.tool()
    @tasks.task(fallback=SHORT_OF_LEGS)
    async def fails_late(job: str, protocol: bool) -> str:
        """Fail when nobody waits any longer."""
        log.note("start", job)
        await log.gate(job)
        if protocol:
            raise MCPError(code=CUSTOM_ERROR, message=f"{job} may not", data={"hint": "ask again"})
        raise ToolError(f"{job} did not work out")

    @server.tool()
    @tasks.task()
    def errs(job: str) -> CallToolResult:
        """Return that it failed."""
        log.note("start", job)
        return CallToolResult(content=[TextContent(type="text", text=f"{job} went wrong")], is_error=True)


def _add_structured_tools(server: MCPServer[Any], tasks: Tasks, log: Log) -> None:
    @server.tool()
    @tasks.task(fallback=SHORT_OF_LEGS)
    async def shape(job: str, late: bool) -> Shape:
        """Give a model that has another one in it."""
        log.note("start", job)
        if late:
            await log.gate(job)
        return Shape(corners=[Corner(x=1, y=2)])

    @server.tool()
    @tasks.task(fallback=SHORT_OF_LEGS)
    async def numbers(job: str, late: bool) -> list[int]:
        """Give a list."""
        log.note("start", job)
        if late:
            await log.gate(job)
        return [1, 2, 3]


def _add_operator(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    async def operator_cancel(task_id: str) -> str:
        """Cancel a task from within the server."""
        await tasks.handle(task_id).cancel()
        return "cancelled"

    @server.tool()
    async def operator_rotate() -> str:
        """Use a new key for states."""
        await tasks.rotate_state_key()
        return "rotated"

    @server.tool()
    async def operator_count() -> int:
        """How many tasks the server has."""
        return len([task async for task in tasks.list_all(everybody=True)])


def main() -> None:
    """Serve until stopped."""
    # Tools may still use what the SDK deprecates for the newest wire.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    config = json.loads(sys.argv[-1])
    doors = config.get("doors", ())
    servers = [build({**config, **door.pop("config", {})}) for door in doors]
    if not servers:
        asyncio.run(build(config).run_stdio_async())
        return
    Path(config["folder"], f"{os.getpid()}.up").touch()
    asyncio.run(_serve(servers, doors))


async def _serve(servers: Sequence[MCPServer[Any]], doors: Sequence[Mapping[str, Any]]) -> None:
    await asyncio.gather(*(_serve_door(server, **door) for server, door in zip(servers, doors, strict=True)))


async def _serve_door(server: MCPServer[Any], kind: str, fd: int) -> None:
    app = server.streamable_http_app(json_response=kind.endswith("json"), stateless_http=kind.startswith("stateless"))
    # A client that has been idle while others were busy is to find its connection open.
    await serving_until_told(app, fd=fd, timeout_keep_alive=60)


if __name__ == "__main__":
    main()
