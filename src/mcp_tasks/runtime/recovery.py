"""Taking tasks over from processes that are dead, and giving up what is this process's own and not run by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import RunLost, RunReleased
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import (
    Interrupted,
    LostTooOften,
    RunStopped,
    StoreUnavailable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.ending import failed
from mcp_tasks.runtime.lease import Watch
from mcp_tasks.runtime.orphans import end_children_of, end_orphans
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.queue_sweep import BATCH
from mcp_tasks.runtime.trials import is_guilty, tried_again_at
from mcp_tasks.runtime.troubles import Troubles
from mcp_tasks.runtime.worker_name import is_gone

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

PER_SWEEP = 1_000
"""Tasks that one sweep recovers at most; the next one goes on."""

TROUBLES_BEFORE_THE_END = 5
"""How often the recovery of one task may fail before it is ended."""


class Recovery:
    """Recovers lost tasks, for one runtime."""

    def __init__(self, runtime: TaskRuntime, troubles: Troubles) -> None:
        self._runtime = runtime
        self._troubles = troubles
        self._actor = Actor("sweep", runtime.worker)
        self._watch = Watch(runtime.lease_times, clock=runtime.monotonic)
        self._cursors: dict[str, str] = {}
        self._orphans: set[str] = set()
        self._ended_late: set[str] = set()
        self.is_behind: bool = False
        """Whether there is more to recover than one sweep does."""
        self.has_workers: bool = True
        """Whether other processes that run tools were there at the last sweep."""

    async def sweep(self) -> None:
        """Take tasks from processes that are dead: to be run again, or ended."""
        runtime = self._runtime
        self.is_behind = False
        await self._release_ended_late()
        for task_id in runtime.claims.unconfirmed():
            await self._recover_own(task_id)
        asked = self._watch.now()
        workers = await runtime.store.workers(runtime.namespace)
        others = {name: beats for name, beats in workers.items() if name != runtime.worker}
        dead = self._watch.dead(others, asked=asked)
        self.has_workers = len(dead) < len(others)
        # Tasks that cannot be recovered here stay where they are, so the next sweep goes on behind them.
        self._cursors = {worker: cursor for worker, cursor in self._cursors.items() if worker in dead}
        left = PER_SWEEP
        for worker in dead:
            left = await self._recover_all(worker, left)
            if left <= 0:
                self.is_behind = True
                return

    async def catch_up(self) -> None:
        """Go on with what one sweep did not do."""
        await self.sweep()

    async def ended_late(self, task_id: str) -> None:
        """Give up a task whose run was stopped with the lease, and ended only after the lease was renewed. If the store
        is not available, the next sweep tries again."""
        self._ended_late.add(task_id)
        await self._release_ended_late()

    async def _release_ended_late(self) -> None:
        if not self._ended_late:
            return
        # First, so that the next run does not repeat what is written there.
        await self._runtime.late_writes.flush()
        for task_id in tuple(self._ended_late):
            if not self._runtime.has(task_id):
                await self._recover_own(task_id)
            self._ended_late.discard(task_id)

    async def release_orphans(self) -> None:
        """Give up tasks that are ours and that nothing here runs. There should be none; this is in case there are."""
        orphans = {task_id for task_id in await self._claimed_by_us() if not self._runtime.has(task_id)}
        # Twice in a row, so that one which is just beginning or ending is left alone.
        for task_id in orphans & self._orphans:
            logger.error("task %s… was claimed by this process and nothing ran it", task_id[:12])
            await self._recover_own(task_id)
        self._orphans = orphans

    async def take_up(self) -> None:
        """Give up at once what is ours and does not run here any more: its runs were stopped with the lease."""
        for task_id in await self._claimed_by_us():
            if not self._runtime.has(task_id):
                await self._recover_own(task_id)

    async def _recover_all(self, worker: str, left: int) -> int:
        """Recover up to `left` tasks of a dead process, and how many more may be recovered in this sweep."""
        cursor = self._cursors.pop(worker, None)
        while True:
            store = self._runtime.store
            page = await store.claimed(worker, cursor=cursor, limit=BATCH)
            found = await asyncio.gather(*(self._claimed_by(worker, task_id) for task_id in page.ids))
            # After the tasks were read: the worker may be back since the sweep began, and what it has claimed then is
            # not to be taken from it. A run that was read before this was claimed by the worker that was silent.
            if page.ids and not self._watch.is_unchanged(worker, await store.workers(self._runtime.namespace)):
                return left
            # Together, so that a store which groups its commits can.
            await asyncio.gather(*(self._settle(record, lost=True) for record in found if record is not None))
            left -= len(page.ids)
            cursor = page.cursor
            if cursor is None:
                await self._retire(worker)
                return left
            if left <= 0:
                self._cursors[worker] = cursor
                return left

    async def _retire(self, worker: str) -> None:
        """Forget a dead process. It stays known for as long as it has a task that could not be recovered."""
        if not (await self._runtime.store.claimed(worker, limit=1)).ids:
            await end_children_of(worker)
            await self._runtime.store.retire(worker)

    async def _claimed_by_us(self) -> list[str]:
        claimed: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._runtime.store.claimed(self._runtime.worker, cursor=cursor, limit=PER_SWEEP)
            claimed += page.ids
            cursor = page.cursor
            if cursor is None:
                return claimed

    async def _recover_own(self, task_id: str) -> None:
        """Release one task of this process, or end it."""
        record = await self._claimed_by(self._runtime.worker, task_id)
        if record is not None:
            await self._settle(record, lost=False)

    async def _claimed_by(self, worker: str, task_id: str) -> TaskRecord | None:
        """The task, if it is still claimed by `worker`; a task that cannot be read costs the others nothing."""
        try:
            record = await self._runtime.store.get(task_id)
        except StoreUnavailable:
            raise
        except Exception as exc:
            self._troubles.note(task_id, exc)
            return None
        # Another process may have been first, and may have claimed it since. From here on the number of the run tells.
        return record if record is not None and record.worker == worker else None

    async def _settle(self, record: TaskRecord, *, lost: bool) -> None:
        """Release a task, or end it; a failure with it costs the others nothing."""
        try:
            policy = await self._policy_of(record)
            # A task of another worker only as it was read: if that wakes up and writes meanwhile, it keeps its run.
            make = self._runtime.changes.swap if lost else self._runtime.changes.change
            if self._runtime.claims.never_began(record):
                await self._submit(await self._change(make, record, RunReleased(attempt=record.attempt, begun=False)))
            elif policy is not None:
                changed = await self._change(make, record, self._verdict(record, policy, lost=lost))
                if record.processes and not (changed.is_final and record.worker and is_gone(record.worker)):
                    # Only now is it certain that the run is lost. The next one looks for them, too, and warns.
                    await end_orphans(record, warn=changed.is_final)
                await self._submit(changed)
        except (UnknownTask, TransitionRefused, VersionConflict):
            # Another process recovered it first, or its worker was only slow.
            logger.debug("task %s… was changed by another process", record.id[:12])
        except StoreUnavailable:
            raise
        except Exception as exc:
            self._troubles.note(record.id, exc)

    async def _change(
        self,
        make: Callable[..., Awaitable[TaskRecord]],
        record: TaskRecord,
        verdict: RunStopped | RunLost | RunReleased,
    ) -> TaskRecord:
        if not isinstance(verdict, RunStopped):
            return await make(record, verdict, actor=self._actor)
        event, outcome = failed(record.attempt, self._runtime.describe(verdict), verdict.reason)
        return await make(record, event, actor=self._actor, outcome=outcome)

    async def _submit(self, record: TaskRecord) -> None:
        """Have a recovered task run again, unless so much is in line that it may as well wait in the store."""
        runtime = self._runtime
        if record.is_queued(runtime.now()) and runtime.engine.backlog < BATCH:
            await runtime.submit(record)

    async def _policy_of(self, record: TaskRecord) -> ToolPolicy | None:
        """How the tool is treated; None if this process should leave the task alone."""
        try:
            policy = await self._runtime.policy(record.method, record.name)
        except Exception as exc:
            if self._troubles.note(record.id, exc) < TROUBLES_BEFORE_THE_END:
                return None
            # It cannot be known whether the tool may run again, so it does not.
            return ToolPolicy(rerun=False)
        if policy is None:
            self._troubles.note_missing_tool(record.name)
        return policy

    def _verdict(self, record: TaskRecord, policy: ToolPolicy, *, lost: bool) -> RunStopped | RunLost | RunReleased:
        """What becomes of a task whose run is gone: why it ends, or what happens instead."""
        if not policy.rerun:
            logger.warning("task %s… (%s) was interrupted and may not run again", record.id[:12], record.name)
            return Interrupted(record.name)
        if not lost:
            return RunReleased(attempt=record.attempt)
        if is_guilty(record, policy):
            times = record.lost + 1
            logger.error(
                "task %s… (%s) was lost with its process %d times in a row: it is ended",
                record.id[:12],
                record.name,
                times,
            )
            return LostTooOften(record.name, times)
        return RunLost(attempt=record.attempt, wake_at=tried_again_at(record, policy, self._runtime.now()))
