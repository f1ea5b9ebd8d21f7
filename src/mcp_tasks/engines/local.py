"""Runs tools in this process, a limited number at a time.

Ids wait in memory. Losing them is harmless: the records are in the store as queued, and a sweep of any process submits
them again. A process that runs no tools keeps no ids at all, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Set
from datetime import timedelta

import anyio.to_thread

from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Execute, Lane, Route, Serves
from mcp_tasks.model.values import check_number

DEFAULT_CONCURRENCY = 100
"""Runs at a time. Most tools wait for something else to work; a CPU-bound one needs a smaller limit of its own."""


class Waitlist:
    """Ids that wait for a slot, each once: by priority, then the lanes in turn, then the owners of a lane in turn."""

    def __init__(self) -> None:
        # By priority, without empty levels. The lane whose turn it is comes first, and so does the owner. OrderedDict,
        # because finding the first key of a dict takes longer the more keys were removed before it.
        self.levels: dict[int, OrderedDict[Lane, OrderedDict[str | None, deque[str]]]] = {}
        self._ids: dict[Lane, set[str]] = {"new": set(), "again": set()}

    def count(self, lane: Lane) -> int:
        return len(self._ids[lane])

    def put(self, task_id: str, lane: Lane, *, owner: str | None = None, priority: int = 0) -> None:
        """Put an id behind the others of its owner, unless it waits already."""
        if any(task_id in ids for ids in self._ids.values()):
            return
        self._ids[lane].add(task_id)
        level = self.levels.setdefault(priority, OrderedDict({"again": OrderedDict(), "new": OrderedDict()}))
        level[lane].setdefault(owner, deque()).append(task_id)

    def take(self, passed_over: Set[str]) -> tuple[str, str | None]:
        """Take the next id, and its owner: one of an owner that is not passed over, if there is any."""
        for skipped in (passed_over, frozenset[str]()):
            for priority in sorted(self.levels, reverse=True):
                for lane, owners in self.levels[priority].items():
                    # Owners with their full share are few, by what a share is: this takes few steps.
                    for owner in owners:
                        if owner not in skipped:
                            return self._pop(priority, lane, owner), owner
        raise IndexError("no id waits")

    def _pop(self, priority: int, lane: Lane, owner: str | None) -> str:
        level = self.levels[priority]
        ids = level[lane].pop(owner)
        task_id = ids.popleft()
        if ids:
            level[lane][owner] = ids
        level.move_to_end(lane)
        if not any(level.values()):
            del self.levels[priority]
        self._ids[lane].remove(task_id)
        return task_id


class Slots:
    """A number of slots, and the runs that wait to have theirs back.

    Args:
        start_next: Starts the next waiting id on a slot that was taken for it; False if none waits.
        share: The part of the slots that is one owner's share; None for all.

    Attributes:
        sated: Owners that have their share or more.
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
        return self._free > 0

    @property
    def all_free(self) -> bool:
        """Whether nothing runs, or is about to."""
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

    def count_for(self, owner: str, by: int) -> None:
        """Note that a task of the owner has a slot (1) or has it no more (-1)."""
        if self._share is None:
            return
        self._held[owner] += by
        if self._held[owner] >= self._share:
            self.sated.add(owner)
        else:
            self.sated.discard(owner)
        if not self._held[owner]:
            del self._held[owner]

    def release(self) -> None:
        """Give a slot to the next that waits, or leave it free."""
        self._free += 1
        self.dispatch()

    def dispatch(self) -> None:
        """Give the free slots to those that wait: returning runs and new ids in turn."""
        while self._free:
            self._free -= 1
            if self._returning_next and self._returning and self._wake_next():
                self._returning_next = False
            elif self._start_next(self):
                self._returning_next = True
            elif not (self._returning and self._wake_next()):
                self._free += 1
                return

    def _wake_next(self) -> bool:
        while self._returning:
            turn = self._returning.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class LocalSlot:
    """A slot that was taken: reserved for a task that is being created, and then its run's.

    Args:
        on_claimed: Called when the store knows who has the task.
    """

    def __init__(
        self, engine: LocalEngine, slots: Slots, owner: str | None, on_claimed: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._slots = slots
        self._owner = owner
        self._on_claimed = on_claimed
        self._acquired = True
        self._acquiring = asyncio.Lock()
        if owner is not None:
            slots.count_for(owner, 1)

    def start(self, task_id: str) -> bool:
        """Run the task now. False if nothing is started any more; the slot is then free again."""
        return self._engine.begin(task_id, self)

    def claimed(self) -> None:
        """The store knows who has the task."""
        if self._on_claimed is not None:
            self._on_claimed()

    def release(self) -> None:
        """Let another run have it."""
        if self._acquired:
            self._acquired = False
            if self._owner is not None:
                self._slots.count_for(self._owner, -1)
            self._slots.release()

    async def acquire(self) -> None:
        """Take it back."""
        # Two branches of a tool may end their waits at once; they share one slot.
        async with self._acquiring:
            if not self._acquired:
                await self._slots.acquire()
                if self._owner is not None:
                    self._slots.count_for(self._owner, 1)
                self._acquired = True


class LocalEngine:
    """Runs tools in this process, at most `concurrency` at a time; runs waiting for input don't count."""

    abilities: Abilities = Abilities(priority=True)

    def __init__(self, concurrency: int = DEFAULT_CONCURRENCY) -> None:
        check_number("concurrency", concurrency, 1)
        self.concurrency = concurrency
        self._context = contextvars.copy_context()
        self._execute: Execute | None = None
        self._slots = Slots(concurrency, self._start_next)
        self._waiting = Waitlist()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, tuple[str | None, int]] = {}
        self._in_line: set[asyncio.Timeout] = set()

    def __repr__(self) -> str:
        return f"LocalEngine({self.concurrency})"

    @property
    def backlog(self) -> int:
        """How many ids of the lane `again` wait for a slot."""
        return self._waiting.count("again")

    @property
    def has_room(self) -> bool:
        """Whether a slot is free and no id waits for it."""
        return self._execute is not None and not self._waiting.levels and self._slots.any_free

    @property
    def is_idle(self) -> bool:
        """Whether no id waits, and all runs only wait."""
        return self._slots.all_free and not self._waiting.levels

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        """Begin to call `execute` for submitted ids; None to run nothing here."""
        # New slots: a run that was left behind by an earlier start returns its slot there.
        self._slots = Slots(self.concurrency, self._start_next, serves.owner_share)
        self._running = {}
        # Runs start in the context of the server's start, not of the request that happened to submit them: the token
        # and the trace of a live request must not be visible by chance the first time.
        self._context = contextvars.copy_context()
        if execute is not None and self._execute is None:
            # The SDK runs sync tools on anyio's shared threads. Adding one for each possible run keeps the original
            # number for other work, so a hundred blocking tasks never delay a plain call.
            anyio.to_thread.current_default_thread_limiter().total_tokens += self.concurrency
        self._execute = execute

    def reserve(self, owner: str | None = None) -> LocalSlot | None:
        """A slot for a task that is about to be created, if one is free and no id waits for it."""
        return LocalSlot(self, self._slots, owner) if self.has_room and self._slots.acquire_now() else None

    async def submit(
        self,
        task_id: str,
        *,
        lane: Lane = "new",
        owner: str | None = None,
        route: Route = ANYWHERE,
        delay: timedelta | None = None,
    ) -> None:
        """Have the task run once there is a slot, and not before an earlier run of it has ended."""
        if self._execute is None:
            return
        if task_id in self._running:
            # It may be about to end (to suspend, for example) and wanted again already. If not, the second run finds
            # nothing to claim.
            self._again[task_id] = owner, route.priority
        else:
            self._waiting.put(task_id, lane, owner=owner, priority=route.priority)
            self._slots.dispatch()

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
            # It was carried here twice, and the other one got its slot first. That run reads the store after this
            # delivery arrived.
            slots.release()
            return True
        claimed = asyncio.Event()
        if not LocalSlot(self, slots, None, claimed.set).start(task_id):
            return False
        run, claiming = self._running[task_id], asyncio.create_task(claimed.wait())
        try:
            await asyncio.wait({run, claiming}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
        return claimed.is_set()

    async def room(self) -> bool:
        """Return when a slot is free; False once nothing is started here any more."""
        slots = self._slots
        if not await self._acquire(slots, None):
            return False
        slots.release()
        return True

    def close(self) -> None:
        """Start nothing more, and tell those that wait for a slot at once."""
        if self._execute is not None:
            self._execute = None
            anyio.to_thread.current_default_thread_limiter().total_tokens -= self.concurrency
        self._waiting = Waitlist()
        self._again.clear()
        for patience in self._in_line:
            if not patience.expired():
                patience.reschedule(0)

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give runs up to `timeout` to end."""
        self.close()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout.total_seconds())

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for runs that were told to stop."""
        await self.drain(timeout)

    async def _acquire(self, slots: Slots, patience: float | None) -> bool:
        """Take a slot for a carried id; False if there is none in time, or nothing is started any more."""
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

    def begin(self, task_id: str, slot: LocalSlot) -> bool:
        """Start a run on its slot; False, and the slot is free again, if nothing is started any more."""
        if self._execute is None:
            slot.release()
            return False
        self._running[task_id] = asyncio.create_task(
            self._run(task_id, self._execute, slot), name=f"mcp-task-{task_id}", context=self._context.copy()
        )
        return True

    def _start_next(self, slots: Slots) -> bool:
        # Runs that an earlier start left behind return their slots there, and start nothing now.
        if slots is not self._slots or self._execute is None or not self._waiting.levels:
            return False
        task_id, owner = self._waiting.take(slots.sated)
        return self.begin(task_id, LocalSlot(self, slots, owner))

    async def _run(self, task_id: str, execute: Execute, slot: LocalSlot) -> None:
        running = self._running
        try:
            await execute(task_id, slot)
        finally:
            del running[task_id]
            wanted = self._again.pop(task_id, None) if running is self._running else None
            if wanted is not None:
                owner, priority = wanted
                self._waiting.put(task_id, "again", owner=owner, priority=priority)
            slot.release()
            if wanted is not None:
                # Also if the run had released its slot before.
                self._slots.dispatch()
