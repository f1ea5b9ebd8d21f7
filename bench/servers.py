"""Starts the measured servers, each in a process of its own, reads their CPU and memory, and always ends them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from bench.client import Connection
from harness import processes
from harness.ports import free_port, listens
from harness.processes import ROOT, Running, python, running, until_ready

Mode: TypeAlias = Literal["sse", "json"]
"""How the SDK answers over HTTP: ready for an event stream, which is its default, or with plain JSON only."""

START_LIMIT = 300.0
"""Seconds to wait until a server listens; only one that hangs, or that starts with a large backlog, needs them."""

SETTLE = 0.005
"""Seconds for a server to finish what it does after its last answer, before its CPU is read."""

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
    with serving("bench.serve", *_flags(mode, fast), fast=fast) as server:
        yield server


@contextmanager
def task_server(
    mode: Mode,
    folder: Path,
    src: Path = ROOT / "src",
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
    with serving("bench.serve", *store, *_flags(mode, fast), *flags, db=db, src=src, fast=fast) as server:
        yield server


@contextmanager
def fleet_server(url: str) -> Generator[Server]:
    """A server of a fleet with its tasks at `url`, while the block lasts. Others run its tools, but those on SQLite."""
    with serving("bench.fleet_server", "serve", url) as server:
        yield server


@contextmanager
def fleet_worker(url: str) -> Generator[int]:
    """A worker of that fleet, by its process id. It is there when a task has been run."""
    with running(python("bench.fleet_server", "work", url), env=environment()) as process:
        yield process.pid


def _flags(mode: Mode, fast: bool) -> list[str]:
    return [*(["--json"] if mode == "json" else []), *(["--fast"] if fast else [])]


@contextmanager
def serving(
    module: str, *arguments: str, db: Path = Path(os.devnull), src: Path = ROOT / "src", fast: bool = False
) -> Generator[Server]:
    """A module that serves on the port that it is told, in a process of its own, while the block lasts."""
    port = free_port()
    # Killed at the end, not asked: its tasks are thrown away, and a polite stop would wait for those that sleep.
    with (
        running(python(module, *arguments, "--port", str(port)), env=environment(src, fast=fast)) as process,
        closing(connect(process, port)) as connection,
    ):
        yield Server(process.pid, connection, db)


def environment(src: Path = ROOT / "src", *, fast: bool = False) -> dict[str, str]:
    """What makes a child process import the `mcp_tasks` in `src`, whichever is installed; and the extra `fast`."""
    return processes.environment(src, ROOT, *([FAST] if fast else []))


def connect(process: Running, port: int) -> Connection:
    """A connection to a server that is starting.

    Raises:
        ProcessError: It does not listen in time, or has ended.
    """
    until_ready(process, lambda: listens(port), what=f"the server on port {port}", limit=START_LIMIT)
    return Connection(port)
