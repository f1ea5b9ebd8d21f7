"""Progress on its way to the store, throttled: a tool may report as often as it likes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from mcp_tasks.core.record import Progress
from mcp_tasks.core.text import LONGEST_MESSAGE, short_message
from mcp_tasks.quiet import what

logger: Final = logging.getLogger(__name__)


class ProgressThrottle:
    """Keeps the newest progress of one run, and writes it at once or a moment later.

    Args:
        write: Writes one report; whether the run may go on writing.
        pause: The least time between two writes.
        longest: Bytes of a message. A longer one is cut.
    """

    def __init__(
        self,
        write: Callable[[Progress], Awaitable[bool]],
        pause: timedelta,
        longest: int | None = LONGEST_MESSAGE,
    ) -> None:
        self._longest = longest
        self._write = write
        self._pause = pause.total_seconds()
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
            while (progress := self.take()) is not None:
                try:
                    if not await self._write(progress):
                        return
                except Exception as exc:
                    # The store is away, or the report is not JSON; the next one may do better.
                    logger.warning("progress is not stored: %s", what(exc))
                await asyncio.sleep(self._pause)
        finally:
            self._writing = False
