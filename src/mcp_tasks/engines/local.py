"""Runs tools in the server's own process, a limited number at a time.

Ids wait in memory, in order. Losing them is harmless: the records are in the store as queued, and the janitor
of any process submits them again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from datetime import timedelta

import anyio.to_thread

from mcp_tasks.engines.base import Execute

DEFAULT_CONCURRENCY = 100
"""Runs at a time. Most tools wait for something else to work; a CPU-bound one wants its own, smaller limit."""


class LocalEngine:
    """Runs tools in this process, at most `concurrency` at a time; a run that waits for a person counts not."""

    def __init__(self, concurrency: int = DEFAULT_CONCURRENCY) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.concurrency = concurrency
        self._free = concurrency
        self._context = contextvars.copy_context()
        self._execute: Execute | None = None
        self._queue: dict[str, None] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._returning: deque[asyncio.Future[None]] = deque()

    async def start(self, execute: Execute) -> None:
        """Begin to hand submitted ids to `execute`."""
        self._execute = execute
        self._free = self.concurrency
        # Runs start in the context of the server's start, not of the request that happened to submit them: what
        # only a live request has (its token, its trace) must not be there by luck the first time.
        self._context = contextvars.copy_context()
        # The SDK runs sync tools on anyio's shared threads. Adding as many as there can be runs keeps the
        # original number for everyone else, so a hundred blocking tasks never delay a plain call.
        anyio.to_thread.current_default_thread_limiter().total_tokens += self.concurrency

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, and whatever runs only waits."""
        return self._free == self.concurrency and not self._queue and not self._returning

    async def submit(self, task_id: str) -> None:
        """Have the task run, once there is room."""
        if task_id not in self._running:
            self._queue[task_id] = None
            self._fill()

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give what runs up to `timeout` to end."""
        if self._execute is not None:
            self._execute = None
            anyio.to_thread.current_default_thread_limiter().total_tokens -= self.concurrency
        self._queue.clear()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop."""
        await self.drain(timeout)

    def _fill(self) -> None:
        # Runs that come back from a wait go first: their tasks are older than anything that has not begun.
        while self._free and self._returning:
            turn = self._returning.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
        while self._free and self._queue and self._execute is not None:
            task_id = next(iter(self._queue))
            del self._queue[task_id]
            self._free -= 1
            self._running[task_id] = asyncio.create_task(
                self._run(task_id, self._execute), name=f"mcp-task-{task_id}", context=self._context.copy()
            )

    async def _run(self, task_id: str, execute: Execute) -> None:
        slot = _LocalSlot(self)
        try:
            await execute(task_id, slot)
        finally:
            del self._running[task_id]
            slot.release()

    def give_back(self) -> None:
        """One more run may start or go on."""
        self._free += 1
        self._fill()

    async def take(self) -> None:
        """Wait for room and use it."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._returning.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Both orders: cancelled before its turn, the future is cancelled and `_fill` skips it; cancelled
            # after its turn was given but before it woke, the room it was given must not be lost.
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise


class _LocalSlot:
    """One run's share of a `LocalEngine`."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._held = True
        self._taking = asyncio.Lock()

    def release(self) -> None:
        """Let another run have it."""
        if self._held:
            self._held = False
            self._engine.give_back()

    async def acquire(self) -> None:
        """Have it back."""
        # Two branches of a tool may come back from their waits at once; they share one slot.
        async with self._taking:
            if not self._held:
                await self._engine.take()
                self._held = True
