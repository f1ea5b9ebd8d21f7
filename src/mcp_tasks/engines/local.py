"""Runs tools in the server's own process, a limited number at a time.

Ids wait in memory, in order. Losing them is harmless: the records are in the store as queued, and the janitor
of any process submits them again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
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
        self._context = contextvars.copy_context()
        self._execute: Execute | None = None
        self._places = _Places(concurrency, self._start_next)
        self._lanes = _Lanes()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    @property
    def backlog(self) -> int:
        """How many ids that were submitted `again` wait for room."""
        return self._lanes.count(again=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, and whatever runs only waits."""
        return self._places.all_free and not self._lanes

    async def start(self, execute: Execute) -> None:
        """Begin to hand submitted ids to `execute`."""
        self._execute = execute
        # New places: a run that an earlier life left behind gives its own back to that life.
        self._places = _Places(self.concurrency, self._start_next)
        self._running = {}
        # Runs start in the context of the server's start, not of the request that happened to submit them: what
        # only a live request has (its token, its trace) must not be there by luck the first time.
        self._context = contextvars.copy_context()
        # The SDK runs sync tools on anyio's shared threads. Adding as many as there can be runs keeps the
        # original number for everyone else, so a hundred blocking tasks never delay a plain call.
        anyio.to_thread.current_default_thread_limiter().total_tokens += self.concurrency

    def reserve(self) -> _Reservation | None:
        """Room for a run, if there is any and nobody waits for it."""
        if self._execute is None or self._lanes or not self._places.take_now():
            return None
        return _Reservation(self, self._places)

    async def submit(self, task_id: str, *, again: bool = False) -> None:
        """Have the task run, once there is room; once it has ended, if it is still running."""
        if task_id in self._running:
            # It is on its way out (unwound, say) and wanted back already. If it is not, nothing is there to be
            # taken when its turn comes, and that is all.
            self._again.add(task_id)
        else:
            self._lanes.put(task_id, again=again)
            self._places.fill()

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give what runs up to `timeout` to end."""
        if self._execute is not None:
            self._execute = None
            anyio.to_thread.current_default_thread_limiter().total_tokens -= self.concurrency
        self._lanes = _Lanes()
        self._again.clear()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop."""
        await self.drain(timeout)

    def begin(self, task_id: str, places: _Places) -> bool:
        """Start a run on a place that was taken for it; if nothing is started any more, the place is given back."""
        if self._execute is None:
            places.give_back()
            return False
        self._running[task_id] = asyncio.create_task(
            self._run(task_id, self._execute), name=f"mcp-task-{task_id}", context=self._context.copy()
        )
        return True

    def _start_next(self, places: _Places) -> bool:
        """Start the next in line on a place that was taken for it; False if there is none to start."""
        # Places of an earlier life get theirs back from the runs it left behind, and start nothing in this one.
        if places is not self._places or self._execute is None or not self._lanes:
            return False
        return self.begin(self._lanes.take(), places)

    async def _run(self, task_id: str, execute: Execute) -> None:
        running, slot = self._running, _LocalSlot(self._places)
        try:
            await execute(task_id, slot)
        finally:
            del running[task_id]
            if running is self._running and task_id in self._again:
                self._again.discard(task_id)
                self._lanes.put(task_id, again=True)
            slot.release()
            self._places.fill()


class _Lanes:
    """Ids in line, in two lanes that have their turns: new ones, and those submitted again. No id is in line twice."""

    def __init__(self) -> None:
        self._new: dict[str, None] = {}
        self._again: dict[str, None] = {}
        self._again_next = True

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    def count(self, *, again: bool) -> int:
        """How many are in one lane."""
        return len(self._again if again else self._new)

    def put(self, task_id: str, *, again: bool) -> None:
        """Put an id at the end of its lane, unless it is in line."""
        if task_id not in self._new and task_id not in self._again:
            (self._again if again else self._new)[task_id] = None

    def take(self) -> str:
        """The id whose turn it is."""
        lane = self._again if self._again and (self._again_next or not self._new) else self._new
        self._again_next = lane is self._new
        task_id = next(iter(lane))
        del lane[task_id]
        return task_id


class _Places:
    """Room for so many runs at a time. Runs that come back from a wait and those that have not begun have it by turns.

    Args:
        count: How many.
        start_next: Starts a run that has not begun, on a place of these; False if none is in line.
    """

    def __init__(self, count: int, start_next: Callable[[_Places], bool]) -> None:
        self._count = count
        self._free = count
        self._start_next = start_next
        self._returning: deque[asyncio.Future[None]] = deque()
        self._returning_next = True

    @property
    def all_free(self) -> bool:
        """Whether nothing is at work, or about to be."""
        return self._free == self._count and not self._returning

    def take_now(self) -> bool:
        """Take a place if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait for a place and take it."""
        if self.take_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._returning.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Both orders: cancelled before its turn, the future is cancelled and is skipped when its turn comes;
            # cancelled after its turn was given but before it woke, the place it was given must not be lost.
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give a place to whoever is next, or leave it free."""
        self._free += 1
        self.fill()

    def fill(self) -> None:
        """Give the free places to those in line."""
        while self.take_now():
            if not self._pass_on():
                self._free += 1
                return

    def _pass_on(self) -> bool:
        """Give a place that was taken to the next in line; False if nobody is."""
        # Whichever kind did not have the last one: neither can keep the other from running.
        if self._returning_next and self._wake_next():
            self._returning_next = False
        elif self._start_next(self):
            self._returning_next = True
        else:
            return self._wake_next()
        return True

    def _wake_next(self) -> bool:
        while self._returning:
            turn = self._returning.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class _Reservation:
    """A place that is taken for a task which is being made."""

    def __init__(self, engine: LocalEngine, places: _Places) -> None:
        self._engine = engine
        self._places = places

    def start(self, task_id: str) -> bool:
        """Run the task now, if anything is started any more."""
        return self._engine.begin(task_id, self._places)

    def give_back(self) -> None:
        """There is no such task after all."""
        self._places.give_back()


class _LocalSlot:
    """One run's place in a `LocalEngine`."""

    def __init__(self, places: _Places) -> None:
        self._places = places
        self._held = True
        self._taking = asyncio.Lock()

    def release(self) -> None:
        """Let another run have it."""
        if self._held:
            self._held = False
            self._places.give_back()

    async def acquire(self) -> None:
        """Have it back."""
        # Two branches of a tool may come back from their waits at once; they share one place.
        async with self._taking:
            if not self._held:
                await self._places.take()
                self._held = True
