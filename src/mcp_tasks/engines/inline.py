"""Runs a tool inside `submit`, so that a created task has ended (or waits for input) when the call returns.

For tests of tools: no polling, no waiting, no leftovers. Not for serving: one slow tool would hold its caller.
"""

from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta

from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Execute, Lane, Route, Serves


class InlineEngine:
    """Runs each task to its end, or to where it waits for input, before `submit` returns."""

    abilities: Abilities = Abilities()

    def __init__(self) -> None:
        self._execute: Execute | None = None
        self._context = contextvars.copy_context()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    @property
    def backlog(self) -> int:
        """Nothing ever waits."""
        return 0

    @property
    def has_room(self) -> bool:
        """There is no limit to keep."""
        return self._execute is not None

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to hand submitted ids to `execute`; None to run nothing here."""
        self._execute = execute
        # As in `LocalEngine`: a run must not see the request that submitted it.
        self._context = contextvars.copy_context()

    async def submit(
        self,
        task_id: str,
        *,
        lane: Lane = "new",
        owner: str | None = None,
        route: Route = ANYWHERE,
        delay: timedelta | None = None,
    ) -> None:
        """Run the task now. Returns when it ends, or when it waits for something other than itself.

        A task that still runs has one more turn when it has ended, and this does not wait for it.
        """
        if self._execute is None:
            return
        if task_id in self._running:
            self._again.add(task_id)
            return
        slot = _InlineSlot()
        run = asyncio.create_task(
            self._run(task_id, self._execute, slot), name=f"mcp-task-{task_id}", context=self._context.copy()
        )
        self._running[task_id] = run
        waits = asyncio.create_task(slot.waits.wait())
        try:
            await asyncio.wait({run, waits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give what runs up to `timeout` to end."""
        self._execute = None
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop."""
        await self.drain(timeout)

    async def _run(self, task_id: str, execute: Execute, slot: _InlineSlot) -> None:
        try:
            await execute(task_id, slot)
            while task_id in self._again and self._execute is not None:
                self._again.discard(task_id)
                await execute(task_id, slot)
        finally:
            self._again.discard(task_id)
            del self._running[task_id]


class _InlineSlot:
    """Says when a run begins to wait; there is no limit to keep."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    def release(self) -> None:
        """The run waits for something."""
        self.waits.set()

    async def acquire(self) -> None:
        """The run goes on."""

    def claimed(self) -> None:
        """Nothing carried the id."""
