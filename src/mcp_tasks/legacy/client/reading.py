"""What a server of 2025-11-25 says of tasks, as values: strict where a wait depends on it, lenient elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.legacy.shapes import IMMEDIATE_RESPONSE, RELATED_TASK, read_task
from mcp_tasks.wire.parse import TaskSnapshot


def read_created(result: Mapping[str, Any]) -> TaskSnapshot | None:
    """The task in the answer to a call that asked for one; None if the server answered with the call's own result.

    Raises:
        InvalidResponse: There is a task, and it is not a valid one.
    """
    return read_task(result["task"]) if "task" in result else None


def read_immediate_response(result: Mapping[str, Any]) -> str | None:
    """The text for the model in the answer to a call that became a task, if there is one."""
    text = mapping(result.get("_meta")).get(IMMEDIATE_RESPONSE)
    return text if isinstance(text, str) else None


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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
