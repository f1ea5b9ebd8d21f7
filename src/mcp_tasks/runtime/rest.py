"""What a run occupies while it works and gives back while it only waits: its slot, its thread, its running time, and
its place under the limits of its tool and its owner (`place.py`).

A run rests when a branch of it waits and no step is being done. What else its branches do outside of steps cannot be
seen from here, and is worth no slot of its own. A run that stays in memory while it waits is counted: beyond a number
of such runs, the next ones keep their slot, so that memory and threads have a bound. Their place they give up all the
same: others may need it to answer them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio.to_thread

from mcp_tasks.engines.base import Slot
from mcp_tasks.runtime.branches import Branches
from mcp_tasks.runtime.life import Life, Turn
from mcp_tasks.runtime.place import GIVES_UP_AFTER, Place
from mcp_tasks.runtime.uncancelled import uncancelled

FIRST_LOOK = 0.05
LONGEST_LOOK = 1.0
"""Seconds between two looks at whether a run does anything but wait, after one of its branches has gone on."""


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
    """One run at work and at rest.

    Attributes:
        place: Its place under the limits; None where there are no limits.
    """

    place: Place | None = None

    def __init__(
        self, life: Life, slot: Slot, branches: Branches, room: WaitingRoom, context: contextvars.Context
    ) -> None:
        self._context = context
        self._life = life
        self._slot = slot
        self._branches = branches
        self._room = room
        self._waits = 0
        self._standing = 0
        self._steps = 0
        self._idle = False
        self._resting = False
        self._thread_lent = False
        self._changing = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
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
        self._standing += parkable
        self._rest_if_idle()
        try:
            yield
        finally:
            self._branches.go_on(branch)
            try:
                await self._life.parking_decided()
                await self._resume()
            finally:
                self._waits -= 1
                self._standing -= parkable
                self._watch()

    @asynccontextmanager
    async def stepping(self) -> AsyncGenerator[None]:
        """A step is being done while this is entered."""
        branch = self._branches.begin_step()
        self._steps += 1
        try:
            await self._resume()
            if not self._life.counts:
                # Stopped while it stood in line for its slot: nothing begins in such a run, and it has no slot.
                raise asyncio.CancelledError
            yield
        finally:
            self._branches.end_step(branch)
            self._steps -= 1
            self._rest_if_idle()

    async def begin(self) -> None:
        """Wait for a place before the tool is entered: the run was suspended, and was claimed without a place."""
        self._idle = True
        self._rest(standing=True)
        await self._resume()

    def end(self) -> None:
        """The run is over; give back what it still has, but for the slot, which is the engine's to take."""
        if self._watching is not None:
            self._watching.cancel()
        if self._resting:
            self._get_up()

    def _watch(self) -> None:
        """A branch goes on, and others wait: rest again when nothing but these is left."""
        if self._waits and not self._idle and (self._watching is None or self._watching.done()):
            watching = self._rest_when_only_waits_are_left()
            self._watching = asyncio.get_running_loop().create_task(watching, context=self._context.copy())

    async def _rest_when_only_waits_are_left(self) -> None:
        # What the others wait for may need the slot or the place, and nothing tells when a branch has ended.
        pause = FIRST_LOOK
        while self._waits and not self._idle and self._life.counts:
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_LOOK)
            if not self._steps and not self._branches.can_advance():
                self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        # Not while a branch is coming back: it would go on without what is given up now.
        if not self._waits or self._steps or not self._life.counts or self._changing.locked():
            return
        self._idle = True
        if self.place is not None and (self._giving_up is None or self._giving_up.done()):
            self._giving_up = self.place.help(self._give_up_soon(self.place))
        if not self._resting:
            self._rest(standing=self._standing > 0)

    def _rest(self, *, standing: bool) -> None:
        if self._room.enter(standing=standing):
            self._resting = True
            self._rested_since = asyncio.get_running_loop().time()
            self._lend_thread()
            self._slot.release()
            self._life.take(Turn.WAITS)

    async def _give_up_soon(self, place: Place) -> None:
        """Give up the place, if the run still waits in a moment: a short wait costs no writes."""
        await asyncio.sleep(GIVES_UP_AFTER)
        # A branch that comes back before this keeps the place; one that comes after it takes it again.
        async with self._changing:
            if self._idle and self._life.counts:
                await place.give_up()

    async def _resume(self) -> None:
        """Have the slot and the place again, if the run is at rest.

        Not to be cancelled: a branch whose time-out fired goes on behind it, and must not work without them.
        """
        if self._resting or (self._idle and self.place is not None):
            await uncancelled(self._go_on(), context=self._context.copy())
        else:
            self._idle = False

    async def _go_on(self) -> None:
        # Branches that come back at once share the slot and the place, and wait for them together.
        async with self._changing:
            if self._idle and self._life.counts:
                # The time in line does not count as running time either.
                await self._acquire_unless_over()
            self._idle = False
            if self._resting:
                self._get_up()

    async def _acquire_unless_over(self) -> None:
        acquiring = asyncio.ensure_future(self._slot.acquire() if self.place is None else self.place.take(self._slot))
        over = asyncio.ensure_future(self._life.over.wait())
        await asyncio.wait({acquiring, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not acquiring.done():
            acquiring.cancel()
            await asyncio.wait({acquiring})
        elif not acquiring.cancelled():
            acquiring.result()
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
