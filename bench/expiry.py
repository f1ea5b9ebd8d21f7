"""How long expiry stalls an event loop: `python -m bench.expiry [--tasks 100000] [--outcome-bytes 200]`.

A file of expired tasks, each with its request and its outcome, and a runtime that starts on it. A ticker on the same
loop measures by how much its sleeps are late until the last of them is gone. A machine that is busy with other things
delays a loop that does nothing at all, so the same ticker measures the loop at rest before, for as long as it takes; in
the second half of the tasks somebody creates tasks meanwhile, and waits for the disk each time. Beside a stall stands
what the process had of the CPU during it: a loop that was kept from its turn by its own process shows both.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.machine import machine_facts
from bench.report import print_facts
from bench.stored import REQUEST, copy_in_sqlite, new_record, new_runtime
from bench.ticker import Ticker
from mcp_tasks.core import Outcome, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.sqlite import SqliteStore

MADE = 100
"""Tasks that are made by the store; the others are copies."""

REST = 10.0
"""Seconds for which the loop at rest is measured."""


async def fill(path: Path, tasks: int, outcome_bytes: int) -> None:
    """A file with so many expired tasks."""
    store = SqliteStore(path)
    await store.open()
    ended = datetime.now(UTC) - timedelta(days=2)
    outcome = Outcome(body=b'"%b"' % (b"x" * outcome_bytes))
    for _ in range(min(MADE, tasks)):
        record = new_record(retention=timedelta(days=1))
        await store.create(record, REQUEST)
        over = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=ended)
        await store.save(over, expected=1, outcome=outcome)
    await asyncio.to_thread(copy_in_sqlite, path, tasks, "true")
    await asyncio.to_thread(_copy_outcomes, path)
    await store.close()


def _copy_outcomes(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "INSERT OR IGNORE INTO outcomes SELECT key, (SELECT body FROM outcomes LIMIT 1), NULL FROM tasks"
        )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


async def create_some(store: Store, waits: list[float]) -> None:
    """Create tasks one after the other, for as long as nobody cancels it."""
    while True:
        began = time.perf_counter()
        await store.create(new_record(namespace="other"), REQUEST)
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)


async def run(path: Path, tasks: int, outcome_bytes: int) -> None:
    """Measure and print."""
    ticker = Ticker()
    await ticker.start()
    await asyncio.sleep(REST)
    print_stalls("at rest", await ticker.stop())

    await fill(path, tasks, outcome_bytes)
    size = await asyncio.to_thread(lambda: path.stat().st_size)
    store = SqliteStore(path)
    runtime = await new_runtime(store)
    began, used = time.perf_counter(), time.process_time()
    await runtime.start()
    print(f"{'start':34}{(time.perf_counter() - began) * 1e3:9.1f} ms")
    wal, longest_wal = path.with_name(path.name + "-wal"), 0
    waits: list[float] = []
    creating: asyncio.Task[None] | None = None
    await ticker.start()
    while left := await asyncio.to_thread(_left, path):
        longest_wal = max(longest_wal, wal.stat().st_size)
        if left < tasks // 2 and creating is None:
            print_stalls("expiry alone", await ticker.stop())
            await ticker.start()
            creating = asyncio.create_task(create_some(store, waits))
        await asyncio.sleep(0.25)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print_stalls("expiry beside creation", await ticker.stop())
    if creating is not None:
        creating.cancel()
    await runtime.stop()
    print(f"{'removed in':34}{wall:9.1f} s, {cpu / tasks * 1e6:,.0f} µs of CPU a task")
    print(f"{'create meanwhile, p50 and p99':34}{_quantile(waits, 50):9.1f} {_quantile(waits, 99):9.1f} ms")
    print(f"{'file, and its WAL at most':34}{size / 1e6:9.1f} {longest_wal / 1e6:9.1f} MB")


def _left(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (left,) = connection.execute("SELECT count(*) FROM tasks WHERE expires IS NOT NULL").fetchone()
        return left


def _quantile(waits: Sequence[float], percent: int) -> float:
    return statistics.quantiles(waits, n=100)[percent - 1] * 1e3 if len(waits) > 1 else float("nan")


def print_stalls(name: str, late: Sequence[tuple[float, float]]) -> None:
    """The longest lateness with the CPU that the process used meanwhile, and how late the rest were."""
    stall, used = max(late)
    lates = [seconds for seconds, _ in late]
    # What this process kept the loop from for sure: the stalls during which it was at work itself.
    own = max(min(seconds, cpu) for seconds, cpu in late)
    print(
        f"{name:34}{stall * 1e3:9.1f} ms at most (CPU of this process meanwhile {used * 1e3:.1f}; at most of its own "
        f"making {own * 1e3:.1f}), p99.9 {statistics.quantiles(lates, n=1000)[998] * 1e3:.2f}, {len(late):,} looks"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.expiry", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--outcome-bytes", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-") as name:
        print_facts(machine_facts(Path(name)))
        asyncio.run(run(Path(name) / "tasks.db", options.tasks, options.outcome_bytes))


if __name__ == "__main__":
    main()
