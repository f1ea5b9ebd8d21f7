"""A server of some tree, in a process of its own, whose event loop is watched from inside."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client import BenchError
from bench.servers import Server, connect, environment
from bench.ticker import TICK
from harness.ports import free_port
from harness.processes import PIPE, python, read_line, running, tell


@dataclass(frozen=True)
class Tree:
    """Some version of the package: the folder that holds `mcp_tasks`, and what to call it."""

    name: str
    src: Path


@dataclass(frozen=True)
class Stalls:
    """How late the loop was in one window, in milliseconds.

    Attributes:
        late: One number for each millisecond that something was due.
        own: The longest stall again, counting no more of each than the process used of the CPU meanwhile: what is left
            of it on a machine that has time. Waiting for a disk is not in it.
    """

    late: Sequence[float]
    own: float

    @property
    def worst(self) -> float:
        """The longest stall."""
        return max(self.late)

    @classmethod
    def of(cls, sleeps: Sequence[tuple[float, float]]) -> Stalls:
        """From seconds that sleeps were late, and of CPU.

        A loop that stands still for a second misses a thousand ticks, of which the first is late by a second, the next
        by 1 ms less, and so on: counted as one they would hide in any quantile.
        """
        late = [
            (seconds - missed * TICK) * 1e3
            for seconds, _ in sleeps
            for missed in range(max(1, 1 + int(max(seconds, 0) / TICK)))
        ]
        return cls(late, own=max(min(seconds, cpu) for seconds, cpu in sleeps) * 1e3)


class Watched:
    """A running server, and the stalls of its loop.

    Attributes:
        ready_after: Seconds from the start of its event loop until it took a connection.
    """

    def __init__(self, server: Server, process: subprocess.Popen[bytes], *, ready_after: float) -> None:
        self.server = server
        self.ready_after = ready_after
        self._process = process

    def start(self) -> None:
        """Begin to watch. Whatever the server is asked after this is seen."""
        self._tell("start")

    def stop(self) -> Stalls:
        """What was seen since the start."""
        return Stalls.of(json.loads(self._tell("stop")))

    def settle(self, *, quiet: float = 0.25, limit: float = 300.0) -> None:
        """Return when the server has had little to do for a while: what it was asked to do is done.

        Raises:
            BenchError: It stays busy.
        """
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            began = self.server.cpu()
            time.sleep(quiet)
            # The ticker itself, and a sweep every second, take a few hundredths of a core.
            if (self.server.cpu() - began) / 1e9 < quiet * 0.2:
                return
        raise BenchError(f"the server is still busy after {limit:g} s")

    def _tell(self, command: str) -> bytes:
        tell(self._process, f"{command}\n".encode())
        return read_line(self._process)


@contextmanager
def watched(tree: Tree, db: Path | None, *flags: str) -> Generator[Watched]:
    """A server of that tree on that file (or a bare one), while the block lasts."""
    port = free_port()
    file = [] if db is None else ["--db", str(db)]
    command = python("bench.stall_server", "--port", str(port), *flags, *file)
    # Killed at the end, not asked: its tasks are thrown away, and a polite stop would wait for those that sleep.
    with running(command, env=environment(tree.src), stdin=PIPE, stdout=PIPE) as process:
        loaded = Path(json.loads(read_line(process)))
        if not loaded.is_relative_to(tree.src):
            raise BenchError(f"{tree.name} should be {tree.src}, but {loaded} was imported")
        began = time.monotonic()
        with closing(connect(process, port)) as connection:
            server = Server(process.pid, connection, db or Path(os.devnull))
            yield Watched(server, process, ready_after=time.monotonic() - began)
