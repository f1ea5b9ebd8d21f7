"""Tasks on the wire of 2025-11-25: the same in both directions, whichever side hosts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, cast

from mcp_tasks.errors import InvalidResponse
from mcp_tasks.model.json import JsonObject, short_message, valid_text
from mcp_tasks.model.limits import lifetime, poll_interval
from mcp_tasks.model.record import Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.shapes import TaskSnapshot, milliseconds, parse_task, timestamp

VERSION: Final = "2025-11-25"
"""The only version of the protocol with these tasks."""

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""The key of `_meta` that ties a message to its task."""

IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"
"""The key of `_meta` in a `CreateTaskResult` with the text that the model reads while the task runs."""

WRAPPED_DATA: Final = "mcp-tasks/data"
"""The key for the `data` of an error that is not an object, beside the `_meta` that names the task."""

REQUEST_CANCELLED: Final = -32800
"""The error of a cancelled task. MCP has no code for it, because a cancelled request is not answered. This one is known
from the Language Server Protocol, and outside of the range that JSON-RPC reserves."""

RESULT_INTERRUPTED: Final = -32802
"""The error of a `tasks/result` that the server ended before its task did: ask again. `ServerCancelled` in the Language
Server Protocol. No other error of a task has it; `data.reason` gives the reason."""

STATUS_NOTIFICATION: Final = "notifications/tasks/status"
PROGRESS_NOTIFICATION: Final = "notifications/progress"

_INSTANTS: Final = ("createdAt", "lastUpdatedAt")


def related_task(task_id: str) -> dict[str, Any]:
    """The part of `_meta` that ties a message to a task."""
    return {RELATED_TASK: {"taskId": task_id}}


def named_result(result: Mapping[str, Any], task_id: str) -> dict[str, Any]:
    """A result that names its task. 2025-11-25: every response that belongs to a task MUST name it."""
    return {**result, "_meta": {**mapping(result.get("_meta")), **related_task(task_id)}}


def related_data(task_id: str, data: Any) -> dict[str, Any]:
    """The `data` of an error that names its task.

    2025-11-25: every response that belongs to a task MUST name it, and an error has no `_meta` of its own. Data that is
    not an object, or has another kind of `_meta`, goes under a key of ours; `plain_data` takes it out again.
    """
    fields: Any = {} if data is None else data
    if not isinstance(fields, Mapping) or not isinstance(fields.get("_meta", {}), Mapping):
        return {WRAPPED_DATA: data, "_meta": related_task(task_id)}
    return {**fields, "_meta": {**fields.get("_meta", {}), **related_task(task_id)}}


def plain_data(data: Any) -> Any:
    """The `data` of an error as its author gave it."""
    return mapping(data).get(WRAPPED_DATA, data)


def task_fields(record: TaskRecord, now: datetime, *, status: str, message: str | None) -> dict[str, Any]:
    """`Task`, with the status and message that its host chooses."""
    kept = lifetime(record, now)
    task: dict[str, Any] = {
        "taskId": record.id,
        "status": status,
        "createdAt": timestamp(record.created_at),
        "lastUpdatedAt": timestamp(record.updated_at),
        # Always there: null means without limit.
        "ttl": None if kept is None else milliseconds(kept),
        "pollInterval": milliseconds(poll_interval(record, now)),
    }
    if message is not None:
        task["statusMessage"] = valid_text(message)
    return task


def read_task(data: object) -> TaskSnapshot:
    """Parse a `Task`, which has neither questions nor an outcome in this version.

    Raises:
        InvalidResponse: It is not one.
    """
    task = mapping(data)
    try:
        status = TaskStatus(task.get("status"))
    except ValueError as exc:
        # It quotes what the server sent, all of it.
        said = short_message(str(exc))
        raise InvalidResponse(f"the server sent something that is not a valid task: {said}") from exc
    seed = {
        **task,
        "status": TaskStatus.WORKING.value,
        "ttlMs": task.get("ttl"),
        "pollIntervalMs": task.get("pollInterval"),
        **{name: _with_offset(task[name]) for name in _INSTANTS if name in task},
    }
    return replace(parse_task(seed), status=status)


def _with_offset(value: object) -> object:
    # Some servers leave the offset out, and mean UTC.
    try:
        instant = datetime.fromisoformat(cast(str, value))
    except (TypeError, ValueError):
        return value
    return value if instant.tzinfo is not None else instant.replace(tzinfo=UTC).isoformat()


def related_task_id(params: Mapping[str, Any] | None) -> str | None:
    """The task that a message belongs to, if it says so."""
    task_id = mapping(mapping((params or {}).get("_meta")).get(RELATED_TASK)).get("taskId")
    return task_id if isinstance(task_id, str) else None


def read_progress(params: Mapping[str, Any]) -> Progress | None:
    """Parse the params of a progress notification; None if they are not valid."""
    done, total, message = params.get("progress"), params.get("total"), params.get("message")
    if not _is_number(done):
        return None
    return Progress(
        progress=cast(float, done),
        total=cast(float, total) if _is_number(total) else None,
        message=message if isinstance(message, str) else None,
    )


def mapping(value: object) -> JsonObject:
    """A JSON object; an empty one in place of any other value."""
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
