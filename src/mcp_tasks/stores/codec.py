"""Record and journal to stored text and back, with a format number.

A backend keeps two texts per task. The *request* is written once and never again: a progress report on a call
with a megabyte of arguments costs no megabyte. The *state* is the rest, but for id and namespace, which a backend
keeps beside the texts. Instants are microseconds since 1970 (exact, and they sort), durations microseconds.

Format 1 is that of the first release. Format 2 adds the deadlines of questions and the count of lost runs, and its
journals hold the outcome of a step as an object (a backend's migration brings older journals there). This release
writes format 2 and reads both.

Changing what is written: raise `FORMAT`, keep reading every older number, and add a row to the tests that
load records as older releases wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, TypeAlias, cast

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.journal import ENTRY_KINDS, EntryKind, JournalEntry
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.pacing import expires_at
from mcp_tasks.core.record import Progress, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskUnreadable, ValueNotStorable

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

    Raises:
        ValueNotStorable: The value is not JSON, or is nested too deeply.
    """
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueNotStorable(f"a value cannot be stored because it cannot be written as JSON: {exc}") from exc
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
    """All of a record but its id, namespace and request. What is unset is left out."""
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
    if record.worker is not None:
        state["worker"] = record.worker
    if record.lost:
        state["lost"] = record.lost
    if record.trial is not None:
        state["trial"] = record.trial
    _put_times(state, record)
    return encode_json(state)


def decode_record(
    task_id: str, request: str, state: str, *, namespace: str = "", owner: str | None = None
) -> TaskRecord:
    """The record behind the two texts.

    Args:
        owner: Whose task it is by what the backend keeps beside the texts; for the error, if there is one.

    Raises:
        TaskUnreadable: The texts are damaged, or a newer release wrote them.
    """
    try:
        fields = json.loads(state)
        if fields["format"] > FORMAT:
            raise TaskUnreadable(task_id, _newer(f"format {fields['format']}"), owner=owner)
        asked_for = _request(_checked(json.loads(request), _REQUEST_TYPES))
        return _record(task_id, namespace, asked_for, _checked(fields, _STATE_TYPES))
    except _NOT_OURS as exc:
        raise TaskUnreadable(task_id, _damaged("its row", exc), owner=owner) from exc


def decode_entry(task_id: str, kind: str, key: str, value: str, *, owner: str | None = None) -> JournalEntry:
    """The journal entry behind its stored parts; the value is `encode_json`'s text.

    Raises:
        TaskUnreadable: The entry is damaged, or a newer release wrote it.
    """
    if kind not in ENTRY_KINDS:
        raise TaskUnreadable(task_id, _newer(f"a journal entry of the unknown kind {kind!r}"), owner=owner)
    try:
        return JournalEntry(kind=cast(EntryKind, kind), key=key, value=json.loads(value))
    except _NOT_OURS as exc:
        raise TaskUnreadable(task_id, _damaged(f"its journal entry {key!r}", exc), owner=owner) from exc


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
    place, dot, task_id = cursor.partition(".")
    digits = place.removeprefix("-")
    # 18 digits hold every instant there is, and fit the integers of every backend.
    if not dot or not digits.isdecimal() or len(digits) > 18:
        raise ValueError("not a cursor of this store")
    return int(place), task_id


_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a text may raise that this file did not write."""

_Types: TypeAlias = Mapping[str, type | tuple[type, ...]]

_STATE_TYPES: _Types = {
    "owner": (str, NoneType),
    "created": int,
    "updated": int,
    "finished": int,
    "started": int,
    "wake": int,
    "ttl": int,
    "poll": int,
    "version": int,
    "attempt": int,
    "lost": int,
    "message": str,
    "worker": str,
    "progress": list,
    "inputs": dict,
    "result": dict,
    "error": dict,
}
_REQUEST_TYPES: _Types = {
    "method": str,
    "name": str,
    "version": str,
    "arguments": dict,
    "meta": dict,
    "clientInfo": (dict, NoneType),
    "clientCapabilities": dict,
    "inputResponses": dict,
    "requestState": str,
}


def _newer(what: str) -> str:
    return f"it has {what}, which this release does not know; use the release that wrote it, or a newer one"


def _damaged(part: str, exc: Exception) -> str:
    # Not `repr`: that of a decoding error shows the whole text, and arguments and results are private.
    return f"{part} is damaged ({type(exc).__name__}: {exc}); restore a backup, or delete the task"


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


def _checked(fields: JsonObject, types: _Types) -> JsonObject:
    """The fields, unless one is of another type than is ever written."""
    for key, value in fields.items():
        if key in types and not isinstance(value, types[key]):
            raise TypeError(f"{key!r} is of the type {type(value).__name__}")
    return fields


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


def _record(task_id: str, namespace: str, request: TaskRequest, fields: JsonObject) -> TaskRecord:
    progress = fields.get("progress")
    inputs = fields.get("inputs")
    return TaskRecord(
        id=task_id,
        namespace=namespace,
        owner=fields["owner"],
        request=request,
        status=TaskStatus(fields["status"]),
        status_message=fields.get("message"),
        progress=None if progress is None else _progress(*progress),
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
        worker=fields.get("worker"),
        lost=fields.get("lost", 0),
        trial=fields.get("trial"),
        version=fields["version"],
    )


def _progress(progress: float, total: float | None, message: str | None) -> Progress:
    if not isinstance(progress, int | float) or not isinstance(total, int | float | None):
        raise TypeError("'progress' is not a number")
    if not isinstance(message, str | None):
        raise TypeError("the message of 'progress' is not text")
    return Progress(progress=progress, total=total, message=message)


def _decode_inputs(fields: JsonObject) -> InputBook:
    asked = cast("dict[str, list[Any]]", fields["open"])
    return InputBook(
        outstanding={key: _ask(*ask) for key, ask in asked.items()},
        used=frozenset(fields["used"]),
    )


def _ask(method: str, params: JsonObject, deadline: int | None = None) -> InputRequest:
    # Format 1 had no deadlines.
    if not isinstance(method, str) or not isinstance(params, dict):
        raise TypeError("an open question is not a method with its params")
    return InputRequest(method=method, params=params, deadline=_instant(deadline))


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else micros * _MICROSECOND
