"""The SDK's own client on every transport and in both eras, to a server with tasks and to its twin without.

A client that has never heard of tasks is answered differently by design in few places: `Pair` says in which, and
`own_tools` takes exactly that away from a list of tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import BaseModel, FileUrl

from harness.forking import piped
from harness.processes import ENVIRONMENT, ROOT

ERAS: Final = {"older": "legacy", "newer": "auto"}
TRANSPORTS: Final = ("stdio", "stateful", "json", "stateless-json", "old")

COMPANIONS: Final = ["task_status", "task_cancel"]
"""The tools that callers without tasks are shown besides, at the end of the list."""


@dataclass
class Host:
    """What sits around a client: it answers what the server asks, and keeps what it is told."""

    logged: list[Any] = field(default_factory=list[Any])
    told: list[str] = field(default_factory=list[str])
    """The methods of the notifications that came, in order."""
    pages: list[str] = field(default_factory=list[str])
    """The addresses of the pages that somebody was sent to."""

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    async def hear(self, message: Any) -> None:
        if not isinstance(message, Exception):
            self.told.append(message.method)

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        if params.mode == "url":
            self.pages.append(params.url)
            return ElicitResult(action="accept")
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
async def visiting(where: Any, mode: Any, **more: Any) -> AsyncGenerator[Visit]:
    host = Host()
    client = Client(
        where,
        mode=mode,
        log_level="info",
        logging_callback=host.log,
        message_handler=host.hear,
        elicitation_callback=host.elicit,
        sampling_callback=host.think,
        list_roots_callback=host.roots,
        # What a client has kept says nothing of the server.
        cache=None,
        **more,
    )
    async with client:
        yield Visit(client, host)


def target(site: str, kind: str, way: str, options: Sequence[str] = ()) -> Any:
    """Where the server `kind` (one of `site.KINDS`) is served the way that is named."""
    if way == "stdio":
        command, *arguments = piped("tests.everything.site", "stdio", "--kind", kind, *options)
        return StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    if way == "old":
        return sse_client(f"{site}/{kind}/old/sse")
    return f"{site}/{kind}/{way}/mcp"


@dataclass(frozen=True)
class Pair:
    """Clients of a server with tasks and of its twin without, connected the same way."""

    tasks: Visit
    plain: Visit
    way: str
    newer: bool
    inline: bool
    """Whether the first gives a caller without tasks plain calls: then it answers in everything like the other."""

    @property
    def streams(self) -> bool:
        """Whether anything can reach the client before the answer does."""
        return not self.way.endswith("json")

    @property
    def answers(self) -> bool:
        """Whether the client can be asked something by a request during a call."""
        return self.streams and not self.newer

    async def both(self, ask: Callable[[Visit], Awaitable[Any]]) -> Any:
        """What both servers answer, which must be the same: a value, or the code and message of an error."""
        with_tasks, without = await outcome(ask, self.tasks), await outcome(ask, self.plain)
        assert with_tasks == without
        return with_tasks


async def listed_tools(client: Client) -> list[dict[str, Any]]:
    """The tools that a client is shown. Whether one may be a task is said in the older era only, and left out."""
    return [tool.model_dump(by_alias=True, exclude={"execution"}) for tool in (await client.list_tools()).tools]


def own_tools(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a caller without tasks is shown, as it would be without the fallback: every tool of the author that has an
    output schema has a wider one, which also allows the handle, and after them come the companions. Nothing else."""
    own, companions = listed[: -len(COMPANIONS)], listed[-len(COMPANIONS) :]
    assert [tool["name"] for tool in companions] == COMPANIONS
    return [{**tool, "outputSchema": _narrowed(tool["outputSchema"])} for tool in own]


def _narrowed(wider: Mapping[str, Any] | None) -> Any:
    if wider is None:
        return None
    if "anyOf" not in wider:
        # Of a tool that is never a task.
        return wider
    narrow, handle = wider["anyOf"]
    assert set(handle["required"]) == {"taskId", "status", "statusMessage"}
    assert wider == {"type": "object", "anyOf": [narrow, handle]}
    return narrow


async def outcome(ask: Callable[[Visit], Awaitable[Any]], visit: Visit) -> Any:
    try:
        answer = await ask(visit)
    except MCPError as exc:
        return exc.error.code, exc.error.message
    return answer.model_dump(by_alias=True, mode="json") if isinstance(answer, BaseModel) else answer


@asynccontextmanager
async def paired(site: str, way: str, era: str, kind: str = "tasks") -> AsyncGenerator[Pair]:
    """Both clients, connected: of the server `kind`, and of the one without tasks."""
    async with AsyncExitStack() as stack:
        tasks, plain = [
            await stack.enter_async_context(visiting(target(site, served, way), ERAS[era]))
            for served in (kind, "plain")
        ]
        yield Pair(tasks, plain, way, newer=era == "newer", inline=kind == "inline")
