"""A server that offers a little of everything, with tools that end, ask, fail and wait in every way.

Tools that wait do so for the `Desk`, so that a test decides when they go on.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.provider import TokenVerifier
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel

from harness.auth import locks
from mcp_tasks import Limits, Settings, Tasks, current_task

QUICK = Settings(drain_timeout=timedelta(0), stop_timeout=timedelta(seconds=1), progress_interval=timedelta(0))
"""Settings for servers in tests: nobody waits at the end for a tool that waits for a test."""

UNPACED = Limits(owner_creates=None, owner_requests=None, owner_streams=None, anonymous=False)
"""Limits for tests in which one user, or a caller without a name, does a lot, as quickly as the machine can."""

REPEATABLE = ToolAnnotations(idempotent_hint=True)
CUSTOM_ERROR = -32099


@dataclass
class Desk:
    """Where a test holds up tools and reads what they did."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Any] = field(default_factory=list[Any])


class Name(BaseModel):
    name: str


class Age(BaseModel):
    """Somebody's age in years."""

    age: int


class Point(BaseModel):
    """A place on a plane."""

    x: float
    y: float | None = None


def resolve_name() -> Elicit[Name]:
    """Who it is, asked before the tool's body."""
    return Elicit("Who goes there?", Name)


def build(
    tasks: Tasks, desk: Desk | None = None, *, name: str = "furnished", verifier: TokenVerifier | None = None
) -> MCPServer[Any]:
    """The furnished server with `tasks` as its extension."""
    server = MCPServer(name, version="1", **tasks.wiring(), log_level="CRITICAL", **locks(verifier))
    furnish(server, tasks, desk or Desk())
    return server


def furnish(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    _add_plain_tools(server, tasks)
    _add_ending_tools(server, tasks)
    _add_waiting_tools(server, tasks, desk)
    _add_asking_tools(server, tasks, desk)
    _add_talking_tools(server, tasks, desk)
    _add_resources_and_prompts(server)


def _add_plain_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    def greet(name: str) -> str:
        """Greet somebody; not marked."""
        return f"Hello, {name}!"

    @server.tool()
    @tasks.task(mode="forbidden")
    def never() -> str:
        """Never a task."""
        return f"task: {current_task().id}"

    @server.tool()
    @tasks.task(mode="required")
    def must() -> str:
        """Always a task."""
        return "as a task"


def _add_ending_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    def echo(value: Any) -> str:
        """Give back what was given, as text."""
        return str(value)

    def point(x: float) -> Point:
        """A structured result, with a null in it."""
        return Point(x=x)

    def fails() -> str:
        """Fail as tools fail."""
        raise ToolError("it did not work out")

    def crashes() -> str:
        """Fail by accident."""
        raise RuntimeError("a defect")

    def breaks() -> str:
        """Fail with a JSON-RPC error."""
        raise MCPError(code=CUSTOM_ERROR, message="the protocol says no", data={"hint": "ask again"})

    for tool in (echo, point, fails, crashes, breaks):
        server.tool()(tasks.task()(tool))


def _add_waiting_tools(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    async def gated() -> str:
        """Wait for the test."""
        desk.started.set()
        try:
            await desk.gate.wait()
        finally:
            desk.stopped.set()
        return "through"

    async def stubborn() -> str:
        """Wait, and return a result even when told to stop."""
        desk.started.set()
        try:
            await desk.gate.wait()
        except asyncio.CancelledError:
            desk.stopped.set()
        return "a result nobody asked for any more"

    async def progressing(steps: int, total: float | None, message: str | None, ctx: Context) -> str:
        """Report progress, then wait for the test."""
        for step in range(1, steps + 1):
            await ctx.report_progress(step, total, message)
        desk.started.set()
        await desk.gate.wait()
        return "done"

    for tool in (gated, stubborn, progressing):
        server.tool()(tasks.task()(tool))


def _add_asking_tools(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    async def ask_name(ctx: Context) -> str:
        """Ask one thing."""
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    async def ask_briefly(ctx: Context) -> str:
        """Ask one thing, and go on without the answer."""
        with anyio.move_on_after(0.05):
            await ctx.elicit("Quick, your name?", Name)
        desk.started.set()
        await desk.gate.wait()
        return "went on"

    async def ask_both(ctx: Context) -> str:
        """Ask two things at once."""
        name, age = await asyncio.gather(ctx.elicit("Your name?", Name), ctx.elicit("Your age?", Age))
        assert name.action == "accept"
        assert age.action == "accept"
        return f"{name.data.name} is {age.data.age}"

    async def ask_again(ctx: Context) -> str:
        """Ask the same thing three times."""
        answers = [await ctx.elicit("What is your name?", Name) for _ in range(3)]
        return ", ".join(answer.data.name for answer in answers if answer.action == "accept")

    async def ask_model(ctx: Context) -> str:
        """Ask the client's model."""
        question = SamplingMessage(role="user", content=TextContent(type="text", text="What is six times seven?"))
        answer = await ctx.session.create_message([question], max_tokens=10)  # pyright: ignore[reportDeprecated]
        return answer.content.text if isinstance(answer.content, TextContent) else "no text"

    async def ask_roots(ctx: Context) -> str:
        """Ask for the client's roots."""
        listed = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        return ", ".join(str(root.uri) for root in listed.roots)

    async def ask_by_returning(ctx: Context) -> str | InputRequiredResult:
        """Ask by returning a question and being called again."""
        answer = (ctx.input_responses or {}).get("who")
        if not isinstance(answer, ElicitResult):
            question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)})
        return f"Hello, {(answer.content or {})['name']}!"

    async def ask_before(who: Annotated[Name, Resolve(resolve_name)]) -> str:
        """Have the SDK ask before the body."""
        return f"Hello, {who.name}!"

    for tool in (ask_name, ask_briefly, ask_both, ask_again):
        server.tool(annotations=REPEATABLE)(tasks.task()(tool))
    for tool in (ask_model, ask_roots, ask_by_returning, ask_before):
        server.tool()(tasks.task()(tool))


def _add_talking_tools(server: MCPServer[Any], tasks: Tasks, desk: Desk) -> None:
    async def logs(ctx: Context) -> str:
        """Log, report progress and read a resource."""
        await ctx.info("a line for the log")  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(1, 2, "half of it")
        [text] = await ctx.read_resource("memo://greeting")
        return str(text.content)

    async def grow(ctx: Context) -> str:
        """Add a tool while the server runs, and say so."""

        def fresh() -> str:
            """New."""
            return "fresh"

        server.add_tool(fresh)
        await ctx.notify_tools_changed()
        return "grown"

    async def introspect(ctx: Context) -> str:
        """Write down what the tool sees of its caller."""
        capabilities = ctx.client_capabilities
        desk.seen.append(
            {
                "task": current_task().id,
                "owner": current_task().owner,
                "attempt": current_task().attempt,
                "version": ctx.protocol_version,
                "extensions": None if capabilities is None else capabilities.extensions,
                "meta": ctx.request_context.meta,
                "headers": ctx.headers,
            }
        )
        return "seen"

    for tool in (logs, grow, introspect):
        server.tool()(tasks.task()(tool))


def _add_resources_and_prompts(server: MCPServer[Any]) -> None:
    @server.resource("memo://greeting")
    def greeting() -> str:
        """A fixed text."""
        return "Good day."

    @server.resource("memo://{day}/note")
    def note(day: str) -> str:
        """A note for a day."""
        return f"Nothing on {day}."

    @server.prompt()
    def introduce(person: str) -> list[UserMessage]:
        """Ask for an introduction."""
        return [UserMessage(f"Introduce {person}.")]

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion | None:
        """Complete names of days."""
        days = ["monday", "tuesday", "wednesday"]
        return Completion(values=[day for day in days if day.startswith(argument.value)])
