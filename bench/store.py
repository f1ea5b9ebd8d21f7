"""What a store costs: time and CPU per write with more and more writers, and per read.

    python bench/store.py                      a fresh SQLite file in a temporary directory
    python bench/store.py --path tasks.db      that file
    python bench/store.py --memory             the store in memory, as a floor

CPU is that of the whole process, the writer's thread included.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench.options import at_least
from mcp_tasks.model import Progress, TaskRecord, TaskRequest
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.sqlite import SqliteStore

Work = Callable[[TaskRecord], Awaitable[object]]


def make_request(argument_bytes: int) -> TaskRequest:
    return TaskRequest(
        name="render",
        arguments={"scene": "x" * argument_bytes, "frames": 24},
        meta={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        protocol_version="2026-07-28",
        client_capabilities={"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    )


def make_record() -> TaskRecord:
    now = datetime.now(UTC)
    return TaskRecord(id=secrets.token_urlsafe(24), owner="user-1", name="render", created_at=now, updated_at=now)


async def measure(name: str, work: Work, records: Sequence[TaskRecord], writers: int) -> None:
    """Share `records` among `writers` that work at the same time, and print what one took."""
    waits: list[float] = []

    async def write(share: Sequence[TaskRecord]) -> None:
        for record in share:
            began = time.perf_counter()
            await work(record)
            waits.append(time.perf_counter() - began)

    wall, cpu = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as group:
        for number in range(writers):
            group.start_soon(write, records[number::writers])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    waits.sort()
    print(
        f"{name:8}{writers:8}{len(records) / wall:12,.0f}{cpu / len(records) * 1e6:12.1f}"
        f"{waits[len(waits) // 2] * 1e3:10.3f}{waits[len(waits) * 99 // 100] * 1e3:10.3f}"
    )


async def run(store: Store, operations: int, argument_bytes: int) -> None:
    await store.open()
    print(f"{'verb':8}{'writers':>8}{'per second':>12}{'CPU µs':>12}{'p50 ms':>10}{'p99 ms':>10}")
    request = make_request(argument_bytes)
    for writers in (1, 10, 100, 1000):
        records = [make_record() for _ in range(operations)]

        async def create(record: TaskRecord) -> None:
            await store.create(record, request)

        async def save(record: TaskRecord) -> None:
            changed = replace(record, version=2, progress=Progress(progress=1, total=24))
            await store.save(changed, expected=1)

        async def get(record: TaskRecord) -> None:
            assert await store.get(record.id) is not None

        await measure("create", create, records, writers)
        await measure("save", save, records, writers)
        await measure("get", get, records, writers)
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--path", type=Path, help="the SQLite file to write into")
    parser.add_argument("--memory", action="store_true", help="measure the store in memory")
    parser.add_argument("--operations", type=at_least(1), default=5_000, help="of each kind, for each row")
    parser.add_argument("--argument-bytes", type=at_least(0), default=100, help="size of each task's arguments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.path or Path(folder) / "tasks.db"
        store: Store = MemoryStore() if options.memory else SqliteStore(path)
        anyio.run(run, store, options.operations, options.argument_bytes)


if __name__ == "__main__":
    main()
