"""The processes of a fleet, and what can happen to them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio

from harness.forking import Forked, fork
from harness.ports import free_port, listens
from harness.processes import ENVIRONMENT, kill
from tests.fleet.balancing import Balancer, balancing

LIMIT = 60.0
"""Seconds for what must happen; only a failing test waits so long."""

LOOK = 0.05
RESTARTED_AFTER = 0.3
"""Seconds after which a process that has ended is started again, as a supervisor does it."""

_IMPORTED = (
    "mcp_tasks.engines.docket",
    "mcp_tasks.engines.procrastinate",
    "mcp_tasks.stores.postgres",
    "mcp_tasks.stores.redis",
    "anyio._backends._asyncio",
    "docket.tasks",
    "procrastinate.worker",
    "harness.server",
    "tests.fleet.tools",
    "tests.fleet.unfenced",
)
"""What a process of a fleet imports."""


@dataclass(slots=True)
class Pause:
    """That a process was stopped, for the time between."""

    process: str
    begun: float
    ended: float = float("inf")


@dataclass(slots=True)
class Member:
    """One place in the fleet, and the process that has it now.

    Attributes:
        starts: How often a process was started for it.
        port: Where a replica listens.
        options: Of `tests.fleet.served`.
        turns: Options that one process has and the next has not.
        apart: Whether the next process is to be as if on another machine.
    """

    role: Literal["replica", "worker"]
    name: str
    port: int = 0
    options: Sequence[str] = ()
    turns: Sequence[str] = ()
    apart: Callable[[], bool] = field(default=lambda: False)
    starts: int = 0
    running: Forked | None = None
    is_stopped: bool = False

    @property
    def process(self) -> str:
        """The name of the process that has the place now."""
        return f"{self.name}.{self.starts}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.running is not None and self.running.poll() is None


class Fleet:
    """Replicas and workers on one database."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        self.url = url
        self.folder = folder
        self.members: list[Member] = []
        self.pauses: list[Pause] = []
        self.killed: set[str] = set()
        self._options = options
        self._started: list[Forked] = []
        self._keeping: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> list[Member]:
        """Those that serve."""
        return [member for member in self.members if member.role == "replica"]

    @property
    def workers(self) -> list[Member]:
        """Those that only run tools."""
        return [member for member in self.members if member.role == "worker"]

    def member(self, process: str) -> Member:
        """Whose process that is."""
        return next(member for member in self.members if member.process == process)

    def replica(self, *options: str, url: str | None = None, turns: Sequence[str] = ()) -> Member:
        """Start one more replica."""
        return self._add("replica", options, url, turns, lambda: False)

    def worker(self, *options: str, url: str | None = None, apart: Callable[[], bool] = lambda: False) -> Member:
        """Start one more worker."""
        return self._add("worker", options, url, (), apart)

    def start(self, member: Member) -> None:
        """Start a process for the place."""
        member.starts += 1
        turn = member.turns if member.starts % 2 else ()
        where = ["--folder", str(self.folder), "--name", member.process, "--port", str(member.port)]
        arguments = [member.role, *where, *self._options, *member.options, *turn]
        with (self.folder / f"{member.name}.log").open("ab") as log:
            member.running = fork(
                "tests.fleet.served",
                *arguments,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
                imported=_IMPORTED,
                session=True,
                apart=member.apart(),
            )
        self._started.append(member.running)
        member.is_stopped = False

    def kill(self, member: Member) -> None:
        """SIGKILL: as a crash, or as the kernel does it when there is no memory left."""
        self.killed.add(member.process)
        self._signal(member, signal.SIGKILL)

    def terminate(self, member: Member) -> None:
        """SIGTERM: as a deploy does it."""
        self._signal(member, signal.SIGTERM)

    async def pause(self, member: Member, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long: as a machine that is suspended."""
        if member.is_stopped or not member.is_running:
            return
        paused, pause = member.running, Pause(member.process, time.monotonic())
        self.pauses.append(pause)
        member.is_stopped = True
        self._signal(member, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            pause.ended = time.monotonic()
            if member.running is paused:
                self._signal(member, signal.SIGCONT)
                member.is_stopped = False

    def keep(self) -> None:
        """From now on start again whatever has ended."""
        self._keeping = asyncio.create_task(self._keep())

    def stop_keeping(self) -> None:
        """Leave what has ended alone."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def ready(self, *members: Member) -> None:
        """Return when the replicas take connections (workers say nothing of themselves)."""
        for member in members or self.replicas:
            with anyio.fail_after(LIMIT):
                while not await asyncio.to_thread(listens, member.port):
                    assert self._keeping is not None or member.is_running, self.log(member)
                    await asyncio.sleep(LOOK)

    def end(self) -> None:
        """End all processes, as a power cut does."""
        self.stop_keeping()
        for process in self._started:
            kill(process)

    def log(self, member: Member) -> str:
        """What its processes said."""
        path = self.folder / f"{member.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            ended = [member for member in self.members if not member.is_running]
            if ended:
                await asyncio.sleep(RESTARTED_AFTER)
            for member in ended:
                self.start(member)

    def _add(
        self,
        role: Literal["replica", "worker"],
        options: Sequence[str],
        url: str | None,
        turns: Sequence[str],
        apart: Callable[[], bool],
    ) -> Member:
        number = sum(member.role == role for member in self.members)
        port = free_port() if role == "replica" else 0
        options = ["--url", url or self.url, *options]
        member = Member(role, f"{role}-{number}", port, options, turns, apart)
        self.members.append(member)
        self.start(member)
        return member

    def _signal(self, member: Member, number: signal.Signals) -> None:
        if member.running is not None:
            member.running.send_signal(number)


@asynccontextmanager
async def fleet(
    url: str, folder: Path, *options: str, replicas: int = 2, workers: int = 0
) -> AsyncGenerator[tuple[Fleet, Balancer]]:
    """A fleet that serves, behind a balancer."""
    site = Fleet(url, folder, *options)
    try:
        for _ in range(replicas):
            site.replica("--serves-only")
        for _ in range(workers):
            site.worker()
        await site.ready()
        async with balancing(*(member.port for member in site.replicas)) as balancer:
            yield site, balancer
    finally:
        site.end()
