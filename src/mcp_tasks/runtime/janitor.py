"""Housekeeping: finding what was lost, starting what waits, forgetting what has expired.

Every process does all of it for its own namespace, without an election: each act is a compare-and-swap, and doing it
twice does nothing. A sweep looks at a bounded number of tasks and goes on where the last one ended, so that no backlog
of one kind keeps another from its turn. What goes wrong with one task costs that task only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import Event, RunLost, RunReleased
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.errors import (
    Interrupted,
    LostTooOften,
    StoreError,
    StoreUnavailable,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.runtime.ending import failed
from mcp_tasks.runtime.lease import Watch
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.trials import is_guilty, tried_again_at
from mcp_tasks.stores.base import Hint, IdPage

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger = logging.getLogger(__name__)

BATCH = 100
"""Tasks per look: enough to catch up quickly, few enough not to hold the event loop for long."""

PER_SWEEP = 1_000
"""Tasks that one sweep recovers or removes at most; the next one goes on."""

CATCHING_UP = 0.05
"""Seconds between two sweeps while there is more to do than one sweep does."""

ORPHANS_EVERY = 10
"""Sweeps between two looks for tasks of our own that nothing runs."""

MAX_TROUBLES = 10_000
"""Tasks of which is remembered that they gave trouble."""

TROUBLES_BEFORE_THE_END = 5
"""How often the recovery of one task may fail before it is ended."""


class Janitor:
    """Keeps house for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        settings = runtime.settings
        # A few sweeps may be late. However rare they are, one look alone never proves a death.
        longest_step = min(max(settings.sweep_interval * 3, settings.lease_duration / 3), settings.lease_duration / 2)
        self._watch = Watch(settings.lease_duration, longest_step=longest_step, clock=runtime.monotonic)
        self._lost_from: dict[str, str] = {}
        self._queued_from: str | None = None
        self._due_from: str | None = None
        self._due_first = True
        self._more = False
        self._suspects: set[str] = set()
        self._troubles: dict[str, int] = {}

    async def sweep(self) -> None:
        """Look once for everything there is to do."""
        self._more = False
        await self.recover_lost()
        await self.start_waiting()
        await self.remove_expired()

    async def keep_sweeping(self) -> None:
        """Sweep for as long as this process serves."""
        sweeps = 0
        while True:
            pause = self._runtime.settings.sweep_interval.total_seconds()
            await anyio.sleep(min(pause, CATCHING_UP) if self._more else pause)
            try:
                if not self._runtime.lease.is_valid:
                    continue
                await self.sweep()
                sweeps += 1
                if sweeps % ORPHANS_EVERY == 0:
                    await self.release_orphans()
            except StoreError as exc:
                logger.warning("a sweep did not finish: %s", exc)
            except Exception:
                logger.exception("a sweep failed")

    # Lost

    async def recover_lost(self) -> None:
        """Take tasks from processes that are dead: to be run again, or ended."""
        runtime = self._runtime
        workers = await runtime.store.workers(runtime.namespace)
        dead = self._watch.dead({name: beats for name, beats in workers.items() if name != runtime.worker})
        # Tasks that cannot be recovered here stay where they are, so the next sweep goes on behind them.
        self._lost_from = {worker: cursor for worker, cursor in self._lost_from.items() if worker in dead}
        left = PER_SWEEP
        for worker in dead:
            left = await self._recover_all(worker, left)
            if left <= 0:
                self._more = True
                return

    async def _recover_all(self, worker: str, left: int) -> int:
        """Recover up to `left` tasks of a dead process, and how many more may be recovered in this sweep."""
        cursor = self._lost_from.pop(worker, None)
        while left > 0:
            page = await self._runtime.store.claimed(worker, cursor=cursor, limit=BATCH)
            # Together, so that a store which groups its commits can.
            await asyncio.gather(*(self._recover(task_id, worker, lost=True) for task_id in page.ids))
            left -= len(page.ids)
            cursor = page.cursor
            if cursor is None:
                await self._retire(worker)
                return left
        if cursor is not None:
            self._lost_from[worker] = cursor
        return left

    async def _retire(self, worker: str) -> None:
        """Forget a dead process. It stays known for as long as it has a task that could not be recovered."""
        if not (await self._runtime.store.claimed(worker, limit=1)).ids:
            await self._runtime.store.retire(worker)

    async def release_orphans(self) -> None:
        """Give up tasks that are ours and that nothing here runs. There should be none; this is in case there are."""
        held = await self._held_by_us()
        orphans = {task_id for task_id in held if not self._runtime.has(task_id)}
        # Twice in a row, so that one which is just beginning or ending is left alone.
        for task_id in orphans & self._suspects:
            logger.error("task %s… was claimed by this process and nothing ran it", task_id[:12])
            await self._recover(task_id, self._runtime.worker, lost=False)
        self._suspects = orphans

    async def take_up(self) -> None:
        """Give up at once what is ours and does not run here any more: its runs were stopped with the lease."""
        await self._runtime.late_writes.flush()
        for task_id in await self._held_by_us():
            if not self._runtime.has(task_id):
                await self._recover(task_id, self._runtime.worker, lost=False)

    async def _held_by_us(self) -> list[str]:
        held: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._runtime.store.claimed(self._runtime.worker, cursor=cursor, limit=PER_SWEEP)
            held += page.ids
            cursor = page.cursor
            if cursor is None:
                return held

    async def _recover(self, task_id: str, worker: str, *, lost: bool) -> None:
        """Release one task of `worker`, or end it; whatever goes wrong with it costs the others nothing."""
        try:
            record = await self._runtime.store.get(task_id)
            if record is None or record.worker != worker:
                # Another process was first, and may have claimed it since. From here on the number of the run tells.
                return
            policy = await self._policy_of(record)
            if policy is not None:
                event, outcome = self._verdict(record, policy, lost=lost)
                await self._runtime.changes.change(record, event, actor=self._actor, outcome=outcome)
        except (UnknownTask, TransitionRefused):
            # Another process recovered it first, or its worker was only slow and has given it up.
            logger.debug("task %s… was recovered by another process", task_id[:12])
        except StoreUnavailable:
            raise
        except Exception as exc:
            self.note_trouble(task_id, exc)

    async def _policy_of(self, record: TaskRecord) -> ToolPolicy | None:
        """How the tool is treated; None if this process should leave the task alone."""
        try:
            policy = await self._runtime.policy(record.method, record.name)
        except Exception as exc:
            if self.note_trouble(record.id, exc) < TROUBLES_BEFORE_THE_END:
                return None
            # It cannot be known whether the tool may run again, so it does not.
            return ToolPolicy(rerun=False)
        if policy is None:
            self.note_missing_tool(record.name)
        return policy

    def _verdict(self, record: TaskRecord, policy: ToolPolicy, *, lost: bool) -> tuple[Event, Outcome | None]:
        tool, short = record.name, record.id[:12]
        if not policy.rerun:
            logger.warning("task %s… (%s) was interrupted and may not run again", short, tool)
            return failed(record.attempt, self._runtime.describe(Interrupted(tool)))
        if lost and is_guilty(record, policy):
            times = record.lost + 1
            logger.error("task %s… (%s) was lost with its process %d times in a row: it is ended", short, tool, times)
            return failed(record.attempt, self._runtime.describe(LostTooOften(tool, times)))
        logger.info("task %s… (%s) was interrupted and will run again", short, tool)
        if not lost:
            return RunReleased(attempt=record.attempt), None
        return RunLost(attempt=record.attempt, wake_at=tried_again_at(record, policy, self._runtime.now())), None

    # Waiting to be started

    async def start_waiting(self) -> None:
        """Submit what could be started: by turns, so that many of one kind do not keep the other back."""
        first, second = (self.start_due, self.start_queued) if self._due_first else (self.start_queued, self.start_due)
        self._due_first = not self._due_first
        await first()
        await second()

    async def start_due(self) -> None:
        """Submit parked tasks whose timer has run out."""
        runtime = self._runtime
        self._due_from = await self._submit_page(
            lambda cursor: runtime.store.due(runtime.namespace, runtime.now(), cursor=cursor, limit=BATCH),
            self._due_from,
        )

    async def start_queued(self) -> None:
        """Submit tasks that could run and that nobody has: left by another process, forgotten, or awake again."""
        runtime = self._runtime
        self._queued_from = await self._submit_page(
            lambda cursor: runtime.store.queued(runtime.namespace, cursor=cursor, limit=BATCH), self._queued_from
        )

    async def _submit_page(
        self, page_from: Callable[[str | None], Awaitable[IdPage]], cursor: str | None
    ) -> str | None:
        """Submit the next tasks of a listing; where to go on. What the engine has no room for waits in the store."""
        runtime = self._runtime
        if runtime.engine.backlog >= BATCH:
            self._more = True
            return cursor
        page = await page_from(cursor)
        if page.cursor is not None:
            self._more = True
        for task_id in page.ids:
            if not runtime.has(task_id):
                await runtime.submit(task_id, owner=None)
        # From the start again after the end: what came before the cursor meanwhile has its turn too.
        return page.cursor

    # Expired

    async def remove_expired(self) -> None:
        """Forget tasks whose time after the end is over."""
        runtime = self._runtime
        for _ in range(0, PER_SWEEP, BATCH):
            expired = await runtime.store.expired(runtime.now(), limit=BATCH)
            await asyncio.gather(*(self._remove(task) for task in expired))
            if len(expired) < BATCH:
                return
        self._more = True

    async def _remove(self, task: Hint) -> None:
        try:
            await self._runtime.changes.delete(task.task_id, expected=task.version, actor=self._actor)
        except VersionConflict:
            logger.debug("task %s… was removed by another process", task.task_id[:12])

    # Trouble

    def note_trouble(self, task_id: str, exc: Exception) -> int:
        """Log once what is wrong with a task that everything else goes on without; how often that was so."""
        known = self._troubles.pop(task_id, 0)
        self._troubles[task_id] = known + 1
        while len(self._troubles) > MAX_TROUBLES:
            del self._troubles[next(iter(self._troubles))]
        if known == 0:
            # A message of ours names the whole id, which is all it takes to see the task; it does not go into a log.
            what = exc.why if isinstance(exc, TaskUnreadable) else str(exc) or type(exc).__name__
            defect = None if isinstance(exc, StoreError) else exc
            logger.error("task %s… is left as it is, and the others go on: %s", task_id[:12], what, exc_info=defect)
        return known + 1

    def note_missing_tool(self, tool: str) -> None:
        """Log once that tasks of a tool wait for a process that has it."""
        key = f"tool:{tool}"
        if key not in self._troubles:
            self._troubles[key] = 1
            logger.warning("this server has no tool %r; its tasks wait for a process that has it", tool)
