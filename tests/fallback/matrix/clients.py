"""The clients of the matrix: the SDK's own, in each of its eras, over each transport, with what a host may declare."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    Implementation,
    JSONRPCRequest,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import MODERN, PATIENCE
from mcp_tasks.client import TasksClient
from tests.client.connecting import Person
from tests.fallback.matrix.serving import HttpServers, Place

NOBODY_KNOWS: Final = "a-host-that-nobody-knows"
SDK: Final = "mcp"
"""How the SDK's client calls itself where nobody gives it a name."""

_jobs = count(1)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A client as a server sees it.

    Attributes:
        door: How it reaches the server.
        version: Which wire it speaks.
        tasks: Whether it declares tasks.
        asks: Whether it has elicitation.
        progress: Whether its calls have a progress token.
    """

    door: str
    version: str
    tasks: bool = False
    asks: bool = False
    progress: bool = False
    name: str = SDK

    @property
    def is_modern(self) -> bool:
        """Whether it comes back by itself."""
        return self.version == MODERN

    @property
    def waits(self) -> bool:
        """Whether it is known to wait for a call as long as it takes, and cannot come back."""
        return not self.is_modern and self.name == SDK and not self.door.startswith("stateless")

    @property
    def sees_to_the_end(self) -> bool:
        """Whether a call of a tool that takes a while ends with the tool's result."""
        return self.is_modern or self.waits

    @property
    def has_stream(self) -> bool:
        """Whether anything but the answer reaches it while a call is open."""
        return "json" not in self.door

    @property
    def can_be_asked(self) -> bool:
        """Whether what a tool asks reaches its person."""
        return self.asks and (self.is_modern or self.door in ("sse", "stdio"))


@dataclass
class Visit:
    """A client that is connected."""

    kind: Kind
    client: Client
    place: Place
    person: Person
    progress: dict[str, list[tuple[float, float | None, str | None]]] = field(default_factory=dict[str, Any])

    def job(self) -> str:
        """A name that no other job has."""
        return f"job-{next(_jobs)}"

    async def call(
        self, tool: str, job: str | None = None, *, progress_of: str | None = None, **arguments: Any
    ) -> CallToolResult:
        """Call a tool as the host of this client would.

        Args:
            progress_of: Under which name the progress of the call is kept, if not that of the job.
        """
        if job is not None:
            arguments["job"] = job
        seen = self.progress.setdefault(progress_of or job or tool, [])

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        return await self.client.call_tool(tool, arguments, progress_callback=report if self.kind.progress else None)

    async def error(self, tool: str, job: str) -> MCPError:
        """Call a tool whose call fails."""
        try:
            result = await self.call(tool, job)
        except MCPError as exc:
            return exc
        raise AssertionError(f"no error: {result}")

    def starts(self, job: str) -> int:
        """How often the body of the job's tool was started."""
        return self.place.count("start", job)

    def requests(self, job: str) -> int:
        """How many calls came to the server for the job."""
        return self.place.count("request", job)


class Offering:
    """What the SDK's client writes to, which changes the version that it offers in the handshake."""

    def __init__(self, write: Any, version: str) -> None:
        self._write = write
        self._version = version

    async def send(self, message: Any) -> None:
        """Pass a message on."""
        told = message.message
        if isinstance(told, JSONRPCRequest) and told.method == "initialize":
            told.params = {**(told.params or {}), "protocolVersion": self._version}
        await self._write.send(message)

    async def aclose(self) -> None:
        """Close what it passes them to."""
        await self._write.aclose()

    async def __aenter__(self) -> Offering:
        await self._write.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        return await self._write.__aexit__(*exc)


@asynccontextmanager
async def pinned_pipes(parameters: StdioServerParameters, version: str) -> AsyncGenerator[tuple[Any, Any]]:
    """A server process to which the SDK's client offers this version."""
    async with stdio_client(parameters) as (read, write):
        yield read, Offering(write, version)


@asynccontextmanager
async def visit(kind: Kind, place: Place, servers: HttpServers) -> AsyncGenerator[Visit]:
    """Connect a client; it lists the tools first, as hosts do, and so checks results against their schemas."""
    person = Person()
    server: Any = _pipes(kind, place) if kind.door == "stdio" else servers.door(kind.door)
    client = Client(
        server,
        mode=MODERN if kind.is_modern else "legacy",
        client_info=Implementation(name=kind.name, version="1"),
        elicitation_callback=person if kind.asks else None,
        sampling_callback=_sample if kind.asks else None,
        list_roots_callback=_list_roots if kind.asks else None,
        extensions=[TasksClient()] if kind.tasks else None,
    )
    async with client:
        with anyio.fail_after(PATIENCE):
            await client.list_tools()
        assert kind.is_modern or client.protocol_version == kind.version
        yield Visit(kind, client, place, person)


async def _sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="none")


async def _list_roots(context: ClientRequestContext) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///home"))])


def _pipes(kind: Kind, place: Place) -> Any:
    command, *arguments = place.command()
    parameters = StdioServerParameters(command=command, args=arguments, env=ENVIRONMENT, cwd=ROOT)
    return parameters if kind.is_modern else pinned_pipes(parameters, kind.version)


def text_of(result: CallToolResult) -> str:
    """What the model reads of a result."""
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text
