"""The limit on running time. Time at rest does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio

from mcp_tasks.errors import RanTooLong
from mcp_tasks.runtime.rest import Rest


class TimeLimit:
    """Watches one run, and judges it when its time is over."""

    def __init__(self, limit: timedelta, rest: Rest, judge: Callable[[RanTooLong], Awaitable[None]]) -> None:
        self._limit = limit
        self._rest = rest
        self._judge = judge

    async def watch(self, tool: str) -> None:
        """Wait until the run has worked for as long as it may."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        left = self._limit.total_seconds()
        while left > 0:
            # At rest the end moves on with the time, and is looked at again soon.
            await anyio.sleep(max(left, 1.0) if self._rest.is_resting else left)
            left = started + self._limit.total_seconds() + self._rest.rested - loop.time()
        await self._judge(RanTooLong(tool, self._limit))
