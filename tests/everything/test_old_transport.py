"""Tasks over the old HTTP+SSE transport, on which the SDK starts and stops the server with every connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from starlette.applications import Starlette
from starlette.routing import Mount

from harness.http import serving_app
from harness.rpc import PATIENCE
from mcp_tasks.client import TaskHandle, TasksClient, resume_task, start_task, with_tasks
from tests.everything.connecting import ERAS, Host
from tests.everything.site import new_tasks

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Shelf:
    """The state of a server's lifespan."""

    open: bool = True
    gate: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
async def old() -> AsyncGenerator[tuple[str, list[Shelf]]]:
    """A server over the old transport whose tasks run all the time, and the states of its lifespans in order."""
    shelves: list[Shelf] = []

    @asynccontextmanager
    async def lifespan(_: MCPServer[Shelf]) -> AsyncGenerator[Shelf]:
        shelves.append(Shelf())
        mine = shelves[-1]
        try:
            yield mine
        finally:
            mine.open = False

    tasks = new_tasks()
    server: MCPServer[Shelf] = MCPServer("old", log_level="CRITICAL", **tasks.wiring(lifespan))

    @server.tool()
    @tasks.task()
    async def fetch(ctx: Context[Shelf, Any]) -> str:
        """Wait, and say whether what the lifespan opened is still open."""
        shelf = ctx.request_context.lifespan_context
        await shelf.gate.wait()
        return f"shelf {shelves.index(shelf)} is {'open' if shelf.open else 'closed'}"

    @server.tool()
    @tasks.task()
    async def ask(ctx: Context[Shelf, Any]) -> str:
        """Ask for the client's roots."""
        return str((await ctx.session.list_roots()).roots[0].uri)  # pyright: ignore[reportDeprecated]

    @asynccontextmanager
    async def around(_: Starlette) -> AsyncGenerator[None]:
        async with tasks.running(server):
            yield

    app = Starlette(routes=[Mount("/", server.sse_app())], lifespan=around)
    async with serving_app(app) as base:
        yield f"{base}/sse", shelves


def _client(url: str, era: str) -> Client:
    mode: Any = ERAS[era]
    transport = with_tasks(sse_client(url))
    return Client(transport, extensions=[TasksClient()], mode=mode, list_roots_callback=Host().roots)


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_goes_on_when_its_client_leaves(old: tuple[str, list[Shelf]], era: str) -> None:
    url, shelves = old
    async with _client(url, era) as client:
        handle = await start_task(client, "fetch", {})
        assert isinstance(handle, TaskHandle)
        assert (await handle.status()).status == "working"
    with anyio.fail_after(PATIENCE):
        # Nobody is connected any more: the server's lifespan of that connection has ended.
        while any(shelf.open for shelf in shelves[1:]):  # noqa: ASYNC110 - the server notices by itself
            await anyio.sleep(0.01)
    shelves[0].gate.set()
    async with _client(url, era) as client:
        answer = await resume_task(client, handle.id).result(timeout=PATIENCE)
    # And it was given what lives as long as the process, not what lives as long as the connection.
    assert answer.structured_content == {"result": "shelf 0 is open"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_asks_over_the_old_transport(old: tuple[str, list[Shelf]], era: str) -> None:
    async with _client(old[0], era) as client:
        handle = await start_task(client, "ask", {})
        assert isinstance(handle, TaskHandle)
        answer = await handle.result(timeout=PATIENCE)
    assert answer.structured_content == {"result": "file:///home/ada"}
