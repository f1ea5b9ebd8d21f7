"""A task as the 2025-11-25 wire has it: the same in both directions, whoever hosts it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from mcp_tasks.core.pacing import lifetime, poll_interval
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.text import valid_text
from mcp_tasks.wire.render import milliseconds, timestamp

VERSION: Final = "2025-11-25"
"""The one version of the protocol that has these tasks."""

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""The key of `_meta` that ties a message to its task."""

STATUS_NOTIFICATION: Final = "notifications/tasks/status"


def related_task(task_id: str) -> dict[str, Any]:
    """The part of `_meta` that ties a message to a task."""
    return {RELATED_TASK: {"taskId": task_id}}


def render_hosted(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`Task`. `ttl` is always there, null included; whatever else is unset is left out."""
    kept = lifetime(record, now)
    task: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status.value,
        "createdAt": timestamp(record.created_at),
        "lastUpdatedAt": timestamp(record.updated_at),
        "ttl": None if kept is None else milliseconds(kept),
        "pollInterval": milliseconds(poll_interval(record, now)),
    }
    if record.status_message is not None:
        task["statusMessage"] = valid_text(record.status_message)
    return task
