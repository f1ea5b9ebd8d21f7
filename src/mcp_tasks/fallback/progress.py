"""Progress on one open call: what a plain call would send, and often enough that the host does not give up."""

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

logger: Final = get_logger(__name__)

STEP: Final = 1e-6
"""The size of a tiny step: this much, or this share of the way to the total. So small that the tool's next value is
still above it after any number of steps."""

ALIVE: Final = "Still running"
"""The message of a heartbeat if the tool has not sent one."""

EARLY: Final = 0.8
"""A heartbeat is sent when this much of its interval has passed, so that it arrives in time."""


@dataclass(frozen=True, slots=True)
class Report:
    """One notification of progress."""

    progress: float
    total: float | None = None
    message: str | None = None


class ProgressValues:
    """Chooses the values that one call is sent: they strictly grow, and never pass the total.

    Attributes:
        last: The last value that was sent; None if there is none.
        instead: The message of heartbeats in place of the tool's last message, if any.
    """

    def __init__(self, last: float | None = None) -> None:
        self.last = last
        self.instead: str | None = None
        self._total: float | None = None
        self._message: str = ALIVE
        self._held: Report | None = None

    def report(self, report: Report) -> Iterator[Report]:
        """The notifications to send for a report of the tool."""
        held, self._held = self._held, None
        if held is not None:
            # It seemed to be the last one, and is not.
            if float(report.progress if report.total is None else report.total) > float(held.progress):
                yield self._sent(held)
            elif held.message is not None and held.message != report.message:
                yield from self._next(held)
        self.know(report)
        if self._total is not None and report.total is not None and float(report.progress) >= float(self._total):
            self._held = replace(report, progress=min(report.progress, self._total))
        else:
            yield from self._next(report)

    def know(self, report: Report) -> None:
        """Take note of a report that heartbeats continue from."""
        self._message = report.message or self._message
        if report.total is not None:
            # A total that is not above the last value leaves no room, and cannot be true.
            self._total = report.total if float(report.total) > float(self.last or 0) else None
        elif self._total is not None and float(report.progress) >= float(self._total):
            self._total = None

    def sign_of_life(self) -> Iterator[Report]:
        """A heartbeat."""
        yield from self._next(Report(self.last or 0, self._total, self.instead or self._message))

    def finish(self) -> Iterator[Report]:
        """The notifications to send when the tool has ended."""
        held, self._held = self._held, None
        if held is not None:
            yield self._sent(held)

    def _next(self, report: Report) -> Iterator[Report]:
        """The report, with a value above the last and below the total; nothing if there is no room for one."""
        value = report.progress
        if not self._fits(value):
            last = float(self.last or 0)
            step = STEP if self._total is None else (float(self._total) - last) * STEP
            value = max(last + step, math.nextafter(last, math.inf))
        if self._fits(value):
            yield self._sent(Report(value, None if report.total is None else self._total, report.message))

    def _fits(self, value: float) -> bool:
        # As floats: most clients read them so, and two whole numbers can be the same float.
        above = self.last is None or float(value) > float(self.last)
        return above and math.isfinite(value) and (self._total is None or float(value) < float(self._total))

    def _sent(self, report: Report) -> Report:
        self.last = report.progress
        return report


class ProgressRelay:
    """Sends progress on one open call. The SDK sends nothing to a caller that did not ask for progress.

    Args:
        last: The last value that the caller was sent on an earlier round trip of the call.
    """

    def __init__(self, ctx: RequestContext, *, heartbeat: timedelta, last: float | None = None) -> None:
        self._ctx = ctx
        self._pause = heartbeat.total_seconds() * EARLY
        self._values = ProgressValues(last)
        # Keeps the order in which values were chosen.
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
        """The last value that the caller was sent."""
        return self._values.last

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a report of the tool, which runs in this process."""
        self._runs_here = True
        await self._report(Report(progress, total, message))

    async def look(self, record: TaskRecord) -> None:
        """Send the progress in the record, if the tool runs in another process."""
        self._values.instead = NO_WORKER if record.status_message == NO_WORKER else None
        said, seen = record.progress, self._seen
        self._seen = said
        if said is None or said == seen or self._runs_here:
            return
        report = Report(said.progress, said.total, said.message)
        if seen is None and self.last is not None and said.progress <= self.last:
            # It was sent on an earlier round trip.
            self._values.know(report)
            return
        # A client that does not read must not keep the call from being answered in time.
        with anyio.move_on_after(PATIENCE):
            await self._report(report)

    async def keep_alive(self) -> None:
        """Send a heartbeat whenever nothing else was sent for a while. Runs until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.0, self._sent_at + self._pause - clock()))
            async with self._turn:
                if clock() >= self._sent_at + self._pause:
                    await self._send(self._values.sign_of_life())
                    # Also if there was no room for one: the next attempt comes after a pause.
                    self._sent_at = clock()

    async def finish(self) -> None:
        """Send what was held back. To be called just before the call is answered with the tool's result."""
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
