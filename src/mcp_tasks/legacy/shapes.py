"""A task as the 2025-11-25 wire has it: the same in both directions, whoever hosts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, cast

from mcp_tasks.core.pacing import lifetime, poll_interval
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.text import valid_text
from mcp_tasks.wire.parse import TaskSnapshot, parse_task
from mcp_tasks.wire.render import milliseconds, timestamp

VERSION: Final = "2025-11-25"
"""The one version of the protocol that has these tasks."""

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""The key of `_meta` that ties a message to its task."""

REQUEST_CANCELLED: Final = -32800
"""The error of a cancelled task. MCP gives a cancelled request no answer and so no code; this one is known from the
Language Server Protocol, and outside of what JSON-RPC reserves."""

STATUS_NOTIFICATION: Final = "notifications/tasks/status"


def related_task(task_id: str) -> dict[str, Any]:
    """The part of `_meta` that ties a message to a task."""
    return {RELATED_TASK: {"taskId": task_id}}


def related_data(task_id: str, data: Any) -> Any:
    """The `data` of an error that ended a task, with the task in its `_meta` if there is room for one.

    An error has no `_meta` of its own; and what its author put there arrives as it is.
    """
    if data is not None and not isinstance(data, Mapping):
        return data
    fields = cast("Mapping[str, Any]", data or {})
    own: object = fields.get("_meta", {})
    if not isinstance(own, Mapping):
        return fields
    return {**fields, "_meta": {**cast("Mapping[str, Any]", own), **related_task(task_id)}}


def parse_state(data: Mapping[str, Any]) -> TaskSnapshot:
    """A `Task` of this era, which never carries its outcome.

    Raises:
        InvalidResponse: Something that a task must have is missing or of another type.
    """
    renamed = {"ttlMs": data.get("ttl"), "pollIntervalMs": data.get("pollInterval")}
    nothing: dict[str, Any] = {"result": {}, "error": {}, "inputRequests": {}}
    shown = {name: value for name, value in data.items() if name not in ("_meta", *nothing)}
    return replace(parse_task({**shown, **renamed, **nothing}), result=None, error=None)


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
