"""What a server of 2025-11-25 says of tasks, as values: strict where a wait depends on it, lenient elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.legacy.shapes import RELATED_TASK
from mcp_tasks.wire.parse import TaskSnapshot, parse_task

_INSTANTS = ("createdAt", "lastUpdatedAt")


def read_task(data: object) -> TaskSnapshot:
    """A `Task`, which carries neither questions nor an outcome in this era.

    Raises:
        InvalidResponse: It is not one.
    """
    task = mapping(data)
    try:
        status = TaskStatus(task.get("status"))
    except ValueError as exc:
        raise InvalidResponse(f"the server sent something that is not a valid task: {exc}") from exc
    seed = {
        **task,
        "status": TaskStatus.WORKING.value,
        "ttlMs": task.get("ttl"),
        "pollIntervalMs": task.get("pollInterval"),
        **{name: _with_offset(task[name]) for name in _INSTANTS if name in task},
    }
    return replace(parse_task(seed), status=status)


def read_created(result: Mapping[str, Any]) -> TaskSnapshot | None:
    """The task in the answer to a call that asked for one; None if the server answered with the call's own result.

    Raises:
        InvalidResponse: There is a task, and it is not a valid one.
    """
    return read_task(result["task"]) if "task" in result else None


def related_task_id(params: Mapping[str, Any] | None) -> str | None:
    """The task that a message belongs to, if it says."""
    related = mapping(mapping((params or {}).get("_meta")).get(RELATED_TASK))
    task_id = related.get("taskId")
    return task_id if isinstance(task_id, str) else None


def read_progress(params: Mapping[str, Any]) -> Progress | None:
    """The progress in a notification, if it is one."""
    done, total, message = params.get("progress"), params.get("total"), params.get("message")
    if not _is_number(done):
        return None
    return Progress(
        progress=cast(float, done),
        total=cast(float, total) if _is_number(total) else None,
        message=message if isinstance(message, str) else None,
    )


def mapping(value: object) -> JsonObject:
    """An object of JSON; an empty one in place of anything else."""
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}


def _with_offset(value: object) -> object:
    # Without one, what else could it be? Some servers leave it out.
    try:
        instant = datetime.fromisoformat(cast(str, value))
    except (TypeError, ValueError):
        return value
    return value if instant.tzinfo is not None else instant.replace(tzinfo=UTC).isoformat()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
