"""Forgetting tasks whose retention is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mcp_tasks.core.actor import Actor

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

SLICE = 100
"""Tasks that are removed at once: others wait with their writes for as long as that takes."""

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
        self.is_behind = False
        removed = 0
        while removed < PER_SWEEP:
            slice_ = await self._runtime.changes.forget_expired(limit=SLICE, actor=self._actor)
            if not slice_:
                return
            removed += slice_
            await anyio.sleep(BETWEEN_SLICES)
        self.is_behind = True

    async def catch_up(self) -> None:
        """Go on with what one sweep did not do."""
        await self.sweep()
