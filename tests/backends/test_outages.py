"""Tools at work while a real store is out of reach, locked, slow or full, or loses answers: they wait for it, and end
as usual; and a failover of a real Redis.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.from_thread
import psycopg
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult
from redis.asyncio import Redis

from harness.databases import Postgres, Valkey, valkey
from harness.proxy import Proxy, proxy_to
from harness.stored import opened
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.server import LocalTask
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.unit.running import ONCE, answer, create, ok, question, running, until_asking, until_final

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WAIT = 30
PATIENCE = timedelta(seconds=0.4)


@dataclass(frozen=True)
class Place:
    """A database, stores that give up on it soon, and how a save is told from other requests.

    Attributes:
        outage: Seconds for which it has to be away for a store to give up.
    """

    url: str
    store: Callable[..., Store]
    save: str
    outage: float = 2.0


@pytest.fixture(params=["redis", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "redis":
        server: Valkey = request.getfixturevalue("shared_valkey")
        return Place(server.url, partial(RedisStore, prefix=uuid4().hex, timeout=PATIENCE), "^save$")
    database: Postgres = request.getfixturevalue("shared_postgres")
    return Place(database.new_database(), partial(PostgresStore, patience=PATIENCE), "UPDATE mcp_tasks_tasks")


@pytest.fixture
async def proxy(place: Place) -> AsyncGenerator[Proxy]:
    async with proxy_to(place.url) as proxy:
        yield proxy


class Work:
    """A server whose tools use the store in every way that a tool can."""

    def __init__(self, store: Store, *, lease: timedelta = timedelta(seconds=60)) -> None:
        settings = Settings(lease_duration=lease, drain_timeout=timedelta(0))
        self.tasks = tasks = Tasks(store, settings=settings)
        self.server = server = MCPServer[Any]("work", **tasks.wiring())
        self.until = asyncio.Event()
        """Set when the tools may end."""
        self.acts: Counter[str] = Counter()
        """How often each tool that goes on and on has done what it does."""
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

        async def again_and_again(name: str, act: Callable[[int], Awaitable[Any]]) -> int:
            while not self.until.is_set():
                await act(self.acts[name])
                self.acts[name] += 1
                await anyio.sleep(0.05)
            return self.acts[name]

        @server.tool()
        @tasks.task()
        async def starts() -> int:
            return await again_and_again("starts", start)

        @server.tool()
        @tasks.task()
        async def starts_in_steps() -> int:
            task = current_task()
            return await again_and_again("in steps", lambda number: task.step(f"step {number}", start, number))

        @server.tool()
        @tasks.task()
        def starts_in_a_thread() -> int:
            while not self.until.is_set():
                anyio.from_thread.run(start, self.acts["in a thread"])
                self.acts["in a thread"] += 1
                time.sleep(0.05)
            return self.acts["in a thread"]

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

            count = await again_and_again("looks", look)
            await slow.cancel()
            return count

        @server.tool()
        @tasks.task()
        async def reports(ctx: Context) -> int:
            return await again_and_again(f"reports {current_task().id}", lambda number: ctx.report_progress(number))

    async def start_all(self) -> dict[str, LocalTask[Any]]:
        """One task of each tool, at work."""
        names = ("starts", "starts_in_steps", "starts_in_a_thread", "waits", "looks", "reports")
        running: dict[str, LocalTask[Any]] = {name: await self.tasks.start(name) for name in names}
        await self.goes_on()
        return running

    async def goes_on(self) -> None:
        """See that all tools do something from now on."""
        before = self.acts.copy()

        def has_gone_on() -> bool:
            return len(self.acts) == 5 and all(count > before[name] for name, count in self.acts.items())

        await eventually(has_gone_on, WAIT)

    async def end_all(self, running: dict[str, LocalTask[Any]]) -> None:
        """See that the tools go on and end well, and that each child was started once."""
        await self.goes_on()
        self.until.set()
        with anyio.fail_after(WAIT):
            ended = {name: text(await task.wait()) for name, task in running.items()}
        assert ended.pop("waits") == "slow"
        assert all(int(count) > 0 for count in ended.values()), ended
        assert len(set(self.born)) == len(self.born)


def text(result: CallToolResult) -> str:
    assert not result.is_error, result
    assert result.structured_content is not None
    return str(result.structured_content["result"])


@asynccontextmanager
async def at_work(store: Store, **options: timedelta) -> AsyncGenerator[Work]:
    work = Work(store, **options)
    async with work.tasks.running(work.server):
        yield work


@pytest.mark.parametrize("how", ["refused", "dropped"])
async def test_an_outage_of_the_store_is_not_the_outcome_of_a_tool(place: Place, proxy: Proxy, how: str) -> None:
    async with at_work(place.store(proxy.url)) as work:
        running = await work.start_all()
        if how == "refused":
            proxy.cut()
        else:
            proxy.is_silent = True
        await anyio.sleep(place.outage)  # sleep: an outage lasts
        proxy.restore()
        proxy.is_silent = False
        await work.end_all(running)


@pytest.mark.parametrize("outage", ["IMMEDIATE", "EXCLUSIVE", "read-only"])
async def test_tools_wait_for_a_sqlite_file_that_is_locked_or_read_only(
    outage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_keep(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        made.append(connect(*args, **kwargs))
        return made[-1]

    def set_all(state: str) -> None:
        for connection in made:
            connection.execute(f"PRAGMA query_only = {state}")

    store = SqliteStore(tmp_path / "tasks.db", busy_timeout=timedelta(seconds=0.3))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_and_keep)
        await store.open()
    # Those that made the file are closed.
    made[:] = made[-3:]
    async with at_work(store) as work:
        running = await work.start_all()
        with closing(connect(store.path, isolation_level=None)) as other:
            if outage == "read-only":
                set_all("ON")
            else:
                other.execute(f"BEGIN {outage}")
            said = "read-only" if outage == "read-only" else "locked by another process"
            with pytest.raises(StoreUnavailable, match=said) as refused:
                await work.tasks.start("child", {"name": "outside"})
            assert not refused.value.may_have_happened
            await anyio.sleep(1)  # sleep: an outage lasts
        set_all("OFF")
        await work.end_all(running)


async def test_tools_wait_for_a_postgres_table_that_is_locked(
    shared_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks.stores.postgres.database.LONGEST_STATEMENT", 0.5)
    url = shared_postgres.new_database()
    async with at_work(PostgresStore(url, patience=PATIENCE)) as work:
        running = await work.start_all()
        async with await psycopg.AsyncConnection.connect(url) as other:
            for table in ("tasks", "journal", "outcomes", "heartbeats"):
                await other.execute(f"LOCK TABLE mcp_tasks_{table} IN ACCESS EXCLUSIVE MODE".encode())
            with pytest.raises(StoreUnavailable):
                await work.tasks.start("child", {"name": "outside"})
            await anyio.sleep(1)  # sleep: an outage lasts
            await other.rollback()
        await work.end_all(running)


async def test_progress_does_not_keep_a_slow_store_from_hearing_that_the_process_is_alive(
    place: Place, proxy: Proxy
) -> None:
    lease = timedelta(seconds=3)
    options: dict[str, Any] = {"max_connections": 8} if "redis" in place.url else {"connections": 8}
    waits: dict[str, Any] = {"timeout" if "redis" in place.url else "patience": timedelta(seconds=5)}
    async with at_work(place.store(proxy.url, **options, **waits), lease=lease) as work:
        running = [await work.tasks.start("reports") for _ in range(100)]
        proxy.delay = 0.4
        await anyio.sleep(1.5 * lease.total_seconds())  # sleep: a lease that is not renewed is lost
        proxy.delay = 0
        work.until.set()
        with anyio.fail_after(WAIT):
            assert all([int(text(await task.wait())) > 0 for task in running])


async def test_a_redis_that_is_full_of_expired_results_is_emptied(caplog: pytest.LogCaptureFixture) -> None:
    past = datetime.now(UTC) - timedelta(hours=2)
    over = {"status": TaskStatus.COMPLETED, "finished_at": past, "retention": timedelta(hours=1)}
    with valkey("--maxmemory-policy", "noeviction") as server:
        async with opened(RedisStore(server.url)) as store, Redis.from_url(server.url) as redis:
            left = [make_record(created_at=past, **over) for _ in range(500)]
            for record in left:
                await store.create(record, make_request(arguments={"text": "x" * 20_000}))
            used: int = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", used - 1_000_000)
            async with at_work(RedisStore(server.url), lease=timedelta(seconds=3)) as work:
                for _ in range(3):
                    with pytest.raises(StoreUnavailable, match="has no memory left"):
                        await work.tasks.start("waits")

                async def is_swept() -> bool:
                    return not await store.versions([record.id for record in left])

                await eventually(is_swept, WAIT)
                work.until.set()
                assert text(await (await work.tasks.start("waits")).wait()) == "slow"
    assert caplog.text.count("the task store does not take requests") == 1
    assert "lease" not in caplog.text


# Answers that are lost, before an outage


async def outage_after_the_next_save(place: Place, proxy: Proxy, begin: anyio.Event) -> None:
    """Have the server carry out the next save, lose its answer, and be out of reach for longer than the store waits."""
    proxy.lose(of=place.save, then_cut=True)
    begin.set()
    with anyio.fail_after(WAIT):
        await proxy.until_lost()
    await anyio.sleep(place.outage)  # sleep: the length of the outage
    proxy.restore()


async def assert_recorded_once(runtime: TaskRuntime, task: TaskRecord) -> None:
    entries = await runtime.store.journal(task.id)
    assert set(Counter((entry.kind, entry.key) for entry in entries).values()) == {1}


async def test_a_step_that_timed_out_is_given_up_once(place: Place, proxy: Proxy) -> None:
    begin = anyio.Event()
    entered: list[int] = []

    async def body(run: Run) -> Ending:
        entered.append(run.attempt)
        await begin.wait()
        with anyio.move_on_after(0.2) as scope:
            await run.step("slow", partial(asyncio.sleep, WAIT))
        await run.ask(question("Sure?"))
        return ok(scope.cancelled_caught)

    policy = ToolPolicy(rerun=True, park_after=timedelta(0))
    async with running(body, store=place.store(proxy.url), policy=policy) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await eventually(runtime.runs)
        await outage_after_the_next_save(place, proxy, begin)
        await eventually(lambda: not runtime.runs())
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task, WAIT)).result == {"value": True}
        assert entered == [1, 2]
        await assert_recorded_once(runtime, task)


async def test_a_claimed_task_runs_as_soon_as_the_store_answers(place: Place, proxy: Proxy) -> None:
    async def body(run: Run) -> Ending:
        return ok(run.attempt)

    async with running(body, store=place.store(proxy.url), policy=ONCE) as runtime:
        task = await create(runtime)
        begin = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(outage_after_the_next_save, place, proxy, begin)
            await begin.wait()
            await runtime.engine.submit(task.id)
        assert (await until_final(runtime, task)).result == {"value": 1}


@pytest.mark.parametrize("lost", ["question", "claim"])
async def test_a_question_that_a_replica_had_not_received_is_open_after_the_failover(lost: str) -> None:
    begin = anyio.Event()
    entered: list[int] = []

    async def body(run: Run) -> Ending:
        entered.append(run.attempt)
        await begin.wait()
        return ok(await run.ask(question("Sure?")))

    with valkey() as primary, valkey("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        async with proxy_to(primary.url) as proxy, Redis.from_url(replica.url) as behind:
            store = RedisStore(proxy.url, timeout=timedelta(seconds=0.5))
            look = timedelta(seconds=0.2)
            async with running(body, store=store, policy=ONCE, look_interval=look) as runtime:
                task = await create(runtime)
                if lost == "claim":
                    await leave(behind, task)
                await runtime.engine.submit(task.id)
                await eventually(runtime.runs)
                if lost == "question":
                    await leave(behind, task, version=2)
                begin.set()
                asked = await until_asking(runtime, task)
                primary.stop()
                proxy.turn_to(replica.url)

                async def is_open() -> bool:
                    return (await runtime.find(task.id)).inputs.outstanding == asked.inputs.outstanding

                await eventually(is_open)
                await answer(runtime, task, elicitation_1="yes")
                assert (await until_final(runtime, task, WAIT)).result == {"value": "yes"}
                assert entered == [1]


async def leave(replica: Redis, task: TaskRecord, *, version: int = 1) -> None:
    """Have the replica receive nothing more, once it has this version of the task."""

    async def has_it() -> bool:
        return await replica.hget(f"{{mcp-tasks}}:t:{task.id}", "v") == b"%d" % version

    await eventually(has_it)
    await replica.replicaof("NO", "ONE")
