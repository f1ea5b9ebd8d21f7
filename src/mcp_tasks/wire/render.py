"""Record to wire, for the 2026-07-28 dialect.

What real clients refuse, and so what holds for everything rendered here: `ttlMs` is always there, null
included; milliseconds are integers; instants carry `Z`; whatever is unset is left out, never null; and text
is valid Unicode, whatever a tool made of it (a result is refused before it gets here).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json_bytes import decode_json, encode_json
from mcp_tasks.core.pacing import lifetime, poll_interval
from mcp_tasks.core.record import Outcome, Progress, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import valid_json, valid_text
from mcp_tasks.wire.models import PROGRESS_META_KEY

ACK: Final = MappingProxyType({"resultType": "complete"})
"""The acknowledgement of `tasks/update` and `tasks/cancel`: exactly this, with no task fields."""

_MILLISECOND = timedelta(milliseconds=1)


def render_created(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`CreateTaskResult`: the seed state of the task, flat, with nothing of its outcome."""
    return {"resultType": "task", **_task(record, now)}


def render_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`GetTaskResult`: the task with what its status inlines, but for its outcome (see `render_outcome`)."""
    return {"resultType": "complete", **render_detailed(record, now)}


def render_detailed(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`DetailedTask`, as it stands in a result and in a notification, but for its outcome (see `render_outcome`)."""
    task = _task(record, now)
    if record.progress is not None:
        task["_meta"] = progress_meta(record.progress)
    if record.status is TaskStatus.INPUT_REQUIRED:
        # MUST contain all outstanding requests.
        task["inputRequests"] = {key: render_question(ask) for key, ask in record.inputs.outstanding.items()}
    return task


def render_question(ask: InputRequest) -> dict[str, Any]:
    """`InputRequest`: a question to the client."""
    # `task` is how an older era asks for a task of the client's own. Here clients have none.
    params = {name: value for name, value in ask.params.items() if name != "task"}
    return {"method": ask.method, "params": valid_json(params)}


def render_outcome(record: TaskRecord, outcome: Outcome | None) -> tuple[str, bytes] | None:
    """The field of a detailed task that says how it ended, with its value as JSON bytes; None while it has not.

    The bytes are spliced, never decoded: what an era adds to a result is put around what is stored.
    """
    if outcome is None:
        return None
    if record.status is TaskStatus.COMPLETED:
        return "result", render_result(outcome)
    return ("error", _readable(outcome.body)) if record.status is TaskStatus.FAILED else None


def render_result(outcome: Outcome) -> bytes:
    """The result of a call, as this era marks it."""
    fields = [b'"resultType":"complete"']
    if inner := outcome.body.strip()[1:-1].strip():
        fields.append(inner)
    if outcome.meta is not None:
        fields.append(b'"_meta":' + outcome.meta)
    return b"{" + b",".join(fields) + b"}"


def _readable(error: bytes) -> bytes:
    """The error in text that every parser takes; an older release may have written half a character as an escape."""
    return encode_json(valid_json(decode_json(error))) if b"\\ud" in error.lower() else error


def timestamp(instant: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, the precision of the other times on the wire."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds, rounded up: a promise of time is not shortened, and a wait is never zero."""
    return -(-duration // _MILLISECOND)


def number_text(number: float) -> str:
    """A number as a person writes it: all its digits and no exponent, without the noise of binary fractions."""
    # 15 digits are what a float holds for sure: 0.1 + 0.2 is 0.3.
    return str(number) if isinstance(number, int) else f"{Decimal(f'{number:.15g}'):f}"


def render_moving(record: TaskRecord, now: datetime) -> dict[str, int | None]:
    """The fields of a task that depend on when it is looked at. All others are the same for one version of it."""
    kept = lifetime(record, now)
    return {
        "ttlMs": None if kept is None else milliseconds(kept),
        "pollIntervalMs": milliseconds(poll_interval(record, now)),
    }


def _task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    task: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status.value,
        "createdAt": timestamp(record.created_at),
        "lastUpdatedAt": timestamp(record.updated_at),
        **render_moving(record, now),
    }
    message = status_message(record)
    if message is not None:
        task["statusMessage"] = valid_text(message)
    return task


def status_message(record: TaskRecord) -> str | None:
    """What is said of the state of a task: its own message, or else its progress while it runs."""
    if record.status_message is not None or record.progress is None or record.is_final:
        return record.status_message
    progress = record.progress
    if progress.message is not None:
        return progress.message
    done = number_text(progress.progress)
    return done if progress.total is None else f"{done} of {number_text(progress.total)}"


def progress_meta(progress: Progress) -> dict[str, Any]:
    """The numbers behind a progress message, as `_meta` of a task."""
    numbers = {"progress": progress.progress}
    if progress.total is not None:
        numbers["total"] = progress.total
    return {PROGRESS_META_KEY: numbers}
