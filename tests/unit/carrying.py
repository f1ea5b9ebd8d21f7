"""A small remote engine: ids go through a broker that all processes of a test share, and that may lose or repeat them.

The broker hands an id out and forgets it, so what dies with its process is lost too. That is the worst that a real one
does; whatever a task needs beyond it comes from the store.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from datetime import timedelta

from mcp_tasks.engines import Abilities, Execute, Lane


class Broker:
    """Carries ids between the engines of a test.

    Args:
        copies: How often an id is handed out that was submitted once; 0 loses it.
    """

    def __init__(self, copies: int = 1) -> None:
        self.copies = copies
        self.submitted: Counter[str] = Counter()
        self._ids: asyncio.Queue[str] = asyncio.Queue()

    def put(self, task_id: str) -> None:
        """Take an id in."""
        self.submitted[task_id] += 1
        for _ in range(self.copies):
            self._ids.put_nowait(task_id)

    async def take(self) -> str:
        """Hand an id out, once there is one."""
        return await self._ids.get()


class CarryingEngine:
    """Hands ids to the broker, and runs what the broker hands out."""

    abilities = Abilities(remote=True)
    backlog = 0
    has_room = False

    def __init__(self, broker: Broker, concurrency: int = 4) -> None:
        self._broker = broker
        self._concurrency = concurrency
        self._taking: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, execute: Execute | None) -> None:
        """Begin to take ids from the broker, in the context of the start."""
        if execute is not None:
            self._taking = asyncio.create_task(self._take(execute), context=contextvars.copy_context())

    async def submit(self, task_id: str, *, lane: Lane = "new", owner: str | None = None) -> None:
        """Hand the id to the broker."""
        self._broker.put(task_id)

    async def drain(self, timeout: timedelta) -> None:
        """Take nothing more, and give what runs its time."""
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait for what was told to stop."""
        await self.drain(timeout)

    async def _take(self, execute: Execute) -> None:
        slots = asyncio.Semaphore(self._concurrency)
        while True:
            await slots.acquire()
            try:
                task_id = await self._broker.take()
            except BaseException:
                slots.release()
                raise
            slot = _Slot(slots)
            before = self._running.get(task_id)
            self._running[task_id] = asyncio.create_task(self._run(task_id, execute, slot, before))

    async def _run(self, task_id: str, execute: Execute, slot: _Slot, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                # It may be on its way out. If not, there is nothing to be claimed when it has ended.
                slot.release()
                await asyncio.wait({before})
                await slot.acquire()
            await execute(task_id, slot)
        finally:
            slot.release()
            if self._running.get(task_id) is asyncio.current_task():
                del self._running[task_id]


class _Slot:
    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._acquired = True

    def release(self) -> None:
        if self._acquired:
            self._acquired = False
            self._slots.release()

    async def acquire(self) -> None:
        if not self._acquired:
            await self._slots.acquire()
            self._acquired = True
