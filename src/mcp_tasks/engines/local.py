"""Runs tools in this very process, a limited number at a time.

Ids wait in memory, in order. Losing them is harmless: the records are in the store as queued, and a sweep of any
process submits them again. A process that is started without running tools keeps no ids at all, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from datetime import timedelta

import anyio.to_thread

from mcp_tasks.core.values import check_number
from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Execute, Lane, Route, Serves
from mcp_tasks.engines.lanes import Lanes
from mcp_tasks.engines.slots import RunSlot, Slots

DEFAULT_CONCURRENCY = 100
"""Runs at a time. Most tools wait for something else to work; a CPU-bound one wants its own, smaller limit."""


class LocalEngine:
    """Runs tools in this process, at most `concurrency` at a time; runs waiting for input don't count."""

    abilities: Abilities = Abilities(priority=True)

    def __init__(self, concurrency: int = DEFAULT_CONCURRENCY) -> None:
        check_number("concurrency", concurrency, 1)
        self.concurrency = concurrency
        self._context = contextvars.copy_context()
        self._execute: Execute | None = None
        self._slots = Slots(concurrency, self._start_next)
        self._lanes = Lanes()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, tuple[str | None, int]] = {}
        self._in_line: set[asyncio.Timeout] = set()

    def __repr__(self) -> str:
        return f"LocalEngine({self.concurrency})"

    @property
    def backlog(self) -> int:
        """How many ids of the lane `again` wait for a slot."""
        return self._lanes.count("again")

    @property
    def has_room(self) -> bool:
        """Whether a slot is free, and nobody in line for it."""
        return self._execute is not None and not self._lanes and self._slots.any_free

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in line, and whatever runs only waits."""
        return self._slots.all_free and not self._lanes

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to hand submitted ids to `execute`; None to run nothing here."""
        # New slots: a run that an earlier life left behind gives its own back to that life.
        self._slots = Slots(self.concurrency, self._start_next, serves.owner_share)
        self._running = {}
        # Runs start in the context of the server's start, not of the request that happened to submit them: what
        # only a live request has (its token, its trace) must not be there by luck the first time.
        self._context = contextvars.copy_context()
        if execute is not None and self._execute is None:
            # The SDK runs sync tools on anyio's shared threads. Adding as many as there can be runs keeps the
            # original number for everyone else, so a hundred blocking tasks never delay a plain call.
            anyio.to_thread.current_default_thread_limiter().total_tokens += self.concurrency
        self._execute = execute

    def reserve(self, owner: str | None = None) -> ReservedLocalSlot | None:
        """A slot for a task that is about to be made, if one is free and nobody waits for it."""
        if not self.has_room or not self._slots.acquire_now():
            return None
        return ReservedLocalSlot(self, self._slots, owner)

    async def submit(
        self,
        task_id: str,
        *,
        lane: Lane = "new",
        owner: str | None = None,
        route: Route = ANYWHERE,
        delay: timedelta | None = None,
    ) -> None:
        """Have the task run once there is a slot, and not before an earlier run of it has ended.

        Where nothing is run, nothing is kept: the task is in the store, for a process that runs tools.
        """
        if self._execute is None:
            return
        if task_id in self._running:
            # It is on its way out (it parks, say) and wanted back already. If it is not, there is nothing to be
            # claimed when its turn comes, and that is all.
            self._again[task_id] = owner, route.priority
        else:
            self._lanes.put(task_id, lane, owner=owner, priority=route.priority)
            self._slots.hand_out()

    async def take(self, task_id: str, patience: float) -> bool:
        """Run a task whose id was carried here, if there is a slot for it within `patience` seconds.

        True once the store knows who has the task, or that there is nothing to run: the id need not be carried on.
        """
        if self._execute is None:
            return False
        if task_id in self._running:
            self._again.setdefault(task_id, (None, 0))
            return True
        slots = self._slots
        if not await self._acquire(slots, patience):
            return False
        if task_id in self._running:
            # Carried here twice, and the other one got its slot first. It looks at the store later than this one came.
            slots.release()
            return True
        claimed = asyncio.Event()
        if not self.begin(task_id, slots, claimed.set):
            return False
        run, claiming = self._running[task_id], asyncio.create_task(claimed.wait())
        try:
            await asyncio.wait({run, claiming}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
        return claimed.is_set()

    async def room(self) -> bool:
        """Return when a slot is free for whoever comes next; False once nothing is started here any more."""
        slots = self._slots
        if not await self._acquire(slots, None):
            return False
        slots.release()
        return True

    def close(self) -> None:
        """Start nothing more. Who waits in line for a slot to start something is told so at once."""
        if self._execute is not None:
            self._execute = None
            anyio.to_thread.current_default_thread_limiter().total_tokens -= self.concurrency
        self._lanes.clear()
        self._again.clear()
        for patience in self._in_line:
            if not patience.expired():
                patience.reschedule(0)

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give what runs up to `timeout` to end."""
        self.close()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop."""
        await self.drain(timeout)

    async def _acquire(self, slots: Slots, patience: float | None) -> bool:
        """Take a slot for what was carried here; False if there is none in time, or nothing is started any more."""
        try:
            async with asyncio.timeout(patience) as limit:
                self._in_line.add(limit)
                try:
                    await slots.acquire()
                finally:
                    self._in_line.discard(limit)
        except TimeoutError:
            return False
        if self._execute is None or slots is not self._slots:
            slots.release()
            return False
        return True

    def begin(
        self,
        task_id: str,
        slots: Slots,
        on_claimed: Callable[[], None] | None = None,
        owner: str | None = None,
    ) -> bool:
        """Start a run on a slot that was taken for it; False, and the slot is free again, if nothing is started."""
        if self._execute is None:
            slots.release()
            return False
        self._running[task_id] = asyncio.create_task(
            self._run(task_id, self._execute, RunSlot(slots, on_claimed, owner)),
            name=f"mcp-task-{task_id}",
            context=self._context.copy(),
        )
        return True

    def _start_next(self, slots: Slots) -> bool:
        """Start the next in line on a slot that was taken for it; False if there is none to start."""
        # Slots of an earlier life come back from the runs it left behind, and start nothing in this one.
        if slots is not self._slots or self._execute is None or not self._lanes:
            return False
        task_id, owner = self._lanes.take(slots.sated)
        return self.begin(task_id, slots, owner=owner)

    async def _run(self, task_id: str, execute: Execute, slot: RunSlot) -> None:
        running = self._running
        try:
            await execute(task_id, slot)
        finally:
            del running[task_id]
            if running is self._running and (wanted := self._again.pop(task_id, None)) is not None:
                owner, priority = wanted
                self._lanes.put(task_id, "again", owner=owner, priority=priority)
            slot.release()
            self._slots.hand_out()


class ReservedLocalSlot:
    """A slot of a `LocalEngine` for a task that is being made."""

    def __init__(self, engine: LocalEngine, slots: Slots, owner: str | None) -> None:
        self._engine = engine
        self._slots = slots
        self._owner = owner

    def start(self, task_id: str) -> bool:
        """Run the task now. False if nothing is started any more; the slot is then free again."""
        return self._engine.begin(task_id, self._slots, owner=self._owner)

    def release(self) -> None:
        """There is no such task after all."""
        self._slots.release()
