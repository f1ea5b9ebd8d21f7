"""What carrying by Docket costs: `python -m bench.docket [idle|jobs]`.

`idle`: three workers that nothing is sent to, by how many routes they serve and how long an idle read waits: round
trips a second in all, processor time of one worker, and how fast an id is picked up that is sent after all. `jobs`:
ids a second from one process to another, beside Docket alone with the settings it comes with and with ours.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

from docket import Docket, Worker
from redis.asyncio import Redis

from bench.fleet_tasks import send as send_all
from bench.servers import environment
from harness.databases import valkey
from harness.processes import PIPE, python, start_async
from mcp_tasks.engines import RemoteEngine, Route, Serves, Slot
from mcp_tasks.engines.docket import DocketCarrier

WORKERS = 3
WINDOW = 15.0
SETTLED = 2.5
"""Seconds after which a reader rests."""

TOOLS = [f"tool-{number}" for number in range(19)]
_prefixes = (f"bench-{number}" for number in count())


@asynccontextmanager
async def workers(
    url: str, tools: Sequence[str], idle_check: timedelta
) -> AsyncGenerator[tuple[RemoteEngine, list[float]]]:
    """Three engines at work, and when what was sent to them arrived."""
    arrived: list[float] = []
    prefix = next(_prefixes)

    async def execute(task_id: str, slot: Slot) -> None:
        arrived.append(time.perf_counter())
        slot.claimed()

    engines = [RemoteEngine(DocketCarrier(url, prefix=prefix, idle_check=idle_check)) for _ in range(WORKERS)]
    for engine in engines:
        await engine.start(execute, Serves(tools=tools))
    try:
        yield engines[0], arrived
    finally:
        for engine in engines:
            await engine.stop(timedelta(seconds=1))


async def round_trips(redis: Redis) -> int:
    return int((await redis.info("stats"))["total_reads_processed"])


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def pick_up(engine: RemoteEngine, arrived: list[float], tool: str | None, delay: timedelta | None) -> float:
    """Milliseconds from when an id was sent, or due, to when it arrived."""
    arrived.clear()
    sent = time.perf_counter() + (delay.total_seconds() if delay else 0.0)
    await engine.submit("an id", route=Route(tool=tool), delay=delay)
    while not arrived:  # noqa: ASYNC110 - no more than a clock
        await asyncio.sleep(0.0005)
    return 1000 * (arrived[0] - sent)


async def idle_case(url: str, routes: int, check: timedelta) -> str:
    tools = TOOLS[: routes - 1]
    async with Redis.from_url(url) as redis, workers(url, tools, check) as (engine, arrived):
        await asyncio.sleep(3 * SETTLED)
        before, used = await round_trips(redis), processor()
        await asyncio.sleep(WINDOW)
        trips, used = (await round_trips(redis) - before - 1) / WINDOW, (processor() - used) / WINDOW / WORKERS
        connections = (await redis.info("clients"))["connected_clients"] - 1
        quick: list[float] = []
        late: list[float] = []
        for number in range(4):
            tool = tools[number % len(tools)] if tools else None
            await asyncio.sleep(SETTLED if len(tools) < 4 else 0.1)
            quick.append(await pick_up(engine, arrived, tool, None))
            late.append(await pick_up(engine, arrived, tool, timedelta(seconds=0.3)))
    return (
        f"| {routes} | {check.total_seconds():g} s | {trips:.1f} | {100 * used:.1f} % | {connections / WORKERS:.0f} "
        f"| {statistics.median(quick):.1f} ms | {max(quick):.1f} ms | {statistics.median(late):.0f} ms |"
    )


async def idle(url: str) -> None:
    print("| routes | idle read | round trips/s, all 3 | CPU of one | connections | pick-up | slowest | timer |")
    print("|---|---|---|---|---|---|---|---|")
    for routes in (1, 5, 20):
        for check in (0.05, 0.5, 5.0):
            print(await idle_case(url, routes, timedelta(seconds=check)), flush=True)


async def noop(task_id: str) -> None:
    """What Docket alone is given to do."""


async def bare_worker(url: str, name: str, interval: str, concurrency: str, jobs: str) -> None:
    """Docket alone, in a process of its own."""
    done = asyncio.Event()
    left = 0

    async def run(task_id: str) -> None:
        nonlocal left
        left += 1
        if left == int(jobs):
            done.set()

    async with Docket(name=name, url=url, execution_ttl=timedelta(0)) as docket:
        docket.register(run, names=["noop"])
        check = timedelta(seconds=float(interval))
        async with Worker(docket, concurrency=int(concurrency), minimum_check_interval=check) as worker:
            print("ready", flush=True)
            running = asyncio.create_task(worker.run_forever())
            await done.wait()
            print("done", flush=True)
            running.cancel()
            await running


async def our_worker(url: str, prefix: str, jobs: str) -> None:
    """Our engine, in a process of its own."""
    done = asyncio.Event()
    left = 0

    async def execute(task_id: str, slot: Slot) -> None:
        nonlocal left
        slot.claimed()
        left += 1
        if left == int(jobs):
            done.set()

    engine = RemoteEngine(DocketCarrier(url, prefix=prefix))
    await engine.start(execute)
    print("ready", flush=True)
    await done.wait()
    print("done", flush=True)
    await engine.stop(timedelta(seconds=1))


JOBS = 3000


async def jobs(url: str) -> None:
    print("| | ids/s, sent and taken |")
    print("|---|---|")
    for label, interval, concurrency in (
        ("Docket alone, as it comes", "0.25", "10"),
        ("Docket alone, tuned", "0.01", "16"),
    ):
        print(f"| {label} | {await bare(url, JOBS, interval, concurrency):.0f} |", flush=True)
    prefix = next(_prefixes)
    engine = RemoteEngine(DocketCarrier(url, prefix=prefix))
    await engine.start(None)
    print(f"| our engine | {await timed(engine.submit, JOBS, 'ours', url, prefix):.0f} |", flush=True)
    await engine.stop(timedelta(seconds=1))


async def bare(url: str, jobs: int, interval: str = "0.01", concurrency: str = "16") -> float:
    """Jobs a second of Docket alone, tuned as our engine has it."""
    name = next(_prefixes)
    async with Docket(name=name, url=url + "?max_connections=1000", execution_ttl=timedelta(0)) as docket:
        docket.register(noop)

        async def send(task_id: str) -> None:
            await docket.add("noop")(task_id)

        return await timed(send, jobs, "bare", url, name, interval, concurrency)


async def timed(send: Callable[[str], Awaitable[None]], jobs: int, *command: str) -> float:
    """Ids a second, from the first that is sent to the last that is taken by another process."""
    process = await start_async(python("bench.docket", *command, str(jobs)), env=environment(), stdout=PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    began = time.perf_counter()
    await send_all(lambda number: send(f"task-{number}"), jobs, senders=16)
    await process.stdout.readline()
    rate = jobs / (time.perf_counter() - began)
    await process.wait()
    return rate


def main(what: str = "", *args: str) -> None:
    if what == "bare":
        asyncio.run(bare_worker(*args))
    elif what == "ours":
        asyncio.run(our_worker(*args))
    elif what not in ("", "jobs", "idle"):
        sys.exit("usage: python -m bench.docket [idle|jobs]")
    else:
        print(f"{datetime.now(UTC):%Y-%m-%d}")
        with valkey() as server:
            for name, measure in (("jobs", jobs), ("idle", idle)):
                if what in ("", name):
                    asyncio.run(measure(server.url))


if __name__ == "__main__":
    main(*sys.argv[1:])
