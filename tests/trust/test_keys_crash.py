"""A server that is killed between making a task and answering the call: made again under its key, there is one task."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client

from harness.databases import Postgres, postgres
from harness.http import HttpWire, http_client, initialize
from harness.rpc import NOTHING, PATIENCE, TASKS, Reply, Tasking, text_of
from harness.serving import ServerProcess
from mcp_tasks.client import Patience, TasksClient, call_tool, reconnecting_http
from mcp_tasks.stores import Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.connecting import text
from tests.trust.keyed import KEY, LONG_KEY, told

pytestmark = pytest.mark.anyio

PATIENT = Patience(first_pause=timedelta(seconds=0.5), max_pause=timedelta(seconds=8))
"""For a server that is started again by hand."""


class Mortal(ServerProcess):
    """A server that dies when told to, and is started again on the same port and store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__("tests.trust.crashing", folder, "{port}", url)
        self.folder = folder
        self.store_url = url

    def to_die(self) -> None:
        """The next task that it makes is its last act."""
        (self.folder / "die").touch()

    async def died(self) -> None:
        """Return when it has been killed."""
        assert await asyncio.to_thread(self.process.wait, PATIENCE) == -signal.SIGKILL

    @property
    def runs(self) -> list[str]:
        """What the tool was run with."""
        return (self.folder / "runs").read_text().split()

    async def tasks(self) -> int:
        """How many tasks there are."""
        is_postgres = self.store_url.startswith("postgresql")
        store: Store = PostgresStore(self.store_url) if is_postgres else SqliteStore(self.folder / "tasks.db")
        await store.open("crashing")
        try:
            return len((await store.list("crashing", EVERYBODY, now=datetime.now(UTC), limit=10)).records)
        finally:
            await store.close()


@pytest.fixture(scope="module")
def database() -> Generator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Mortal]:
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("database").new_database() if is_postgres else "sqlite"
    async with Mortal(tmp_path, url) as server:
        yield server


@asynccontextmanager
async def wire_to(server: Mortal) -> AsyncGenerator[HttpWire]:
    async with http_client() as client:
        yield HttpWire(server.url, client)


async def call(server: Mortal, door: str) -> Reply:
    """Call the tool once, as a client of the door does."""
    async with wire_to(server) as wire:
        params = {"name": "pay", "arguments": {"amount": 7}}
        if door == "older tasks":
            session, _ = await initialize(wire, {})
            return await session.ask("tools/call", {**params, "_meta": {KEY: LONG_KEY}, "task": {}})
        capabilities = TASKS if door == "tasks" else NOTHING
        return await Tasking(wire, capabilities).ask("tools/call", params, meta={KEY: LONG_KEY})


@pytest.mark.parametrize(
    ("mortal", "door"),
    [("sqlite", "tasks"), ("sqlite", "older tasks"), ("sqlite", "without tasks"), ("postgres", "tasks")],
    indirect=["mortal"],
)
async def test_a_call_made_again_after_the_crash_comes_to_the_task_of_the_first(mortal: Mortal, door: str) -> None:
    mortal.to_die()
    with pytest.raises(httpx2.TransportError):
        await call(mortal, door)
    await mortal.died()
    await mortal.started()
    first = told(await call(mortal, door))
    assert told(await call(mortal, door)) == first
    assert await mortal.tasks() == 1
    if door == "tasks":
        async with wire_to(mortal) as wire:
            ended = await Tasking(wire).until(first, "completed")
            assert text_of(ended["result"]) == "paid 7"
        assert mortal.runs == ["7"]


async def test_our_client_does_so_by_itself(mortal: Mortal) -> None:
    async with Client(reconnecting_http(mortal.url), extensions=[TasksClient(patience=PATIENT)]) as client:
        await client.list_tools()
        mortal.to_die()
        results: list[str] = []

        async def pay() -> None:
            results.append(text(await call_tool(client, "pay", {"amount": 7})))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(pay)
                await mortal.died()
                mortal.launch()
    assert results == ["paid 7"]
    assert mortal.runs == ["7"]
    assert await mortal.tasks() == 1
