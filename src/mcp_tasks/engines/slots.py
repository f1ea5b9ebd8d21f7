"""Slots: the right to be at work, so many at a time.

A run has one slot from its start to its end, and lets go of it while it only waits. Runs that come back from a wait and
tasks that have not begun are given free slots by turns, so that neither keeps the other from running.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable


class Slots:
    """So many slots, and who waits for one.

    Args:
        count: How many there are.
        start_next: Starts the next task that has not begun, on a slot of these; False if none is in line.
        share: The part of them that is one owner's share; None for all.

    Attributes:
        sated: Owners who have their share, or more.
    """

    def __init__(self, count: int, start_next: Callable[[Slots], bool], share: float | None = None) -> None:
        self.sated: set[str] = set()
        self._share = None if share is None else max(int(count * share), 1)
        self._held: Counter[str] = Counter()
        self._count = count
        self._free = count
        self._start_next = start_next
        self._returning: deque[asyncio.Future[None]] = deque()
        self._returning_next = True

    @property
    def any_free(self) -> bool:
        """Whether there is one that nobody has."""
        return self._free > 0

    @property
    def all_free(self) -> bool:
        """Whether nothing is at work, or about to be."""
        return self._free == self._count and not self._returning

    def acquire_now(self) -> bool:
        """Take a slot if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self.acquire_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._returning.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Both orders: cancelled before its turn, the future is cancelled and is skipped when its turn comes;
            # cancelled after its turn was given but before it woke, the slot it was given must not be lost.
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def held_by(self, owner: str | None) -> None:
        """Take note that an owner's task has a slot. Those of nobody are of no owner."""
        if owner is not None and self._share is not None:
            self._held[owner] += 1
            if self._held[owner] >= self._share:
                self.sated.add(owner)

    def let_go_by(self, owner: str | None) -> None:
        """Take note that it has it no more."""
        if owner is not None and self._share is not None:
            self._held[owner] -= 1
            if self._held[owner] < self._share:
                self.sated.discard(owner)
            if not self._held[owner]:
                del self._held[owner]

    def release(self) -> None:
        """Give a slot to whoever is next, or leave it free."""
        self._free += 1
        self.hand_out()

    def hand_out(self) -> None:
        """Give the free slots to those in line."""
        while self.acquire_now():
            if not self._pass_on():
                self._free += 1
                return

    def _pass_on(self) -> bool:
        """Give a slot that was taken to the next in line; False if nobody is."""
        # Whichever kind did not have the last one.
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


class RunSlot:
    """The slot of one run, which has it to begin with.

    Args:
        on_claimed: Called when the run says that the store knows who has the task.
        owner: Whose task it is.
    """

    def __init__(self, slots: Slots, on_claimed: Callable[[], None] | None = None, owner: str | None = None) -> None:
        self._slots = slots
        self._owner = owner
        slots.held_by(owner)
        self._acquired = True
        self._acquiring = asyncio.Lock()
        self._on_claimed = on_claimed

    def claimed(self) -> None:
        """The store knows who has the task."""
        if self._on_claimed is not None:
            self._on_claimed()

    def release(self) -> None:
        """Let another run have it."""
        if self._acquired:
            self._acquired = False
            self._slots.let_go_by(self._owner)
            self._slots.release()

    async def acquire(self) -> None:
        """Have it back."""
        # Two branches of a tool may come back from their waits at once; they share one slot.
        async with self._acquiring:
            if not self._acquired:
                await self._slots.acquire()
                self._slots.held_by(self._owner)
                self._acquired = True
