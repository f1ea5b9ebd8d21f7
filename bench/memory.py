"""What tasks cost in memory: how much a fresh server grows while it takes them in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.cases import LONG
from bench.client import tool_call
from bench.servers import Server, task_server
from bench.watch import watching

WARM_UP = 500
"""Tasks before the first reading: they fill caches and pools that do not grow with the number of tasks."""

_SETTLE = 0.5


@dataclass(frozen=True)
class Growth:
    """By how many bytes a server grew for each of `tasks` tasks."""

    name: str
    title: str
    tasks: int
    bytes_per_task: float


def measure_memory(folder: Path, tasks: int) -> list[Growth]:
    """Tasks whose tools sleep, all at once; then tasks of which all but one wait for their turn."""
    return [
        _grow("memory-running", "running, the tool sleeps", folder, tasks, concurrency=tasks + WARM_UP),
        _grow("memory-queued", "queued", folder, tasks, concurrency=1),
    ]


def _grow(name: str, title: str, folder: Path, tasks: int, *, concurrency: int) -> Growth:
    with task_server("sse", folder, flags=["--concurrency", str(concurrency)]) as server:
        _park(server, WARM_UP, all_start=concurrency > 1)
        before = server.resident()
        _park(server, tasks, all_start=concurrency > 1)
        return Growth(name, title, tasks, (server.resident() - before) / tasks)


def _park(server: Server, tasks: int, *, all_start: bool) -> None:
    request = tool_call("park", seconds=LONG)
    for _ in range(tasks):
        server.connection.exchange(request)
    if all_start:
        with watching(server.db) as watch:
            watch.until_all_started()
    time.sleep(_SETTLE)
