"""What a run occupies while it works and gives back while it only waits: its slot, its thread, its running time.

A run rests when a branch of it waits and no step is being done. What else its branches do outside of steps cannot be
seen from here, and is worth no slot of its own. A run that stays in memory while it waits is counted: beyond a number
of such runs, the next ones keep their slot, so that memory and threads have a bound."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio.to_thread

from mcp_tasks.engines.base import Slot
from mcp_tasks.runtime.branches import Branches
from mcp_tasks.runtime.life import Life, Turn
from mcp_tasks.runtime.uncancelled import uncancelled


class WaitingRoom:
    """How many runs may wait in memory without a slot."""

    def __init__(self, seats: int) -> None:
        self._free = seats

    @property
    def is_full(self) -> bool:
        """Whether the next one would have to keep its slot."""
        return self._free <= 0

    def enter(self, *, standing: bool) -> bool:
        """Take a seat if there is one. Who leaves soon may stand."""
        if self.is_full and not standing:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """Give the seat back."""
        self._free += 1


class Rest:
    """One run at work and at rest."""

    def __init__(
        self, life: Life, slot: Slot, branches: Branches, room: WaitingRoom, context: contextvars.Context
    ) -> None:
        self._context = context
        self._life = life
        self._slot = slot
        self._branches = branches
        self._room = room
        self._waits = 0
        self._steps = 0
        self._resting = False
        self._thread_lent = False
        self._resuming = asyncio.Lock()
        self._rested_since = 0.0
        self._rested = 0.0

    @property
    def is_resting(self) -> bool:
        """Whether the run occupies no slot."""
        return self._resting

    @property
    def in_steps(self) -> bool:
        """Whether a step is being done, or recorded."""
        return self._steps > 0

    @property
    def waits(self) -> int:
        """How many branches wait."""
        return self._waits

    @property
    def rested(self) -> float:
        """Seconds that the run has spent at rest: no running time."""
        now = asyncio.get_running_loop().time()
        return self._rested + (now - self._rested_since if self._resting else 0.0)

    @asynccontextmanager
    async def waiting(self, *, parkable: bool, to_give_up: bool = False) -> AsyncGenerator[None]:
        """A branch waits while this is entered, and has the slot again before it goes on.

        A run that can be parked while it waits needs no seat: with none free, it is parked at once. A branch that waits
        to give up does not wait for us.
        """
        branch = self._branches.rest(to_give_up=to_give_up)
        self._waits += 1
        self._rest_if_idle(parkable=parkable)
        try:
            yield
        finally:
            self._branches.go_on(branch)
            try:
                await self._life.parking_decided()
                await self._resume()
            finally:
                self._waits -= 1

    @asynccontextmanager
    async def stepping(self) -> AsyncGenerator[None]:
        """A step is being done while this is entered."""
        self._steps += 1
        try:
            await self._resume()
            if not self._life.counts:
                # Stopped while it stood in line for its slot: nothing begins in such a run, and it has no slot.
                raise asyncio.CancelledError
            yield
        finally:
            self._steps -= 1
            self._rest_if_idle(parkable=False)

    def end(self) -> None:
        """The run is over; give back what it still has, but for the slot, which is the engine's to take."""
        if self._resting:
            self._get_up()

    def _rest_if_idle(self, *, parkable: bool) -> None:
        is_idle = self._waits and not self._steps and not self._resting and self._life.counts
        if is_idle and self._room.enter(standing=parkable):
            self._resting = True
            self._rested_since = asyncio.get_running_loop().time()
            self._lend_thread()
            self._slot.release()
            self._life.take(Turn.WAITS)

    async def _resume(self) -> None:
        """Have the slot again, if the run is at rest.

        Not to be cancelled: a branch whose time-out fired goes on behind it, and must not work without a slot.
        """
        if self._resting:
            await uncancelled(self._take_slot(), context=self._context.copy())

    async def _take_slot(self) -> None:
        # Branches that come back at once share the slot, and wait for it together.
        async with self._resuming:
            if self._resting and self._life.counts:
                # The time in line does not count as running time either.
                await self._acquire_unless_over()
            if self._resting:
                self._get_up()

    async def _acquire_unless_over(self) -> None:
        acquiring = asyncio.ensure_future(self._slot.acquire())
        over = asyncio.ensure_future(self._life.over.wait())
        await asyncio.wait({acquiring, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not acquiring.done():
            acquiring.cancel()
            await asyncio.wait({acquiring})
        if not self._life.counts:
            # A branch that was left behind. The engine took the slot back when the run ended, and does so only once.
            self._slot.release()

    def _get_up(self) -> None:
        self._resting = False
        self._rested += asyncio.get_running_loop().time() - self._rested_since
        self._room.leave()
        if self._thread_lent:
            self._thread_lent = False
            anyio.to_thread.current_default_thread_limiter().total_tokens -= 1
        self._life.take(Turn.GOES_ON)

    def _lend_thread(self) -> None:
        """A sync tool that waits keeps its thread; the others get one more in its place."""
        limiter = anyio.to_thread.current_default_thread_limiter()
        if self._branches.own in limiter.statistics().borrowers:
            self._thread_lent = True
            limiter.total_tokens += 1
