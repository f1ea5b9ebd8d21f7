"""Starts the measured servers, each in a process of its own, reads their CPU and memory, and always ends them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from bench.client import BenchError, Connection
from harness.ports import free_port as free_port

Mode: TypeAlias = Literal["sse", "json"]
"""How the SDK answers over HTTP: ready for an event stream, which is its default, or with plain JSON only."""

START_LIMIT = 300.0
"""Seconds to wait until a server listens; only one that hangs, or that starts with a large backlog, needs them."""

SETTLE = 0.005
"""Seconds for a server to finish what it does after its last answer, before its CPU is read."""

ROOT = Path(__file__).parent.parent
FAST = Path(sys.prefix) / "fast"
"""Where `make setup` puts what the extra `fast` is made of: beside the environment, so that a server that is not told
to use it is served as on a stock install."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Server:
    """A running server, with one open connection to it."""

    pid: int
    connection: Connection
    db: Path

    def cpu(self) -> int:
        """Nanoseconds of CPU that the process has used, user and system, all its threads, ended ones included."""
        # The kernel's clock of another process, as clock_getcpuclockid(3) makes it: /proc/PID/stat counts in ticks
        # of 10 ms, and /proc/PID/schedstat only the first thread.
        return time.clock_gettime_ns((~self.pid << 3) | 2)

    def resident(self) -> int:
        """Bytes of memory that the process has now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE

    def peak(self) -> int:
        """Bytes of memory that the process had at most."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@contextmanager
def bare_server(mode: Mode, *, fast: bool = False) -> Generator[Server]:
    """The bare SDK server, while the block lasts."""
    with _serving(["bench.serve", *_flags(mode, fast)], db=Path(os.devnull), fast=fast) as server:
        yield server


@contextmanager
def task_server(
    mode: Mode,
    folder: Path,
    src: Path | None = None,
    *,
    fast: bool = False,
    memory: bool = False,
    flags: Sequence[str] = (),
) -> Generator[Server]:
    """The same server with tasks, while the block lasts; of the tree at `src`.

    Args:
        fast: Whether it runs on uvloop and httptools.
        memory: Whether its tasks are kept in memory instead of a new SQLite file in `folder`.
        flags: What else to tell it, of the options of `bench.serve`.
    """
    db = folder / f"tasks-{time.monotonic_ns()}.db"
    store = ["--memory"] if memory else ["--db", str(db)]
    with _serving(["bench.serve", *store, *_flags(mode, fast), *flags], db=db, src=src, fast=fast) as server:
        yield server


@contextmanager
def fleet_server(url: str) -> Generator[Server]:
    """A server of a fleet with its tasks at `url`, while the block lasts. Others run its tools, but those on SQLite."""
    with _serving(["bench.fleet_server", "serve", url], db=Path(os.devnull)) as server:
        yield server


@contextmanager
def fleet_worker(url: str) -> Generator[int]:
    """A worker of that fleet, by its process id. It is there when a task has been run."""
    command = [sys.executable, "-m", "bench.fleet_server", "work", url]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(ROOT / "src"))
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _flags(mode: Mode, fast: bool) -> list[str]:
    return [*(["--json"] if mode == "json" else []), *(["--fast"] if fast else [])]


@contextmanager
def _serving(command: Sequence[str], *, db: Path, src: Path | None = None, fast: bool = False) -> Generator[Server]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)], cwd=ROOT, env=environment(src or ROOT / "src", fast=fast)
    )
    try:
        connection = connect(process, port)
        try:
            yield Server(process.pid, connection, db)
        finally:
            connection.close()
    finally:
        # Killed, not asked: its tasks are thrown away, and a polite stop would wait for those that sleep.
        process.kill()
        process.wait()


def environment(src: Path, *, fast: bool = False) -> dict[str, str]:
    """What makes a child process import the `mcp_tasks` in `src`, whichever is installed; and the extra `fast`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [src, ROOT, *([FAST] if fast else [])]))}


def connect(process: subprocess.Popen[bytes], port: int) -> Connection:
    """A connection to a server that is starting.

    Raises:
        BenchError: It does not listen in time, or has ended.
    """
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            return Connection(port)
        except OSError as exc:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{process.args!r} does not listen (exit code {process.poll()})") from exc
        time.sleep(0.05)
