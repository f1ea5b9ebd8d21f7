"""The furnished server with tasks and without, and the SDK's own client of it in both eras."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent
from pydantic import FileUrl

from harness.http import serving
from harness.server import QUICK, Desk, furnish
from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges

ERAS: Final = {"older": "legacy", "newer": "auto"}

WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stateful": {},
    "json": {"json_response": True},
    "stateless-json": {"stateless": True, "json_response": True},
}
"""How a server is served over HTTP; the other way is `memory`."""

KINDS: Final[Mapping[str, Callable[[], Tasks | None]]] = {
    "tasks": lambda: Tasks("memory://", settings=QUICK),
    # A caller that does not speak tasks notices nothing of them.
    "inline": lambda: Tasks("memory://", settings=QUICK, fallback="inline", companions="never"),
    "plain": lambda: None,
}


class NoTasks:
    """In place of tasks, on the server without: no tool is marked."""

    def task(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: function


def build(tasks: Tasks | None, changes: ListChanges | None = None) -> MCPServer[Any]:
    more: Mapping[str, Any] = {**(changes.wiring() if changes else {}), **(tasks.wiring() if tasks else {})}
    server: MCPServer[Any] = MCPServer(
        "everything", title="Everything", version="1", instructions="Ask for anything.", log_level="CRITICAL", **more
    )
    marks: Any = tasks or NoTasks()
    furnish(server, marks, Desk())

    @server.tool()
    @marks.task()
    async def more_tools(count: int, ctx: Context) -> str:
        """Add tools while the server runs, and say so for each, and that there are more prompts."""
        for number in range(count):
            server.add_tool(lambda: "fresh", name=f"fresh-{number}", description="New.")
            await ctx.notify_tools_changed()
            await ctx.notify_prompts_changed()
        return f"{count} more"

    @server.tool()
    @marks.task()
    async def fewer_tools(count: int, ctx: Context) -> str:
        for number in range(count):
            server.remove_tool(f"fresh-{number}")
            await ctx.notify_tools_changed()
        return f"{count} fewer"

    return server


@dataclass
class Host:
    """What sits around a client: it answers what the server asks, and keeps what it is told."""

    logged: list[Any] = field(default_factory=list[Any])
    told: list[str] = field(default_factory=list[str])
    """The methods of the notifications that came, in order."""

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    async def hear(self, message: Any) -> None:
        if not isinstance(message, Exception):
            self.told.append(message.method)

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def think(self, context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="Forty-two."))

    async def roots(self, context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ada"))])


@dataclass(frozen=True)
class Visit:
    client: Client
    host: Host


@asynccontextmanager
async def visiting(where: Any, era: str, **more: Any) -> AsyncGenerator[Visit]:
    """A client of one era; what it has kept would say nothing of the server, so it keeps nothing."""
    host, mode = Host(), ERAS[era]
    client = Client(
        where,
        mode=mode,  # pyright: ignore[reportArgumentType]
        log_level="info",
        logging_callback=host.log,
        message_handler=host.hear,
        elicitation_callback=host.elicit,
        sampling_callback=host.think,
        list_roots_callback=host.roots,
        cache=None,
        **more,
    )
    async with client:
        yield Visit(client, host)


@asynccontextmanager
async def visiting_kind(kind: str, way: str, era: str) -> AsyncGenerator[Visit]:
    """A client of a server of its own, with tasks or without."""
    server = build(KINDS[kind]())
    if way == "memory":
        async with visiting(server, era) as visit:
            yield visit
        return
    async with serving(server, **WAYS[way]) as wire, visiting(wire.url, era) as visit:
        yield visit
