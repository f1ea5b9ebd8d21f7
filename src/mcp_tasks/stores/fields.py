"""Records and requests as JSON objects, with a format number.

The *state* is a record but for its id and namespace, which a backend keeps beside it. Durations are microseconds, as
instants are (`columns`).

Format 6 may have the fingerprint of its call, the trace that it belongs to, the task that it is a rerun of, the
pause of its run and the child processes of its runs, and is format 5 otherwise. Format 5 may have a queue, a priority
and the version of its tool, and is format 4 otherwise. Format 4 may have a session, a parent, a result that is an
error, and questions that the client holds as tasks of its own, and is format 3 otherwise: a record without its request
and its result. Formats 1 and 2 had both in it; the one backend that ever wrote them brings them to format 3 when it
migrates its file, so only 3 and up are read here.

Releases of two adjacent formats share a store while a fleet is rolled from one to the other. So a newer state is read
here too, if it says so: `readable` is the first format whose releases may read and write it. What they do not know of
it they write back as it was (`TaskRecord.unknown`), with the number that it had.

A request has no number. What it has more than those of the first release may be left out, and older releases pass it
over: `maxWait` is such a field, and a release that does not know it waits for as long as the tool's own limit says. It
is written once, by whoever makes the task, so nothing of it is lost. One that older releases must not run belongs to a
state that they do not read.

Changing what is written: raise `FORMAT`, keep reading every older number, and add a row to the tests that load states
as older releases wrote them. Leave `READABLE` where it is if a release of that format may go on with such a task as if
nothing were new: fields were added, at the top, and it is no harm that it neither sets nor heeds them. Otherwise (a
field was renamed or means something else, a status, a kind of journal entry or something inside a field is new) it is
`FORMAT`, and older releases leave the task to newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType, NoneType
from typing import Any, TypeAlias, cast

from mcp_tasks.core.inputs import InputBook, InputRequest
from mcp_tasks.core.json import JsonObject, JsonValue
from mcp_tasks.core.record import DEFAULT_QUEUE, ChildProcess, Progress, TaskRecord, TaskRequest, WriteId
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.columns import MICROSECOND, from_micros, to_micros

FORMAT = 6

READABLE = 5
"""The first format whose releases may read, and write back, what is written now."""

NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading fields may raise that this file did not write."""

_NOTHING: JsonObject = MappingProxyType({})
_NO_INPUTS = InputBook()

_Types: TypeAlias = Mapping[str, type | tuple[type, ...]]

_STATE_TYPES: _Types = {
    "format": int,
    "readable": int,
    "status": str,
    "trial": str,
    "pause": str,
    "queue": str,
    "priority": int,
    "toolVersion": (str, NoneType),
    "fingerprint": str,
    "trace": str,
    "rerunOf": str,
    "processes": str,
    "writes": str,
    "owner": (str, NoneType),
    "method": str,
    "name": str,
    "created": int,
    "updated": int,
    "finished": int,
    "started": int,
    "wake": int,
    "retention": int,
    "poll": int,
    "version": int,
    "attempt": int,
    "lost": int,
    "message": str,
    "worker": str,
    "announced": bool,
    "isError": bool,
    "session": str,
    "parent": str,
    "progress": list,
    "inputs": dict,
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
    "maxWait": int,
}


def request_fields(request: TaskRequest) -> dict[str, Any]:
    """What was asked for. What is unset is left out."""
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
    if request.max_wait is not None:
        fields["maxWait"] = request.max_wait // MICROSECOND
    return fields


def request_from(fields: JsonObject) -> TaskRequest:
    """The request with these fields; raises one of `NOT_OURS` if they are damaged."""
    _checked(fields, _REQUEST_TYPES)
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
        max_wait=_duration(fields.get("maxWait")),
    )


def state_fields(record: TaskRecord) -> dict[str, Any]:
    """All of a record but its id and namespace. What is unset is left out."""
    state: dict[str, Any] = {
        "format": FORMAT,
        "owner": record.owner,
        "method": record.method,
        "name": record.name,
        "status": record.status.value,
        "created": to_micros(record.created_at),
        "updated": to_micros(record.updated_at),
        "version": record.version,
        "attempt": record.attempt,
    }
    if READABLE < FORMAT:
        state["readable"] = READABLE
    if record.status_message is not None:
        state["message"] = record.status_message
    if record.progress is not None:
        state["progress"] = [record.progress.progress, record.progress.total, record.progress.message]
    if record.is_error:
        state["isError"] = True
    if record.inputs.used:
        state["inputs"] = _inputs(record.inputs)
    if record.worker is not None:
        state["worker"] = record.worker
    if record.lost:
        state["lost"] = record.lost
    if record.trial is not None:
        state["trial"] = record.trial
    if record.pause is not None:
        state["pause"] = record.pause
    if not record.announced:
        state["announced"] = False
    if record.session is not None:
        state["session"] = record.session
    if record.parent is not None:
        state["parent"] = record.parent
    if record.queue != DEFAULT_QUEUE:
        state["queue"] = record.queue
    if record.priority:
        state["priority"] = record.priority
    if record.tool_version is not None:
        state["toolVersion"] = record.tool_version
    if record.fingerprint is not None:
        state["fingerprint"] = record.fingerprint
    if record.trace is not None:
        state["trace"] = record.trace
    if record.rerun_of is not None:
        state["rerunOf"] = record.rerun_of
    if record.processes:
        state["processes"] = " ".join(map(_process, record.processes))
    if record.writes:
        state["writes"] = " ".join(map(_write, record.writes))
    _put_times(state, record)
    # Last: a newer format stays the one that it is.
    return {**state, **record.unknown} if record.unknown else state


def is_readable(fields: JsonObject) -> bool:
    """Whether this release may read a state with these fields, and write it back."""
    return fields["format"] <= FORMAT or fields.get("readable", fields["format"]) <= FORMAT


def record_from(task_id: str, namespace: str, fields: JsonObject) -> TaskRecord:
    """The record with these fields; raises one of `NOT_OURS` if they are damaged."""
    unknown = _checked(fields, _STATE_TYPES)
    get = fields.get
    progress, inputs = get("progress"), get("inputs")
    return TaskRecord(
        id=task_id,
        namespace=namespace,
        owner=fields["owner"],
        method=fields["method"],
        name=fields["name"],
        status=TaskStatus(fields["status"]),
        status_message=get("message"),
        progress=None if progress is None else _progress_from(*progress),
        inputs=_NO_INPUTS if inputs is None else _inputs_from(inputs),
        is_error=get("isError", False),
        created_at=from_micros(fields["created"]),
        updated_at=from_micros(fields["updated"]),
        finished_at=_instant(get("finished")),
        started_at=_instant(get("started")),
        wake_at=_instant(get("wake")),
        retention=_duration(get("retention")),
        poll_interval=_duration(get("poll")),
        attempt=fields["attempt"],
        worker=get("worker"),
        lost=get("lost", 0),
        trial=get("trial"),
        pause=get("pause"),
        announced=get("announced", True),
        session=get("session"),
        parent=get("parent"),
        queue=get("queue", DEFAULT_QUEUE),
        priority=get("priority", 0),
        tool_version=get("toolVersion"),
        fingerprint=get("fingerprint"),
        trace=get("trace"),
        rerun_of=get("rerunOf"),
        processes=tuple(map(_process_from, get("processes", "").split())),
        writes=tuple(map(_write_from, get("writes", "").split())),
        unknown=unknown if fields["format"] <= FORMAT else _of_newer(fields, unknown),
        version=fields["version"],
    )


def _of_newer(fields: JsonObject, unknown: JsonObject) -> JsonObject:
    """What this release does not know of a newer format: also which it is."""
    return {**unknown, "format": fields["format"], "readable": fields["readable"]}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict(value)


def _inputs(inputs: InputBook) -> dict[str, Any]:
    return {
        "open": {key: _ask(ask) for key, ask in inputs.outstanding.items()},
        "used": sorted(inputs.used),
    }


def _ask(ask: InputRequest) -> list[Any]:
    fields = [ask.method, _plain(ask.params), None if ask.deadline is None else to_micros(ask.deadline)]
    return fields if ask.hosted_as is None else [*fields, ask.hosted_as]


def _write(write: WriteId) -> str:
    return f"{write.writer}:{write.number}" if write.number else write.writer


def _write_from(text: str) -> WriteId:
    writer, _, number = text.partition(":")
    return WriteId(writer, int(number or 0))


def _process(process: ChildProcess) -> str:
    # None of these has a slash or a space in it: see `describe` in runtime/orphans.py.
    return "/".join((str(process.attempt), str(process.group), process.started, process.boot, process.host))


def _process_from(text: str) -> ChildProcess:
    attempt, group, started, boot, host = text.split("/")
    return ChildProcess(attempt=int(attempt), group=int(group), started=started, boot=boot, host=host)


def _put_times(state: dict[str, Any], record: TaskRecord) -> None:
    for key, instant in (
        ("finished", record.finished_at),
        ("started", record.started_at),
        ("wake", record.wake_at),
    ):
        if instant is not None:
            state[key] = to_micros(instant)
    for key, duration in (("retention", record.retention), ("poll", record.poll_interval)):
        if duration is not None:
            state[key] = duration // MICROSECOND


def _checked(fields: JsonObject, types: _Types) -> JsonObject:
    """The fields that are not known, unless one that is is of another type than is ever written."""
    unknown: dict[str, JsonValue] | None = None
    for key, value in fields.items():
        expected = types.get(key)
        if type(value) is expected:
            continue
        if expected is None:
            unknown = {**(unknown or {}), key: value}
        elif not isinstance(value, expected):
            raise TypeError(f"{key!r} is of the type {type(value).__name__}")
    return _NOTHING if unknown is None else unknown


def _progress_from(progress: float, total: float | None, message: str | None) -> Progress:
    if not isinstance(progress, int | float) or not isinstance(total, int | float | None):
        raise TypeError("'progress' is not a number")
    if not isinstance(message, str | None):
        raise TypeError("the message of 'progress' is not text")
    return Progress(progress=progress, total=total, message=message)


def _inputs_from(fields: JsonObject) -> InputBook:
    asked = cast("dict[str, list[Any]]", fields["open"])
    return InputBook(
        outstanding={key: _ask_from(*ask) for key, ask in asked.items()},
        used=frozenset(fields["used"]),
    )


def _ask_from(
    method: str, params: JsonObject, deadline: int | None = None, hosted_as: str | None = None
) -> InputRequest:
    # The first release had no deadlines.
    if not isinstance(method, str) or not isinstance(params, dict):
        raise TypeError("an open question is not a method with its params")
    if not isinstance(hosted_as, str | None):
        raise TypeError("the client's task that holds a question is not named by a string")
    return InputRequest(method=method, params=params, deadline=_instant(deadline), hosted_as=hosted_as)


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else micros * MICROSECOND
