"""Claiming a task: by compare-and-swap, so whoever comes second finds it claimed, and that is all."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import RunReleased, RunStarted, TrialPassed
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.engines.base import Slot
from mcp_tasks.errors import (
    CannotStart,
    JournalUnreadable,
    RunStopped,
    StoreError,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
)
from mcp_tasks.runtime.ending import failed
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.replay import Replay
from mcp_tasks.runtime.run import Run
from mcp_tasks.runtime.trials import Trials

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger = logging.getLogger(__name__)

TRIES_TO_LOOK_UP = 100
"""How often the look-up of a queued task's tool may fail before the task is ended: with one sweep a second, minutes."""

LOOK_AGAIN = 0.02
"""Seconds between two looks at a run that is on trial."""


class Claims:
    """Makes runs of queued tasks for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._trials = Trials(runtime.settings.trial_duration)
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._made: dict[str, tuple[TaskRecord, TaskRequest]] = {}
        self._actor = Actor("worker", runtime.worker)

    def add_made(self, record: TaskRecord, request: TaskRequest) -> None:
        """A task that was made as claimed, and is about to be run."""
        self._made[record.id] = record, request

    def has_made(self, task_id: str) -> bool:
        """Whether the task is about to be run for the first time."""
        return task_id in self._made

    def forget_made(self, task_id: str) -> None:
        """Look at the task again before it is run: something happened to it."""
        self._made.pop(task_id, None)

    async def claim(self, task_id: str, slot: Slot) -> Run | None:
        """A run of the task, if it is there to be run."""
        runtime = self._runtime
        if task_id in self._made:
            policy = await self._policy_of_made(self._made[task_id][0])
            if (made := self._made.pop(task_id, None)) is not None:
                record, request = made
                return Run(
                    record, request=request, host=runtime, slot=slot, policy=policy or ToolPolicy(), replay=Replay()
                )
        record = await runtime.store.get(task_id)
        if record is None or record.namespace != runtime.namespace or not record.is_queued(runtime.now()):
            return None
        try:
            policy = await runtime.policy(record.method, record.name)
        except Exception as exc:
            if runtime.janitor.note_trouble(task_id, exc) >= TRIES_TO_LOOK_UP:
                await self._end(record, CannotStart(record.name))
            return None
        if policy is None:
            runtime.janitor.note_missing_tool(record.name)
            return None
        # Read before it is claimed: were the store to fail afterwards, we would have a task that we do not run. Nothing
        # is added to the journal of a queued task but with a new version, and then the swap does not succeed.
        replay = await self._replay_of(record)
        request = await runtime.store.request(task_id)
        if request is None:
            return None
        if not runtime.lease.is_valid or not self._trials.may_start(record, policy):
            return None
        started = RunStarted(worker=runtime.worker, trial=self._trials.begin(record, policy))
        try:
            if replay is None:
                await self._end(record, JournalUnreadable(record.name))
            else:
                claimed = await runtime.changes.swap(record, started, actor=self._actor)
                run = Run(claimed, request=request, host=runtime, slot=slot, policy=policy, replay=replay)
                if claimed.trial is not None:
                    self._watches[task_id] = asyncio.create_task(self._watch(run))
                return run
        except (VersionConflict, TransitionRefused):
            logger.debug("task %s… was claimed by another worker", task_id[:12])
        except BaseException:
            self._trials.end(task_id)
            raise
        self._trials.end(task_id)
        return None

    def saw(self, record: TaskRecord) -> None:
        """Take note of a change: a task that is about to begin is looked at again, for it may have been cancelled; one
        on trial may have passed it by getting further."""
        self._made.pop(record.id, None)
        if record.trial is None:
            self._trials.passed(record.id)

    def end(self, task_id: str) -> None:
        """The run has ended, one way or another."""
        self._trials.end(task_id)
        if (watch := self._watches.pop(task_id, None)) is not None:
            watch.cancel()

    async def _end(self, record: TaskRecord, why: RunStopped) -> None:
        """End a task that cannot be started."""
        event, outcome = failed(record.attempt + 1, self._runtime.describe(why))
        started = RunStarted(worker=self._runtime.worker)
        try:
            await self._runtime.changes.swap(record, started, event, actor=self._actor, outcome=outcome)
        except (VersionConflict, TransitionRefused):
            logger.debug("task %s… was claimed by another worker", record.id[:12])

    async def _policy_of_made(self, record: TaskRecord) -> ToolPolicy | None:
        try:
            return await self._runtime.policy(record.method, record.name)
        except Exception:
            # It never began, so it is queued as if it had not been claimed.
            await self._runtime.changes.change(record, RunReleased(attempt=record.attempt), actor=self._actor)
            raise

    async def _replay_of(self, record: TaskRecord) -> Replay | None:
        """What earlier runs recorded; None if it cannot be read."""
        try:
            entries = await self._runtime.store.journal(record.id) if record.attempt else ()
            return Replay(entries, outstanding=record.inputs.outstanding)
        except (TaskUnreadable, LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            why = exc.why if isinstance(exc, TaskUnreadable) else repr(exc)
            logger.error("task %s… is ended, because its journal cannot be read: %s", record.id[:12], why)
            return None

    async def _watch(self, run: Run) -> None:
        """Let the run pass its trial when it has lasted for long enough, or has come to where it only waits."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._trials.watched_for(run.record, run.policy).total_seconds()
        while loop.time() < until and not run.only_waits:  # noqa: ASYNC110 - nothing tells when a tool only waits
            await anyio.sleep(LOOK_AGAIN)
        try:
            await self._runtime.changes.change(run.record, TrialPassed(attempt=run.attempt), actor=self._actor)
        except (StoreError, TransitionRefused, UnknownTask) as exc:
            # The next suspect waits until this run has ended.
            logger.debug("the trial of task %s… goes on: %s", run.record.id[:12], exc)
