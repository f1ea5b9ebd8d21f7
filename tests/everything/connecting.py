"""The SDK's own client on every transport and in both eras."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from harness.forking import piped
from harness.processes import ENVIRONMENT, ROOT

ERAS: Final = {"older": "legacy", "newer": "auto"}


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
