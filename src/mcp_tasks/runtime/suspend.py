"""How a run waits: its states, the asyncio tasks that belong to it, the slot that it gives back, and leaving memory."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import LimitReached, RunStopped
from mcp_tasks.model.machine import RunPaused, RunResumed, RunResumeRequested

if TYPE_CHECKING:
    from mcp_tasks.engines.base import Slot
    from mcp_tasks.model.record import TaskRecord
    from mcp_tasks.runtime.run import Run
    from mcp_tasks.stores.base import WorkLimits

T = TypeVar("T")

# ---- states


class State(Enum):
    """Where a run stands."""

    STARTING = auto()
    """Claimed; the tool has not been entered."""
    WORKING = auto()
    WAITING = auto()
    """All that is known of the run waits for an answer or a timer; it has no slot."""
    SUSPENDING = auto()
    """It is being written down that the run leaves memory. What it waits for must not wake it now."""
    STOPPING = auto()
    """Told to stop: what the body still says does not count."""
    FAILING = auto()
    """It ends with an error of ours, whatever the body still says."""
    RETURNED = auto()
    """The body returned; its outcome is being written."""
    ENDED = auto()


class RunEvent(Enum):
    """What can happen to a run."""

    ENTERED = auto()
    WAITS = auto()
    GOES_ON = auto()
    SUSPENDS = auto()
    STAYS = auto()
    """It could not be suspended after all."""
    STOPPED = auto()
    FAILED = auto()
    RETURNED = auto()
    ENDED = auto()


_STOPS: Final[Mapping[RunEvent, State]] = {RunEvent.STOPPED: State.STOPPING, RunEvent.ENDED: State.ENDED}

TABLE: Final[Mapping[State, Mapping[RunEvent, State]]] = {
    State.STARTING: {RunEvent.ENTERED: State.WORKING, RunEvent.FAILED: State.FAILING, **_STOPS},
    State.WORKING: {
        RunEvent.WAITS: State.WAITING,
        RunEvent.RETURNED: State.RETURNED,
        RunEvent.FAILED: State.FAILING,
        **_STOPS,
    },
    State.WAITING: {
        RunEvent.GOES_ON: State.WORKING,
        RunEvent.SUSPENDS: State.SUSPENDING,
        # A branch that is not known to be executing may return while another one waits.
        RunEvent.RETURNED: State.RETURNED,
        RunEvent.FAILED: State.FAILING,
        **_STOPS,
    },
    # Only the outcome of the write ends it: an answer, a time limit and a return all wait for that.
    State.SUSPENDING: {RunEvent.STAYS: State.WAITING, **_STOPS},
    State.STOPPING: {RunEvent.ENDED: State.ENDED},
    State.FAILING: {RunEvent.STOPPED: State.FAILING, RunEvent.ENDED: State.ENDED},
    State.RETURNED: {RunEvent.STOPPED: State.ENDED, RunEvent.ENDED: State.ENDED},
    State.ENDED: {},
}
"""The state that follows on an event. An event that is not here comes too late, and does not happen."""

OVER: Final = frozenset({State.STOPPING, State.FAILING, State.ENDED})
"""States in which what the tool says does not count any more."""

IN_BODY: Final = frozenset({State.WORKING, State.WAITING, State.SUSPENDING})

# ---- work that is not cancelled


async def uncancelled(
    work: Coroutine[Any, Any, T] | asyncio.Task[T],
    *,
    context: contextvars.Context | None = None,
    unless: asyncio.Future[None] | None = None,
) -> T:
    """The result of `work`, which runs to its end. A cancellation that comes meanwhile is raised after that.

    A shield of anyio's holds off the cancellation of a scope and not `Task.cancel()`; this holds off both. When
    `unless` is done first, the work is cancelled and not waited for.
    """
    done, cancelled = await to_the_end(work, context=context, unless=unless)
    if not done.done():
        _cancelled.keep(done).cancel()
        raise cancelled or asyncio.CancelledError
    if cancelled is not None:
        if not done.cancelled():
            # Retrieved, so that asyncio does not log it.
            done.exception()
        raise cancelled
    return done.result()


_cancelled: Final = BackgroundTasks()
"""Work that was cancelled and has not ended: a driver whose network is cut may take long for that."""


async def to_the_end(
    work: Coroutine[Any, Any, T] | asyncio.Task[T],
    *,
    context: contextvars.Context | None = None,
    unless: asyncio.Future[None] | None = None,
) -> tuple[asyncio.Task[T], asyncio.CancelledError | None]:
    """`work` once it has ended or `unless` is done, and a cancellation that came meanwhile: the caller raises it."""
    inner = work if isinstance(work, asyncio.Task) else asyncio.get_running_loop().create_task(work, context=context)
    cancelled: asyncio.CancelledError | None = None
    waited_for = {inner} if unless is None else {inner, unless}
    with anyio.CancelScope(shield=True):
        while not inner.done() and not (unless is not None and unless.done()):
            try:
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as exc:
                cancelled = exc
    return inner, cancelled


# ---- branches

current_run: ContextVar[Run | None] = ContextVar("mcp_tasks_current_run", default=None)
"""The run that the calling code is part of."""


class Branches:
    """The asyncio tasks of one run: the tool's own, and those that it started (`gather`, task groups, `create_task`).

    The context of an asyncio task says which run it belongs to. What it does outside of our waits cannot be seen, so
    nothing is concluded from that.

    Attributes:
        own: The tool's own asyncio task, once it has begun.
        in_steps: The asyncio tasks that do steps, and how many of them, one inside the other.
    """

    own: asyncio.Task[Any] | None = None

    def __init__(self, run: Run) -> None:
        self._run: Run | None = run
        # A sync function does one thing at a time on a thread.
        self._in_thread = run.policy.in_thread
        self._met: set[asyncio.Task[Any]] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._giving_up: set[asyncio.Task[Any]] = set()
        self.in_steps: Counter[asyncio.Task[Any]] = Counter()
        self._over = False

    @property
    def in_own(self) -> bool:
        """Whether the calling code belongs to the tool's own asyncio task, or to the thread of a sync tool."""
        caller = this_task()
        return caller is self.own or (self._own_is_on_a_thread and self._live() <= {self.own, caller})

    @property
    def several(self) -> bool:
        """Whether a branch other than the tool's own has come to us and has not ended."""
        return any(not task.done() for task in self._met)

    def contact(self) -> None:
        """Take note of the calling branch."""
        caller = this_task()
        if caller is not self.own and caller not in self._met:
            self._met.add(caller)
            caller.add_done_callback(self._met.discard)

    @contextmanager
    def waiting(self, *, to_give_up: bool = False) -> Generator[None]:
        """The calling branch waits for us, or with us to be cancelled, while this is entered.

        Raises:
            asyncio.CancelledError: The run is over, and the branch was left behind: it would wait for ever.
        """
        if self._over:
            raise asyncio.CancelledError
        task, waiting = this_task(), self._giving_up if to_give_up else self._waiting
        waiting.add(task)
        try:
            yield
        finally:
            waiting.discard(task)

    def all_wait(self) -> bool:
        """Whether every asyncio task of the run is in one of our waits: nothing of it goes on without us."""
        elsewhere = self._live() - self._waiting
        # A sync tool does one thing at a time: while its thread waits for us, nothing else of it is executing.
        return not elsewhere or (elsewhere == {self.own} and len(self._waiting) == 1 and self._own_is_on_a_thread)

    def cancel_waiting(self) -> None:
        """The run is over: a branch that still waits here would wait for ever."""
        self._over = True
        for task in (self._waiting | self._giving_up) - {self.own}:
            task.cancel()

    def close(self, *, was_stopped: bool) -> None:
        """Cancel what is left of the run, and let it be freed.

        A step that a tool leaves behind when it returns may go on: no other run will begin it. After a stop, one may.
        """
        self.cancel_waiting()
        for task in self.in_steps.keys() - {self.own} if was_stopped else ():
            # One that the tool has cancelled is not disturbed while it ends.
            if not task.cancelling():
                task.cancel()
        self.own = self._run = None

    @property
    def _own_is_on_a_thread(self) -> bool:
        return self._in_thread and self.own in anyio.to_thread.current_default_thread_limiter().statistics().borrowers

    def _live(self) -> set[asyncio.Task[Any]]:
        return _tasks_by_run().get(self._run, set())


def _tasks_by_run() -> dict[Run | None, set[asyncio.Task[Any]]]:
    """The asyncio tasks of this event loop by their run: one look for all runs."""
    found: dict[Run | None, set[asyncio.Task[Any]]] = {}
    for task in asyncio.all_tasks():
        context = _context_of(task)
        run = None if context is None else context.get(current_run)
        if run is not None:
            found.setdefault(run, set()).add(task)
    return found


def this_task() -> asyncio.Task[Any]:
    """The asyncio task of the calling code."""
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("a tool is a coroutine, and asyncio runs those in tasks")
    return task


def _context_of(task: asyncio.Task[Any]) -> contextvars.Context | None:
    get_context = getattr(task, "get_context", None)
    if get_context is not None:  # pragma: no cover - Python 3.11 has no such method
        return get_context()
    # Python 3.11 does not show the context; what an object refers to is public.
    return next((found for found in gc.get_referents(task) if isinstance(found, contextvars.Context)), None)


# ---- alarms

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at the clock: it need not run like the event loop's."""


class Waiter:
    """What one branch waits for: set once when that is there."""

    def __init__(self) -> None:
        self.is_set: bool = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """What was waited for is there."""
        self.is_set = True
        self.recheck()

    def recheck(self) -> None:
        """Have the branch look again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return when it is set, is to be looked at again, or the time is over."""
        self._sleeper = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._sleeper}, timeout=seconds)


class Alarms:
    """All waits for an instant on the runtime's clock: that clock may be set, or be a test's."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._waiters: set[Waiter] = set()

    def recheck(self) -> None:
        """Have all of them look at the clock again, because it was moved."""
        for waiter in self._waiters:
            waiter.recheck()

    async def wait(self, waiter: Waiter, until: datetime | None) -> None:
        """Return when the waiter is set, or at the instant if there is one."""
        self._waiters.add(waiter)
        try:
            while not waiter.is_set:
                seconds = None if until is None else (until - self._now()).total_seconds()
                if seconds is not None and seconds <= 0:
                    return
                await waiter.wait(None if seconds is None else min(seconds, LOOK_AGAIN))
        finally:
            self._waiters.discard(waiter)


# ---- slots

RESTS_AGAIN_AFTER: Final = 0.25
"""Seconds for which a branch that goes on keeps the slot, while others wait and it does no step."""

GIVES_UP_AFTER: Final = 0.05
"""Seconds that a run has to wait before it gives up its place under a limit: a shorter wait costs no writes."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between two tries to take a place that a run of another process may have given up."""


class SlotUse:
    """What one run occupies while it works, and gives back while it only waits: its slot, its thread, its running time,
    and its place under the limits of its tool and its owner.

    Attributes:
        waits: How many branches wait.
        is_resting: Whether the run occupies no slot.
    """

    def __init__(self, run: Run, slot: Slot, limits: WorkLimits | None) -> None:
        self._run = run
        self._slot = slot
        self._limits = limits
        self._suspender = run.runtime.suspender
        self.waits: int = 0
        self.is_resting: bool = False
        self._suspendable = 0
        self._idle = False
        self._thread_lent = False
        self._changing = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._resting_again: asyncio.Task[None] | None = None
        self._rested_since = 0.0
        self._rested = 0.0

    @asynccontextmanager
    async def waiting(self, *, suspendable: bool, to_give_up: bool = False) -> AsyncGenerator[None]:
        """A branch waits while this is entered, and has the slot again before it goes on.

        A run that can be suspended while it waits does not count under `max_waiting_runs`: where that is reached, it is
        suspended at once. A branch that waits to give up does not wait for us.
        """
        run = self._run
        self.waits += 1
        self._suspendable += suspendable
        try:
            with run.branches.waiting(to_give_up=to_give_up):
                self._rest_if_idle()
                yield
        finally:
            try:
                await run.suspension_decided()
                await self._resume()
            finally:
                self.waits -= 1
                self._suspendable -= suspendable
                is_watched = self._resting_again is not None and not self._resting_again.done()
                if self.waits and not self._idle and not is_watched and run.counts:
                    self._resting_again = run.help(self._rest_again())

    @asynccontextmanager
    async def stepping(self) -> AsyncGenerator[None]:
        """A step is being done while this is entered; there may be another one around it."""
        in_steps, task = self._run.branches.in_steps, this_task()
        in_steps[task] += 1
        try:
            await self._resume()
            if not self._run.counts:
                # Stopped while it waited for its slot: nothing begins in such a run, and it has no slot.
                raise asyncio.CancelledError
            yield
        finally:
            in_steps[task] -= 1
            if not in_steps[task]:
                del in_steps[task]
            self._rest_if_idle()

    async def begin(self) -> None:
        """Wait for a place before the tool is entered: the run was suspended, and was claimed without a place."""
        self._idle = True
        self._rest(always=True)
        await self._resume()

    def end(self) -> None:
        """The run is over; give back what it still has, but for the slot: the engine takes that."""
        if self.is_resting:
            self._stop_resting()

    async def watch_running_time(self, limit: timedelta) -> None:
        """End the run with an error once it has worked for as long as it may. Time at rest does not count."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        left = limit.total_seconds()
        while left > 0:
            # At rest the end moves on with the time, and is looked at again soon.
            await anyio.sleep(max(left, 1.0) if self.is_resting else left)
            resting = loop.time() - self._rested_since if self.is_resting else 0.0
            left = started + limit.total_seconds() + self._rested + resting - loop.time()
        await self._run.fail_with(RunStopped("max_runtime", self._run.record.name, limit=limit))

    async def _rest_again(self) -> None:
        # A branch goes on, and others wait, perhaps for something that needs the slot. Nothing tells when the branch
        # ends, or waits for them.
        await asyncio.sleep(RESTS_AGAIN_AFTER)
        self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        # Not while a branch is coming back: it would go on without what is given up now.
        run = self._run
        if not self.waits or run.branches.in_steps or not run.counts or self._changing.locked():
            return
        self._idle = True
        if self._limits is not None and (self._giving_up is None or self._giving_up.done()):
            self._giving_up = run.help(self._give_up_place_soon())
        if not self.is_resting:
            self._rest(always=self._suspendable > 0)

    def _rest(self, *, always: bool) -> None:
        if self._suspender.is_full and not always:
            return
        self._suspender.free -= 1
        self.is_resting = True
        self._rested_since = asyncio.get_running_loop().time()
        # A sync tool that waits keeps its thread; the others get one more in its place.
        limiter = anyio.to_thread.current_default_thread_limiter()
        if self._run.branches.own in limiter.statistics().borrowers:
            self._thread_lent = True
            limiter.total_tokens += 1
        self._slot.release()
        self._run.take(RunEvent.WAITS)

    def _stop_resting(self) -> None:
        self.is_resting = False
        self._rested += asyncio.get_running_loop().time() - self._rested_since
        self._suspender.free += 1
        if self._thread_lent:
            self._thread_lent = False
            anyio.to_thread.current_default_thread_limiter().total_tokens -= 1
        self._run.take(RunEvent.GOES_ON)

    async def _give_up_place_soon(self) -> None:
        await asyncio.sleep(GIVES_UP_AFTER)
        run = self._run
        # A branch that comes back before this keeps the place; one that comes after it takes it again.
        async with self._changing:
            may_give_up = self._idle and run.counts and run.record.pause is None
            if may_give_up and await run.writer.write(RunPaused(attempt=run.attempt)):
                run.runtime.made_room(run.policy)

    async def _resume(self) -> None:
        """Have the slot and the place again, if the run is at rest.

        Not to be cancelled: a branch whose time-out fired goes on behind it, and must not work without them.
        """
        if self.is_resting or (self._idle and self._limits is not None):
            await uncancelled(self._go_on(), context=self._run.outside())
        else:
            self._idle = False

    async def _go_on(self) -> None:
        run = self._run
        # Branches that come back at once share the slot and the place, and wait for them together.
        async with self._changing:
            if self._idle and run.counts:
                # The time in line does not count as running time either.
                acquiring, over = asyncio.ensure_future(self._acquire()), asyncio.ensure_future(run.over.wait())
                await asyncio.wait({acquiring, over}, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                if not acquiring.done():
                    acquiring.cancel()
                    await asyncio.wait({acquiring})
                elif not acquiring.cancelled():
                    acquiring.result()
                if not run.counts:
                    # A branch that was left behind. The engine took the slot back when the run ended, once.
                    self._slot.release()
            self._idle = False
            if self.is_resting:
                self._stop_resting()

    async def _acquire(self) -> None:
        """Return with the slot and the place; without the place if the task is not the run's any more, which is being
        stopped then."""
        if await self._try_to_acquire():
            return
        self._slot.release()
        run = self._run
        await run.writer.write(RunResumeRequested(attempt=run.attempt))
        # Of one tool and owner, only the first in line tries.
        async with self._suspender.line_of(run.record):
            pause = FIRST_PAUSE
            while not await self._try_to_acquire():
                self._slot.release()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):  # noqa: S311 - only to be out of step
                        await self._suspender.place_freed.wait()
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _try_to_acquire(self) -> bool:
        await self._slot.acquire()
        run = self._run
        try:
            if self._limits is not None and run.record.pause is not None:
                await run.writer.write(RunResumed(attempt=run.attempt), limits=self._limits)
        except LimitReached:
            return False
        return True


# ---- suspending

TOGETHER: Final = 100
"""Runs that are suspended at a time, so that a store which groups its commits can."""


class Suspender:
    """The runs of a process that may leave memory.

    Their asyncio tasks are looked at in one look for all runs whose time has come: where the tool's own is the only
    one, nothing else of the run is executing.

    Attributes:
        free: How many more runs may wait in memory without a slot; below zero while runs that leave soon wait as well.
        place_freed: Set for a moment when there may be a free place under a limit.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.place_freed: asyncio.Event = asyncio.Event()
        self._lines: WeakValueDictionary[tuple[str, str, str | None], asyncio.Lock] = WeakValueDictionary()
        self._due: dict[Run, float] = {}
        self._added = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the next run that waits would have to keep its slot."""
        return self.free <= 0

    def note_free_place(self) -> None:
        """A run of this process gave up its place under a limit, or ended."""
        self.place_freed.set()
        self.place_freed.clear()

    def line_of(self, record: TaskRecord) -> asyncio.Lock:
        """The line of the runs of a tool and owner that want a place under a limit; the holder of the lock is first."""
        return self._lines.setdefault((record.method, record.name, record.owner), asyncio.Lock())

    def add(self, run: Run, after: float) -> None:
        """Suspend this run after so many seconds, if it still waits then; at once if too many wait in memory."""
        if after < inf:
            self._due[run] = asyncio.get_running_loop().time() + (0.0 if self.is_full else after)
            self._added.set()

    def remove(self, run: Run) -> None:
        """It does not wait any more."""
        self._due.pop(run, None)

    async def suspend_all(self) -> None:
        """Suspend every run that can be, however short it has waited: the process stops."""
        await self._suspend(list(self._due))

    async def serve(self) -> None:
        """Suspend the runs that have waited long enough."""
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now = loop.time()
            due = [run for run, at in self._due.items() if at <= now]
            if due:
                await self._suspend(due)
                continue
            seconds = min(self._due.values(), default=inf) - now
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == inf else seconds):
                    await self._added.wait()

    async def _suspend(self, due: list[Run]) -> None:
        tasks = _tasks_by_run()
        later = asyncio.get_running_loop().time() + LOOK_AGAIN
        able = [run for run in due if tasks.get(run, set()) <= {run.branches.own} and run.waits.may_suspend]
        # A run that is suspended removes its own entry.
        self._due.update(dict.fromkeys((run for run in due if run in self._due), later))
        for start in range(0, len(able), TOGETHER):
            await asyncio.gather(*(run.waits.suspend() for run in able[start : start + TOGETHER]))
