"""Wire to value, for whoever reads tasks of a server: strict where a wait depends on it, lenient elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import short_message
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.wire.models import PROGRESS_META_KEY


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSnapshot:
    """A task as its server last showed it.

    Attributes:
        expires_at: When the server may delete the task, by the server's clock; None for never. It moves while a task
            runs, where the server is one of ours: a running task does not expire.
        progress: The numbers behind the message, where the server is one of ours.
        input_requests: What the task asks of its client, while `input_required`.
        result: The result of the call, once `completed`.
        error: The JSON-RPC error of the call, once `failed`.
    """

    id: str
    status: TaskStatus
    message: str | None = None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    poll_interval: timedelta | None = None
    progress: Progress | None = None
    input_requests: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    result: JsonObject | None = None
    error: JsonObject | None = None

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self.status.is_final

    def to_json(self) -> dict[str, Any]:
        """The task as JSON, in the protocol's words, but for when it expires: as an instant, null for never."""
        pace, progress = self.poll_interval, self.progress
        values = {
            "statusMessage": self.message,
            "progress": progress and {"progress": progress.progress, "total": progress.total},
            "inputRequests": dict(self.input_requests) or None,
            "result": self.result,
            "error": self.error,
        }
        return {
            "taskId": self.id,
            "status": self.status.value,
            "createdAt": self.created_at.isoformat(),
            "lastUpdatedAt": self.updated_at.isoformat(),
            "expiresAt": self.expires_at and self.expires_at.isoformat(),
            "pollIntervalMs": None if pace is None else round(pace.total_seconds() * 1000),
            **{name: value for name, value in values.items() if value is not None},
        }


def parse_task(data: Mapping[str, Any]) -> TaskSnapshot:
    """The task in a result or a notification.

    Raises:
        InvalidResponse: Something that a task must have is missing or of another type.
    """
    try:
        status = TaskStatus(data["status"])
        message = data.get("statusMessage")
        created_at = _instant(data, "createdAt")
        return TaskSnapshot(
            id=_text(data, "taskId"),
            status=status,
            message=message if isinstance(message, str) else None,
            created_at=created_at,
            updated_at=_instant(data, "lastUpdatedAt"),
            expires_at=_later(created_at, _duration(data.get("ttlMs"))),
            poll_interval=_duration(data.get("pollIntervalMs")),
            progress=_progress(data, message),
            input_requests=_questions(data) if status is TaskStatus.INPUT_REQUIRED else {},
            result=_object(data, "result") if status is TaskStatus.COMPLETED else None,
            error=_object(data, "error") if status is TaskStatus.FAILED else None,
        )
    except (KeyError, ValueError, TypeError) as exc:
        raise InvalidResponse(f"the server sent something that is not a valid task: {_flaw(exc)}") from exc


def parse_created(data: Mapping[str, Any]) -> TaskSnapshot:
    """The seed state in a `CreateTaskResult`, which carries no outcome whatever its status is."""
    status = data.get("status")
    # Nothing is inlined at creation; the first look at the task tells the rest.
    seed = {**data, "status": "working"} if status in ("input_required", "completed", "failed") else data
    return parse_task(seed)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} is empty, or not a string")
    return value


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data[key]
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} is not an object")
    return dict(cast("Mapping[str, Any]", value))


def _questions(data: Mapping[str, Any]) -> dict[str, JsonObject]:
    asked = _object(data, "inputRequests")
    return {key: _object(asked, key) for key in asked}


def _instant(data: Mapping[str, Any], key: str) -> datetime:
    instant = datetime.fromisoformat(_text(data, key))
    if instant.tzinfo is None:
        raise ValueError(f"{key} has no offset")
    return instant


def _duration(ms: Any) -> timedelta | None:
    # A bool is an int to Python, and no number of milliseconds.
    if isinstance(ms, bool) or not isinstance(ms, int | float):
        return None
    try:
        return timedelta(milliseconds=ms)
    except (OverflowError, ValueError):
        return None


def _later(instant: datetime, duration: timedelta | None) -> datetime | None:
    try:
        return None if duration is None else instant + duration
    except OverflowError:
        # Beyond the year 9999: nobody will see it expire.
        return None


def _flaw(exc: Exception) -> str:
    # A KeyError says no more than the key; others quote what the server sent, all of it.
    return f"{exc} is missing" if isinstance(exc, KeyError) else short_message(str(exc))


def _progress(data: Mapping[str, Any], message: Any) -> Progress | None:
    meta = data.get("_meta")
    numbers: Any = cast("Mapping[str, Any]", meta).get(PROGRESS_META_KEY) if isinstance(meta, Mapping) else None
    if not isinstance(numbers, Mapping):
        return None
    fields = cast("Mapping[str, Any]", numbers)
    done = _number(fields.get("progress"))
    if done is None:
        return None
    return Progress(
        progress=done, total=_number(fields.get("total")), message=message if isinstance(message, str) else None
    )


def _number(value: Any) -> float | None:
    """A number that can be reckoned with; None for anything else."""
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        # A whole number of hundreds of digits.
        return None
    return value if is_number else None
