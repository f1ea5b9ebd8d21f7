"""Claims queued tasks, by compare-and-swap: a worker that comes second finds the task claimed.

The decision needs only the small record. A large request is read only where the task can be run; a small one comes with
the record, from a store that is a round trip away.

A task whose runs were lost with their process again and again is a suspect: it may be what takes the process down. Its
next run is on trial, and other suspects wait until the trial has ended, so that the task to blame is lost alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from mcp_tasks._utils import BackgroundTasks, BoundedDict, short_id
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import (
    LimitReached,
    RunStopped,
    StoreError,
    StoreUnavailable,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.machine import RunResumeRequested, RunStarted, RunStartedOver, TrialPassed
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import Actor, JournalEntry, TaskRecord, TaskRequest, Trial, WriteId
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.journal import Recorded, version_entry
from mcp_tasks.runtime.run import Run, failed
from mcp_tasks.runtime.suspend import this_task
from mcp_tasks.stores.codec import new_write_id

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

NEVER_MORE_THAN = 4
"""Times `max_lost_runs` that a task may be lost in all: some kill their process from where no trial finds them."""

LET_OTHERS_FIRST = timedelta(seconds=5)
"""How much later a suspect is started than the one that was on trial when their process died."""

MAX_TURNED_AWAY = 100
"""Suspects that are remembered until the trial has ended; sweeps find the others."""

TRIES_TO_LOOK_UP = 10
"""How often the look-up of a queued task's tool may fail before the task is ended: with pauses that double from a
second, some minutes."""

MAX_CROWDED_OUT = 1_000
"""Tasks over a concurrency limit that are remembered to be tried again."""

MAX_UNCONFIRMED = 1_000
"""Claims that are remembered because their answer was lost."""

GIVES_UP_WITHIN = 1.0
"""Seconds for claims to end that were cancelled: a driver whose network is cut may take long for that."""

UNCONFIRMED_FOR = 120.0
"""Seconds for which they are remembered: longer than a request may be on its way to a store."""

CALLED_AT_A_TIME = 4
"""More than one run that ends makes room for: some may be of another tool or owner, or gone."""

FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=1)
"""Between two attempts to find out whether a claim was made."""

LOOK_AGAIN = 0.02
"""Seconds between two looks at a run that is on trial."""


class Claims:
    """Makes runs of queued tasks, for one runtime.

    Attributes:
        claiming: Tasks that this process is claiming: the store may have the claim long before its answer comes.
        closed: Whether nothing more is claimed.
        made: Tasks that were created as claimed, and are about to be run.
    """

    def __init__(self, runtime: TaskRuntime) -> None:
        self.claiming: set[str] = set()
        self.closed: bool = False
        self._runtime = runtime
        self._actor = Actor("worker", runtime.worker)
        self._suspects: set[str] = set()
        self._on_trial: str | None = None
        self._turned_away: dict[str, None] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._background = BackgroundTasks(
            lambda exc: logger.error("a task could not be submitted again", exc_info=quietly(exc))
        )
        self._asking: set[asyncio.Task[Any]] = set()
        self._unconfirmed: BoundedDict[str, tuple[WriteId, float]] = BoundedDict(MAX_UNCONFIRMED)
        self.made: dict[str, tuple[TaskRecord, TaskRequest, TaskOptions]] = {}
        self._crowded_out: dict[str, None] = {}

    def is_beginning(self, task_id: str) -> bool:
        """Whether the task is about to be run: it was created as claimed, or is being claimed."""
        return task_id in self.made or task_id in self.claiming

    def add_unconfirmed(self, task_id: str, write: WriteId) -> None:
        """Remember a claim that may have been made, and whose tool does not begin: it is released as not started."""
        self._unconfirmed[task_id] = write, self._runtime.monotonic() + UNCONFIRMED_FOR

    def unconfirmed(self) -> list[str]:
        """The tasks whose claim may have been made by this process, and that it does not run."""
        now = self._runtime.monotonic()
        for task_id in [each for each, (_, until) in self._unconfirmed.items() if until < now]:
            del self._unconfirmed[task_id]
        return [task_id for task_id in self._unconfirmed if not self._runtime.has(task_id)]

    def never_began(self, record: TaskRecord) -> bool:
        """Whether the task is claimed by a run of this process whose tool was not entered."""
        write, _ = self._unconfirmed.get(record.id, (None, 0.0))
        return write is not None and record.has(write)

    async def claim(self, task_id: str, slot: Slot) -> Run | None:
        """A run of the task, if it can be run here now."""
        if (made := self.made.pop(task_id, None)) is not None:
            record, request, policy = made
            return self._run(record, request, slot, policy, None)
        runtime = self._runtime
        record, request = await self._read(task_id)
        if record is None or record.namespace != runtime.namespace or not record.is_queued(runtime.now()):
            return None
        policy = await self._policy_of(record) if runtime.serves(record.queue) else None
        if policy is None:
            return None
        change: JournalEntry | None = None
        if record.started_at is not None and record.tool_version != policy.version:
            if policy.on_other_version == "fail":
                await self._end(
                    record, RunStopped("tool_version", record.name, versions=(record.tool_version, policy.version))
                )
                return None
            starts_over = policy.on_other_version == "restart"
            change = version_entry(record.tool_version, policy.version, over=starts_over)
        # Read before the task is claimed: were the store to fail or to be slow afterwards, we would have a task that we
        # do not run, and not hear that it was cancelled. The journal of a queued task only grows with a new version,
        # and then the swap does not succeed.
        recorded = await self._recorded_of(record, change)
        if recorded is None:
            await self._end(record, RunStopped("journal", record.name))
            return None
        request = request or await self._request_of(record)
        if request is None or self.closed or not runtime.lease.is_valid:
            return None
        if self._on_trial is not None and is_suspect(record, policy):
            if len(self._turned_away) < MAX_TURNED_AWAY:
                self._turned_away[task_id] = None
            return None
        return await self._claim(record, request, slot, policy, recorded, change)

    def saw(self, record: TaskRecord) -> None:
        """A task was changed: one that is about to begin may have been cancelled, or only announced; one on trial may
        have passed it by getting further."""
        made = self.made.pop(record.id, None)
        if made is not None and record.worker == self._runtime.worker:
            # Still ours to begin. Looked up again it would seem to be running, and would never begin.
            self.made[record.id] = record, *made[1:]
        if self._on_trial is not None and self._on_trial == record.id and record.trial is None:
            self._end_trial()

    def made_room(self) -> None:
        """A run of this process ended, or waits: others may be waiting for its place under a limit."""
        self._runtime.suspender.note_free_place()
        if called := list(self._crowded_out)[:CALLED_AT_A_TIME]:
            for task_id in called:
                del self._crowded_out[task_id]
            self._resubmit(called)

    def end(self, task_id: str) -> None:
        """The run has ended, one way or another, or was not begun after all."""
        self._suspects.discard(task_id)
        if self._on_trial == task_id:
            self._end_trial()
        if (watch := self._watches.pop(task_id, None)) is not None:
            watch.cancel()

    async def give_up(self) -> None:
        """Claim nothing more, and wait no longer for the answers to claims: the process stops."""
        self.closed = True
        if given_up := set(self._asking):
            for asking in given_up:
                asking.cancel()
            await asyncio.wait(given_up, timeout=GIVES_UP_WITHIN)

    async def _claim(
        self,
        record: TaskRecord,
        request: TaskRequest,
        slot: Slot,
        policy: TaskOptions,
        recorded: Recorded,
        change: JournalEntry | None,
    ) -> Run | None:
        """Claim the task as it is at `record`, and make a run of it.

        A run that was suspended goes on before new runs begin: where the limit is reached, it is claimed all the same,
        and waits for its place in memory.
        """
        runtime, run, trial = self._runtime, None, self._begin_trial(record, policy)
        started = RunStarted(worker=runtime.worker, trial=trial, tool_version=policy.version)
        over = [RunStartedOver(attempt=record.attempt + 1)] if change is not None and change.value["over"] else []
        entries = () if change is None else (change,)
        may_wait_here = policy.rerun and record.started_at is not None and not runtime.suspender.is_full
        claim = partial(runtime.changes.swap, record, started, *over, actor=self._actor, entries=entries)
        try:
            try:
                within = partial(claim, limits=runtime.dispatch.limits(policy), write=new_write_id(run=True))
                claimed = await self._confirmed(record.id, within)
            except LimitReached:
                if not may_wait_here:
                    raise
                waiting = RunResumeRequested(attempt=record.attempt + 1)
                claimed = await self._confirmed(record.id, partial(claim, waiting, write=new_write_id(run=True)))
            # An answer that came late may find the task given to another, or ended.
            if (claimed.worker, claimed.attempt) == (runtime.worker, record.attempt + 1):
                run = self._run(claimed, request, slot, policy, recorded)
                runtime.dispatch.claimed()
        except (VersionConflict, TransitionRefused):
            logger.debug("task %s was claimed by another worker", short_id(record.id))
        except LimitReached as exc:
            logger.debug("%s", exc)
            if not runtime.engine.abilities.remote and len(self._crowded_out) < MAX_CROWDED_OUT:
                self._crowded_out[record.id] = None
            await runtime.dispatch.refused(record)
        finally:
            if run is None:
                self.end(record.id)
        if run is not None and run.record.trial is not None:
            self._watches[record.id] = asyncio.create_task(self._watch(run))
        return run

    async def _confirmed(self, task_id: str, swap: partial[CoroutineType[Any, Any, TaskRecord]]) -> TaskRecord:
        """The claimed task. While it is not known whether the claim was made, the store is asked again, as long as the
        lease allows; after that the claim is released when there is a lease again."""
        failures, write, asking = 0, swap.keywords["write"], this_task()
        self.claiming.add(task_id)
        self._asking.add(asking)
        try:
            while True:
                try:
                    claimed = await swap()
                except asyncio.CancelledError:
                    self.add_unconfirmed(task_id, write)
                    raise
                except StoreUnavailable as exc:
                    if not (failures or exc.may_have_happened):
                        raise
                    self.add_unconfirmed(task_id, write)
                    if not self._runtime.lease.is_valid:
                        raise
                    await asyncio.sleep(backoff(failures, base=FIRST_PAUSE, limit=LONGEST_PAUSE).total_seconds())
                    failures += 1
                except (VersionConflict, TransitionRefused):
                    # Now an earlier attempt conflicts as well. Where a limit was reached, it may still come.
                    self._unconfirmed.pop(task_id, None)
                    raise
                else:
                    self._unconfirmed.pop(task_id, None)
                    return claimed
        finally:
            self._asking.discard(asking)
            self.claiming.discard(task_id)

    def _run(
        self, record: TaskRecord, request: TaskRequest, slot: Slot, policy: TaskOptions, recorded: Recorded | None
    ) -> Run:
        return Run(
            record,
            request=request,
            runtime=self._runtime,
            slot=slot,
            policy=policy,
            recorded=recorded,
            limits=self._runtime.dispatch.limits(policy),
        )

    async def _read(self, task_id: str) -> tuple[TaskRecord | None, TaskRequest | None]:
        """The task, and its request where that comes with it: of a new task, all that a claim has to read."""
        try:
            return await self._runtime.store.get_with_request(task_id) or (None, None)
        except TaskUnreadable:
            # If it is only the request, the task can be ended with an error.
            logger.debug("task %s cannot be read in one look", short_id(task_id))
        return await self._runtime.store.get(task_id), None

    async def _request_of(self, record: TaskRecord) -> TaskRequest | None:
        try:
            return await self._runtime.store.request(record.id)
        except TaskUnreadable as exc:
            logger.error("task %s is ended, because its request cannot be read: %s", short_id(record.id), exc.why)
            await self._end(record, RunStopped("request", record.name))
            return None

    async def _policy_of(self, record: TaskRecord) -> TaskOptions | None:
        """How the tool is treated; None if the task cannot be run here now."""
        runtime = self._runtime
        try:
            policy = await runtime.policy(record.method, record.name)
        except Exception as exc:
            if runtime.troubles.note(record.id, exc) >= TRIES_TO_LOOK_UP:
                await self._end(record, RunStopped("cannot_start", record.name))
            return None
        if policy is None:
            runtime.troubles.note_missing_tool(record.name)
        return policy

    async def _recorded_of(self, record: TaskRecord, change: JournalEntry | None) -> Recorded | None:
        """What earlier runs recorded, and this one with its claim; None if it cannot be read."""
        try:
            entries: Sequence[JournalEntry] = await self._runtime.store.journal(record.id) if record.attempt else ()
            entries = entries if change is None else (*entries, change)
            return Recorded(entries, outstanding=record.inputs.outstanding)
        except (TaskUnreadable, LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            why = exc.why if isinstance(exc, TaskUnreadable) else repr(exc)
            logger.error("task %s is ended, because its journal cannot be read: %s", short_id(record.id), why)
            return None

    async def _end(self, record: TaskRecord, why: RunStopped) -> None:
        started = RunStarted(worker=self._runtime.worker, tool_version=record.tool_version)
        event, outcome = failed(record.attempt + 1, self._runtime.describe(why), why.reason)
        try:
            await self._runtime.changes.swap(record, started, event, actor=self._actor, outcome=outcome)
        except (VersionConflict, TransitionRefused):
            logger.debug("task %s was claimed by another worker", short_id(record.id))

    # Trials

    def _begin_trial(self, record: TaskRecord, policy: TaskOptions) -> Trial | None:
        """How the run that is about to be claimed is watched."""
        if not is_suspect(record, policy):
            return None
        trial: Trial = "beside" if self._suspects else "alone"
        self._on_trial = record.id
        self._suspects.add(record.id)
        return trial

    def _end_trial(self) -> None:
        self._on_trial = None
        called = list(self._turned_away)
        self._turned_away.clear()
        self._resubmit(called)

    async def _watch(self, run: Run) -> None:
        """Let the run pass its trial when it has lasted for long enough, or only waits."""
        loop = asyncio.get_running_loop()
        # Capped because 2**n outgrows a timedelta.
        times = 2 ** min(run.record.lost - _suspect_from(run.policy), 16)
        until = loop.time() + (self._runtime.settings.trial_duration * times).total_seconds()
        # A tool that begins to wait does not say so.
        while loop.time() < until and not (run.only_waits and run.branches.all_wait()):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN)
        try:
            await self._runtime.changes.change(run.record, TrialPassed(attempt=run.attempt), actor=self._actor)
        except (StoreError, TransitionRefused, UnknownTask) as exc:
            # The next suspect waits until this run has ended.
            logger.debug("the trial of task %s goes on: %s", short_id(run.record.id), exc)

    def _resubmit(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self._background.start(self._runtime.dispatch.resubmit(task_id))


def is_suspect(record: TaskRecord, policy: TaskOptions) -> bool:
    """Whether the task was lost so often that one more loss may be its end."""
    return record.lost >= _suspect_from(policy)


def is_guilty(record: TaskRecord, policy: TaskOptions) -> bool:
    """Whether a task that has just been lost is what killed its process, as far as can be told."""
    times = record.lost + 1
    if times >= policy.max_lost_runs * NEVER_MORE_THAN:
        return True
    return times >= policy.max_lost_runs and (record.trial == "alone" or policy.max_lost_runs == 1)


def tried_again_at(record: TaskRecord, policy: TaskOptions, now: datetime) -> datetime | None:
    """When a lost task is started again; None for at once. The one that was on trial goes before other suspects."""
    return now + LET_OTHERS_FIRST if is_suspect(record, policy) and record.trial is None else None


def _suspect_from(policy: TaskOptions) -> int:
    return max(policy.max_lost_runs - 1, 1)
