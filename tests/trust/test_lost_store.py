"""The store keeps a new task, its answer is lost, and the store is away: what callers are told, and that nothing runs
twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from harness.databases import postgres, valkey
from harness.proxy import Proxy, proxy_to
from harness.rpc import INTERNAL_ERROR, PATIENCE
from harness.serving import ServerProcess
from mcp_tasks.client import CallLost, TasksClient, call_tool, reconnecting_http
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest
from mcp_tasks.stores import MemoryStore
from tests.client.connecting import text
from tests.trust.keyed import DOORS, opened

pytestmark = pytest.mark.anyio


class AwayStore(MemoryStore):
    """A store that keeps no new task, or keeps it and does not say so."""

    keeps = False

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        if self.keeps:
            await super().create(record, request, **options)
        raise StoreUnavailable("secret-host:5432", may_have_happened=self.keeps)


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("door", DOORS)
async def test_every_caller_is_told_whether_the_call_may_have_been_made(door: str, keeps: bool) -> None:
    store = AwayStore()
    store.keeps = keeps
    async with opened(door, store=store) as (_, way):
        error = (await way.call("pay", amount=7)).error
    assert error["code"] == INTERNAL_ERROR
    assert error["data"] == {"reason": "may_have_happened" if keeps else "unavailable"}
    assert ("may have been carried out" in error["message"]) is keeps
    assert "secret" not in error["message"]


# Real stores, and a server process


@dataclass
class Backend:
    """A database, and for how long it is away."""

    url: str
    fresh: Callable[[], str]
    away: float


@pytest.fixture(scope="module", params=["redis", "postgres"])
def backend(request: pytest.FixtureRequest) -> Generator[Backend]:
    with ExitStack() as stack:
        if request.param == "redis":
            redis = stack.enter_context(valkey())
            yield Backend(redis.url, redis.new_database, away=3)
        else:
            database = stack.enter_context(postgres(durable=False))
            # Longer than a request waits for the store.
            yield Backend(database.url, database.new_database, away=13)


@dataclass
class Paying:
    """A server process whose store is behind a proxy."""

    server: ServerProcess
    proxy: Proxy
    folder: Path
    away: float

    async def lose_the_next_task(self) -> None:
        """The store keeps the next task, loses its answer, and is away for a while."""
        self.proxy.lose(of=r"^create$|INSERT INTO mcp_tasks_tasks", then_cut=True)
        await self.proxy.until_lost()
        await anyio.sleep(self.away)  # sleep: the store is away for so long
        self.proxy.restore()

    @property
    def runs(self) -> list[str]:
        """The tools that have run."""
        runs = self.folder / "runs"
        return runs.read_text().split() if runs.exists() else []


@pytest.fixture
async def paying(backend: Backend, tmp_path: Path) -> AsyncGenerator[Paying]:
    async with (
        proxy_to(backend.url) as proxy,
        ServerProcess("tests.trust.paying", tmp_path, "{port}", proxy.before(backend.fresh())) as server,
    ):
        yield Paying(server, proxy, tmp_path, backend.away)


@asynccontextmanager
async def losing(paying: Paying) -> AsyncGenerator[None]:
    """While the store loses the next task."""
    lost = asyncio.create_task(paying.lose_the_next_task())
    try:
        yield
        await lost
    finally:
        lost.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "result"), [("pay", "paid 7"), ("look_up", "looked up 7")])
async def test_our_client_gets_its_result_and_the_tool_runs_once(paying: Paying, tool: str, result: str) -> None:
    async with Client(reconnecting_http(paying.server.url), extensions=[TasksClient()]) as client:
        await client.list_tools()
        with anyio.fail_after(2 * PATIENCE):
            async with losing(paying):
                assert text(await call_tool(client, tool, {"amount": 7})) == result
    assert paying.runs == [tool]


@pytest.mark.slow
async def test_without_a_key_the_call_is_lost(paying: Paying) -> None:
    # A client with a pinned version asks the server nothing, and so does not know that it honours keys.
    async with Client(reconnecting_http(paying.server.url), mode="2026-07-28", extensions=[TasksClient()]) as client:
        with anyio.fail_after(2 * PATIENCE):
            async with losing(paying):
                with pytest.raises(CallLost, match="may have been made") as caught:
                    await call_tool(client, "pay", {"amount": 7})
    assert caught.value.may_have_run
    assert caught.value.data == {"reason": "may_have_happened"}
