"""The SDK's own client on every transport and in both eras, to a server with tasks and to its twin without."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import BaseModel, FileUrl

from tests.everything.site import command
from tests.helpers.process import ENVIRONMENT, ROOT

ERAS: Final = {"older": "legacy", "newer": "auto"}
TRANSPORTS: Final = ("stdio", "stateful", "json", "stateless", "stateless-json", "old")


@dataclass
class Host:
    """What sits around a client: it answers what the server asks, and keeps what it is told."""

    logged: list[Any] = field(default_factory=list[Any])
    asked: list[str] = field(default_factory=list[str])
    told: list[str] = field(default_factory=list[str])
    """The methods of the notifications that came, in order."""

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    async def hear(self, message: Any) -> None:
        if not isinstance(message, Exception):
            self.told.append(message.method)

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        if isinstance(params, ElicitRequestURLParams):
            self.asked.append(params.url)
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def think(self, context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="Forty-two."))

    async def roots(self, context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ada"))])


@dataclass(frozen=True)
class Visit:
    """A client of one of the two servers."""

    client: Client
    host: Host


@asynccontextmanager
async def visiting(where: Any, mode: Any, *, log_level: Any = "info", **more: Any) -> AsyncGenerator[Visit]:
    """The SDK's client, connected."""
    host = Host()
    client = Client(
        where,
        mode=mode,
        log_level=log_level,
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
    """Where the server `kind` ("tasks" or "plain") is served the way that is named."""
    if way == "stdio":
        arguments = command("stdio", *options, *(["--plain"] if kind == "plain" else []))[1:]
        return StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    if way == "old":
        return sse_client(f"{site}/{kind}/old/sse")
    return f"{site}/{kind}/{way}/mcp"


@dataclass(frozen=True)
class Pair:
    """Clients of the server with tasks and of its twin without, connected the same way."""

    tasks: Visit
    plain: Visit
    way: str
    newer: bool

    @property
    def streams(self) -> bool:
        """Whether anything can reach the client before the answer does."""
        return not self.way.endswith("json")

    @property
    def answers(self) -> bool:
        """Whether the client can be asked something by a request during a call."""
        return self.streams and not self.newer and self.way != "stateless"

    async def both(self, ask: Callable[[Visit], Awaitable[Any]]) -> Any:
        """What both servers answer, which must be the same: a value, or the code and message of an error."""
        with_tasks, without = await _outcome(ask, self.tasks), await _outcome(ask, self.plain)
        assert with_tasks == without
        return with_tasks


async def _outcome(ask: Callable[[Visit], Awaitable[Any]], visit: Visit) -> Any:
    try:
        answer = await ask(visit)
    except MCPError as exc:
        return exc.error.code, exc.error.message
    return answer.model_dump(by_alias=True, mode="json") if isinstance(answer, BaseModel) else answer


@asynccontextmanager
async def paired(site: str, way: str, era: str, *options: str, **more: Any) -> AsyncGenerator[Pair]:
    """Both clients, connected."""
    async with AsyncExitStack() as stack:
        tasks, plain = [
            await stack.enter_async_context(visiting(target(site, kind, way, options), ERAS[era], **more))
            for kind in ("tasks", "plain")
        ]
        yield Pair(tasks, plain, way, newer=era == "newer")
