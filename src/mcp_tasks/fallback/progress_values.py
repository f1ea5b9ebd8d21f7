"""Which values of progress one call is sent: they strictly grow, and never pass the total.

The specification asks for the first, and clients that draw a bar rely on both. A tool keeps to neither as a matter of
course, and a call that must be kept alive needs values between those of the tool. So a report that does not grow is
sent a tiny step above the last value, for the sake of its message; so is a sign of life; and a report that reaches its
total is kept back until the tool has ended, because above it there is no room for another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

STEP: Final = 1e-6
"""How far a tiny step goes: this much, or this share of the way to the total. So small that the tool's next value is
still above after any number of them."""

ALIVE: Final = "Still running"
"""What a sign of life says where the tool has not said anything."""


@dataclass(frozen=True, slots=True)
class Report:
    """One notification of progress."""

    progress: float
    total: float | None = None
    message: str | None = None


class ProgressValues:
    """The values of one call, in the order in which they are sent.

    Args:
        last: The last value that the caller has seen; None if it has seen none.

    Attributes:
        instead: Signs of life say this, and not what the tool said last; None if there is no reason to.
    """

    def __init__(self, last: float | None = None) -> None:
        self.last = last
        self.instead: str | None = None
        self._total: float | None = None
        self._message: str = ALIVE
        self._held: Report | None = None

    def report(self, report: Report) -> Iterator[Report]:
        """What to send now that the tool says this."""
        if self._held is not None:
            yield from self._release(self._held, report)
        self.know(report)
        if self._total is not None and report.total is not None and float(report.progress) >= float(self._total):
            self._held = replace(report, progress=min(report.progress, self._total))
        else:
            yield from self._next(report)

    def know(self, report: Report) -> None:
        """Take note of what the caller has heard before, so that signs of life go on from there."""
        self._message = report.message or self._message
        self._total = self._total_after(report)

    def sign_of_life(self) -> Iterator[Report]:
        """What to send where the tool says nothing."""
        yield from self._next(Report(self.last or 0, self._total, self.instead or self._message))

    def finish(self) -> Iterator[Report]:
        """What to send when the tool has ended."""
        held, self._held = self._held, None
        if held is not None:
            yield self._sent(held)

    def _total_after(self, report: Report) -> float | None:
        """What no value may pass from now on; None if nothing is known, or what is known cannot be true."""
        if report.total is not None:
            # One that is not above what was sent, or not above nothing, leaves no room.
            return report.total if float(report.total) > float(self.last or 0) else None
        return self._total if self._total is not None and float(report.progress) < float(self._total) else None

    def _release(self, held: Report, report: Report) -> Iterator[Report]:
        """Make room for a report that comes after one that was thought to be the last."""
        self._held = None
        if float(report.progress if report.total is None else report.total) > float(held.progress):
            yield self._sent(held)
        elif held.message is not None and held.message != report.message:
            yield from self._next(held)

    def _next(self, report: Report) -> Iterator[Report]:
        """The report, with a value above the last and below the total; nothing where there is no room for one."""
        value = report.progress
        if not self._fits(value):
            value = self._above_last()
        if self._fits(value):
            yield self._sent(Report(value, None if report.total is None else self._total, report.message))

    def _fits(self, value: float) -> bool:
        # As floats: that is how most clients read them, and how two whole numbers can be the same.
        above = self.last is None or float(value) > float(self.last)
        return above and math.isfinite(value) and (self._total is None or float(value) < float(self._total))

    def _above_last(self) -> float:
        last = float(self.last or 0)
        step = STEP if self._total is None else (float(self._total) - last) * STEP
        return max(last + step, math.nextafter(last, math.inf))

    def _sent(self, report: Report) -> Report:
        self.last = report.progress
        return report
