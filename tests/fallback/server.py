"""A server whose marked tools write down what happens to them: in the test's process, or in one of its own.

    python -m tests.fallback.server '{"folder": "/tmp/x", "store": "sqlite:////tmp/x/tasks.db", "fd": 5, "wait": 1}'

Without a file descriptor it serves its pipes. A tool that waits does so for the test; see `Jobs`.
"""

import asyncio
import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
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
)
from pydantic import BaseModel

from harness.auth import Tokens, server_with
from harness.server import CUSTOM_ERROR, QUICK, REPEATABLE, Age, Name, resolve_name
from harness.serving import serve_stdio, serving_until_told
from harness.waiting import eventually
from mcp_tasks import Fallback, Tasks, current_task
from mcp_tasks.server import LocalSnapshot
from mcp_tasks.stores import Store

SHORT = Fallback(wait=timedelta(seconds=0.2), heartbeat=timedelta(seconds=0.1))
SHORT_OF_LEGS = Fallback(wait=timedelta(seconds=0.15), heartbeat=timedelta(seconds=0.1), legs=2)
CANCELS = Fallback(when_caller_leaves="cancel")


class Jobs:
    """What happened to the jobs of a server's tools, and what they wait for."""

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def note(self, event: str, job: str) -> str:
        self.happened[f"{event} {job}"] += 1
        return event

    def count(self, event: str, job: str) -> int:
        return self.happened[f"{event} {job}"]

    def counts(self, job: str, *events: str) -> tuple[int, ...]:
        return tuple(self.count(event, job) for event in events)

    async def until(self, event: str, job: str, times: int = 1) -> None:
        await eventually(lambda: self.count(event, job) >= times)

    async def gate(self, job: str) -> None:
        await self._gates[job].wait()

    def open(self, job: str) -> None:
        self._gates[job].set()

    async def work(self, job: str) -> str:
        self.note("start", job)
        try:
            await self.gate(job)
        except asyncio.CancelledError:
            self.note("stopped", job)
            raise
        self.note("end", job)
        return f"{job} is done"


class FileJobs(Jobs):
    """The same in a folder, for several processes. What is killed has been written down."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def note(self, event: str, job: str) -> str:
        # One write in append mode, so lines of several processes do not mix.
        with (self._folder / "log").open("a") as file:
            file.write(f"{event} {job}\n")
        return event

    def count(self, event: str, job: str) -> int:
        log = self._folder / "log"
        return log.read_text().splitlines().count(f"{event} {job}") if log.exists() else 0

    async def gate(self, job: str) -> None:
        opened = self._folder / f"{job}.go"
        while not opened.exists():  # noqa: ASYNC110 - another process makes the file, and looking costs little
            await anyio.sleep(0.02)

    def open(self, job: str) -> None:
        (self._folder / f"{job}.go").touch()


class Corner(BaseModel):
    x: float
    y: float


class Shape(BaseModel):
    """Some places: a schema with definitions of its own."""

    corners: list[Corner]
    title: str | None = None


def resolve_age(who: Annotated[Name, Resolve(resolve_name)]) -> Elicit[Age]:
    """How old that one is, asked when it is known who it is."""
    return Elicit(f"How old is {who.name}?", Age)


@dataclass
class Served:
    server: MCPServer[Any]
    tasks: Tasks
    jobs: Jobs

    def tool(self, **options: Any) -> Callable[[Any], Any]:
        return lambda function: self.server.tool(annotations=REPEATABLE)(self.tasks.task(**options)(function))

    def tools(self, function: Any, *, repeatable: bool = True, **named: Mapping[str, Any] | None) -> None:
        """Add a function as several tools: names, and the options of their marks, or None for one without."""
        for name, options in named.items():
            marked = function if options is None else self.tasks.task(name=name, **options)(function)
            self.server.add_tool(marked, name=name, annotations=REPEATABLE if repeatable else None)

    async def all_tasks(self) -> list[LocalSnapshot]:
        return [task async for task in self.tasks.list_all(everybody=True)]


def build(store: str | Store = "memory://", *, jobs: Jobs | None = None, auth: bool = False, **options: Any) -> Served:
    """The server; the options are those of `Tasks`."""
    # Another server on the same store is not told of what happens here: it looks.
    settings = replace(QUICK, look_interval=timedelta(seconds=0.1))
    # Nobody is to wait in line behind tools that wait for a test.
    chosen: dict[str, Any] = {"settings": settings, "concurrency": 500, **options}
    tasks = Tasks(store, **chosen)
    served = Served(server_with(tasks, "fallback", Tokens() if auth else None), tasks, jobs or Jobs())

    async def count(ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            arguments: Mapping[str, Any] = (ctx.params or {}).get("arguments") or {}
            served.jobs.note("request", str(arguments.get("job")))
        return await call_next(ctx)

    served.server.middleware.insert(0, count)
    for add in (_add_working, _add_asking, _add_asking_first, _add_ending, _add_talking):
        add(served)
    return served


def _add_working(served: Served) -> None:
    jobs = served.jobs

    def quick(job: str) -> str:
        jobs.note("start", job)
        return f"{job} is done"

    async def joined(job: str, number: int = 0) -> str:
        return await jobs.work(job)

    async def two_steps(job: str) -> str:
        """Two steps with a gate between them, each of which is to run once."""
        jobs.note("start", job)
        await current_task().step("one", jobs.note, "one", job)
        await jobs.gate(job)
        await current_task().step("two", jobs.note, "two", job)
        jobs.note("end", job)
        return f"{job} is done"

    served.tools(quick, repeatable=False, quick={}, required={"mode": "required"})
    served.tools(
        jobs.work,
        repeatable=False,
        gated={},
        long={"fallback": SHORT_OF_LEGS},
        dropped={"fallback": CANCELS},
        joined_and_dropped={"fallback": CANCELS, "join_running": True},
        inline={"fallback": "inline"},
        unmarked=None,
    )
    served.tools(joined, repeatable=False, joined={"fallback": SHORT_OF_LEGS, "join_running": True})
    served.tools(two_steps, stepped={"fallback": SHORT}, slow_steps={})

    @served.tool(fallback=SHORT)
    async def slow(job: str, ctx: Context) -> str:
        jobs.note("start", job)
        for step in range(1, 5):
            await anyio.sleep(0.25)  # sleep: work that takes several waits
            await ctx.report_progress(step, 4, f"step {step} of 4")
        return f"{job} is done"


def _add_asking(served: Served) -> None:
    jobs = served.jobs

    async def ask(job: str, ctx: Context) -> str:
        jobs.note("start", job)
        await current_task().step("one", jobs.note, "one", job)
        answer = await ctx.elicit("What is your name?", Name)
        await current_task().step("two", jobs.note, "two", job)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"{answer.action}, then"

    served.tools(ask, asks={}, asks_anybody={"fallback": Fallback(model_may_answer=True)})

    @served.tool()
    async def asks_with_time(job: str, ctx: Context) -> str:
        asking = ctx.elicit("What is your name?", Name)
        answer = await current_task().ask(asking, timeout=timedelta(days=2))
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    @served.tool()
    async def asks_often(job: str, ctx: Context, times: int = 12) -> str:
        jobs.note("start", job)
        names = [await ctx.elicit(f"Name number {number}?", Name) for number in range(1, times + 1)]
        return ", ".join(each.data.name for each in names if each.action == "accept")

    @served.tool()
    async def asks_both(job: str, ctx: Context) -> str:
        name, age = await asyncio.gather(ctx.elicit("Your name?", Name), ctx.elicit("Your age?", Age))
        return f"{getattr(name, 'data', None)} {getattr(age, 'data', None)}"

    @served.tool()
    async def asks_the_client(job: str, ctx: Context) -> str:
        jobs.note("start", job)
        question = SamplingMessage(role="user", content=TextContent(type="text", text="What is six times seven?"))
        answer = await ctx.session.create_message([question], max_tokens=10)  # pyright: ignore[reportDeprecated]
        roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        said = answer.content.text if isinstance(answer.content, TextContent) else "nothing"
        return f"{said} in {', '.join(str(root.uri) for root in roots.roots)}"

    @served.tool()
    async def asks_to_visit(job: str, ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://example.com/in", "e1")).action

    @served.tool()
    async def insists(job: str, ctx: Context) -> str:
        """Ask, and say which error came back."""
        try:
            answer = await ctx.elicit("Who is there?", Name)
        except MCPError as exc:
            return f"{exc.code} {exc.message}"
        return f"no error, but {answer.action}"

    @served.tool()
    async def wavers(job: str, ctx: Context) -> str:
        """Ask, and go on without an answer when the test says so."""
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.elicit, "Who is there?", Name)
            await jobs.gate(job)
            group.cancel_scope.cancel()
        await jobs.work(f"{job}-after")
        return "went on"


def _add_asking_first(served: Served) -> None:
    jobs = served.jobs

    async def ask_before(job: str, who: Annotated[Name, Resolve(resolve_name)]) -> str:
        return f"{who.name}: {await jobs.work(job)}"

    served.tools(ask_before, asks_before={}, asks_before_joined={"join_running": True})

    @served.tool(fallback=SHORT)
    async def asks_before_twice(
        job: str, who: Annotated[Name, Resolve(resolve_name)], age: Annotated[Age, Resolve(resolve_age)]
    ) -> str:
        return f"{who.name} is {age.age}: {await jobs.work(job)}"

    async def return_question(job: str, ctx: Context, size: int = 0) -> str | InputRequiredResult:
        answer = (ctx.input_responses or {}).get("who")
        if not isinstance(answer, ElicitResult):
            question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
            state = f"{job} " + "x" * size
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state=state)
        done = await jobs.work(job)
        return f"{(answer.content or {})['name']}: {done}, with {len(ctx.request_state or '')} characters"

    served.tools(return_question, asks_by_returning={}, dropped_that_asks={"fallback": CANCELS})


def _add_ending(served: Served) -> None:
    jobs = served.jobs

    @served.tool(fallback=SHORT_OF_LEGS)
    async def fails(job: str, late: bool = False, protocol: bool = False) -> str:
        jobs.note("start", job)
        if late:
            await jobs.gate(job)
        if protocol:
            raise MCPError(code=CUSTOM_ERROR, message=f"{job} may not", data={"hint": "ask again"})
        raise ToolError(f"{job} did not work out")

    @served.tool()
    def errs(job: str) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=f"{job} went wrong")], is_error=True)

    @served.tool(fallback=SHORT_OF_LEGS)
    async def shape(job: str, late: bool) -> Shape:
        if late:
            await jobs.gate(job)
        return Shape(corners=[Corner(x=1, y=2)])


def _add_talking(served: Served) -> None:
    jobs = served.jobs

    async def talk(job: str, ctx: Context) -> str:
        """Say much of oneself and of one's call, and wait for the test before the end."""
        token, headers = get_access_token(), ctx.headers or {}
        seen = {
            "attempt": current_task().attempt,
            "meta": dict(ctx.request_context.meta or {}),
            "trace": headers.get("x-trace"),
            "client": None if token is None else token.client_id,
        }
        await ctx.session.send_resource_updated("test://frames")
        await ctx.debug("it begins")  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(1, 3, "first")
        await ctx.info({"frames": 3, "of": None})  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(2, 3)
        await ctx.log("warning", "careful", logger_name="frames")  # pyright: ignore[reportDeprecated]
        await ctx.session.send_elicit_complete("e1", ctx.request_id)
        await jobs.work(job)
        await ctx.report_progress(3, 3, "last")
        return json.dumps(seen)

    served.tools(talk, talks={}, talks_plainly={"fallback": "inline"})

    @served.tool()
    async def floods(job: str, ctx: Context) -> str:
        """Say more than any pipe holds."""
        for _ in range(500):
            await ctx.info("x" * 10_000)  # pyright: ignore[reportDeprecated]
            await ctx.report_progress(1, message="x" * 10_000)
        jobs.note("end", job)
        return "done"


def main() -> None:
    # Tools may still use what the SDK deprecates for the newest wire.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    config = json.loads(sys.argv[-1])
    ways = Fallback(wait=timedelta(seconds=config.get("wait", 25)))
    served = build(config["store"], jobs=FileJobs(Path(config["folder"])), fallback=ways)
    if "fd" not in config:
        asyncio.run(serve_stdio(served.server))
        return
    # A client that has been idle while others were busy is to find its connection open.
    app = served.server.streamable_http_app()
    asyncio.run(serving_until_told(app, fd=int(config["fd"]), timeout_keep_alive=60))


if __name__ == "__main__":
    main()
