"""A new version of the server says something else of a tool while calls of it are between two legs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer

from harness.rpc import text_of
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback
from tests.fallback.matrix.legs import Call
from tests.fallback.moods import Jobs, client_of, quick_tasks, server_of

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.2))


Mark = Callable[[Tasks], Callable[[Any], Any]]


def version_of(store: str, jobs: Jobs, mark: Mark | None) -> MCPServer[Any]:
    """A server whose tool has that mark; None for one without the tool."""
    tasks = quick_tasks(store, fallback=SHORT)
    server = server_of(tasks)

    async def works(job: str) -> str:
        """Wait for the test."""
        return await jobs.work(job)

    if mark is not None:
        server.add_tool(mark(tasks)(works), name="works")
    return server


MARKS: dict[str, Mark | None] = {
    "gone": None,
    "no mark": lambda tasks: lambda tool: tool,
    "inline": lambda tasks: tasks.task(name="works", fallback="inline"),
    "forbidden": lambda tasks: tasks.task(name="works", mode="forbidden"),
    "required": lambda tasks: tasks.task(name="works", mode="required"),
}


@pytest.mark.parametrize("mark", MARKS)
async def test_a_call_that_has_begun_is_taken_up_whatever_its_tool_is_by_now(mark: str, tmp_path: Any) -> None:
    store, jobs = f"sqlite:///{tmp_path / 'tasks.db'}", Jobs()
    before = version_of(store, jobs, lambda tasks: tasks.task(name="works"))
    after = version_of(store, jobs, MARKS[mark])
    async with AsyncExitStack() as servers:
        # The old one is being replaced, and still runs what it began.
        old = await servers.enter_async_context(client_of(before))
        new = await servers.enter_async_context(client_of(after))
        call = Call("works", {"job": "deployed"})
        await call.begin(old)
        ending = asyncio.create_task(call.end(new))
        await anyio.sleep(0.3)  # sleep: nobody is told when the new one waits for the work of the old one
        jobs.gate.set()
        assert text_of(await ending) == "deployed is done"
    assert jobs.happened == {"start deployed": 1, "end deployed": 1}
