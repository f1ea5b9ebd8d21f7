"""Runs tools in this very process, a limited number at a time.

Ids wait in memory, in order. Losing them is harmless: the records are in the store as queued, and a sweep of any
process submits them again. A process that is started without running tools keeps no ids at all, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextvars
from bisect import insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from datetime import timedelta

import anyio.to_thread

from mcp_tasks.engines.base import ANYWHERE, EVERYTHING, Abilities, Execute, Lane, Route, Serves
from mcp_tasks.model.values import check_number

# ---- lanes
# Ids in line for a slot: by priority, then in two lanes that take turns, in each of which owners take turns. Owners
# who have their share of the slots are passed over while others are in line.


class Lanes:
    """Ids in line: the urgent first, new ones and those submitted again by turns. No id is in line twice."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._ids: set[str] = set()
        self._counts: Counter[Lane] = Counter()
        self.priorities: list[int] = []
        """Those that have ids in line, the lowest first."""

    def __len__(self) -> int:
        return len(self._ids)

    def count(self, lane: Lane) -> int:
        """How many are in one lane."""
        return self._counts[lane]

    def put(self, task_id: str, lane: Lane, *, owner: str | None = None, priority: int = 0) -> None:
        """Put an id at the end of the line of its owner, unless it is in line already."""
        if task_id in self._ids:
            return
        self._ids.add(task_id)
        self._counts[lane] += 1
        if priority not in self._levels:
            self._levels[priority] = _Level()
            insort(self.priorities, priority)
        self._levels[priority].lanes[lane].put(task_id, owner)

    def take(self, passed_over: Set[str] = frozenset()) -> tuple[str, str | None]:
        """Take the id whose turn it is, and whose it is: one of an owner that is not passed over, if there is any."""
        found = self._find(passed_over) or self._find(frozenset())
        if found is None:
            raise IndexError("nobody is in line")
        task_id, owner, lane = found
        self._ids.remove(task_id)
        self._counts[lane] -= 1
        return task_id, owner

    def _find(self, passed_over: Set[str]) -> tuple[str, str | None, Lane] | None:
        for priority in reversed(self.priorities):
            level = self._levels[priority]
            found = level.take(passed_over)
            if found is not None:
                if level.is_empty:
                    del self._levels[priority]
                    self.priorities.remove(priority)
                return found
        return None

    def clear(self) -> None:
        """Forget every id."""
        self._levels.clear()
        self._ids.clear()
        self._counts.clear()
        self.priorities.clear()


class _Owners:
    """The ids of one lane, with owners that take turns: whoever had one goes to the end."""

    def __init__(self) -> None:
        # Not a dict: to find the first of one from which many were taken takes the longer the more there were.
        self._lines: OrderedDict[str | None, deque[str]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def put(self, task_id: str, owner: str | None) -> None:
        self._lines.setdefault(owner, deque()).append(task_id)

    def take(self, passed_over: Set[str]) -> tuple[str, str | None] | None:
        # As many steps as there are owners that have their share, at most, and one: these are few, by what a share is.
        for owner in self._lines:
            if owner not in passed_over:
                line = self._lines.pop(owner)
                task_id = line.popleft()
                if line:
                    self._lines[owner] = line
                return task_id, owner
        return None


@dataclass(slots=True)
class _Level:
    """The ids of one priority."""

    lanes: dict[Lane, _Owners] = field(default_factory=lambda: {"new": _Owners(), "again": _Owners()})
    next_lane: Lane = "again"

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in line."""
        return not any(self.lanes.values())

    def take(self, passed_over: Set[str]) -> tuple[str, str | None, Lane] | None:
        """The id whose turn it is, its owner and its lane; None if all owners are passed over."""
        for lane in (self.next_lane, _other(self.next_lane)):
            taken = self.lanes[lane].take(passed_over)
            if taken is not None:
                self.next_lane = _other(lane)
                return *taken, lane
        return None


def _other(lane: Lane) -> Lane:
    return "new" if lane == "again" else "again"


# ---- slots
# Slots: the right to be at work, so many at a time.


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
