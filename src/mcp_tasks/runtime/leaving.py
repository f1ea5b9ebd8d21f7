"""How one run leaves memory while it only waits, so that it can be brought back by what was journalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Final

import anyio

from mcp_tasks.core.events import RunParked
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.life import Turn

if TYPE_CHECKING:
    from mcp_tasks.runtime.host import Host
    from mcp_tasks.runtime.run import Run

logger: Final = get_logger(__name__)


class Leaving:
    """Whether one run may be parked, and how it is."""

    def __init__(self, run: Run, host: Host) -> None:
        self._run = run
        self._host = host
        self._parks_for: RunParked | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the tool's own asyncio task waits for something that would bring the run back."""
        return self._parks_for is not None

    @asynccontextmanager
    async def while_waiting(
        self, *, keys: frozenset[str] = frozenset(), wake_at: datetime | None = None
    ) -> AsyncGenerator[None]:
        """While this is entered, and nothing else of the tool is at work, the run may leave memory.

        Only in the tool's own asyncio task, and only with no deadline around it: what else waits for this one, and with
        which time-out, cannot be seen from a branch.
        """
        run = self._run
        own = asyncio.current_task() is run.branches.own
        if not (own and run.policy.rerun and anyio.current_effective_deadline() == inf):
            async with run.rest.waiting(parkable=False):
                yield
            return
        async with run.rest.waiting(parkable=True):
            self._parks_for = RunParked(attempt=run.attempt, keys=keys, wake_at=wake_at)
            self._host.parking.add(run, self._after(keys, wake_at))
            try:
                yield
            finally:
                # Before it stands in line for a slot: what it waited for is there.
                self.stay()

    def stay(self) -> None:
        """Do not leave: there is something to do, or the run has ended."""
        self._parks_for = None
        self._host.parking.remove(self._run)

    @contextmanager
    def held(self) -> Generator[None]:
        """While this is entered, the run does not leave: what it waited for may be there."""
        parks_for, self._parks_for = self._parks_for, None
        try:
            yield
        finally:
            self._parks_for = parks_for

    async def park(self) -> None:
        """Leave memory."""
        run = self._run
        if self._parks_for is None or not run.life.take(Turn.PARKS):
            return
        try:
            written = await run.recording.write_leaving(*run.reported(), self._parks_for)
        except Exception as exc:
            logger.info("task %s… waits on in memory: %s", run.record.id[:12], what(exc))
            run.life.take(Turn.STAYS)
            return
        run.stop()
        if not written:
            return
        if run.record.is_queued(run.now()):
            # What it waited for came while it was being parked.
            await self._host.submit(run.record)
        else:
            await self._host.submit_later(run.record)

    def _after(self, keys: frozenset[str], wake_at: datetime | None) -> float:
        """Seconds to stay in memory first. A sleep is known to be long or short; an answer may come any time."""
        stay = self._run.policy.park_after.total_seconds()
        if keys or wake_at is None:
            return stay
        return 0.0 if (wake_at - self._run.now()).total_seconds() > stay else inf
