"""Record and journal to stored text and back, with a format number.

A backend keeps two texts per task. The *request* is written once and never again: a progress report on a call
with a megabyte of arguments costs no megabyte. The *state* is all the rest. Instants are microseconds since
1970 (exact, and they sort), durations microseconds.

Changing what is written: raise `FORMAT`, keep reading every older number, and add a row to the tests that
load records as older releases wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.journal import ENTRY_KINDS, EntryKind, JournalEntry
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.pacing import expires_at
from mcp_tasks.core.record import Progress, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import StoreCorrupt

FORMAT = 2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_micros(instant: datetime) -> int:
    """An aware instant as microseconds since 1970."""
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant `to_micros` came from."""
    return _EPOCH + micros * _MICROSECOND


def encode_json(value: JsonValue) -> str:
    """JSON as text that any backend can keep.

    A lone surrogate (valid in a JSON escape, not in UTF-8) makes the text unencodable, so such a value is
    written with escapes throughout; it is rare enough to try the short way first.
    """
    text = _encoder.encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def encode_request(request: TaskRequest) -> str:
    """The part of a record that never changes."""
    fields: dict[str, Any] = {
        "method": request.method,
        "name": request.name,
        "arguments": _plain(request.arguments),
        "meta": _plain(request.meta),
        "version": request.protocol_version,
        "clientInfo": None if request.client_info is None else _plain(request.client_info),
        "clientCapabilities": _plain(request.client_capabilities),
    }
    if request.input_responses is not None:
        fields["inputResponses"] = _plain(request.input_responses)
    if request.request_state is not None:
        fields["requestState"] = request.request_state
    return encode_json(fields)


def encode_state(record: TaskRecord) -> str:
    """All of a record but its request. What is unset is left out."""
    state: dict[str, Any] = {
        "format": FORMAT,
        "owner": record.owner,
        "status": record.status.value,
        "created": to_micros(record.created_at),
        "updated": to_micros(record.updated_at),
        "version": record.version,
        "attempt": record.attempt,
    }
    if record.status_message is not None:
        state["message"] = record.status_message
    if record.progress is not None:
        state["progress"] = [record.progress.progress, record.progress.total, record.progress.message]
    if record.inputs.used:
        state["inputs"] = _encode_inputs(record.inputs)
    if record.result is not None:
        state["result"] = _plain(record.result)
    if record.error is not None:
        state["error"] = _plain(record.error)
    if record.holder is not None:
        state["holder"] = record.holder
    if record.lost:
        state["lost"] = record.lost
    if record.namespace:
        state["namespace"] = record.namespace
    _put_times(state, record)
    return encode_json(state)


def decode_record(task_id: str, request: str, state: str) -> TaskRecord:
    """The record behind the two texts.

    Raises:
        StoreCorrupt: They are not ours, or a newer release wrote them.
    """
    try:
        fields = json.loads(state)
        if fields["format"] > FORMAT:
            raise StoreCorrupt(
                f"task {task_id} was written in format {fields['format']}; this release reads {FORMAT}. "
                "Use the release that wrote it, or a newer one."
            )
        return _record(task_id, _request(json.loads(request)), fields)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise StoreCorrupt(f"the stored state of task {task_id} cannot be read: {exc!r}") from exc


def decode_entry(kind: str, key: str, value: str) -> JournalEntry:
    """The journal entry behind its stored parts; the value is `encode_json`'s text.

    Raises:
        StoreCorrupt: They are not ours.
    """
    if kind not in ENTRY_KINDS:
        raise StoreCorrupt(f"a journal entry is of the unknown kind {kind!r}: use the release that wrote it")
    try:
        return JournalEntry(kind=cast(EntryKind, kind), key=key, value=json.loads(value))
    except ValueError as exc:
        raise StoreCorrupt(f"the journal entry {key!r} cannot be read: {exc!r}") from exc


def sort_key(record: TaskRecord) -> int:
    """Where a task stands among all: by its creation."""
    return to_micros(record.created_at)


def expiry(record: TaskRecord) -> int | None:
    """When the task may be removed, for a backend's index; None for never or not yet."""
    deadline = expires_at(record)
    return None if deadline is None else to_micros(deadline)


def ready(record: TaskRecord) -> int | None:
    """From when on the task is queued, for a backend's index; None if it is not."""
    return None if record.ready_at is None else to_micros(record.ready_at)


def encode_cursor(place: int, task_id: str) -> str:
    """The place after a task in a listing: where it stands, and its id for those that stand at the same place."""
    return f"{place}.{task_id}"


def decode_cursor(cursor: str) -> tuple[int, str]:
    """Place and id of the last task listed.

    Raises:
        ValueError: It is not a cursor of ours.
    """
    created, dot, task_id = cursor.partition(".")
    # 18 digits hold every instant there is, and fit the integers of every backend.
    if not dot or not created.removeprefix("-").isdecimal() or len(created) > 19:
        raise ValueError("not a cursor of this store")
    return int(created), task_id


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict(value)


def _encode_inputs(inputs: InputBook) -> dict[str, Any]:
    return {
        "open": {
            key: [ask.method, _plain(ask.params), None if ask.deadline is None else to_micros(ask.deadline)]
            for key, ask in inputs.outstanding.items()
        },
        "used": sorted(inputs.used),
    }


def _put_times(state: dict[str, Any], record: TaskRecord) -> None:
    for key, instant in (
        ("finished", record.finished_at),
        ("started", record.started_at),
        ("wake", record.wake_at),
    ):
        if instant is not None:
            state[key] = to_micros(instant)
    for key, duration in (("ttl", record.ttl), ("poll", record.poll_interval)):
        if duration is not None:
            state[key] = duration // _MICROSECOND


def _request(fields: JsonObject) -> TaskRequest:
    return TaskRequest(
        method=fields["method"],
        name=fields["name"],
        arguments=fields["arguments"],
        meta=fields["meta"],
        protocol_version=fields["version"],
        client_info=fields["clientInfo"],
        client_capabilities=fields["clientCapabilities"],
        input_responses=fields.get("inputResponses"),
        request_state=fields.get("requestState"),
    )


def _record(task_id: str, request: TaskRequest, fields: JsonObject) -> TaskRecord:
    progress = fields.get("progress")
    inputs = fields.get("inputs")
    return TaskRecord(
        id=task_id,
        owner=fields["owner"],
        request=request,
        status=TaskStatus(fields["status"]),
        status_message=fields.get("message"),
        progress=None if progress is None else Progress(progress=progress[0], total=progress[1], message=progress[2]),
        inputs=InputBook() if inputs is None else _decode_inputs(inputs),
        result=fields.get("result"),
        error=fields.get("error"),
        created_at=from_micros(fields["created"]),
        updated_at=from_micros(fields["updated"]),
        finished_at=_instant(fields.get("finished")),
        started_at=_instant(fields.get("started")),
        wake_at=_instant(fields.get("wake")),
        ttl=_duration(fields.get("ttl")),
        poll_interval=_duration(fields.get("poll")),
        attempt=fields["attempt"],
        holder=fields.get("holder"),
        lost=fields.get("lost", 0),
        namespace=fields.get("namespace", ""),
        version=fields["version"],
    )


def _decode_inputs(fields: JsonObject) -> InputBook:
    asked = cast("dict[str, list[Any]]", fields["open"])
    return InputBook(
        # Format 1 had no deadlines.
        outstanding={
            key: InputRequest(method=ask[0], params=ask[1], deadline=_instant(ask[2] if len(ask) > 2 else None))
            for key, ask in asked.items()
        },
        used=frozenset(fields["used"]),
    )


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else micros * _MICROSECOND
