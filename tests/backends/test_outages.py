"""Tools at work while a real store is out of reach, locked, slow or full: they wait for it, and end as usual."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import anyio
import anyio.from_thread
import psycopg
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult
from redis.asyncio import Redis

from harness.databases import Postgres, Valkey, postgres, valkey
from harness.proxy import Proxy, proxy_to
from harness.stored import opened
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import Outcome, TaskStatus
from mcp_tasks.server import LocalTask
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.file import connect
from mcp_tasks.testing import make_record, make_request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WAIT = 30
LEASE = timedelta(seconds=60)

Place: TypeAlias = tuple[str, Callable[[str], Store], float]
"""A server, a store at a URL of it, and for how long it has to be away for the store to give up."""


@pytest.fixture(scope="module", params=["redis", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "redis":
        with valkey() as server:
            yield server.url, lambda url: RedisStore(url, prefix=uuid4().hex, timeout=timedelta(seconds=0.5)), 3.0
    else:
        with postgres(durable=False) as database:
            patience = timedelta(seconds=1)
            yield database.new_database(), lambda url: PostgresStore(url, patience=patience), 4.0


class Work:
    """A server whose tools use the store in every way that a tool can."""

    def __init__(self, store: Store, *, lease: timedelta = LEASE) -> None:
        settings = Settings(lease_duration=lease, drain_timeout=timedelta(0))
        self.tasks = tasks = Tasks(store, settings=settings)
        self.server = server = MCPServer[Any]("work", **tasks.wiring())
        self.until = asyncio.Event()
        """Set when the tools may end."""
        self.born: list[str] = []

        @server.tool()
        @tasks.task()
        async def child(name: str) -> str:
            self.born.append(name)
            return name

        @server.tool()
        @tasks.task()
        async def slow_child() -> str:
            await self.until.wait()
            return "slow"

        async def start(number: int) -> str:
            return text(await (await tasks.start("child", {"name": f"of {current_task().id} {number}"})).wait())

        async def again_and_again(act: Callable[[int], Awaitable[Any]]) -> int:
            number = 0
            while not self.until.is_set():
                await act(number)
                number += 1
                await anyio.sleep(0.05)
            return number

        @server.tool()
        @tasks.task()
        async def starts() -> int:
            return await again_and_again(start)

        @server.tool()
        @tasks.task()
        async def starts_in_steps() -> int:
            task = current_task()
            return await again_and_again(lambda number: task.step(f"step {number}", start, number))

        @server.tool()
        @tasks.task()
        def starts_in_a_thread() -> int:
            number = 0
            while not self.until.is_set():
                anyio.from_thread.run(start, number)
                number += 1
                time.sleep(0.05)
            return number

        @server.tool()
        @tasks.task()
        async def waits() -> str:
            return text(await (await tasks.start("slow_child")).wait())

        @server.tool()
        @tasks.task()
        async def looks() -> int:
            slow = await tasks.start("slow_child")

            async def look(_: int) -> None:
                await slow.fetch()
                await tasks.list(parent=str(current_task().id))

            count = await again_and_again(look)
            await slow.cancel()
            return count

        @server.tool()
        @tasks.task()
        async def reports(ctx: Context) -> int:
            return await again_and_again(lambda number: ctx.report_progress(number))


TOOLS = ("starts", "starts_in_steps", "starts_in_a_thread", "waits", "looks", "reports")


def text(result: CallToolResult) -> str:
    assert not result.is_error, result
    assert result.structured_content is not None
    return str(result.structured_content["result"])


@asynccontextmanager
async def at_work(store: Store) -> AsyncGenerator[Work]:
    work = Work(store)
    async with work.tasks.running(work.server):
        yield work


@pytest.fixture
async def proxy(place: Place) -> AsyncGenerator[Proxy]:
    async with proxy_to(place[0]) as proxy:
        yield proxy


async def at_work_with_all(work: Work) -> dict[str, LocalTask[Any]]:
    """One task of each tool, at work."""
    running: dict[str, LocalTask[Any]] = {name: await work.tasks.start(name) for name in TOOLS}
    await anyio.sleep(1)  # sleep: the tools are at work
    return running


async def all_end(work: Work, running: dict[str, LocalTask[Any]]) -> None:
    """See that the tools go on and end well, and that each child was started once."""
    await anyio.sleep(1)  # sleep: the tools go on
    work.until.set()
    with anyio.fail_after(WAIT):
        ended = {name: text(await task.wait()) for name, task in running.items()}
    assert ended.pop("waits") == "slow"
    assert all(int(count) > 0 for count in ended.values()), ended
    assert len(set(work.born)) == len(work.born)


@pytest.mark.parametrize("how", ["refused", "dropped"])
async def test_an_outage_of_the_store_is_not_the_outcome_of_a_tool(place: Place, proxy: Proxy, how: str) -> None:
    _, store, away = place
    async with at_work(store(proxy.url)) as work:
        running = await at_work_with_all(work)
        if how == "refused":
            proxy.cut()
        else:
            proxy.is_silent = True
        await anyio.sleep(away)  # sleep: an outage lasts
        proxy.restore()
        proxy.is_silent = False
        await all_end(work, running)


@asynccontextmanager
async def locked_file(path: Path, how: str) -> AsyncGenerator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"BEGIN {how}")
        yield


@asynccontextmanager
async def read_only_file(writing: sqlite3.Connection) -> AsyncGenerator[None]:
    writing.execute("PRAGMA query_only = ON")
    try:
        yield
    finally:
        writing.execute("PRAGMA query_only = OFF")


@pytest.mark.parametrize("outage", ["IMMEDIATE", "EXCLUSIVE", "read-only"])
async def test_tools_wait_for_a_sqlite_file_that_is_locked_or_read_only(
    outage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def connect_and_keep(path: Path, *, timeout: float) -> sqlite3.Connection:
        opened.append(connect(path, timeout=timeout))
        return opened[-1]

    monkeypatch.setattr("mcp_tasks.stores.sqlite.store.connect", connect_and_keep)
    store = SqliteStore(tmp_path / "tasks.db", busy_timeout=timedelta(seconds=0.3))
    async with at_work(store) as work:
        running = await at_work_with_all(work)
        away = read_only_file(opened[0]) if outage == "read-only" else locked_file(store.path, outage)
        async with away:
            said = "read-only" if outage == "read-only" else "locked by another process"
            with pytest.raises(StoreUnavailable, match=said) as refused:
                await work.tasks.start("child", {"name": "outside"})
            assert not refused.value.may_have_happened
            await anyio.sleep(2)  # sleep: an outage lasts
        await all_end(work, running)


async def test_tools_wait_for_a_postgres_table_that_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks.stores.postgres.database.LONGEST_STATEMENT", 1.0)
    with postgres(durable=False) as server:
        url = server.new_database()
        async with at_work(PostgresStore(url, patience=timedelta(seconds=1))) as work:
            running = await at_work_with_all(work)
            async with await psycopg.AsyncConnection.connect(url) as other:
                for table in ("tasks", "journal", "outcomes", "heartbeats"):
                    await other.execute(f"LOCK TABLE mcp_tasks_{table} IN ACCESS EXCLUSIVE MODE".encode())
                with pytest.raises(StoreUnavailable):
                    await work.tasks.start("child", {"name": "outside"})
                await anyio.sleep(3)  # sleep: an outage lasts
                await other.rollback()
            await all_end(work, running)


@pytest.mark.parametrize(
    ("database", "store"),
    [
        (valkey, partial(RedisStore, max_connections=8)),
        (partial(postgres, durable=False), partial(PostgresStore, connections=8)),
    ],
    ids=["redis", "postgres"],
)
async def test_progress_does_not_keep_a_slow_store_from_hearing_that_the_process_is_alive(
    database: Callable[[], AbstractContextManager[Postgres | Valkey]], store: Callable[[str], Store]
) -> None:
    lease = timedelta(seconds=3)
    with database() as server:
        async with proxy_to(server.new_database()) as proxy:
            work = Work(store(proxy.url), lease=lease)
            async with work.tasks.running(work.server):
                running = [await work.tasks.start("reports") for _ in range(100)]
                proxy.delay = 0.4
                await anyio.sleep(2 * lease.total_seconds())  # sleep: a lease that is not renewed is lost
                proxy.delay = 0
                work.until.set()
                with anyio.fail_after(WAIT):
                    assert all([int(text(await task.wait())) > 0 for task in running])


async def test_a_redis_that_is_full_of_expired_results_is_emptied(caplog: pytest.LogCaptureFixture) -> None:
    with valkey("--maxmemory-policy", "noeviction") as server:
        async with opened(RedisStore(server.url)) as store, Redis.from_url(server.url) as redis:
            left = [await expired_result(store) for _ in range(500)]
            used: int = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", used - 1_000_000)
            work = Work(RedisStore(server.url), lease=timedelta(seconds=3))
            async with work.tasks.running(work.server):
                for _ in range(3):
                    with pytest.raises(StoreUnavailable, match="has no memory left"):
                        await work.tasks.start("waits")
                with anyio.fail_after(WAIT):
                    while await store.versions(left):  # noqa: ASYNC110 - a sweep tells nobody
                        await anyio.sleep(0.1)
                    work.until.set()
                    assert text(await (await work.tasks.start("waits")).wait()) == "slow"
    assert caplog.text.count("the task store does not take requests") == 1
    assert "lease" not in caplog.text


async def expired_result(store: RedisStore) -> str:
    """A large result whose time to live is over."""
    past = datetime.now(UTC) - timedelta(hours=2)
    task = make_record(created_at=past, updated_at=past, retention=timedelta(hours=1))
    await store.create(task, make_request())
    ended = replace(task, version=2, status=TaskStatus.COMPLETED, finished_at=past)
    await store.save(ended, expected=1, outcome=Outcome(body=b"x" * 20_000))
    return task.id
