"""Finding the tool that takes its process down, among all that were lost with it.

Whatever runs in a process that dies is lost, guilty or not. A tool that may run again is started again; after it was
lost too often it is a suspect, and suspects are started one after the other, each watched for a while before the next
one begins. A suspect that is lost while no other ran is what killed its process, and its task ends. One that is lost
beside others is tried first the next time, alone. A longer watch after every further loss finds the slow ones too."""

from __future__ import annotations

from datetime import datetime, timedelta

from mcp_tasks.core.record import TaskRecord, Trial
from mcp_tasks.runtime.policy import ToolPolicy

NEVER_MORE_THAN = 4
"""Times `max_lost_runs` that a task may be lost in all, whoever is to blame: some kill their process from where nobody
looks, and nothing is tried for ever."""

LET_OTHERS_FIRST = timedelta(seconds=5)
"""How much later a suspect is started than the one that was being tried when their process died."""


MAX_TURNED_AWAY = 100
"""Suspects that are remembered to be called when the one on trial has passed; sweeps find the others."""


class Trials:
    """The suspects that run in this process."""

    def __init__(self, duration: timedelta) -> None:
        self._duration = duration
        self._running: set[str] = set()
        self._on_trial: str | None = None
        self._turned_away: dict[str, None] = {}

    def may_start(self, record: TaskRecord, policy: ToolPolicy) -> bool:
        """Whether the task may be claimed now: a suspect waits until no other is on trial."""
        return not is_suspect(record, policy) or self._on_trial is None

    def begin(self, record: TaskRecord, policy: ToolPolicy) -> Trial | None:
        """How the run that is about to be claimed is watched."""
        if not is_suspect(record, policy):
            return None
        trial: Trial = "beside" if self._running else "alone"
        self._on_trial = record.id
        self._running.add(record.id)
        return trial

    def turn_away(self, task_id: str) -> None:
        """A suspect came while another is on trial; it is called when that is over."""
        if len(self._turned_away) < MAX_TURNED_AWAY:
            self._turned_away[task_id] = None

    def called(self) -> list[str]:
        """The suspects that were turned away and may come again, in order; none while another is on trial."""
        if self._on_trial is not None:
            return []
        called = list(self._turned_away)
        self._turned_away.clear()
        return called

    def watched_for(self, record: TaskRecord, policy: ToolPolicy) -> timedelta:
        """How long the run of a suspect is watched."""
        # Capped because 2**n outgrows a timedelta.
        return self._duration * 2 ** min(record.lost - _suspect_from(policy), 16)

    def passed(self, task_id: str) -> None:
        """The run was watched for long enough, or has ended; the next suspect may begin."""
        if self._on_trial == task_id:
            self._on_trial = None

    def end(self, task_id: str) -> None:
        """The run has ended, one way or another."""
        self.passed(task_id)
        self._running.discard(task_id)


def is_suspect(record: TaskRecord, policy: ToolPolicy) -> bool:
    """Whether the task was lost so often that one more loss may be its end."""
    return record.lost >= _suspect_from(policy)


def is_guilty(record: TaskRecord, policy: ToolPolicy) -> bool:
    """Whether a task that has just been lost is what killed its process, as far as can be told."""
    times = record.lost + 1
    if times >= policy.max_lost_runs * NEVER_MORE_THAN:
        return True
    return times >= policy.max_lost_runs and (record.trial == "alone" or policy.max_lost_runs == 1)


def tried_again_at(record: TaskRecord, policy: ToolPolicy, now: datetime) -> datetime | None:
    """When a lost task is started again; None for at once. The one that was on trial goes before other suspects."""
    return now + LET_OTHERS_FIRST if is_suspect(record, policy) and record.trial is None else None


def _suspect_from(policy: ToolPolicy) -> int:
    return max(policy.max_lost_runs - 1, 1)
