"""Housekeeping: recovering lost tasks, submitting tasks that wait, ending old tasks, deleting expired ones.

Every process does all of it for its own namespace, without an election: each act is a compare-and-swap, and doing it
twice does nothing. A sweep looks at a bounded number of tasks and goes on where the last one ended, so that no backlog
of one kind delays another. An error with one task affects that task only, and a kind of sweep that fails does not stop
the others. Only expiry needs no lease: an expired task has no run.

A process that runs no tools sweeps like the others; it can only submit tasks to an engine that carries them elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import anyio.lowlevel

from mcp_tasks._utils import short_id
from mcp_tasks.errors import (
    RunStopped,
    StoreError,
    StoreUnavailable,
    TasksError,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.model.machine import RunLost, RunReleased, RunStarted, WorkerMissed
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import FINAL_STATUSES, Actor, TaskRecord, TaskStatus
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.child_process import end_children_of, end_orphans
from mcp_tasks.runtime.claims import is_guilty, tried_again_at
from mcp_tasks.runtime.lease import Watch, is_gone
from mcp_tasks.runtime.run import failed
from mcp_tasks.stores.base import EVERYBODY, IdPage

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

# ---- queue
# Submits tasks that wait in the store: those whose timer is over, and those that no worker has claimed.


SHORTEST_PAUSE = timedelta(seconds=1)
"""Between the first submission of a task and the next."""

LONGEST_PAUSE = timedelta(minutes=5)
"""An idle task is submitted again after this long in any case: its id may have been lost each time."""

MAX_KNOWN = 10_000
"""Tasks that are remembered at a time: some megabytes."""

TURNS = 16
"""Of the tasks that cannot be remembered, another part is submitted in each round, so that each has its turn."""

BATCH = 100
"""Tasks per page, and in line for the engine before no more are looked for: enough to catch up quickly, few enough not
to hold the event loop for long."""

PAGES = 20
"""Pages per sweep. A page of tasks that were submitted not long ago costs two small reads; there may be many such tasks
if no process has their tool, and one that can be run may stand behind them."""

IDLE_FOR_LONG = timedelta(seconds=30)
"""After which a queued task counts as forgotten, although the engine may have it in line; with an engine that carries
it to other processes the length of a lease, if that is less."""

TIME_TO_ARRIVE = timedelta(seconds=3)
"""How much later a timer is submitted that the engine was told of: it is most likely on its way."""

AT_ONCE = timedelta(0)


@dataclass(slots=True)
class _Sighting:
    version: int
    since: float
    """When the task was first seen at this version."""
    quiet_until: float
    """Until when it is left alone, because it was submitted not long ago."""
    round: int
    """The last round in which it was seen."""


class Idleness:
    """For how long the tasks of a listing have been idle, as one process sees it.

    Args:
        clock: Seconds on a clock that is never set.
        limit: How many tasks are remembered.
    """

    def __init__(self, clock: Callable[[], float], *, limit: int = MAX_KNOWN) -> None:
        self._clock = clock
        self._limit = limit
        self._round = 0
        # Apart, in the order in which they got there: what was submitted longest ago can be forgotten for others. What
        # has not been must not, or with enough tasks none would ever have been idle for long.
        self.waiting: dict[str, _Sighting] = {}
        self._submitted: dict[str, _Sighting] = {}
        self._crowded = False
        self.was_crowded: bool = False
        """Whether there were more tasks in the last round than can be remembered."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self._submitted)

    def is_over(self, task_id: str, version: int, patience: timedelta) -> bool:
        """Whether the task, seen idle now, is to be submitted; if so, it is taken to be submitted.

        It has to have been idle for `patience`, and for as long again as it had been when it was last submitted.
        """
        now = self._clock()
        sighting = self._see(task_id, version, now)
        if sighting is None:
            return self.was_crowded and hash(task_id) % TURNS == self._round % TURNS
        if now < max(sighting.since + patience.total_seconds(), sighting.quiet_until):
            return False
        pause = min(max(now - sighting.since, SHORTEST_PAUSE.total_seconds()), LONGEST_PAUSE.total_seconds())
        sighting.quiet_until = now + pause
        self.waiting.pop(task_id, None)
        self._submitted.pop(task_id, None)
        self._submitted[task_id] = sighting
        return True

    def is_still(self, task_id: str, version: int) -> None:
        """The task has another version by now, and has been idle all the time."""
        sighting = self.waiting.get(task_id) or self._submitted.get(task_id)
        if sighting is not None:
            sighting.version = version

    def end_round(self) -> None:
        """All tasks of the listing have been seen; those that were not are idle no more."""
        for known in (self.waiting, self._submitted):
            for task_id in [task_id for task_id, sighting in known.items() if sighting.round != self._round]:
                del known[task_id]
        self._round += 1
        self.was_crowded, self._crowded = self._crowded, False

    def _see(self, task_id: str, version: int, now: float) -> _Sighting | None:
        sighting = self.waiting.get(task_id) or self._submitted.get(task_id)
        if sighting is None or sighting.version != version:
            self._submitted.pop(task_id, None)
            if task_id not in self.waiting and not self._make_room(now):
                return None
            sighting = self.waiting[task_id] = _Sighting(version, since=now, quiet_until=now, round=self._round)
        sighting.round = self._round
        return sighting

    def _make_room(self, now: float) -> bool:
        if len(self) < self._limit:
            return True
        self._crowded = True
        oldest = next(iter(self._submitted), None)
        if oldest is None or self.was_crowded or now < self._submitted[oldest].quiet_until:
            return False
        # Most likely it was claimed since. If not, the next round finds it, and then nothing is forgotten: it would be
        # submitted all the time, as if it had just been found.
        del self._submitted[oldest]
        return True


class QueueSweep:
    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._is_remote = is_remote = runtime.engine.abilities.remote
        # A worker that was given an id and has not claimed the task within a lease is dead, or has no room for it.
        self._forgotten_after = min(runtime.settings.lease_duration, IDLE_FOR_LONG) if is_remote else IDLE_FOR_LONG
        store, namespace, handed_out = runtime.store, runtime.namespace, True if is_remote else None
        self._due = _Listing(runtime, lambda cursor: store.due(namespace, runtime.now(), cursor=cursor, limit=BATCH))
        self._queued = _Listing(
            runtime, lambda cursor: store.queued(namespace, handed_out=handed_out, cursor=cursor, limit=BATCH)
        )
        self._due_first = True

    async def sweep(self) -> None:
        """Look at the next pages of each kind: by turns, so that many of one kind do not delay the other."""
        if not (self._runtime.runs_tools or self._is_remote):
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
        return not self._is_remote and (self._queued.has_more or bool(self._queued.idleness.waiting))

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

    async def submit_some(
        self, patience: timedelta, may_go_on: Callable[[], bool], *, first: Sequence[str] = ()
    ) -> None:
        """Submit tasks that have been idle for `patience`: those in `first`, of the next page, and of those behind it
        while the engine could take more and hardly any are to be submitted."""
        submitted = await self._submit_these(first, patience)
        for number in range(PAGES):
            if number:
                if self._cursor is None or submitted >= BATCH or not may_go_on():
                    break
                # A store may answer without a pause.
                await anyio.lowlevel.checkpoint()
            page = await self._page_from(self._cursor)
            submitted += await self._submit_these(page.ids, patience)
            # From the start again after the end: what came before the cursor meanwhile has its turn too.
            self._cursor = page.cursor
            if page.cursor is None:
                self.idleness.end_round()
        # With more tasks than can be remembered it goes on at the pace of sweeps: most likely they cannot run here. So
        # it does if all were left alone.
        self.has_more = submitted > 0 and self._cursor is not None and not self.idleness.was_crowded

    async def _submit_these(self, task_ids: Sequence[str], patience: timedelta) -> int:
        runtime = self._runtime
        versions = await runtime.store.versions(task_ids) if task_ids else {}
        submitted = 0
        # In their own order: a store gives versions in any.
        for task_id in task_ids:
            version = versions.get(task_id)
            if version is None or runtime.has(task_id) or not self.idleness.is_over(task_id, version, patience):
                continue
            submitted += 1
            try:
                record = await runtime.store.get(task_id)
            except TaskUnreadable:
                # The run that begins says what is wrong with it.
                await runtime.engine.submit(task_id, lane="again")
                continue
            if record is not None:
                await runtime.dispatch.submit(record)
        return submitted


# ---- recovery
# Takes tasks over from dead processes, and gives up tasks of this process that it does not run.


PER_SWEEP = 1_000
"""Tasks that one sweep recovers at most; the next one goes on."""

TROUBLES_BEFORE_THE_END = 5
"""How often the recovery of one task may fail before it is ended."""


class Recovery:
    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self._watch = Watch(runtime.lease_times, clock=runtime.monotonic)
        self._cursors: dict[str, str] = {}
        self._orphans: set[str] = set()
        # In the order in which they ended.
        self._ended_late: dict[str, None] = {}
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
        asked = runtime.monotonic()
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

    async def ended_late(self, task_id: str) -> None:
        """Give up a task whose run was stopped with the lease: with the others, or at once if it ended only after the
        lease was renewed. If the store is not available, the next sweep tries again."""
        self._ended_late[task_id] = None
        if self._runtime.lease.is_valid:
            await self._release_ended_late()

    async def release_orphans(self) -> None:
        """Give up tasks that are claimed by this process and not run by it. There should be none."""
        orphans = {task_id for task_id in await self._claimed_by_us() if not self._runtime.has(task_id)}
        # Twice in a row, so that one which is just beginning or ending is left alone.
        for task_id in orphans & self._orphans:
            logger.error("task %s was claimed by this process and nothing ran it", short_id(task_id))
            await self._recover_own(task_id)
        self._orphans = orphans

    async def take_up(self) -> None:
        """Give up at once what is claimed by this process and not run any more: its runs were stopped with the
        lease."""
        await self._runtime.late_writes.flush()
        # Tasks that ended before this and are still ours are found here.
        self._ended_late.clear()
        claimed = await self._claimed_by_us()
        self._ended_late.update((task_id, None) for task_id in claimed if not self._runtime.has(task_id))
        # Some may end meanwhile. With the last one given up the lease is good again, and no turn of the event loop is
        # between the two.
        while self._ended_late:
            await self._release_ended_late()

    async def _release_ended_late(self) -> None:
        if not self._ended_late:
            return
        # First, so that the next run does not repeat what is written there.
        await self._runtime.late_writes.flush()
        for task_id in tuple(self._ended_late):
            if not self._runtime.has(task_id):
                await self._recover_own(task_id)
            self._ended_late.pop(task_id, None)

    async def _recover_all(self, worker: str, left: int) -> int:
        """Recover up to `left` tasks of a dead process, and how many more may be recovered in this sweep."""
        store, cursor = self._runtime.store, self._cursors.pop(worker, None)
        while True:
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
        store = self._runtime.store
        if (await store.claimed(worker, limit=1)).ids:
            return
        await end_children_of(worker)
        # It may be back by now: without its heartbeat it would seem to have signed off.
        if self._watch.is_unchanged(worker, await store.workers(self._runtime.namespace)):
            await store.retire(worker)

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
        record = await self._claimed_by(self._runtime.worker, task_id)
        # It may have been claimed again here since it was asked for.
        if record is not None and not self._runtime.has(task_id):
            await self._settle(record, lost=False)

    async def _claimed_by(self, worker: str, task_id: str) -> TaskRecord | None:
        """The task, if it is still claimed by `worker`; one that cannot be read does not affect the others."""
        try:
            record = await self._runtime.store.get(task_id)
        except StoreUnavailable:
            raise
        except Exception as exc:
            self._runtime.troubles.note(task_id, exc)
            return None
        # Another process may have been first, and may have claimed it since. From here on the number of the run tells.
        return record if record is not None and record.worker == worker else None

    async def _settle(self, record: TaskRecord, *, lost: bool) -> None:
        """Release a task, or end it; a failure with it does not affect the others."""
        runtime = self._runtime
        try:
            verdict = await self._verdict(record, lost=lost)
            if verdict is None:
                return
            if isinstance(verdict, RunStopped):
                event, outcome = failed(record.attempt, runtime.describe(verdict), verdict.reason)
            else:
                event, outcome = verdict, None
            # A task of another worker only as it was read: if that wakes up and writes meanwhile, it keeps its run.
            make = runtime.changes.swap if lost else runtime.changes.change
            changed = await make(record, event, actor=self._actor, outcome=outcome)
            has_begun = not isinstance(verdict, RunReleased) or verdict.begun
            if has_begun and record.processes and not (changed.is_final and record.worker and is_gone(record.worker)):
                # Only now is it certain that the run is lost. The next one looks for them, too, and warns.
                await end_orphans(record, warn=changed.is_final)
            # If much is in line, it may as well wait in the store.
            if changed.is_queued(runtime.now()) and runtime.engine.backlog < BATCH:
                await runtime.submit(changed)
        except (UnknownTask, TransitionRefused, VersionConflict):
            # Another process recovered it first, or its worker was only slow.
            logger.debug("task %s was changed by another process", short_id(record.id))
        except StoreUnavailable:
            raise
        except Exception as exc:
            runtime.troubles.note(record.id, exc)

    async def _verdict(self, record: TaskRecord, *, lost: bool) -> RunStopped | RunLost | RunReleased | None:
        """The error with which a task ends whose run is gone, or the event instead; None to leave it alone."""
        runtime = self._runtime
        try:
            policy = await runtime.policy(record.method, record.name)
        except Exception as exc:
            # In the end, it cannot be known whether the tool may run again, so it does not.
            is_over = runtime.troubles.note(record.id, exc) >= TROUBLES_BEFORE_THE_END
            policy = TaskOptions() if is_over else None
        else:
            if policy is None:
                runtime.troubles.note_missing_tool(record.name)
        if runtime.claims.never_began(record):
            return RunReleased(attempt=record.attempt, begun=False)
        if policy is None:
            return None
        if not policy.rerun:
            logger.warning("task %s (%s) was interrupted and may not run again", short_id(record.id), record.name)
            return RunStopped("interrupted", record.name)
        if not lost:
            return RunReleased(attempt=record.attempt)
        if is_guilty(record, policy):
            logger.error(
                "task %s (%s) was lost with its process %d times in a row: it is ended",
                *(short_id(record.id), record.name, record.lost + 1),
            )
            return RunStopped("lost", record.name, times=record.lost + 1)
        return RunLost(attempt=record.attempt, wake_at=tried_again_at(record, policy, runtime.now()))


# ---- janitor


SLICE = 100
"""Expired tasks that are deleted at once: other writes wait for as long as that takes."""

BETWEEN_SLICES = 0.002
"""Seconds for other work after each slice: the deletion of tens of thousands of tasks should not be noticed."""

EVERY: Final = 60.0
"""Seconds between two looks for tasks that are too old: what may take days need not end to the second."""

AGEING_BATCH: Final = 500
"""Tasks that are looked at, of each status."""

PATIENCE: Final = 5.0
"""Seconds without a worker before tasks say so: a worker that is replaced by a new one is not missed."""

UNATTENDED_BATCH: Final = 100
"""Tasks that one sweep looks at."""

UNATTENDED_MAX_KNOWN: Final = 10_000
"""Tasks that are remembered as told."""

MESSAGE: Final = "Waiting for a worker: none is running"

CATCHING_UP = 0.05
"""Seconds between two looks at whether a sweep that has more to do can go on."""

ORPHANS_EVERY = 10
"""Sweeps between two looks for tasks of our own that nothing runs."""

_OPEN: Final = sorted(set(TaskStatus) - FINAL_STATUSES)


class Janitor:
    """Runs all sweeps, for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._actor = Actor("sweep", runtime.worker)
        self.recovery: Recovery = Recovery(runtime)
        self.queue: QueueSweep = QueueSweep(runtime)
        self._has_more_expired = False
        self._ages_at = 0.0
        self._alone_since: float | None = None
        self._is_logged = False
        self._told: set[str] = set()
        self._unattended_from: str | None = None

    async def begin(self) -> None:
        """Look for what an earlier process left. A store that is full or read-only does not keep this one from
        starting: its sweeps may be what makes room."""
        for act in (self.recovery.sweep, self.start_waiting):
            with suppress(StoreUnavailable):
                await act()

    async def start_waiting(self) -> None:
        self._runtime.dispatch.look()
        await self.queue.sweep()

    async def sweep(self) -> None:
        """Do everything once."""
        await self._expire()
        for sweep in self._sweeps():
            await sweep()

    async def keep_sweeping(self) -> None:
        sweeps = 0
        while True:
            await self._catch_up(anyio.current_time() + self._runtime.sweep_interval.total_seconds())
            # First: on a store that is full, it makes the room that all others need.
            await self._guarded(self._expire, needs_lease=False)
            for sweep in self._sweeps():
                await self._guarded(sweep)
            sweeps += 1
            if sweeps % ORPHANS_EVERY == 0:
                await self._guarded(self.recovery.release_orphans)

    def _sweeps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self.recovery.sweep, self.start_waiting, self._end_old, self._miss_workers

    async def _catch_up(self, until: float) -> None:
        """Wait for the next sweep; sweeps that have more to do go on meanwhile."""
        while (left := until - anyio.current_time()) > 0:
            expiry, recovery, queue = self._has_more_expired, self.recovery.is_behind, self.queue.is_behind
            await anyio.sleep(min(left, CATCHING_UP) if expiry or recovery or queue else left)
            if expiry:
                await self._guarded(self._expire, needs_lease=False)
            if recovery:
                await self._guarded(self.recovery.sweep)
            if queue:
                await self._guarded(self.queue.catch_up)

    async def _guarded(self, act: Callable[[], Awaitable[None]], *, needs_lease: bool = True) -> None:
        """Do it, if this process may act. If it fails, the others have their turn, and the next sweep comes."""
        if needs_lease and not self._runtime.lease.is_valid:
            return
        try:
            await act()
        except StoreUnavailable as exc:
            logger.debug("a sweep did not finish: %s", exc)
        except StoreError as exc:
            logger.warning("a sweep did not finish: %s", exc)
        except Exception:
            logger.error("a sweep failed", exc_info=quietly())

    async def _expire(self) -> None:
        self._has_more_expired = False
        removed = 0
        while removed < PER_SWEEP:
            slice_ = await self._runtime.changes.forget_expired(limit=SLICE, actor=self._actor)
            if not slice_:
                return
            removed += slice_
            await anyio.sleep(BETWEEN_SLICES)
        self._has_more_expired = True

    async def _end_old(self) -> None:
        """End tasks that are older than `Limits.task_age`, now and then."""
        now = self._runtime.monotonic()
        if now >= self._ages_at:
            self._ages_at = now + EVERY
            await self.end_old()

    async def end_old(self) -> None:
        """End tasks that are older than `Limits.task_age`. The oldest are listed first, so the young are not read."""
        runtime, limit = self._runtime, self._runtime.limits.task_age
        if limit is None:
            return
        pages = [await runtime.list(EVERYBODY, status=status, limit=AGEING_BATCH) for status in _OPEN]
        now = runtime.now()
        for record in [each for page in pages for each in page.records if now - each.created_at >= limit]:
            verdict = RunStopped("task_age", record.name, limit=limit)
            # Only a run can fail: of a queued task, it is one that begins and ends here.
            begun = [] if record.worker is not None else [RunStarted(worker=runtime.worker)]
            event, outcome = failed(record.attempt + len(begun), runtime.describe(verdict), verdict.reason)
            try:
                await runtime.changes.change(record, *begun, event, actor=self._actor, outcome=outcome)
            except (UnknownTask, TransitionRefused) as exc:
                # It has ended, or another run has begun: the next look finds it.
                logger.debug("%s", exc)
            except StoreUnavailable:
                raise
            except TasksError as exc:
                runtime.troubles.note(record.id, exc)

    async def _miss_workers(self) -> None:
        """Where this process only serves and no worker is there, say so: in the log, and in the status of tasks."""
        runtime = self._runtime
        if runtime.runs_tools:
            return
        if self.recovery.has_workers:
            self._alone_since, self._is_logged, self._unattended_from = None, False, None
            self._told.clear()
            return
        now = runtime.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < PATIENCE:
            return
        page = await runtime.store.queued(runtime.namespace, cursor=self._unattended_from, limit=UNATTENDED_BATCH)
        self._unattended_from = page.cursor
        if page.ids and not self._is_logged:
            self._is_logged = True
            logger.warning(
                "tasks of %r wait, and no worker is running: this process only serves (runs_tools=False). Start one "
                "with `mcp-tasks worker MODULE:SERVER`, on the same store",
                runtime.namespace,
            )
        for task_id in page.ids:
            if task_id not in self._told and len(self._told) < UNATTENDED_MAX_KNOWN:
                self._told.add(task_id)
                await self._tell_unattended(task_id)

    async def _tell_unattended(self, task_id: str) -> None:
        try:
            record = await self._runtime.store.get(task_id)
            if record is not None:
                told = await self._runtime.changes.swap(record, WorkerMissed(message=MESSAGE), actor=self._actor)
                self.queue.still_waits(told)
        except (VersionConflict, TransitionRefused):
            # It was changed: a worker may have come. If none has, it keeps its status message.
            self._told.discard(task_id)
        except StoreUnavailable:
            self._told.discard(task_id)
            raise
        except TasksError as exc:
            self._runtime.troubles.note(task_id, exc)
