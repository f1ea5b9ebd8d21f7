"""Progress on one open call, as its caller would get it from a plain call, and often enough to keep the call alive."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import anyio

from mcp_tasks.model.record import Progress, TaskRecord
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.sweeps import MESSAGE as NO_WORKER
from mcp_tasks.server.sdk import RequestContext
from mcp_tasks.server.tool_runner import PATIENCE

# ---- progress values
# Which values of progress one call is sent: they strictly grow, and never pass the total.


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


logger: Final = get_logger(__name__)

EARLY: Final = 0.8
"""A sign of life is due when this much of the heartbeat is over: it is to have arrived when the rest is."""


class ProgressRelay:
    """Progress on one open call. Nothing is sent to a caller that did not ask for it: the SDK sees to that.

    Args:
        ctx: The call.
        heartbeat: The longest time between two notifications.
        last: The last value that the caller has seen, on an earlier leg of the call.
    """

    def __init__(self, ctx: RequestContext, *, heartbeat: timedelta, last: float | None = None) -> None:
        self._ctx = ctx
        self._pause = heartbeat.total_seconds() * EARLY
        self._values = ProgressValues(last)
        # Values are sent in the order in which they were chosen.
        self._turn = asyncio.Lock()
        self._sent_at = asyncio.get_running_loop().time()
        self._seen: Progress | None = None
        self._runs_here = False
        self._finished = False

    @property
    def has_token(self) -> bool:
        """Whether the caller asked for progress."""
        return (self._ctx.meta or {}).get("progress_token") is not None

    @property
    def last(self) -> float | None:
        """The last value that was sent on the call, or on an earlier leg of it."""
        return self._values.last

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """What the tool says, where it runs in this process."""
        self._runs_here = True
        await self._report(Report(progress, total, message))

    async def look(self, record: TaskRecord) -> None:
        """What the record says, where the tool runs in another process. Also of one that has ended, before `finish`."""
        self._values.instead = NO_WORKER if record.status_message == NO_WORKER else None
        said, seen = record.progress, self._seen
        self._seen = said
        if said is None or said == seen or self._runs_here:
            return
        report = Report(said.progress, said.total, said.message)
        if seen is None and self.last is not None and said.progress <= self.last:
            # On an earlier leg it was sent as it happened.
            self._values.know(report)
            return
        # Whoever looks has other things to do: among them to answer the call in time.
        with anyio.move_on_after(PATIENCE):
            await self._report(report)

    async def keep_alive(self) -> None:
        """Send a sign of life whenever nothing else was sent for a while. Runs until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.0, self._sent_at + self._pause - clock()))
            async with self._turn:
                if clock() >= self._sent_at + self._pause:
                    await self._send(self._values.sign_of_life())
                    # Also where there was no room for one: it is not tried again without a pause.
                    self._sent_at = clock()

    async def finish(self) -> None:
        """Send what was held back. To be called just before the call is answered with the tool's result."""
        # The answer goes the same way, but that one stands still is for the transport to find out.
        with anyio.move_on_after(PATIENCE):
            async with self._turn:
                await self._send(self._values.finish())
        self._finished = True

    async def _report(self, report: Report) -> None:
        async with self._turn:
            if not self._finished:
                await self._send(self._values.report(report))

    async def _send(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self._sent_at = asyncio.get_running_loop().time()
            try:
                await self._ctx.session.report_progress(report.progress, report.total, report.message)
            except Exception as exc:
                logger.debug("progress is not sent on an open call: %s", what(exc))
