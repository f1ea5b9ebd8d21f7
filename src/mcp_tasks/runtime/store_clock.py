"""The store's time, as this process knows it.

All times that others can see are the store's (`Store.now`). Asking the store each time would cost a round trip, and the
wall clock of this machine may be wrong. So a process asks every few seconds, and between two answers it counts on from
the best one with a clock that is never set. The wall clock is only read to warn of it.

An answer is wrong by half of its round trip at most, so of the last few the one with the shortest round trip counts.
An older one that the newest contradicts is dropped: the clock of the store was set, another server took over, or the
two clocks drifted apart.

The time never goes back, with one exception. It stands still until a small difference is made up for, but it follows
when the store's clock was set back by more than a few seconds: otherwise the processes that were there before would
delete as expired what newer ones just wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.lease import uptime
from mcp_tasks.stores.base import Store

logger: Final = get_logger(__name__)

EVERY: Final = 5.0
"""Seconds between two measurements: clocks drift apart by less than a millisecond."""

SAMPLES: Final = 8
"""Answers among which the best is chosen. A slow one does not count while the store was quicker within 40 seconds."""

OFF: Final = timedelta(seconds=5)
"""A larger difference comes from neither drift nor a slow network: a clock is set wrong, or was just set."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The store's time was `time` when our clock said `at`, give or take `error`."""

    at: float
    time: datetime
    error: timedelta

    def reading(self, at: float) -> datetime:
        return self.time + timedelta(seconds=at - self.at)

    def agrees_with(self, other: _Sample) -> bool:
        return abs(self.reading(other.at) - other.time) <= self.error + other.error


class StoreClock:
    """Tells the store's time, once it has been measured.

    Args:
        uptime: Seconds on a clock that is never set, and that goes on while the machine sleeps.
        wall: The time of this machine.
    """

    def __init__(
        self,
        store: Store,
        *,
        uptime: Callable[[], float] = uptime,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._uptime = uptime
        self._wall = wall
        self._samples: list[_Sample] = []
        self._best: _Sample | None = None
        self._told = datetime.min.replace(tzinfo=UTC)
        self._has_warned = False

    def now(self) -> datetime:
        """The store's time, as of now."""
        best = self._best
        if best is None:
            raise UsageError(f"the time of {self._store!r} is not known yet: the store has to be opened first")
        # As in `_Sample.reading`: this is called several times for each request.
        self._told = max(self._told, best.time + timedelta(seconds=self._uptime() - best.at))
        return self._told

    async def measure(self) -> None:
        """Ask the store once."""
        sent = self._uptime()
        time = await self._store.now()
        error = (self._uptime() - sent) / 2
        self._take(_Sample(sent + error, time, timedelta(seconds=error)))
        off = self._wall() - self.now()
        if abs(off) > OFF + timedelta(seconds=error) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the clock of this machine is %s %s that of %r. No task ends early or late for it: their times are the "
                "store's. Set the clock; log entries and expiry of access tokens still go by it",
                _in_seconds(off),
                "ahead of" if off > timedelta(0) else "behind",
                self._store,
            )

    async def keep_measuring(self) -> None:
        """Ask it every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.measure()
            except StoreError as exc:
                logger.debug("the time of the store could not be read: %s", exc)
            except Exception:
                logger.error("the time of the store could not be read", exc_info=quietly())

    def _take(self, sample: _Sample) -> None:
        if self._best is not None:
            moved = sample.time - self._best.reading(sample.at)
            if abs(moved) > OFF + self._best.error + sample.error:
                logger.warning(
                    "the clock of %r was set %s by %s. Tasks go by it: their timers and the expiry of results move",
                    self._store,
                    "forward" if moved > timedelta(0) else "back",
                    _in_seconds(moved),
                )
                self._told = sample.time
        self._samples = [*(each for each in self._samples if each.agrees_with(sample)), sample][-SAMPLES:]
        # Of equal ones the newest: the clocks had the least time to drift apart since.
        self._best = min(reversed(self._samples), key=lambda each: each.error)


def _in_seconds(difference: timedelta) -> timedelta:
    return timedelta(seconds=round(abs(difference.total_seconds())))
