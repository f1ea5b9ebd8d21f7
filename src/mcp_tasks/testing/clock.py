"""A clock that stands still until it is told to go on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When test time begins, unless a test says otherwise."""


class FakeClock:
    """Callable like the real clock of the package: returns the current instant, aware and in UTC."""

    def __init__(self, now: datetime = NOON) -> None:
        if now.tzinfo is None:
            raise ValueError("a clock of this package tells aware times; give `now` a time zone")
        self._now = now.astimezone(UTC)

    def __call__(self) -> datetime:
        """The current instant."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move on by that much (or back: real clocks do) and return the new instant."""
        self._now += by
        return self._now
