"""Params of the tasks methods, the models of a task, and the names this extension reserves.

Results are rendered as plain dicts (see `render`): the SDK drops nulls from models, and a null `ttlMs` must
reach the wire. `Task` and `CreateTaskResult` are for code that reads or writes messages itself.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final, Literal, cast

from mcp_types import RequestParams, Result
from pydantic import BaseModel, ConfigDict, Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from mcp_tasks.errors import InvalidResponse
from mcp_tasks.model.json import JsonObject, JsonValue, decode_json, encode_json, short_message, valid_json, valid_text
from mcp_tasks.model.limits import lifetime, poll_interval
from mcp_tasks.model.record import InputRequest, Outcome, Progress, TaskRecord, TaskStatus

EXTENSION_ID: Final = "io.modelcontextprotocol/tasks"
"""SEP-2663, "Extension Identifier"."""

PROGRESS_META_KEY: Final = "mcp-tasks/progress"
"""Where the numbers behind a progress message are, in `_meta` of a task. Ours, not the extension's."""


QUESTION_META_KEY: Final = "mcp-tasks/question"
"""Which question of its task it is, in `_meta` of a question that comes as a request of its own: the same however often
it is sent. Ours, like the one above."""

IDEMPOTENCY_KEY: Final = "mcp-tasks/idempotencyKey"
"""Under which key of its caller a call is made, in its `_meta`: made again under the same one, it comes to the same
task. Ours."""

LONGEST_KEY: Final = 255
"""Characters of such a key."""

REPEATED_META_KEY: Final = "mcp-tasks/repeated"
"""That a call under such a key may have been made before, in its `_meta`: if its server cannot tell, because it keeps
nothing of calls of that tool, it refuses."""

IDEMPOTENCY_CAPABILITY: Final = "mcp-tasks/idempotencyKeys"
"""By which a server says, among its experimental capabilities, that it honours such keys. Not among the settings of the
extension: its schema has none."""

LIMIT_EXCEEDED: Final = -32010
"""The code of an error: the caller takes more than it may. Of the range that JSON-RPC leaves to servers, and in use by
no version of MCP; ours, too. Its data names the limit, and says when to come back, where that helps: `retryAfterMs`."""

UNAVAILABLE: Final = "unavailable"
"""The `data.reason` of an error: the server's store cannot be used now, and the request was not carried out."""

MAY_HAVE_HAPPENED: Final = "may_have_happened"
"""The `data.reason` of an error: the server's store gave no answer, and the request may have been carried out."""


class AnyParams(RequestParams):
    """Params that are looked at later."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class TaskParams(RequestParams):
    """Params of `tasks/get` and `tasks/cancel`."""

    # Lax mode would take 7 for "7"; the schema says string.
    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    task_id: str = Field(alias="taskId")


class UpdateTaskParams(TaskParams):
    """Params of `tasks/update`.

    The answers are not typed further here: SEP-2663 has us ignore keys that are not outstanding, whatever
    their values look like, so only the question can say what its answer must be.
    """

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class _TaskFields(BaseModel):
    """The fields of a task on the wire."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None

    @model_serializer(mode="wrap")
    def _with_ttl(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        # SEP-2663: a null ttlMs means that the task is kept for good, so `exclude_none` must not drop it.
        return {**handler(self), "ttlMs" if info.by_alias else "ttl_ms": self.ttl_ms}


class Task(_TaskFields):
    """A task of 2026-07-28 (SEP-2663), without its outcome.

    Attributes:
        created_at: ISO 8601 text, and so is `last_updated_at`.
        ttl_ms: How long the task is kept, in milliseconds from its creation; None for good.
        poll_interval_ms: How long to wait between polls, in milliseconds.
    """


class CreateTaskResult(_TaskFields, Result):
    """The answer to a call that became a task (SEP-2663): the fields of the task, and `resultType`."""

    result_type: Literal["task"] = "task"


# ---- message


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The result of a request, or the params of a notification.

    Attributes:
        fields: Its fields, small whatever the task is about.
        large: One more field, as JSON bytes: the outcome. Kept apart so that it is never decoded only to be encoded
            again.
    """

    fields: dict[str, Any]
    large: tuple[str, bytes] | None = None

    def encode(self) -> bytes:
        """The whole object as JSON."""
        fields = encode_plain(self.fields)
        if self.large is None:
            return fields
        name, value = self.large
        return b"%b,%b:%b}" % (fields[:-1], encode_plain(name), value)


# ---- render
# Record to wire, as 2026-07-28 has it.


_MILLISECOND = timedelta(milliseconds=1)


def render_created(record: TaskRecord) -> dict[str, Any]:
    """`CreateTaskResult`: the seed state of the task, flat, with nothing of its outcome."""
    # As of its last change: the task is there, and the answer goes out also while the server stops.
    return {"resultType": "task", **_task(record, record.updated_at)}


def render_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`GetTaskResult`: the task with what its status inlines, but for its outcome (see `render_outcome`)."""
    return {"resultType": "complete", **render_detailed(record, now)}


def render_detailed(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`DetailedTask`, the params of `notifications/tasks`, but for its outcome (see `render_outcome`)."""
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
    has_message = record.status_message is not None or record.progress is not None
    if has_message and (message := status_message(record)) is not None:
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


# ---- parse
# Wire to value, for whoever reads tasks of a server: strict where a wait depends on it, lenient elsewhere.


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


# ---- headers
# The HTTP headers by which requests for tasks are routed (SEP-2663, "Routing Headers").


NAME_HEADER: Final = "mcp-name"
"""Names the task of a request, so that it can be routed without reading its body. In lower case, as doors give it."""

ENCODED_HEADER: Final = "=?base64?"
"""The beginning of a value that is encoded."""

_ENCODED = re.compile(r"=\?base64\?(?P<payload>.*)\?=")


def decode_header(value: str) -> str | None:
    """The value that a header stands for; None for one that is encoded, and not as it should be.

    A value that HTTP would not carry as it is comes as `=?base64?...?=`. Only what the encoder would have made of a
    value counts, so that two spellings never name one task.
    """
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    payload = encoded["payload"]
    try:
        decoded = base64.b64decode(payload, validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == payload else None
    except (binascii.Error, UnicodeError, ValueError):
        return None


# ---- plain json
# JSON of what is known to be JSON, such as what came over the wire, in a third of the time.


def encode_plain(value: JsonValue) -> bytes:
    """The same value as `encode_json` writes. Of an object that is no JSON, a date or a set, it makes some instead of
    refusing it.

    Raises:
        ValueNotStorable: The value is nested too deeply.
    """
    try:
        return to_json(value)
    except ValueError:
        # A lone surrogate, or what only the standard library takes.
        return encode_json(value)
