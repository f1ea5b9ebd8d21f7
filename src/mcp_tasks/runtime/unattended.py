"""Tasks that wait although no worker is there: a process that only serves says so, in its log and in their status.

A worker is there if its heartbeat is. Whether it has the tool, or runs that queue, cannot be seen from here. The
message goes when a run begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import WorkerMissed
from mcp_tasks.errors import StoreUnavailable, TasksError, TransitionRefused, VersionConflict
from mcp_tasks.quiet import get_logger

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

PATIENCE: Final = 5.0
"""Seconds without a worker before anything is said: a worker that is replaced by a new one is not missed."""

BATCH: Final = 100
"""Tasks that one sweep looks at."""

MAX_KNOWN: Final = 10_000
"""Tasks that are remembered as told."""

MESSAGE: Final = "Waiting for a worker: none is running"


class Unattended:
    """Says of waiting tasks that no worker is there, for one runtime that runs no tools itself."""

    is_behind: bool = False
    """What one look leaves is for the next."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self._alone_since: float | None = None
        self._is_logged = False
        self._told: set[str] = set()
        self._cursor: str | None = None

    async def sweep(self) -> None:
        """Look whether a worker is there, and what waits if none is."""
        runtime = self._runtime
        if runtime.runs_tools:
            return
        if runtime.janitor.recovery.has_workers:
            self._alone_since, self._is_logged, self._cursor = None, False, None
            self._told.clear()
            return
        now = runtime.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since >= PATIENCE:
            await self._tell()

    async def catch_up(self) -> None:
        """There is nothing to catch up with."""

    async def _tell(self) -> None:
        page = await self._runtime.store.queued(self._runtime.namespace, cursor=self._cursor, limit=BATCH)
        self._cursor = page.cursor
        if page.ids and not self._is_logged:
            self._is_logged = True
            logger.warning(
                "tasks of %r wait, and no worker is running: this process only serves (runs_tools=False). Start one "
                "with `mcp-tasks worker MODULE:SERVER`, on the same store",
                self._runtime.namespace,
            )
        for task_id in page.ids:
            if task_id not in self._told and len(self._told) < MAX_KNOWN:
                self._told.add(task_id)
                await self._tell_of(task_id)

    async def _tell_of(self, task_id: str) -> None:
        try:
            record = await self._runtime.store.get(task_id)
            if record is not None:
                told = await self._runtime.changes.swap(record, WorkerMissed(message=MESSAGE), actor=self._actor)
                self._runtime.janitor.queue.still_waits(told)
        except (VersionConflict, TransitionRefused):
            # Something happened to it: a worker may have come. If none has, it keeps what it says.
            self._told.discard(task_id)
        except StoreUnavailable:
            self._told.discard(task_id)
            raise
        except TasksError as exc:
            self._runtime.janitor.note_trouble(task_id, exc)
