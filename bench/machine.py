"""Where it was measured: numbers without these say little."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path


def machine_facts(folder: Path) -> dict[str, str]:
    """What the numbers depend on, by name."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} logical",
        "load": _load(),
        "system": platform.platform(),
        "Python": f"{platform.python_version()}, mcp {version('mcp')}, uvicorn {version('uvicorn')}",
        "store": f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL",
        "disk": f"{_file_system(folder)} at {folder}, a 4 KiB write with fsync takes {_sync_time(folder) * 1e3:.2f} ms",
    }


def _load() -> str:
    load = os.getloadavg()[0]
    # Ratios survive a busy machine better than times do, but not unharmed: caches and cores are shared.
    busy = "; others are at work, so take the numbers as rough" if load > (os.cpu_count() or 1) / 2 else ""
    return f"{load:.2f} at the start{busy}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The kind of file system that `folder` is on: one in memory would make durable writes look free."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _sync_time(folder: Path) -> float:
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(20):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)
