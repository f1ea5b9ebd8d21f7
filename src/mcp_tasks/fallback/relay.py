"""Progress on one open call, as its caller would get it from a plain call, and often enough to keep the call alive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import anyio

from mcp_tasks.adapters.sdk import RequestContext
from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.fallback.progress_values import ProgressValues, Report
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.unattended import MESSAGE as NO_WORKER
from mcp_tasks.tools.open_calls import PATIENCE

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
