"""What happens to tasks, as entries of the audit log: an observer like any other, in a thread of its own.

Looks at tasks are many, and a caller can have as many refusals as it likes: the first look of a principal at a task is
written at once, and those of the minute after it as one entry with their number. So are its refusals for one reason,
whichever tasks they are about. What could not be told to this observer is an entry, too.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import (
    InputAnswered,
    InputRequested,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    TaskCancelled,
    TaskCreated,
    TaskDeleted,
)
from mcp_tasks.runtime.accesses import Refusal, TaskAccess, Verb
from mcp_tasks.runtime.observing import TaskChange, Wanted, Watcher
from mcp_tasks.telemetry.audit_log import AuditEntry, AuditEvent, AuditLog

TOGETHER_FOR: Final = 60.0
"""Seconds for which looks of one principal at one task, and its refusals for one reason, are written as one entry."""

MOST_TOGETHER: Final = 10_000
"""Of these, those that are counted at a time. Beyond it, the oldest is written before its time."""

_SELF: Final = Actor("worker")

_CHANGES: frozenset[type[Wanted]] = frozenset(
    {
        TaskCreated,
        InputRequested,
        InputAnswered,
        RunCompleted,
        RunFailed,
        RunAskedOnCall,
        TaskCancelled,
        TaskDeleted,
    }
)

_READS: Final[dict[Verb, AuditEvent]] = {"read": "read", "list": "listed", "listen": "listened"}


class _Later:
    """Looks or refusals that came after the first of their kind."""

    __slots__ = ("count", "last", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.last: TaskAccess | None = None
        self.count = 0

    def add(self, access: TaskAccess) -> None:
        if self.last is not None and self.last.task_id != access.task_id:
            # Of several tasks: a count of them all names none.
            access = access._replace(task_id=None)
        self.last = access
        self.count += access.times


class Audit(Watcher):
    """Writes the audit log of one runtime."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._later: OrderedDict[tuple[str | None, ...], _Later] = OrderedDict()

    def __repr__(self) -> str:
        return "the audit log"

    def wanted(self) -> Collection[type[Wanted]]:
        """Nothing, as long as nobody reads it."""
        return _CHANGES | {TaskAccess, Refusal} if self._log.is_read() else ()

    def __call__(self, change: TaskChange) -> None:
        """Write down a change."""
        task = change.task
        event, reason = _event_of(change)
        self._log.write(
            AuditEntry(
                event=event,
                actor=change.actor,
                owner=task.owner,
                task_id=task.id,
                tool=task.name,
                method=task.method,
                outcome=task.status.value if event in ("created", "answered", "asked") else None,
                reason=reason,
                about=task.rerun_of if event == "created" else None,
                at=change.at,
            )
        )

    def access(self, access: TaskAccess) -> None:
        """Write down a look at a task, or a refusal."""
        self.tick()
        key = _kind_of(access)
        later = self._later.get(key)
        if later is not None:
            later.add(access)
            return
        self._log.write(_entry(access))
        if len(self._later) >= MOST_TOGETHER:
            self._write_oldest()
        self._later[key] = _Later(self._clock())

    def lost(self, count: int) -> None:
        """Write down that something cannot be."""
        entry = AuditEntry(event="lost", actor=_SELF, count=count, reason=f"entries lost: {count} (too many at once)")
        self._log.write(entry)

    def tick(self) -> None:
        """Write down the looks and refusals whose minute is over."""
        now = self._clock()
        while self._later:
            if now < next(iter(self._later.values())).since + TOGETHER_FOR:
                return
            self._write_oldest()

    def close(self) -> None:
        """Write down what has only been counted so far."""
        while self._later:
            self._write_oldest()
        self._log.close()

    def _write_oldest(self) -> None:
        _, later = self._later.popitem(last=False)
        if later.last is not None:
            self._log.write(_entry(later.last._replace(times=later.count)))


def _kind_of(access: TaskAccess) -> tuple[str | None, ...]:
    """What is one entry for a minute. Refusals do not go by the task: a caller names as many as it likes."""
    if access.refused is None:
        return access.owner, access.task_id, access.method
    return access.owner, None, access.method, access.verb, access.refused.value, access.detail


def _entry(access: TaskAccess) -> AuditEntry:
    outcome: str | None = None
    reason: str | None = None
    event: AuditEvent = _READS.get(access.verb, "read")
    if access.refused is not None:
        event, outcome = "refused", access.verb
        reason = str(access.refused) if access.detail is None else f"{access.refused}: {access.detail}"
    return AuditEntry(
        event=event,
        actor=Actor("client", access.owner),
        task_id=access.task_id,
        tool=access.tool,
        method=access.method,
        outcome=outcome,
        reason=reason,
        count=access.times,
        at=datetime.fromtimestamp(access.at, UTC),
    )


def _event_of(change: TaskChange) -> tuple[AuditEvent, str | None]:
    """What a change is called here, and why it came about."""
    match change.event:
        case TaskCreated():
            return "created", None
        case InputRequested():
            return "asked", None
        case InputAnswered():
            return "answered", None
        case TaskCancelled():
            return "cancelled", None
        case RunFailed(reason=reason):
            return "failed", reason or "error"
        case RunCompleted(is_error=is_error):
            return "completed", "isError" if is_error else None
        case RunAskedOnCall():
            return "completed", "asked on the call"
        case TaskDeleted():
            return ("expired", None) if change.actor.kind == "sweep" else ("deleted", _why_deleted(change))
        case _:
            raise ValueError(f"{change.event!r} is nothing that the audit log tells of")


def _why_deleted(change: TaskChange) -> str | None:
    return None if change.task.announced else "answered on the call"
