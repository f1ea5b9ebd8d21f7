"""What the verbs of a store cost with more and more tasks in it: `python -m bench.stored [sqlite|postgres]`.

Stores of all sizes are open at once and measured in turns, so that a neighbour on the machine slows all of them. Most
of what is stored has ended; as many tasks are queued, handed out, parked, due and claimed in each. With `--all` what
waits grows as well: a tenth of all tasks is queued. The tasks are made by the store; the many are copies of them, made
by the database, with ids of their own. A start opens a store and a runtime on it as a server does, until it serves; a
sweep is all that the runtime looks for from time to time. What expiry does to the event loop is `bench.expiry`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import psycopg
from mcp.server import MCPServer

from bench.machine import machine_facts
from bench.options import at_least
from bench.report import print_facts
from bench.store import make_request
from harness.databases import Postgres, postgres
from mcp_tasks import Tasks
from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores import EVERYBODY, UNOWNED, InSession, OwnedBy, Store, Whose
from mcp_tasks.stores.base import Handing, Share, WorkLimits
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.sqlite import SqliteStore

KINDS = ("sqlite", "postgres")

PAGE = 10
"""Ids that a sweep asks for: as many are there in each store."""

OWNER = OwnedBy("owner-1")
LISTINGS: Mapping[str, tuple[Whose, TaskStatus | None]] = {
    "of an owner": (OWNER, None),
    "of an owner, ended": (OWNER, TaskStatus.COMPLETED),
    "of an owner, waiting": (OWNER, TaskStatus.INPUT_REQUIRED),
    "of an owner, failed": (OWNER, TaskStatus.FAILED),
    "of nobody, ended": (UNOWNED, TaskStatus.COMPLETED),
    "of everybody": (EVERYBODY, None),
    "of everybody, failed": (EVERYBODY, TaskStatus.FAILED),
    "of a session, failed": (InSession("session-1"), TaskStatus.FAILED),
}
"""What is listed. Of most kinds there are many, of the failed there are none."""

STARTS = 5

SHARE = Share(owner=1_000_000)
REQUEST = make_request(100)
_numbers = count()


def new_record(**changes: Any) -> TaskRecord:
    """A task of one of twenty owners."""
    number, now = next(_numbers), datetime.now(UTC)
    record = TaskRecord(
        id=f"task_{number:06}_{time.monotonic_ns():x}",
        owner=f"owner-{number % 20}",
        name=f"tool-{number % 3}",
        created_at=now,
        updated_at=now,
        namespace="bench",
    )
    return replace(record, **changes)


async def fill(store: Store) -> None:
    """Some tasks of each kind."""
    now = datetime.now(UTC)
    ended: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": now}
    claimed: dict[str, Any] = {"attempt": 1, "started_at": now}
    kinds: list[tuple[int, dict[str, Any]]] = [
        (140, {**ended, "retention": timedelta(days=30)}),
        (20, {}),
        (PAGE, {"status": TaskStatus.INPUT_REQUIRED, "wake_at": now - timedelta(days=1)}),
        (PAGE, {"status": TaskStatus.INPUT_REQUIRED, "wake_at": now + timedelta(days=1)}),
        (PAGE, {**claimed, "worker": "worker-1"}),
    ]
    for number, changes in kinds:
        await asyncio.gather(*(store.create(new_record(**changes), REQUEST) for _ in range(number)))
    handing = [Handing(share=SHARE) for _ in range(PAGE)]
    await asyncio.gather(*(store.create(new_record(), REQUEST, handing=one) for one in handing))
    for worker in ("worker-1", "worker-2"):
        await store.heartbeat(worker, namespace="bench", beats=1)


# Copies


def copy_in_sqlite(path: Path, size: int, where: str) -> list[str]:
    """Have the file hold so many tasks; some of their ids."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        # Nobody else has the file open for writing, and indexes are made more quickly than kept.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -500000")
        indexes = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'tasks' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(tasks)") if row[1] != "key"]
        values = ["'task_' || hex(randomblob(20))" if name == "id" else name for name in columns]
        values = ["created + n * 1000" if name == "created" else name for name in values]
        (last,) = connection.execute("SELECT max(key) FROM tasks").fetchone()
        copies = _copies(connection.execute(f"SELECT count(*), count(*) FILTER (WHERE {where}) FROM tasks"), size)
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
            f"INSERT INTO tasks ({', '.join(columns)}) SELECT {', '.join(values)} FROM numbers CROSS JOIN tasks "
            f"WHERE key <= ? AND {where}",
            (copies, last),
        )
        connection.execute(
            "INSERT INTO requests SELECT key, (SELECT request FROM requests LIMIT 1) FROM tasks WHERE key > ?", (last,)
        )
        for _, sql in indexes:
            connection.execute(sql)
        return [row[0] for row in connection.execute("SELECT id FROM tasks ORDER BY id LIMIT 500")]


def copy_in_postgres(url: str, size: int, where: str) -> list[str]:
    """Have the database hold so many tasks; some of their ids."""
    with psycopg.connect(url, autocommit=True) as connection:

        def run(sql: str, *values: object) -> psycopg.Cursor[Any]:
            return connection.execute(sql.encode(), values or None)

        columns = [
            row[0]
            for row in run(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'mcp_tasks_tasks'::regclass AND attnum > 0"
            )
            if row[0] != "key"
        ]
        values = ["'task_' || md5(id || '/' || n)" if name == "id" else name for name in columns]
        values = ["created + n * 1000" if name == "created" else name for name in values]
        ((last,),) = run("SELECT max(key) FROM mcp_tasks_tasks")
        copies = _copies(run(f"SELECT count(*), count(*) FILTER (WHERE {where}) FROM mcp_tasks_tasks"), size)
        run(
            f"INSERT INTO mcp_tasks_tasks ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM generate_series(1, %s) n, mcp_tasks_tasks WHERE {where}",
            copies,
        )
        run(
            "INSERT INTO mcp_tasks_requests SELECT key, (SELECT request FROM mcp_tasks_requests LIMIT 1) "
            "FROM mcp_tasks_tasks WHERE key > %s",
            last,
        )
        # As autovacuum does after a minute.
        run("VACUUM ANALYZE mcp_tasks_tasks")
        run("VACUUM ANALYZE mcp_tasks_requests")
        return [row[0] for row in run("SELECT id FROM mcp_tasks_tasks ORDER BY id LIMIT 500")]


def _copies(counted: Any, size: int) -> int:
    ((there, kind),) = counted
    return max(0, (size - there) // kind)


# Measuring


def verbs(store: Store, ids: Iterator[str]) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """What is measured. What a verb writes is taken back outside of the clock, or is one task more."""
    now = datetime.now(UTC)

    async def claim() -> None:
        record = new_record()
        await store.create(record, REQUEST)
        began = time.perf_counter()
        claimed = replace(record, worker="worker-1", attempt=1, started_at=record.created_at, version=2)
        await store.save(claimed, expected=1, limits=WorkLimits(tool=1_000_000, owner=1_000_000))
        took["claim within limits"] = time.perf_counter() - began
        await store.delete(record.id, expected=2)

    async def create() -> None:
        record = new_record()
        began = time.perf_counter()
        await store.create(record, REQUEST, handing=Handing(share=SHARE))
        took["create"] = time.perf_counter() - began
        await store.delete(record.id, expected=1)

    async def forget() -> None:
        over = {"status": TaskStatus.COMPLETED, "finished_at": now - timedelta(days=2), "retention": timedelta(days=1)}
        await asyncio.gather(*(store.create(new_record(**over), REQUEST) for _ in range(PAGE)))
        began = time.perf_counter()
        forgotten = await store.forget_expired(now, limit=PAGE)
        took["forget_expired"] = time.perf_counter() - began
        assert len(forgotten) == PAGE

    took: dict[str, float] = {}

    def own(act: Callable[[], Awaitable[None]], name: str) -> Callable[[], Awaitable[float]]:
        async def timed() -> float:
            await act()
            return took[name]

        return timed

    return {
        "get": lambda: store.get(next(ids)),
        "versions, of one": lambda: store.versions([next(ids)]),
        "create": own(create, "create"),
        "claim within limits": own(claim, "claim within limits"),
        "queued": lambda: store.queued("bench", limit=PAGE),
        "queued, handed out": lambda: store.queued("bench", handed_out=True, limit=PAGE),
        "due": lambda: store.due("bench", now, limit=PAGE),
        "claimed": lambda: store.claimed("worker-1", limit=PAGE),
        "forget_expired": own(forget, "forget_expired"),
        "hand_out": lambda: store.hand_out("bench", SHARE, mark=False, limit=PAGE),
        "backlog": lambda: store.backlog("bench", now),
        "workers": lambda: store.workers("bench"),
        "usage, of an owner": lambda: store.usage("bench", OWNER),
        "usage, of everybody": lambda: store.usage("bench", EVERYBODY),
        **{
            f"list, {name}": partial(store.list, "bench", whose, now=now, status=status, limit=PAGE)
            for name, (whose, status) in LISTINGS.items()
        },
    }


async def measure(stores: Mapping[int, tuple[Store, list[str]]], rounds: int) -> None:
    """Every verb on every size by turns, and the medians as a table."""
    found: dict[tuple[str, int], list[float]] = {}
    acts = {size: verbs(store, cycle(ids)) for size, (store, ids) in stores.items()}
    names = list(acts[next(iter(acts))])
    for number in range(rounds + 3):
        for name in names:
            for size in stores:
                began = time.perf_counter()
                took = await acts[size][name]()
                seconds = took if isinstance(took, float) else time.perf_counter() - began
                # The first few are for caches and prepared statements.
                if number >= 3:
                    found.setdefault((name, size), []).append(seconds)
    smallest = min(stores)
    sizes = " | ".join(f"{size:,}" for size in stores)
    print(f"| µs, first deciles of {rounds} | {sizes} | largest to smallest (medians) |")
    print("|---" * (len(stores) + 2) + "|")
    for name in names:
        # The first decile is what a busy machine disturbs least.
        quick = {size: statistics.quantiles(found[name, size], n=10)[0] * 1e6 for size in stores}
        medians = {size: statistics.median(found[name, size]) for size in stores}
        ratios = f"{quick[max(stores)] / quick[smallest]:.2f} ({medians[max(stores)] / medians[smallest]:.2f})"
        print(f"| `{name}` | " + " | ".join(f"{value:,.0f}" for value in quick.values()) + f" | {ratios} |")


async def run(kind: str, sizes: list[int], rounds: int, where: str, server: Postgres | None, folder: Path) -> None:
    """Fill the stores of one kind, and measure them."""
    stores: dict[int, tuple[Store, list[str]]] = {}
    for size in sizes:
        began = time.monotonic()
        if server is None:
            path = folder / f"{size}.db"
            store: Store = SqliteStore(path)
            await store.open()
            await fill(store)
            ids = await asyncio.to_thread(copy_in_sqlite, path, size, where)
        else:
            url = server.new_database()
            store = PostgresStore(url)
            await store.open()
            await fill(store)
            ids = await asyncio.to_thread(copy_in_postgres, url, size, where)
        print(f"{kind}: {size:,} tasks in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        stores[size] = store, ids
    await measure(stores, rounds)
    for store, _ in stores.values():
        await store.close()
    print("\n| | start | a sweep |\n|---|---|---|")
    for size, (store, _) in stores.items():
        print(f"| {size:,} tasks | {await start(store)} |")


async def new_runtime(store: Store) -> TaskRuntime:
    """A runtime of a server without tools, as a server has it."""
    server, tasks = MCPServer("bench"), Tasks(store)
    # The many tasks are of tools that the server lacks, and it would say so.
    logging.getLogger("mcp_tasks").setLevel(logging.ERROR)
    return await tasks.runtime_for(server, store=store, engine=LocalEngine(16), clock=lambda: datetime.now(UTC))


async def start(store: Store) -> str:
    """How long a start takes, the median of some, and a sweep after it; the first start is the one with cold caches."""
    starts: list[float] = []
    sweeps: list[float] = []
    for _ in range(STARTS):
        runtime = await new_runtime(store)
        began = time.perf_counter()
        await runtime.start()
        starts.append(time.perf_counter() - began)
        began = time.perf_counter()
        await runtime.janitor.sweep()
        sweeps.append(time.perf_counter() - began)
        await runtime.stop()
    started, swept = (f"{statistics.median(times) * 1e3:.1f} ms" for times in (starts, sweeps))
    return f"{starts[0] * 1e3:.1f} ms, and again {started} | {swept}"


def _kind(name: str) -> str:
    if name not in KINDS:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(KINDS)}")
    return name


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.stored", description=__doc__)
    parser.add_argument("kinds", nargs="*", type=_kind, default=[*KINDS], help="of store: sqlite, postgres; both")
    parser.add_argument(
        "--sizes",
        type=at_least(1),
        nargs="+",
        default=[1_000, 100_000, 1_000_000],
        help="tasks in each store (%(default)s)",
    )
    parser.add_argument("--rounds", type=at_least(1), default=100, help="calls of each verb (%(default)s)")
    parser.add_argument("--all", action="store_true", help="what waits grows as well")
    options = parser.parse_args()
    soon = 1_000_000 * (int(time.time()) + 3600)
    where = "true" if options.all else f"status = 'completed' AND expires > {soon}"
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-") as name:
        print_facts(machine_facts(Path(name)))
        for kind in options.kinds:
            with postgres() if kind == "postgres" else contextlib.nullcontext() as server:
                asyncio.run(run(kind, options.sizes, options.rounds, where, server, Path(name)))


if __name__ == "__main__":
    main()
