"""Handing to the engine what waits in the store: tasks whose timer has run out, and tasks that nobody has claimed.

Whoever queues a task submits it. This is for what went wrong after that: the process that had the id in line is gone,
the id was lost on its way, or no process could run it then. An engine with room is handed queued tasks as soon as they
are found: nothing else keeps them from running. Any other engine has them in line already, as far as anybody knows, and
is handed them again only after they have been idle for long, with pauses that double. Whose turn it is comes first: the
tasks that the store chooses fairly among owners, and then those behind them in the order of creation.

Timers are nobody's to submit but a sweep's, so they are submitted when they are found; unless the engine can wait for
them, and was told when the task was parked: then only those whose time came a while ago.

Of an engine that carries ids to other processes only what was handed out is looked at here. The rest is not lost: it
waits for its turn (`dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import anyio.lowlevel

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.runtime.idleness import Idleness
from mcp_tasks.stores.base import IdPage

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

BATCH = 100
"""Tasks per look, and in line for the engine before no more are looked for: enough to catch up quickly, few enough not
to hold the event loop for long."""

PAGES = 20
"""Looks per sweep. A page of tasks that were submitted not long ago costs two small reads; there may be many such tasks
if no process has their tool, and one that can be run may stand behind them."""

IDLE_FOR_LONG = timedelta(seconds=30)
"""After which a queued task counts as forgotten, although the engine may have it in line; with an engine that carries
it to other processes the length of a lease, if that is less."""

TIME_TO_ARRIVE = timedelta(seconds=3)
"""How much later a timer is submitted that the engine was told of: it is most likely on its way."""

AT_ONCE = timedelta(0)


class QueueSweep:
    """Submits what waits, for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        remote = runtime.engine.abilities.remote
        # A worker that was handed an id and has not claimed the task within a lease is dead, or has no room for it.
        self._forgotten_after = min(runtime.settings.lease_duration, IDLE_FOR_LONG) if remote else IDLE_FOR_LONG
        self._has_takers = runtime.runs_tools or runtime.engine.abilities.remote
        store, namespace = runtime.store, runtime.namespace
        self._due = _Listing(runtime, lambda cursor: store.due(namespace, runtime.now(), cursor=cursor, limit=BATCH))
        handed_out = True if runtime.engine.abilities.remote else None
        self._queued = _Listing(
            runtime, lambda cursor: store.queued(namespace, handed_out=handed_out, cursor=cursor, limit=BATCH)
        )
        self._due_first = True

    async def sweep(self) -> None:
        """Look at the next pages of each kind: by turns, so that many of one kind do not keep the other back."""
        if not self._has_takers:
            # Nothing that is submitted here is run anywhere. The processes that run tools look for themselves.
            return
        due, queued = self._submit_due, self._submit_queued
        for submit in (due, queued) if self._due_first else (queued, due):
            await submit()
        self._due_first = not self._due_first

    def still_waits(self, record: TaskRecord) -> None:
        """The task was written, and has been idle all the time."""
        self._queued.idleness.is_still(record.id, record.version)

    @property
    def is_behind(self) -> bool:
        """Whether there is more to submit than one sweep does, now or as soon as the engine has room."""
        return self._due.has_more or self._queued_could_start

    async def catch_up(self) -> None:
        """Go on with what one sweep did not do. Nothing is read unless the engine could take something."""
        if self._due.has_more:
            await self._submit_due()
        if self._queued_could_start and self._engine.has_room:
            await self._submit_queued()

    @property
    def _queued_could_start(self) -> bool:
        # Elsewhere is not for this process to watch.
        return not self._engine.abilities.remote and (self._queued.has_more or self._queued.any_waiting)

    async def _submit_due(self) -> None:
        if self._may_submit():
            patience = TIME_TO_ARRIVE if self._engine.abilities.delay else AT_ONCE
            await self._due.submit_some(patience, self._may_submit)

    async def _submit_queued(self) -> None:
        if self._may_submit():
            # Without room there is no hurry: one page per sweep.
            patience = AT_ONCE if self._engine.has_room else self._forgotten_after
            chosen = [task.id for task in await self._runtime.dispatch.next()] if self._engine.has_room else []
            await self._queued.submit_some(patience, lambda: self._engine.has_room, first=chosen)

    def _may_submit(self) -> bool:
        return self._engine.backlog < BATCH


_PageFrom: TypeAlias = Callable[[str | None], Awaitable[IdPage]]


class _Listing:
    """Tasks of one kind that wait, looked at page by page, round after round."""

    def __init__(self, runtime: TaskRuntime, page_from: _PageFrom) -> None:
        self._runtime = runtime
        self._page_from = page_from
        self.idleness: Idleness = Idleness(runtime.monotonic)
        self._cursor: str | None = None
        self.has_more = False
        """Whether tasks were submitted in the last look, and there are pages behind them."""

    @property
    def any_waiting(self) -> bool:
        """Whether tasks were seen that have not been submitted."""
        return self.idleness.any_waiting

    async def submit_some(
        self, patience: timedelta, may_go_on: Callable[[], bool], *, first: Sequence[str] = ()
    ) -> None:
        """Submit tasks that have been idle for `patience`: those in `first`, of the next page, and of those behind it
        while the engine could take more and hardly any are to be submitted."""
        submitted = await self._submit_these(first, patience)
        submitted += await self._submit_page(patience)
        for _ in range(PAGES - 1):
            if self._cursor is None or submitted >= BATCH or not may_go_on():
                break
            # A store may answer without a pause.
            await anyio.lowlevel.checkpoint()
            submitted += await self._submit_page(patience)
        # With more tasks than can be remembered it goes on at the pace of sweeps: most likely they cannot run here. So
        # it does if all were left alone.
        self.has_more = submitted > 0 and self._cursor is not None and not self.idleness.was_crowded

    async def _submit_page(self, patience: timedelta) -> int:
        """Submit those tasks of the next page that have been idle for `patience`; how many."""
        page = await self._page_from(self._cursor)
        submitted = await self._submit_these(page.ids, patience)
        # From the start again after the end: what came before the cursor meanwhile has its turn too.
        self._cursor = page.cursor
        if page.cursor is None:
            self.idleness.end_round()
        return submitted

    async def _submit_these(self, task_ids: Sequence[str], patience: timedelta) -> int:
        """Submit those of these tasks that have been idle for `patience`; how many."""
        runtime = self._runtime
        versions = await runtime.store.versions(task_ids) if task_ids else {}
        submitted = 0
        # In their own order: a store gives versions in any.
        for task_id in task_ids:
            version = versions.get(task_id)
            if version is None or runtime.has(task_id):
                continue
            if self.idleness.is_over(task_id, version, patience):
                await self._submit(task_id)
                submitted += 1
        return submitted

    async def _submit(self, task_id: str) -> None:
        try:
            record = await self._runtime.store.get(task_id)
        except TaskUnreadable:
            # Whoever would run it says what is wrong with it.
            await self._runtime.engine.submit(task_id, lane="again")
            return
        if record is not None:
            await self._runtime.dispatch.submit(record)
