"""A server and a worker whose clocks are a day off, beside a server whose clock is right."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import psycopg
import pytest
from redis.asyncio import Redis

from harness.backends import Backend, BackendName
from harness.http import HttpWire, http_client
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.serving import ServerProcess
from harness.waiting import eventually
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import store_from_url
from tests.trust.keyed import KEY, LONG_KEY

pytestmark = pytest.mark.slow

LIMIT = 30.0
"""Seconds for what must happen; only a failing test waits so long."""

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Place:
    url: str
    folder: Path
    store: Store
    stack: AsyncExitStack

    async def start(self, role: str, hours: int) -> ServerProcess:
        """A process whose clock is off by so many hours."""
        arguments = (role, str(hours), self.url, self.folder)
        # One that is forked has looked at the clock before, so it is right for the right clock.
        process = ServerProcess("tests.backends.wrong_clock_child", *arguments, "{port}", fork=not hours)
        self.stack.callback(process.close)
        if role == "worker":
            process.launch()
        else:
            await anyio.to_thread.run_sync(process.start)
        return process

    async def door(self, server: ServerProcess) -> Tasking:
        return Tasking(HttpWire(server.url, await self.stack.enter_async_context(http_client())), EVERYTHING)

    async def until_swept(self, task: str) -> None:
        async def is_gone() -> bool:
            return not await self.store.versions([task])

        await eventually(is_gone, LIMIT)

    def paid(self, job: str) -> int:
        return (self.folder / "paid").read_text().splitlines().count(job)


CASES = pytest.mark.parametrize(
    ("place", "hours"), [("redis", 24), ("postgres", -24)], indirect=["place"], ids=["a day ahead", "a day behind"]
)


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, shared_backend: Callable[[BackendName], Backend], tmp_path: Path
) -> AsyncGenerator[Place]:
    url = shared_backend(request.param).fresh()
    store = store_from_url(url)
    async with AsyncExitStack() as stack:
        yield Place(url, tmp_path, store, stack)
    await store.close()


async def pay_once(door: Tasking, key: str) -> str:
    call = {"name": "pay", "arguments": {"job": key}}
    return (await door.ask("tools/call", call, meta={KEY: key})).result["taskId"]


async def open_question(door: Tasking, task: str) -> str:
    [key] = (await door.until(task, "input_required"))["inputRequests"]
    return key


async def carried_in_seconds(place: Place) -> list[float]:
    """When the carrier of the engine is to hand on what it has, in seconds from now by the right clock."""
    now = datetime.now(UTC)
    if place.url.startswith("redis"):
        async with Redis.from_url(place.url) as redis:
            later = [await redis.zrange(key, 0, -1, withscores=True) for key in await redis.keys("*:later")]
        return [float(due) / 1000 - now.timestamp() for each in later for _, due in each]
    async with await psycopg.AsyncConnection.connect(place.url) as connection:
        rows = await connection.execute("SELECT scheduled_at FROM mcp_tasks_jobs.procrastinate_jobs")
        return [(due - now).total_seconds() for (due,) in await rows.fetchall() if due is not None]


@CASES
async def test_processes_with_wrong_clocks_end_nothing_early_or_late(place: Place, hours: int) -> None:
    first = await place.start("first", 0)
    right = await place.door(first)
    kept = await right.finish("pay", job="kept")
    once = await pay_once(right, LONG_KEY)
    await right.until(once, "completed")
    nap = await right.create("nap", seconds=300)
    asking = [await right.create(tool) for tool in ("ask_for_two_hours", "ask_for_half_a_day")]
    questions = [await open_question(right, task) for task in asking]
    expired = await right.create("soon_gone")
    await place.store.open()
    await anyio.to_thread.run_sync(first.stop)

    # Only those with the wrong clock sweep and run tools from here on.
    right = await place.door(await place.start("server", 0))
    server, worker = await place.start("server", hours), await place.start("worker", hours)
    wrong = await place.door(server)
    await place.until_swept(expired)
    ran = await wrong.finish("pay", job="by the worker")
    here = datetime.fromisoformat(text_of(ran["result"]))
    assert abs(here - datetime.now(UTC) - timedelta(hours=hours)) < MINUTE, "its clock is not wrong"

    # What the worker hands to its engine for later is due by the clock of the engine's server.
    await wrong.create("nap", seconds=3_600)

    async def is_carried() -> bool:
        return any(3_600 - LIMIT < seconds <= 3_600 for seconds in await carried_in_seconds(place))

    await eventually(is_carried, LIMIT)

    for door in (right, wrong):
        assert (await door.get(kept["taskId"]))["result"] == kept["result"], "a result that is kept for an hour"
        assert (await door.get(nap))["status"] == "working", "a sleep of five minutes"
        for task in asking:
            assert (await door.get(task))["status"] == "input_required", "a question that may be answered for hours"
        assert (await door.get(ran["taskId"]))["result"] == ran["result"], "a result that is new"
        assert await pay_once(door, LONG_KEY) == once, "a key that was used"
    assert place.paid(LONG_KEY) == 1
    assert abs(datetime.fromisoformat(ran["createdAt"]) - datetime.now(UTC)) < MINUTE

    # An answer that comes in time is taken.
    for door, task, key in zip((wrong, right), asking, questions, strict=True):
        await door.update(task, **{key: accept(sure=True)})
        assert text_of((await door.until(task, "completed"))["result"]) == "accept"
    # Nor does anything take a day longer.
    for door in (right, wrong):
        assert text_of((await door.finish("nap", seconds=1))["result"]) == "awake"
    for process in (server, worker):
        assert process.output.count("the clock of this machine is") == 1, process.output
