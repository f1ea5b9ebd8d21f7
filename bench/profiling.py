"""Where the time of one case goes, function by function, in the thread of the server's event loop.

cProfile makes calls of Python functions dearer than they are, so its microseconds are scaled to what the same case
costs without it. What the other threads used (the one that writes to SQLite, above all) is said beside it.
"""

from __future__ import annotations

import marshal
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bench.cases import Case, Install, Target, targeted
from bench.client import BenchError
from bench.servers import Mode
from harness.processes import send

OPERATIONS = 3_000
LINES = 45
LIMIT = 20.0
"""Seconds for the server to write its profile."""


def profile(case: Case, mode: Mode, install: Install, folder: Path) -> None:
    """Measure one case without and with the profiler, and print where the time went."""
    written = folder / "profile.pstats"
    with targeted(mode, install, folder, case.way, ["--profile", str(written)]) as target:
        case.run(target, OPERATIONS // 10)
        before = _threads(target.server.pid)
        plain = case.run(target, OPERATIONS)
        after = _threads(target.server.pid)
        _profiled(case, target, written)
    cpu = plain.cpu / OPERATIONS / 1e3
    loop, others = _split(before, after, target.server.pid)
    share = loop / (loop + others)
    print(f"\n{case.title}, the {case.way} way, {install} install, {mode} responses: {cpu:.0f} µs of CPU each")
    print(f"  the event loop's thread {cpu * share:.0f} µs, other threads {cpu * (1 - share):.0f} µs", end="")
    print(f", {plain.polls / OPERATIONS:.1f} polls" if plain.polls else "")
    _print(written, cpu * share)


def _profiled(case: Case, target: Target, written: Path) -> None:
    send(target.server.pid, signal.SIGUSR1)
    case.run(target, OPERATIONS)
    send(target.server.pid, signal.SIGUSR2)
    deadline = time.monotonic() + LIMIT
    while not written.exists():
        if time.monotonic() > deadline:
            raise BenchError(f"the server wrote no profile in {LIMIT:g} s")
        time.sleep(0.05)


def _threads(pid: int) -> dict[int, int]:
    """Nanoseconds of CPU by thread."""
    folder = Path(f"/proc/{pid}/task")
    return {int(one.name): int((one / "schedstat").read_text().split()[0]) for one in folder.iterdir()}


def _split(before: Mapping[int, int], after: Mapping[int, int], pid: int) -> tuple[int, int]:
    used = {thread: cpu - before.get(thread, 0) for thread, cpu in after.items()}
    loop = used.pop(pid)
    return loop, sum(used.values())


def _print(written: Path, cpu: float) -> None:
    """Two lists: by what is spent in a function itself, and by what is spent in all that it calls."""
    # As pstats reads it, whose own tables are for terminals.
    stats: Mapping[tuple[str, int, str], tuple[int, int, float, float, Any]] = marshal.loads(written.read_bytes())
    scale = cpu / sum(row[2] for row in stats.values())
    for title, column in (("itself", 2), ("and all it calls", 3)):
        print(f"\n  {'µs each':>9}{'calls each':>12}  {title}")
        for key, row in sorted(stats.items(), key=lambda item: -cast(float, item[1][column]))[:LINES]:
            print(f"  {row[column] * scale:9.1f}{row[0] / OPERATIONS:12.2f}  {_name(key)}")


def _name(key: tuple[str, int, str]) -> str:
    path, line, name = key
    for folder in (f"{Path(__file__).parent.parent}/", *(f"{one}/" for one in sys.path)):
        path = path.removeprefix(folder)
    return name if path == "~" else f"{path}:{line} {name}"
