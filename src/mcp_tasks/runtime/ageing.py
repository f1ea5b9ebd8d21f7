"""Ending tasks that have gone on for longer than any may (`Limits.task_age`), whatever they wait for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import FINAL_STATUSES, TaskStatus
from mcp_tasks.errors import StoreUnavailable, TasksError, TooOld, TransitionRefused, UnknownTask
from mcp_tasks.runtime.ending import failed
from mcp_tasks.stores.base import EVERYBODY

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

EVERY: Final = 60.0
"""Seconds between two looks: what may take days need not end to the second."""

BATCH: Final = 100
"""Tasks that are looked at in one sweep, of each status."""

_OPEN: Final = sorted(set(TaskStatus) - FINAL_STATUSES)


class Ageing:
    """Ends the oldest tasks, for one runtime. The oldest are listed first, so what is young is not looked at."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self._next_at = 0.0
        self.is_behind: bool = False
        """Whether there is more to end than one sweep does."""

    async def sweep(self) -> None:
        """Look for old ones, now and then."""
        now = self._runtime.monotonic()
        if self._runtime.limits.task_age is not None and now >= self._next_at:
            self._next_at = now + EVERY
            await self.catch_up()

    async def catch_up(self) -> None:
        """End the next ones."""
        limit = self._runtime.limits.task_age
        self.is_behind = False
        if limit is not None:
            for status in _OPEN:
                await self._end_old(status, limit)

    async def _end_old(self, status: TaskStatus, limit: timedelta) -> None:
        runtime = self._runtime
        page = await runtime.list(EVERYBODY, status=status, limit=BATCH)
        old = [record for record in page.records if _is_old(record, runtime.now(), limit)]
        for record in old:
            await self._end(record, limit)
        self.is_behind = self.is_behind or (len(old) == len(page.records) and page.cursor is not None)

    async def _end(self, record: TaskRecord, limit: timedelta) -> None:
        verdict = TooOld(record.name, limit)
        event, outcome = failed(record.attempt, self._runtime.describe(verdict), verdict.reason)
        try:
            await self._runtime.changes.change(record, event, actor=self._actor, outcome=outcome)
        except (UnknownTask, TransitionRefused):
            # It has ended, or another run has begun: the next look finds it.
            return
        except StoreUnavailable:
            raise
        except TasksError as exc:
            self._runtime.janitor.note_trouble(record.id, exc)


def _is_old(record: TaskRecord, now: datetime, limit: timedelta) -> bool:
    return now - record.created_at >= limit
