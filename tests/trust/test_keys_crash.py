"""A server that is killed between making a task and answering the call: made again under its key, there is one task."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client

from harness.http import HttpWire, http_client, initialize
from harness.rpc import NOTHING, PATIENCE, TASKS, Reply, Tasking, text_of
from harness.serving import ServerProcess
from harness.stored import all_tasks, opened
from mcp_tasks.client import Patience, TasksClient, call_tool, reconnecting_http
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.connecting import text
from tests.trust.keyed import KEY, LONG_KEY, told

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@dataclass
class Paying:
    """The server process, and the folder that its tools write to."""

    server: ServerProcess
    folder: Path

    @property
    def runs(self) -> list[str]:
        runs = self.folder / "runs"
        return runs.read_text().split() if runs.exists() else []


@pytest.fixture
async def mortal(tmp_path: Path) -> AsyncGenerator[Paying]:
    """A server that dies when told to, and is started again on the same port and store."""
    async with ServerProcess("tests.trust.paying", tmp_path, "{port}") as server:
        yield Paying(server, tmp_path)


async def killed(mortal: Paying) -> None:
    assert await asyncio.to_thread(mortal.server.process.wait, PATIENCE) == -signal.SIGKILL


async def only_task(mortal: Paying) -> bool:
    async with opened(SqliteStore(mortal.folder / "tasks.db")) as store:
        return len(await all_tasks(store, "paying")) == 1


async def call(mortal: Paying, door: str) -> Reply:
    """Call the tool once, as a client of the door does."""
    async with http_client() as client:
        wire, params = HttpWire(mortal.server.url, client), {"name": "look_up", "arguments": {"amount": 7}}
        if door == "older tasks":
            session, _ = await initialize(wire, {})
            return await session.ask("tools/call", {**params, "_meta": {KEY: LONG_KEY}, "task": {}})
        capabilities = TASKS if door == "tasks" else NOTHING
        return await Tasking(wire, capabilities).ask("tools/call", params, meta={KEY: LONG_KEY})


@pytest.mark.parametrize("door", ["tasks", "older tasks", "without tasks"])
async def test_a_call_made_again_after_the_crash_comes_to_the_task_of_the_first(mortal: Paying, door: str) -> None:
    (mortal.folder / "die").touch()
    with pytest.raises(httpx2.TransportError):
        await call(mortal, door)
    await killed(mortal)
    await mortal.server.started()
    first = told(await call(mortal, door))
    assert told(await call(mortal, door)) == first
    assert await only_task(mortal)
    if door == "tasks":
        async with http_client() as client:
            ended = await Tasking(HttpWire(mortal.server.url, client)).until(first, "completed")
        assert text_of(ended["result"]) == "looked up 7"
        assert mortal.runs == ["look_up"]


async def test_our_client_does_so_by_itself(mortal: Paying) -> None:
    patience = Patience(first_pause=timedelta(seconds=0.2), max_pause=timedelta(seconds=2))
    extensions = [TasksClient(patience=patience)]
    async with Client(reconnecting_http(mortal.server.url), extensions=extensions) as client:
        await client.list_tools()
        (mortal.folder / "die").touch()
        with anyio.fail_after(PATIENCE):
            calling = asyncio.create_task(call_tool(client, "look_up", {"amount": 7}))
            await killed(mortal)
            mortal.server.launch()
            assert text(await calling) == "looked up 7"
    assert mortal.runs == ["look_up"]
    assert await only_task(mortal)
