"""The place of one run under the limits of its tool and its owner (`WorkLimits`): given up while the run only waits,
and taken again before it goes on.

The store has the truth (`TaskRecord.pause`), and a limited save takes the place, as it does for a claim. Two rules keep
limits and slots from blocking each other:

- A run that waits for a place has no slot. It takes a slot first, then tries for the place, and gives the slot back if
  there is none.
- A run that was refused says so in the store (`RunResumeRequested`). From then on no new run takes the place before it.

If its process is killed between two of these writes, the task is recovered like any other task of a dead process: from
then on it counts for nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary, proxy

from mcp_tasks.core.events import RunPaused, RunResumed, RunResumeRequested
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import LimitReached
from mcp_tasks.stores.shares import WorkLimits

if TYPE_CHECKING:
    from mcp_tasks.core.record import TaskRecord
    from mcp_tasks.runtime.run import Run

GIVES_UP_AFTER: Final = 0.05
"""Seconds that a run has to wait before it gives up its place: a shorter wait costs no writes."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between two tries to take a place that a run of another process may have given up."""


class Lines:
    """The runs of one process that want a place and found none: of one tool and owner, only the first one tries."""

    def __init__(self) -> None:
        self._first: WeakValueDictionary[tuple[str, str, str | None], asyncio.Lock] = WeakValueDictionary()
        # Ordered: who has waited longest is first.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def of(self, record: TaskRecord) -> asyncio.Lock:
        """The line of the tasks of the same tool and owner: who has the lock is the first."""
        return self._first.setdefault((record.method, record.name, record.owner), asyncio.Lock())

    def stir(self) -> None:
        """A run of this process gave up its place, or ended: there may be a free one."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return when there may be a free place."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            del self._waiting[waiting]


class Place:
    """The place of one run. `Rest` says when: it calls one method at a time."""

    def __init__(self, run: Run, limits: WorkLimits, lines: Lines, made_room: Callable[[], None]) -> None:
        # Not kept alive by its own parts, as in `Recording`.
        self._run: Run = proxy(run)
        self._limits = limits
        self._lines = lines
        self._made_room = made_room

    def help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the tool, until the run is over."""
        return self._run.help(work)

    async def give_up(self) -> None:
        """Let another run have it."""
        run = self._run
        if run.record.pause is None and await run.recording.write_patiently(RunPaused(attempt=run.attempt)):
            self._made_room()

    async def take(self, slot: Slot) -> None:
        """Return when the run has its place and a slot.

        Returns without the place if the task is not the run's any more. The run is being stopped then.
        """
        if await self._take(slot):
            return
        slot.release()
        run = self._run
        await run.recording.write_patiently(RunResumeRequested(attempt=run.attempt))
        async with self._lines.of(run.record):
            pause = FIRST_PAUSE
            while not await self._take(slot):
                slot.release()
                await self._lines.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only to be out of step
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _take(self, slot: Slot) -> bool:
        """Take a slot and the place; False if there is no place."""
        await slot.acquire()
        run = self._run
        try:
            if run.record.pause is not None:
                await run.recording.write_patiently(RunResumed(attempt=run.attempt), limits=self._limits)
        except LimitReached:
            return False
        return True
