"""Answers of a real Redis and a real Postgres that are lost, before an outage; and a failover of a real Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis

from harness.databases import postgres, valkey
from harness.proxy import Proxy, proxy_to
from harness.waiting import eventually
from mcp_tasks.model import TaskRecord
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from tests.unit.running import ONCE, RERUN, answer, create, ok, question, running, until_asking, until_final

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WAIT = 20.0


@dataclass(frozen=True)
class Place:
    """A server, a store at a URL of it that gives up after a second, and how a save is told from other requests."""

    url: str
    store: Callable[[str], Store]
    save: str
    outage: float = 3.0


@pytest.fixture(scope="module", params=["redis", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "redis":
        with valkey() as server:
            timeout = timedelta(seconds=0.5)
            yield Place(server.url, lambda url: RedisStore(url, prefix=uuid4().hex, timeout=timeout), "^save$")
    else:
        with postgres(durable=False) as database:
            patience = timedelta(seconds=1)
            url = database.new_database()
            yield Place(url, lambda url: PostgresStore(url, patience=patience), "UPDATE mcp_tasks_tasks")


@pytest.fixture
async def proxy(place: Place) -> AsyncGenerator[Proxy]:
    async with proxy_to(place.url) as proxy:
        yield proxy


async def outage_after_the_next_save(place: Place, proxy: Proxy, begin: anyio.Event) -> None:
    """Have the server carry out the next save, lose its answer, and be out of reach for longer than the store waits."""
    proxy.lose(of=place.save, then_cut=True)
    begin.set()
    with anyio.fail_after(WAIT):
        await proxy.until_lost()
    await anyio.sleep(place.outage)  # sleep: the length of the outage
    proxy.restore()


async def journal(runtime: TaskRuntime, task: TaskRecord) -> Counter[tuple[str, str]]:
    return Counter((entry.kind, entry.key) for entry in await runtime.store.journal(task.id))


async def test_a_question_is_asked_once(place: Place, proxy: Proxy) -> None:
    begin = anyio.Event()

    async def body(run: Run) -> Ending:
        await begin.wait()
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=place.store(proxy.url), policy=ONCE) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await eventually(runtime.runs)
        await outage_after_the_next_save(place, proxy, begin)
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task, WAIT)).result == {"value": "yes"}
        assert set((await journal(runtime, task)).values()) == {1}


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
        assert set((await journal(runtime, task)).values()) == {1}


@pytest.mark.parametrize("policy", [ONCE, RERUN], ids=["once", "rerun"])
async def test_a_claimed_task_runs_as_soon_as_the_store_answers(place: Place, proxy: Proxy, policy: ToolPolicy) -> None:
    async def body(run: Run) -> Ending:
        return ok(run.attempt)

    async with running(body, store=place.store(proxy.url), policy=policy) as runtime:
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
