"""A server in this process, on a store that is away or slow when told to, behind a real port."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import anyio
from mcp.server import MCPServer

from harness.http import serving
from harness.rpc import PATIENCE, Tasking
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import Outcome, TaskRecord
from mcp_tasks.stores import MemoryStore
from tests.fallback.matrix.legs import ASKABLE


class MoodyStore(MemoryStore):
    """A store that fails in some of its verbs, or does not come to an end with them, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._away: set[str] = set()
        self.may_have_happened = False
        self._held: dict[str, asyncio.Event] = {}

    @contextmanager
    def away(self, *verbs: str) -> Generator[None]:
        """While the block lasts, these fail."""
        self._away.update(verbs)
        try:
            yield
        finally:
            self._away.difference_update(verbs)

    @contextmanager
    def held(self, *verbs: str) -> Generator[None]:
        """While the block lasts, these take as long as it does."""
        over = asyncio.Event()
        self._held.update(dict.fromkeys(verbs, over))
        try:
            yield
        finally:
            for verb in verbs:
                del self._held[verb]
            over.set()

    async def get(self, task_id: str) -> TaskRecord | None:
        await self._be("get")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        await self._be("outcome")
        return await super().outcome(task_id)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        await self._be("save")
        return await super().save(record, **options)

    async def note(self, namespace: str, name: str) -> bytes | None:
        await self._be("note")
        return await super().note(namespace, name)

    async def _be(self, verb: str) -> None:
        if verb in self._held:
            await self._held[verb].wait()
        if verb in self._away:
            raise StoreUnavailable(f"the store is away: {verb}", may_have_happened=self.may_have_happened)


@dataclass
class Jobs:
    """What happened to the jobs of a server's tools, and what they wait for."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    happened: Counter[str] = field(default_factory=Counter[str])

    async def work(self, job: str) -> str:
        """Begin, and be done when the gate is open."""
        self.happened[f"start {job}"] += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.happened[f"stopped {job}"] += 1
            raise
        self.happened[f"end {job}"] += 1
        return f"{job} is done"

    async def until(self, event: str, times: int = 1) -> None:
        """Return when it has happened so often."""
        with anyio.fail_after(PATIENCE):
            while self.happened[event] < times:  # noqa: ASYNC110 - it happens in a server's task
                await anyio.sleep(0.01)


def server_of(tasks: Tasks) -> MCPServer[Any]:
    """A server without tools."""
    return MCPServer("moody", version="1", **tasks.wiring(), log_level="CRITICAL")


def quick_tasks(store: MemoryStore | str = "memory://", **options: Any) -> Tasks:
    """Tasks that nobody waits for at the end of a test."""
    # Another server on the same store is not told of what happens here: it looks.
    settings = replace(QUICK, look_interval=timedelta(seconds=0.1))
    return Tasks(store, settings=settings, **options)


@asynccontextmanager
async def client_of(
    server: MCPServer[Any], capabilities: Mapping[str, Any] = ASKABLE, *, json_response: bool = False
) -> AsyncGenerator[Tasking]:
    """A client of the newest wire without tasks, whose host is called "raw", while the server serves."""
    async with serving(server, json_response=json_response) as wire:
        yield Tasking(wire, capabilities)
