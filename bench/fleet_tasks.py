"""No-op tasks through a store and its engine, from `launch` to their results, in processes of their own.

    python -m bench.fleet_tasks worker URL     a worker that runs them, until killed

`rate` and `worker` are also what profilers are given: there is no HTTP in it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from bench.servers import environment
from harness.processes import python, running
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.engines.remote import engine_from_url
from mcp_tasks.model.record import TaskRequest, TaskStatus
from mcp_tasks.runtime import Ending, Run, Settings, Success, TaskOptions, TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.url import store_from_url

SENDERS = 20
REQUEST = TaskRequest(name="noop", arguments={})


def runtime(url: str, *, runs_tools: bool) -> TaskRuntime:
    """A runtime whose one tool does nothing."""
    policy = TaskOptions(recover="rerun")

    async def body(run: Run) -> Ending:
        return Success({})

    async def policy_of(method: str, name: str) -> TaskOptions:
        return policy

    async def tools() -> dict[str, TaskOptions]:
        return {"noop": policy}

    return TaskRuntime(
        store=store_from_url(url),
        engine=engine_from_url("local" if url.startswith("sqlite:") else url, DEFAULT_CONCURRENCY),
        body=body,
        policy=policy_of,
        describe=lambda exc: {"code": -32603, "message": str(exc)},
        clock=lambda: datetime.now(UTC),
        runs_tools=runs_tools,
        tools=tools,
        # All tasks are one owner's, and the share of one is what is measured elsewhere.
        settings=Settings(max_handed_out=1_000_000),
    )


async def rate(url: str, count: int) -> float:
    """Tasks a second: one process makes them, another runs them, and the last has its result in the store."""
    async with _pair(url) as (run_all, _):
        began = time.perf_counter()
        await run_all(count)
        return count / (time.perf_counter() - began)


async def processor(url: str, count: int) -> tuple[float, float]:
    """Seconds of the processor for one task: of the worker, and of who makes it."""
    async with _pair(url) as (run_all, pid):
        clock = (~pid << 3) | 2
        worker, sender = time.clock_gettime(clock), time.process_time()
        await run_all(count)
        return (time.clock_gettime(clock) - worker) / count, (time.process_time() - sender) / count


@asynccontextmanager
async def _pair(url: str) -> AsyncGenerator[tuple[Callable[[int], Awaitable[None]], int]]:
    """What makes so many tasks and returns when all have ended, and the worker that runs them, which is there."""
    server = runtime(url, runs_tools=False)
    await server.start()

    async def launch(number: int) -> None:
        await server.launch(LaunchSpec(request=REQUEST))

    async def some_run() -> bool:
        return bool((await server.list(EVERYBODY, status=TaskStatus.WORKING, limit=1)).records)

    async def run_all(count: int) -> None:
        await send(launch, count)
        while await some_run():  # noqa: ASYNC110 - the store is the only one to know
            await asyncio.sleep(0.02)

    with running(python("bench.fleet_tasks", "worker", url), env=environment()) as process:
        try:
            await run_all(1)
            yield run_all, process.pid
        finally:
            await server.stop()


async def send(one: Callable[[int], Awaitable[object]], count: int, *, senders: int = SENDERS) -> None:
    """Send so many, some at a time."""
    numbers = iter(range(count))

    async def sender() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(sender() for _ in range(senders)))


async def worker(url: str) -> None:
    """Run tasks until killed."""
    await runtime(url, runs_tools=True).start()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[2]))
