"""Progress on its way to the store, throttled: a tool may report as often as it likes.

Progress never holds up anything else. Of each run at most one report is being written, and of a process only a few, so
that a slow store has connections left for steps, results and claims. A report that cannot be written is tried again
unless there is a newer one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from mcp_tasks.core.record import Progress
from mcp_tasks.core.text import LONGEST_MESSAGE, short_message
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.patience import pause_after

logger: Final = get_logger(__name__)

AT_ONCE: Final = 4
"""Reports of one process that are being written at a time. A store that is quick writes thousands in a second with
these, and none has so few connections that nothing is left."""

LONGEST: Final = 5.0
"""Seconds after which a write is given up: everything else that the run writes waits behind it."""


class ProgressThrottle:
    """Keeps the newest progress of one run, and writes it at once or a moment later.

    Args:
        write: Writes one report; whether the run may go on writing.
        pause: The least time between two writes.
        turns: Limits how many reports are being written, over all runs of the process.
        longest: Bytes of a message. A longer one is cut.
    """

    def __init__(
        self,
        write: Callable[[Progress], Awaitable[bool]],
        pause: timedelta,
        turns: asyncio.Semaphore,
        longest: int | None = LONGEST_MESSAGE,
    ) -> None:
        self._longest = longest
        self._write = write
        self._pause = pause.total_seconds()
        self._turns = turns
        self._failures = 0
        self._newest: Progress | None = None
        self._writing = False

    def put(self, progress: Progress) -> bool:
        """Take a report; whether `flush` should be started for it."""
        said = progress.message
        self._newest = progress if said is None else replace(progress, message=short_message(said, self._longest))
        start, self._writing = not self._writing, True
        return start

    def take(self) -> Progress | None:
        """The report that had no time to be written: it goes with the outcome, in one write."""
        newest, self._newest = self._newest, None
        return newest

    async def flush(self) -> None:
        """Write what there is, and what comes meanwhile."""
        try:
            while self._newest is not None:
                async with self._turns:
                    # Not before: it may have been replaced in line, or written with the outcome.
                    progress = self.take()
                    if progress is not None and not await self._written(progress):
                        return
                await asyncio.sleep(max(self._pause, pause_after(self._failures) if self._failures else 0.0))
        finally:
            self._writing = False

    async def _written(self, progress: Progress) -> bool:
        """Write one report, or keep it for later; whether the run may go on writing."""
        try:
            async with asyncio.timeout(LONGEST):
                may_go_on = await self._write(progress)
        except (StoreUnavailable, TimeoutError) as exc:
            logger.debug("progress is not stored yet: %s", what(exc))
            self._failures += 1
            if self._newest is None:
                self._newest = progress
            return True
        except Exception as exc:
            # The report is not JSON, say; the next one may do better.
            logger.warning("progress is not stored: %s", what(exc))
            return True
        self._failures = 0
        return may_go_on
