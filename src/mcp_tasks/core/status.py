"""The five statuses of SEP-2663, "Task Status", and which of them are final."""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    """Where a task stands. The values are the words of the wire."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can happen to a task in this status any more."""
        return self in FINAL_STATUSES


FINAL_STATUSES = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
