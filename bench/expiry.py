"""How long expiry stalls an event loop: `python -m bench.expiry [--tasks 100000] [--outcome-bytes 200]`.

A file of expired tasks, each with its request and its outcome, and a runtime that starts on it. A ticker on the same
loop measures by how much its sleeps are late until the last of them is gone; during the second half somebody creates
tasks meanwhile, and waits for the disk each time. A machine that is busy with other things delays a loop that does
nothing at all, so the loop is measured at rest before; and Linux says for how long a thread was ready and had no CPU,
which is not of this process's making. What the loop's thread waited is taken off; and, as another number, what the
thread did that waited longest, because one that has the interpreter's lock and no CPU keeps the loop waiting too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import get_native_id

from bench.machine import machine_facts
from bench.options import at_least
from bench.report import print_facts
from bench.stored import REQUEST, copy_in_sqlite, new_record, new_runtime
from bench.ticker import TICK
from mcp_tasks.model import Outcome, TaskStatus
from mcp_tasks.stores import Store
from mcp_tasks.stores.sqlite import SqliteStore

MADE = 100
"""Tasks that are made by the store; the others are copies."""

THREADS = Path("/proc/self/task")

REST = 10.0
"""Seconds for which the loop at rest is measured."""


class Stalls:
    """By how much the running loop's turns are late: each time, and without what threads waited for a CPU."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, float, float]] = []
        self._ticking = asyncio.create_task(self._tick())

    async def end(self, name: str) -> None:
        """Measure no more, and print what was measured."""
        self._ticking.cancel()
        late, own, all_ = ([look[kind] * 1e3 for look in self._looks] for kind in (0, 1, 2))
        print(
            f"{name:34}{max(own):9.1f} ms at most, p99.9 {statistics.quantiles(own, n=1000)[998]:.1f}; "
            f"with what it waited for a CPU {max(late):.1f}, without what any thread did {max(all_):.1f}; "
            f"{len(late):,} looks"
        )

    async def _tick(self) -> None:
        loop = str(get_native_id())
        while True:
            before, began = _without_cpu(), time.perf_counter()
            await asyncio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            waited = {thread: seconds - before.get(thread, seconds) for thread, seconds in _without_cpu().items()}
            self._looks.append((late, max(0.0, late - waited[loop]), max(0.0, late - max(waited.values()))))


def _without_cpu() -> dict[str, float]:
    """For how many seconds each thread of this process was ready to run, and did not."""
    waited: dict[str, float] = {}
    for thread in os.listdir(THREADS):
        # It may have ended by now.
        with suppress(OSError):
            waited[thread] = int((THREADS / thread / "schedstat").read_bytes().split()[1]) / 1e9
    return waited


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
    stalls = Stalls()
    await asyncio.sleep(REST)
    await stalls.end("at rest")

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
    stalls, name = Stalls(), "expiry alone"
    while left := await asyncio.to_thread(_left, path):
        longest_wal = max(longest_wal, wal.stat().st_size)
        if left < tasks // 2 and creating is None:
            await stalls.end(name)
            stalls, name = Stalls(), "expiry beside creation"
            creating = asyncio.create_task(create_some(store, waits))
        await asyncio.sleep(0.25)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    await stalls.end(name)
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.expiry", description=__doc__)
    parser.add_argument("--tasks", type=at_least(1), default=100_000, help="that have expired (%(default)s)")
    parser.add_argument("--outcome-bytes", type=at_least(0), default=200, help="of each (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-") as name:
        print_facts(machine_facts(Path(name)))
        asyncio.run(run(Path(name) / "tasks.db", options.tasks, options.outcome_bytes))


if __name__ == "__main__":
    main()
