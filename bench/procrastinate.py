"""What carrying by procrastinate costs: `python -m bench.procrastinate [jobs|idle]`.

`jobs`: no-op jobs a second from one process to another, on one Postgres: procrastinate alone; our engine, ids only; and
tasks end to end, from `launch` to their final status in the store. `idle`: statements a second that three workers and
two servers with nothing to do send in all, counted by the server's log.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import procrastinate
import psycopg
from psycopg_pool import AsyncConnectionPool

from bench.fleet_tasks import REQUEST, runtime
from bench.fleet_tasks import send as send_all
from bench.fleet_tasks import worker as tasks_worker
from bench.servers import environment
from harness.databases import Postgres, postgres
from harness.processes import python, running
from mcp_tasks.engines import Serves, Slot
from mcp_tasks.engines.procrastinate import HANDLERS, ProcrastinateEngine
from mcp_tasks.runtime.launch import LaunchSpec

JOBS = 500
ROUNDS = 3
WINDOW = 20.0
SETTLED = 40.0


# Procrastinate alone


async def bare_app(url: str) -> tuple[procrastinate.App, AsyncConnectionPool[Any]]:
    """An app as its documentation makes one, with the settings that make it quick."""

    async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.set_autocommit(True)

    kwargs = {"options": "-c plan_cache_mode=force_custom_plan"}
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        url, kwargs=kwargs, min_size=1, max_size=6, open=False, configure=configure
    )
    await pool.open(wait=True)
    connector = procrastinate.PsycopgConnector()
    await connector.open_async(pool)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        pass

    return app, pool


async def bare_worker(url: str) -> None:
    app, _ = await bare_app(url)
    await app.run_worker_async(
        concurrency=HANDLERS, delete_jobs="always", install_signal_handlers=False, fetch_job_polling_interval=1.0
    )


async def bare(url: str) -> float:
    app, pool = await bare_app(url)
    await app.schema_manager.apply_schema_async()
    try:
        return await timed(
            url,
            "bare_worker",
            lambda number: app.tasks["noop"].defer_async(number=number),
            "SELECT count(*) = 0 FROM procrastinate_jobs",
        )
    finally:
        await pool.close()


# Our engine, ids only


async def engine_worker(url: str) -> None:
    async def execute(task_id: str, slot: Slot) -> None:
        slot.claimed()

    await ProcrastinateEngine(url).start(execute, Serves(tools=("noop",)))
    await asyncio.sleep(3600)


async def engine(url: str) -> float:
    sender = ProcrastinateEngine(url)
    await sender.start(None)
    try:
        return await timed(
            url,
            "engine_worker",
            lambda number: sender.submit(f"task_{number:027}"),
            "SELECT count(*) = 0 FROM mcp_tasks_jobs.procrastinate_jobs WHERE task_name = 'mcp_tasks.run'",
        )
    finally:
        await sender.stop(timedelta(seconds=1))


# Tasks, end to end


async def tasks(url: str) -> float:
    server = runtime(url, runs_tools=False)
    await server.start()
    try:
        return await timed(
            url,
            "tasks_worker",
            lambda number: server.launch(LaunchSpec(request=REQUEST)),
            "SELECT count(*) = 0 FROM mcp_tasks_tasks WHERE status <> 'completed'",
        )
    finally:
        await server.stop()


async def tasks_server(url: str) -> None:
    await runtime(url, runs_tools=False).start()
    await asyncio.sleep(3600)


# Measuring


async def timed(url: str, worker: str, send: Callable[[int], Awaitable[Any]], is_done: str) -> float:
    """Jobs a second, from the first that is sent to the last that is done."""
    with running(_process(worker, url), env=environment()):
        # It is there when a job has been done.
        await send(0)
        await until(url, is_done)
        began = time.perf_counter()
        await send_all(lambda number: send(number + 1), JOBS)
        await until(url, is_done)
        return JOBS / (time.perf_counter() - began)


def _process(worker: str, url: str) -> list[str]:
    return python("bench.procrastinate", worker, url)


async def until(url: str, query: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            row = await (await connection.execute(query.encode())).fetchone()
            if row is not None and row[0]:
                return
            await asyncio.sleep(0.02)


async def jobs(server: Postgres) -> None:
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for case in bare, engine, tasks:
            rates.setdefault(case.__name__, []).append(await case(server.new_database()))
            print(f"{case.__name__}: {rates[case.__name__][-1]:.0f}", file=sys.stderr)
    alone = statistics.median(rates["bare"])
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"{name:8} {rate:7.0f} a second, {rate / alone:4.0%}   ({', '.join(f'{one:.0f}' for one in found)})")


async def idle(server: Postgres) -> None:
    url = server.new_database()
    with ExitStack() as stack:
        for kind in ["tasks_worker"] * 3 + ["tasks_server"] * 2:
            stack.enter_context(running(_process(kind, url), env=environment()))
        # On a busy machine a process takes its time to start.
        await asyncio.sleep(SETTLED)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(1)
        log = server.folder / "log"
        before = log.stat().st_size
        await asyncio.sleep(WINDOW)
        with log.open("rb") as lines:
            lines.seek(before)
            found = [line.decode(errors="replace") for line in lines if b"LOG:  " in line]
    statements = [line.partition(": ")[2].strip() for line in found if "statement: " in line or "execute " in line]
    print(f"{len(statements) / WINDOW:.1f} statements a second")
    for text, times in Counter(text[:100] for text in statements).most_common(25):
        print(f"{times / WINDOW:6.2f}  {text}")


PROCESSES = {run.__name__: run for run in (bare_worker, engine_worker, tasks_server)} | {"tasks_worker": tasks_worker}
MEASURES = {"jobs": jobs, "idle": idle}


def main(arguments: list[str]) -> None:
    match arguments:
        case [worker, url] if worker in PROCESSES:
            asyncio.run(PROCESSES[worker](url))
        case [] | ["jobs" | "idle"]:
            with postgres() as server:
                asyncio.run(MEASURES[arguments[0] if arguments else "jobs"](server))
        case _:
            sys.exit(f"usage: python -m bench.procrastinate [{'|'.join(MEASURES)}]")


if __name__ == "__main__":
    main(sys.argv[1:])
