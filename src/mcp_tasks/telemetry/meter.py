"""Counts what happens to tasks, and notices callers who do what honest ones do not: an observer of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from mcp_tasks.core.events import (
    InputAnswered,
    InputRequested,
    InputWithdrawn,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunReleased,
    RunStarted,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.core.limits import LIMITS
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import legible
from mcp_tasks.runtime.accesses import Refusal, TaskAccess
from mcp_tasks.runtime.observing import TaskChange, Wanted, Watcher
from mcp_tasks.telemetry.contract import (
    CREATED,
    DELETED,
    ENDED,
    LIMITED,
    LOST_RUNS,
    QUESTIONS,
    READS,
    REFUSED,
    RUN,
    WAIT,
)
from mcp_tasks.telemetry.numbers import OTHER, Numbers
from mcp_tasks.telemetry.suspicion import Suspicion

_CHANGES: frozenset[type[Wanted]] = frozenset(
    {
        TaskCreated,
        RunStarted,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        RunParked,
        RunReleased,
        RunLost,
        TaskCancelled,
        TaskDeleted,
        InputRequested,
        InputAnswered,
        InputWithdrawn,
    }
)

_ENDS: Final = ("completed", "tool_error", "failed", "cancelled")

_METHODS: Final = frozenset(
    {
        "tasks/get",
        "tasks/update",
        "tasks/cancel",
        "tasks/result",
        "tasks/list",
        "subscriptions/listen",
        "tools/call",
        "prompts/get",
        "resources/read",
        "companion",
        "local",
    }
)


class Meter(Watcher):
    """Counts for one runtime.

    Args:
        is_counted: Whether somebody reads the numbers.
        watches_looks: Whether looks at tasks are watched, and not only refusals.
        knows: Whether the server has a tool of that name. Others are counted as `other`: their names are the callers'.
    """

    def __init__(
        self,
        numbers: Numbers,
        suspicion: Suspicion,
        *,
        is_counted: Callable[[], bool],
        watches_looks: Callable[[], bool],
        knows: Callable[[str], bool],
    ) -> None:
        self._numbers = numbers
        self._suspicion = suspicion
        self._is_counted = is_counted
        self._watches_looks = watches_looks
        self._knows = knows
        for limit in LIMITS:
            numbers.expect(LIMITED, limit)
        for why in ("expired", "deleted"):
            numbers.expect(DELETED, why)
        for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "subscriptions/listen"):
            numbers.expect(REFUSED, method, Refusal.UNKNOWN.value)

    def __repr__(self) -> str:
        return "the metrics of tasks"

    def wanted(self) -> Collection[type[Wanted]]:
        """Refusals in any case; everything else only if somebody reads it."""
        looks: set[type[Wanted]] = {TaskAccess} if self._watches_looks() else set()
        changes = _CHANGES if self._is_counted() else frozenset[type[Wanted]]()
        return changes | looks | {Refusal}

    def access(self, access: TaskAccess) -> None:
        """Count a look, or a refusal."""
        method = access.method if access.method in _METHODS else OTHER
        if access.refused is None:
            self._numbers.add(READS, method, by=access.times)
        else:
            self._numbers.add(REFUSED, method, access.refused.value, by=access.times)
            if access.refused is Refusal.LIMIT:
                self._numbers.add(LIMITED, access.detail or OTHER, by=access.times)
        self._suspicion.consider(access)

    def __call__(self, change: TaskChange) -> None:
        """Count a change."""
        tool = self._label(change.task)
        match change.event:
            case TaskCreated():
                self._numbers.add(CREATED, tool)
                for end in _ENDS:
                    self._numbers.expect(ENDED, tool, end)
            case RunStarted():
                self._started(change, tool)
            case TaskDeleted():
                self._numbers.add(DELETED, "expired" if change.actor.kind == "sweep" else "deleted")
            case InputRequested(requests=requests):
                self._numbers.add(QUESTIONS, tool, "asked", by=len(requests))
            case InputAnswered():
                self._numbers.add(QUESTIONS, tool, "answered", by=_closed(change))
            case InputWithdrawn():
                self._numbers.add(QUESTIONS, tool, "withdrawn", by=_closed(change))
            case _:
                self._ended(change, tool)

    def _started(self, change: TaskChange, tool: str) -> None:
        task = change.task
        if task.attempt == 1 and task.started_at is not None:
            self._numbers.observe(WAIT, _seconds(task.created_at, task.started_at), tool)

    def _ended(self, change: TaskChange, tool: str) -> None:
        """A run has ended, and perhaps the task with it."""
        before, end = change.before, _end_of(change)
        if isinstance(change.event, RunLost):
            self._numbers.add(LOST_RUNS, tool)
        if before is not None and before.worker is not None and before.started_at is not None:
            until = change.task.finished_at or change.at
            self._numbers.observe(RUN, _seconds(before.started_at, until), tool, end)
        if change.task.is_final and not isinstance(change.event, RunAskedOnCall):
            self._numbers.add(ENDED, tool, end)

    def _label(self, task: TaskRecord) -> str:
        """The tool of a task, as a label. Prompts and resources are one each: a resource may have any URI."""
        if task.method != "tools/call":
            return task.method
        return legible(task.name) if self._knows(task.name) else OTHER


def _end_of(change: TaskChange) -> str:
    match change.event:
        case RunParked():
            return "parked"
        case RunReleased():
            return "released"
        case RunLost():
            return "lost"
        case RunAskedOnCall():
            return "asked"
        case _:
            status = change.task.status
            return "tool_error" if status is TaskStatus.COMPLETED and change.task.is_error else status.value


def _closed(change: TaskChange) -> int:
    before = 0 if change.before is None else len(change.before.inputs.outstanding)
    after = 0 if change.after is None else len(change.after.inputs.outstanding)
    return max(before - after, 0)


def _seconds(since: datetime, until: datetime) -> float:
    # Two machines may have written them, and their clocks differ.
    return max((until - since).total_seconds(), 0.0)
