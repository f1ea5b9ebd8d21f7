"""Waiting for something to happen, or for an instant on the runtime's clock: that clock may be set, or be a test's.

No asyncio task is made here. A wait is done in the tool's own context, and a task in that context would count as a
branch of the tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

LOOK_AGAIN = 1.0
"""Seconds between two looks at the clock: it need not run like the event loop's."""


FOREVER = datetime.max.replace(tzinfo=UTC)


def later(now: datetime, duration: timedelta) -> datetime:
    """The instant that is `duration` from `now`, or the last one that a datetime can express."""
    try:
        return now + duration
    except OverflowError:
        return FOREVER


class Bell:
    """Rung once, by whoever has what a branch waits for."""

    def __init__(self) -> None:
        self.rung: bool = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """What was waited for is there."""
        self.rung = True
        self.stir()

    def stir(self) -> None:
        """Have whoever waits look again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return when it is rung or stirred, or the time is over."""
        self._sleeper = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._sleeper}, timeout=seconds)


class Alarms:
    """Everybody who waits for an instant."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._bells: set[Bell] = set()

    def stir(self) -> None:
        """Have everybody look at the clock again, because it was moved."""
        for bell in self._bells:
            bell.stir()

    async def wait(self, bell: Bell, until: datetime | None) -> bool:
        """Wait for the bell, or for the instant if there is one; whether the bell was rung."""
        self._bells.add(bell)
        try:
            while not bell.rung:
                seconds = None if until is None else (until - self._now()).total_seconds()
                if seconds is not None and seconds <= 0:
                    return False
                await bell.wait(None if seconds is None else min(seconds, LOOK_AGAIN))
            return True
        finally:
            self._bells.discard(bell)
