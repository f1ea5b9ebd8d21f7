"""Forgetting tasks whose retention is over."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import anyio

from mcp_tasks.core.actor import Actor
from mcp_tasks.errors import VersionConflict
from mcp_tasks.stores.base import Hint

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = logging.getLogger(__name__)

SLICE = 50
"""Tasks that are removed together: enough for a store that groups its commits, few enough for everybody else."""

PER_SWEEP = 1_000
"""Tasks that one sweep removes at most."""

BETWEEN_SLICES = 0.002
"""Seconds that whoever else has something to do gets after each slice: of tens of thousands of expired tasks, nobody
should notice anything."""


class Expiry:
    """Removes expired tasks, for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self.is_behind: bool = False
        """Whether there is more to remove than one sweep does."""

    async def sweep(self) -> None:
        """Remove the next ones."""
        runtime = self._runtime
        self.is_behind = False
        for _ in range(0, PER_SWEEP, SLICE):
            expired = await runtime.store.expired(runtime.now(), limit=SLICE)
            await asyncio.gather(*(self._remove(task) for task in expired))
            if len(expired) < SLICE:
                return
            await anyio.sleep(BETWEEN_SLICES)
        self.is_behind = True

    async def catch_up(self) -> None:
        """Go on with what one sweep did not do."""
        await self.sweep()

    async def _remove(self, task: Hint) -> None:
        try:
            await self._runtime.changes.delete(task.task_id, expected=task.version, actor=self._actor)
        except VersionConflict:
            logger.debug("task %s… was removed by another process", task.task_id[:12])
