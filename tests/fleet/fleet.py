"""The processes of a fleet, what can happen to them, a balancer before them, and their clients."""

import asyncio
import re
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from harness.forking import Forked, fork
from harness.http import HttpWire
from harness.ports import free_port, listens
from harness.processes import ENVIRONMENT, kill
from harness.rpc import MODERN, TASKS, Tasking
from mcp_tasks.client import Patience, TasksClient, reconnecting_http
from tests.fleet.server import LIMIT

LOOK = 0.05
FINAL = ("completed", "failed", "cancelled")
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
)
"""What a process of a fleet imports."""


@dataclass(slots=True)
class Member:
    """One place in the fleet, and the process that has it now."""

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
        return f"{self.name}.{self.starts}"

    @property
    def is_running(self) -> bool:
        return self.running is not None and self.running.poll() is None


class Fleet:
    def __init__(self, url: str, folder: Path, *options: str) -> None:
        self.url = url
        self.folder = folder
        self.members: list[Member] = []
        self._options = options
        self._started: list[Forked] = []
        self._keeping: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> list[Member]:
        return [member for member in self.members if member.role == "replica"]

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role == "worker"]

    def replica(self, *options: str, turns: Sequence[str] = ()) -> Member:
        number = len(self.replicas)
        return self._add(Member("replica", f"replica-{number}", free_port(), ["--url", self.url, *options], turns))

    def worker(self, *options: str, url: str | None = None, apart: Callable[[], bool] = lambda: False) -> Member:
        number = len(self.workers)
        return self._add(
            Member("worker", f"worker-{number}", options=["--url", url or self.url, *options], apart=apart)
        )

    def _add(self, member: Member) -> Member:
        self.members.append(member)
        self.start(member)
        return member

    def start(self, member: Member) -> None:
        member.starts += 1
        turn = member.turns if member.starts % 2 else ()
        where = ["--folder", str(self.folder), "--name", member.process, "--port", str(member.port)]
        arguments = [member.role, *where, *self._options, *member.options, *turn]
        with (self.folder / f"{member.name}.log").open("ab") as log:
            member.running = fork(
                "tests.fleet.server",
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
        self._signal(member, signal.SIGKILL)

    def terminate(self, member: Member) -> None:
        self._signal(member, signal.SIGTERM)

    async def pause(self, member: Member, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long: as a machine that is suspended."""
        if member.is_stopped or not member.is_running:
            return
        paused, member.is_stopped = member.running, True
        self._signal(member, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if member.running is paused:
                self._signal(member, signal.SIGCONT)
                member.is_stopped = False

    def keep(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def ready(self) -> None:
        """Return when the replicas take connections (workers say nothing of themselves)."""
        for member in self.replicas:
            with anyio.fail_after(LIMIT):
                while not await asyncio.to_thread(listens, member.port):
                    assert self._keeping is not None or member.is_running, self.log(member)
                    await asyncio.sleep(LOOK)

    def end(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        for process in self._started:
            kill(process)

    def log(self, member: Member) -> str:
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

    def _signal(self, member: Member, number: signal.Signals) -> None:
        if member.running is not None:
            member.running.send_signal(number)


class Balancer:
    """Passes each connection on to the next replica, and past those that are not there. Nothing is sticky."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port: int = 0
        self._ports = list(ports)
        self._turn = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def end(self) -> None:
        for serving in self._serving:
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                there_reader, there = await self._next()
                try:
                    await asyncio.gather(_pass(reader, there), _pass(there_reader, writer))
                finally:
                    there.close()
        finally:
            writer.close()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with anyio.fail_after(LIMIT):
            while True:
                for _ in self._ports:
                    self._turn += 1
                    with suppress(OSError):
                        return await asyncio.open_connection("127.0.0.1", self._ports[self._turn % len(self._ports)])
                await asyncio.sleep(LOOK)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        # An end that has closed has nothing to hear either: HTTP needs no half-open connections.
        writer.close()


@asynccontextmanager
async def balancing(*ports: int) -> AsyncGenerator[Balancer]:
    """A balancer before these ports, on one of its own, while the block lasts."""
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        await balancer.end()


@asynccontextmanager
async def fleet(url: str, folder: Path, *options: str, replicas: int = 2) -> AsyncGenerator[tuple[Fleet, Balancer]]:
    site = Fleet(url, folder, *options)
    try:
        for _ in range(replicas):
            site.replica("--serves-only")
        await site.ready()
        async with balancing(*(member.port for member in site.replicas)) as balancer:
            yield site, balancer
    finally:
        site.end()


IMPATIENT = Patience(max_pause=timedelta(seconds=2))
"""A fleet that is shot at is away again and again, and never for long."""


class Door(Tasking):
    """Raw requests to a fleet, by one who asks less often than usual: there are many processes to be kept busy."""

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        with anyio.fail_after(LIMIT):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] not in FINAL, task
                await asyncio.sleep(LOOK)
        return task


def text_of(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    asked = re.fullmatch(r"A word for (.*)\?", params.message)
    return ElicitResult(action="accept", content={"word": f"word-{asked[1]}" if asked else "?"})


@asynccontextmanager
async def connected(port: int, *, push: bool = True) -> AsyncGenerator[Client]:
    """A client that connects anew for each request: the balancer gives each to another replica."""
    transport = reconnecting_http(
        f"http://127.0.0.1:{port}/mcp", headers={"Connection": "close"}, timeout=httpx2.Timeout(30.0, read=60.0)
    )
    async with Client(
        transport, extensions=[TasksClient(push=push, patience=IMPATIENT)], elicitation_callback=answer, mode=MODERN
    ) as client:
        yield client


@asynccontextmanager
async def door(port: int, *, capabilities: Mapping[str, Any] = TASKS) -> AsyncGenerator[Door]:
    """Raw requests to one replica, or to whatever listens there."""
    headers = {"Connection": "close"}
    # Loads no certificates: that takes longer than a test.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(timeout=20.0, trust_env=False, verify=verify, headers=headers) as http:
        yield Door(HttpWire(f"http://127.0.0.1:{port}/mcp", http), capabilities)
