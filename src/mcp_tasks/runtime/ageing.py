"""Ending tasks that have gone on for longer than any may (`Limits.task_age`), whatever they wait for."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import RunStarted
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus
from mcp_tasks.errors import StoreUnavailable, TasksError, TooOld, TransitionRefused, UnknownTask
from mcp_tasks.runtime.ending import failed
from mcp_tasks.stores.base import EVERYBODY

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

EVERY: Final = 60.0
"""Seconds between two looks: what may take days need not end to the second."""

BATCH: Final = 500
"""Tasks that are looked at, of each status."""

_OPEN: Final = sorted(set(TaskStatus) - FINAL_STATUSES)


class Ageing:
    """Ends the oldest tasks, for one runtime. The oldest are listed first, so what is young is not looked at."""

    is_behind: bool = False
    """What one look leaves is for the next."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self._next_at = 0.0

    async def sweep(self) -> None:
        """Look for old ones, now and then."""
        now = self._runtime.monotonic()
        if self._runtime.limits.task_age is not None and now >= self._next_at:
            self._next_at = now + EVERY
            await self.look()

    async def catch_up(self) -> None:
        """There is nothing to catch up with."""

    async def look(self) -> None:
        """End those that are too old."""
        limit = self._runtime.limits.task_age
        if limit is None:
            return
        pages = [await self._runtime.list(EVERYBODY, status=status, limit=BATCH) for status in _OPEN]
        now = self._runtime.now()
        for record in [each for page in pages for each in page.records]:
            if now - record.created_at >= limit:
                await self._end(record, limit)

    async def _end(self, record: TaskRecord, limit: timedelta) -> None:
        verdict = TooOld(record.name, limit)
        # Only a run can fail: of a task that nobody has, it is one that begins and ends here.
        begun = [] if record.worker is not None else [RunStarted(worker=self._runtime.worker)]
        attempt = record.attempt + len(begun)
        event, outcome = failed(attempt, self._runtime.describe(verdict), verdict.reason)
        try:
            await self._runtime.changes.change(record, *begun, event, actor=self._actor, outcome=outcome)
        except (UnknownTask, TransitionRefused):
            # It has ended, or another run has begun: the next look finds it.
            return
        except StoreUnavailable:
            raise
        except TasksError as exc:
            self._runtime.janitor.note_trouble(record.id, exc)
