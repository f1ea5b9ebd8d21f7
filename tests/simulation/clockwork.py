"""Simulated time, and one event loop for each simulated machine.

All loops run in one thread, turn by turn, in an order that depends on nothing but what was scheduled. When none has
anything to do, time jumps to the next timer. So hours take seconds, and the same seed is the same story.

Each machine has a loop of its own. A process that is killed is a loop that never runs again: no `finally` runs, as with
SIGKILL. A process that is paused is a loop that does not run for a while. A machine that sleeps has a monotonic clock
that stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

TURN = 0.0001
"""Seconds that a turn of a loop takes: code that turns until a time has come sees it come."""


ROUNDING = 1e-6


class Stuck(Exception):
    """Nothing is scheduled any more, and the simulation has not come to its end."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Handle:
    """Something that is scheduled; it looks like `asyncio.TimerHandle`."""

    scheduled: float
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    context: contextvars.Context | None
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.scheduled


class Clockwork:
    """Drives the loops of one world, and what happens between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: deque[SimulatedLoop] = deque()
        self._events: list[tuple[float, int, Handle]] = []
        self._numbers = count()

    def after(self, seconds: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call something after so many seconds, outside of every loop."""
        handle = Handle(self.now + seconds, callback, args, None)
        self.schedule(handle.scheduled, handle)
        return handle

    def schedule(self, time: float, handle: Handle) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), handle))

    def note_due(self, loop: SimulatedLoop) -> None:
        self._due.append(loop)

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until a condition holds."""
        events, due = self._events, self._due
        while not until():
            if due:
                due.popleft().turn()
                self.now += TURN
            elif events:
                # A little more: sums of times are rounded.
                self.now = max(self.now, events[0][0] + ROUNDING)
            else:
                raise Stuck
            while events and events[0][0] <= self.now:
                handle = heapq.heappop(events)[2]
                if not handle.is_cancelled:
                    handle.callback(*handle.args)


@contextmanager
def burial() -> Generator[None]:
    """While this is entered, what is left of dead loops ends in silence, and it is gone afterwards."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            # Coroutines that were never awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook


class _NumberedTask(asyncio.Task[Any]):
    """An asyncio task whose hash is its number: sets of tasks are walked in the same order every time."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process.

    Attributes:
        mishaps: What asyncio would have reported: exceptions that were never retrieved, tasks that were dropped.
        asleep: Seconds that the machine has slept: its monotonic clock did not go on then.
        is_paused: Whether the process does not run now.
        is_dead: Whether it never runs again.
    """

    def __init__(self, clockwork: Clockwork) -> None:
        self._clockwork = clockwork
        self._ready: deque[Handle] = deque()
        self._is_noted = False
        self._tasks = count(1)
        self.mishaps: list[str] = []
        self.asleep = 0.0
        self.is_paused = False
        self.is_dead = False

    # What the clockwork does with it

    def turn(self) -> None:
        """Do what is to be done now."""
        self._is_noted = False
        if self.is_paused or self.is_dead:
            return
        ready = self._ready
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.is_cancelled:
                    cast("contextvars.Context", handle.context).run(handle.callback, *handle.args)
                    if self.is_dead or self.is_paused:
                        # In the middle of the turn; a paused process does the rest later.
                        return
        finally:
            asyncio._set_running_loop(None)
        if ready:
            self._note()

    def go_on(self) -> None:
        self.is_paused = False
        self._note()

    def _note(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._clockwork.note_due(self)

    def _ring(self, timer: Handle) -> None:
        """The time of a timer may have come."""
        if timer.is_cancelled or self.is_dead:
            return
        if timer.scheduled > self.time() + ROUNDING:
            # The machine was asleep meanwhile.
            self._set(timer)
            return
        self._ready.append(timer)
        self._note()

    def _set(self, timer: Handle) -> None:
        self._clockwork.schedule(timer.scheduled + self.asleep, Handle(0.0, self._ring, (timer,), None))

    def kill(self) -> None:
        self.is_dead = True

    def bury(self) -> None:
        """Close its coroutines. All that they do while they are closed is lost."""
        self.is_dead = True
        asyncio._set_running_loop(self)
        try:
            closed: set[asyncio.Task[Any]] = set()
            while left := self.living - closed:
                # One that is closed may start others on its way out.
                closed |= left
                for task in sorted(left, key=hash):
                    coro = cast("Coroutine[Any, Any, Any]", task.get_coro())
                    with suppress(BaseException):
                        coro.close()
        finally:
            asyncio._set_running_loop(None)
        self._ready.clear()

    @property
    def living(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(self)

    def post(self, callback: Callable[..., Any], *args: Any) -> None:
        """Something arrives from outside."""
        if not self.is_dead:
            self.call_soon(callback, *args, context=contextvars.Context())

    # What asyncio and anyio want of a loop

    def time(self) -> float:
        return self._clockwork.now - self.asleep

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Handle(0.0, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        self._note()
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        timer = Handle(when, callback, args, contextvars.copy_context() if context is None else context)
        self._set(timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> Any:
        return _NumberedTask(next(self._tasks), coro, loop=self, **options)

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: Any) -> None:
        if not self.is_dead:
            self.mishaps.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise AssertionError("there are no threads in the simulation")
