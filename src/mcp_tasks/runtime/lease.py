"""Who is alive: this process's own lease, and what it sees of the others.

Times of two machines are never compared. A heartbeat is a number that grows; whoever watches it measures on a clock of
its own for how long it has not, and counts only time in which it was itself awake and looking. So a clock that is set,
a laptop that sleeps and a virtual machine that is resumed end nothing.

The other side of it: a process that cannot renew in time must expect that its tasks are given to others, so it stops
its runs before that. It measures on a clock that goes on while the machine sleeps, and after a long gap it looks at the
store before it does anything else."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

from mcp_tasks.errors import StoreError
from mcp_tasks.quiet import quietly
from mcp_tasks.runtime.worker_name import is_gone

logger: Final = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 6
"""One may be late and some lost before anything comes of it."""

STOPS_AFTER = 2 / 3
"""The part of a lease after which a process that could not renew it stops its runs: well before others may claim
them."""


def uptime() -> float:
    """Seconds on a clock that is never set, and that goes on while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    # Without it: macOS's CLOCK_MONOTONIC goes on too; elsewhere there is nothing better than `monotonic`.
    if clock is None:
        clock = getattr(time, "CLOCK_MONOTONIC", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Lease:
    """This process's right to its claims.

    Args:
        heartbeat: Renews it in the store.
        look: Compares the runs of this process with their rows.
        stop_runs: Stops them all, without a word to the store.
        take_up: Gives up what is claimed by this process and not run by it any more.
        clock: Goes on while the machine sleeps.
    """

    def __init__(
        self,
        length: timedelta,
        *,
        heartbeat: Callable[[], Awaitable[None]],
        look: Callable[[], Awaitable[None]],
        stop_runs: Callable[[], None],
        take_up: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._length = length.total_seconds()
        self._heartbeat = heartbeat
        self._look = look
        self._stop_runs = stop_runs
        self._take_up = take_up
        self._clock = clock
        self._renewed = clock()
        self._making_sure = asyncio.Lock()
        self._context = contextvars.copy_context()
        self._under_way: set[asyncio.Task[None]] = set()
        self.is_valid: bool = True
        """Whether this process may claim tasks and run them."""

    async def renew(self) -> None:
        """Renew it now.

        Raises:
            StoreError: The store did not take it.
        """
        began = self._clock()
        overslept = began - self._renewed > self._length
        if overslept:
            # Others may have claimed what we run, while this machine slept or its event loop was blocked.
            await self._look()
        await self._heartbeat()
        self._renewed = max(self._renewed, began)
        if not self.is_valid:
            logger.warning("the lease of this process is renewed; its tasks are taken up again")
            await self._look()
            await self._take_up()
            self.is_valid = True

    async def keep(self) -> None:
        """Renew it for as long as this process serves, and stop the runs when that does not succeed in time."""
        pause, failures = self._length / HEARTBEATS_PER_LEASE, 0
        while True:
            # Not beyond the moment at which the runs must be stopped: that is one attempt away, never a pause as well.
            await asyncio.sleep(min(pause, self._time_left) if self.is_valid else pause)
            try:
                # Bounded: a store that does not answer is as bad as one that refuses. Tried once more in any case: a
                # machine that slept has a lease that seems over, and a store that is fine. Once the runs are stopped
                # there is no hurry, and a store that is slow has to be asked more than once.
                limit = max(min(pause * 2, self._time_left), pause) if self.is_valid else self._length * STOPS_AFTER
                await self._in_time(self._renew_whole(), limit)
                failures = 0
            except (StoreError, TimeoutError) as exc:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "the lease of this process could not be renewed: %s", str(exc) or type(exc).__name__)
            except Exception:
                logger.error("the lease of this process could not be renewed", exc_info=quietly())
            self.check()

    async def _renew_whole(self) -> None:
        await self.renew()
        if self._time_left <= 0:
            # The machine slept in the middle of it. What was renewed is over by now, and the store is fine.
            await self.renew()

    async def make_sure(self) -> None:
        """Return when the lease is good, or the runs are stopped. Cheap while it is good; call it before work begins.

        After a machine slept or its event loop was blocked, tools may go on before the lease's own timer comes round,
        and what they would do may have been done elsewhere.
        """
        if self._time_left > 0 or not self.is_valid:
            return
        async with self._making_sure:
            if self._time_left > 0 or not self.is_valid:
                return
            try:
                await self._in_time(self._look_and_renew(), self._length / HEARTBEATS_PER_LEASE)
            except (StoreError, TimeoutError) as exc:
                logger.warning("the lease of this process could not be renewed: %s", str(exc) or type(exc).__name__)
            self.check()

    async def _look_and_renew(self) -> None:
        await self._look()
        await self.renew()

    async def _in_time(self, work: Coroutine[Any, Any, None], limit: float) -> None:
        """Do the work, or give up on it when its time is over, without waiting for it to notice: a driver whose network
        is cut may take long for that.

        Raises:
            TimeoutError: It was not done in time.
        """
        # Not in the context of a tool that makes sure: it is no part of it.
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError
        task.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not report what nobody waits for any more.
            task.exception()

    @property
    def _time_left(self) -> float:
        """Seconds until the runs must be stopped; negative once they must."""
        return self._renewed + self._length * STOPS_AFTER - self._clock()

    def check(self) -> None:
        """Stop the runs if the lease could not be renewed in time."""
        if self.is_valid and self._time_left <= 0:
            self.is_valid = False
            logger.error("the lease of this process could not be renewed in time; its runs are stopped")
            self._stop_runs()


class Watch:
    """What one process sees of the heartbeats of the others.

    Args:
        lease: How long a heartbeat may stay the same.
        longest_step: What one look may count for at most: time in which nobody looked proves nothing.
        clock: A clock that is never set.
    """

    def __init__(
        self, lease: timedelta, *, longest_step: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease = lease.total_seconds()
        self._longest_step = longest_step.total_seconds()
        self._clock = clock
        self._looked = clock()
        self._heartbeats: dict[str, int] = {}
        self._silent: dict[str, float] = {}

    def dead(self, heartbeats: dict[str, int]) -> list[str]:
        """Those of the workers that are dead, given their heartbeats as of now."""
        now = self._clock()
        step = min(max(now - self._looked, 0.0), self._longest_step)
        self._looked = now
        self._silent = {
            worker: self._silent.get(worker, 0.0) + step if self._heartbeats.get(worker) == count else 0.0
            for worker, count in heartbeats.items()
        }
        self._heartbeats = dict(heartbeats)
        return [worker for worker, count in heartbeats.items() if self._is_dead(worker, count)]

    def _is_dead(self, worker: str, count: int) -> bool:
        # One without a heartbeat has signed off: it sends one before it claims anything.
        return count == 0 or self._silent[worker] >= self._lease or is_gone(worker)
