"""Record to wire, for 2025-11-25: another word for some ends, `ttl` always there, and whatever is of a task says so."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, cast

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types import methods as mcp_methods
from pydantic import ValidationError

from mcp_tasks.adapters.era import Offer
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import valid_text
from mcp_tasks.legacy.shapes import (
    IMMEDIATE_RESPONSE,
    REQUEST_CANCELLED,
    RESULT_INTERRUPTED,
    VERSION,
    related_data,
    related_task,
    task_fields,
)
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.tools.channel import in_older_words
from mcp_tasks.wire.render import progress_meta, status_message

_LISTS: Final = ("content", "messages", "contents")
"""What may be long in a result, and is validated part by part: in between, other threads have their turn."""

_BATCH: Final = 500


def render_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`Task`, as it stands in every answer and notification."""
    return task_fields(record, now, status=status_of(record), message=_message(record))


def render_detailed(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """`GetTaskResult`: the task, and the numbers behind its progress message."""
    task = render_task(record, now)
    if record.progress is not None:
        task["_meta"] = progress_meta(record.progress)
    return task


def render_created(record: TaskRecord, offer: Offer, now: datetime) -> dict[str, Any]:
    """`CreateTaskResult`. 2025-11-25: tasks MUST begin as `working`, also one that has got further by now."""
    task = {**render_task(record, now), "status": TaskStatus.WORKING.value}
    created: dict[str, Any] = {"task": task}
    if offer.immediate_response is not None:
        created["_meta"] = {IMMEDIATE_RESPONSE: valid_text(offer.immediate_response)}
    return created


def status_of(record: TaskRecord) -> str:
    """The status in the words of this era, in which a tool that reports an error has failed."""
    return (TaskStatus.FAILED if record.is_error else record.status).value


def render_result(record: TaskRecord, result: JsonObject) -> dict[str, Any]:
    """The result of the request behind a task as a plain call of this era would have it, and whose it is.

    Raises:
        RpcError: -32603, as in a plain call: this era cannot say such a thing.
    """
    shaped = _shaped(record.method, result)
    own = shaped.get("_meta")
    meta = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
    return {**shaped, "_meta": {**meta, **related_task(record.id)}}


def render_error(record: TaskRecord, error: JsonObject) -> RpcError:
    """The error of the request behind a task. Whose it is stands in `data._meta`, where `data` can take it."""
    error = in_older_words(error)
    return RpcError(error["code"], error["message"], related_data(record.id, error.get("data")))


@contextmanager
def related(task_id: str) -> Generator[None]:
    """In here, the refusal of a request for a result names its task."""
    try:
        yield
    except RpcError as exc:
        if exc.code == INVALID_PARAMS:
            # The task is gone, and that is said in the same words of every id.
            raise
        raise RpcError(exc.code, exc.message, related_data(task_id, exc.data)) from exc


def render_cancelled(record: TaskRecord) -> RpcError:
    """What there is to get of a cancelled task."""
    why = f": {record.status_message}" if record.status_message else ""
    return RpcError(REQUEST_CANCELLED, f"The task was cancelled{why}", related_data(record.id, None))


def render_interrupted(task_id: str, reason: str, message: str) -> RpcError:
    """Why a request for the result of a task is answered before there is one. The task goes on."""
    return RpcError(RESULT_INTERRUPTED, message, related_data(task_id, {"reason": reason}))


def _shaped(method: str, result: JsonObject) -> dict[str, Any]:
    """The result without what this era does not know: kept is what the newest can say."""
    fields = dict(result)
    # It may be nearly all of a result, and in this era it is an object of which the schema says no more.
    structured = fields.pop("structuredContent", None) if isinstance(fields.get("structuredContent"), dict) else None
    long = [name for name in _LISTS if isinstance(fields.get(name), list) and len(fields[name]) > _BATCH]
    rest = {**fields, **{name: list[Any]() for name in long}}
    try:
        shaped = mcp_methods.serialize_server_result(method, VERSION, rest)
        for name in long:
            items = cast("list[Any]", fields[name])
            batches = [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]
            parts = [mcp_methods.serialize_server_result(method, VERSION, {**rest, name: batch}) for batch in batches]
            shaped[name] = [item for part in parts for item in part[name]]
    except ValidationError:
        raise RpcError(INTERNAL_ERROR, "Handler returned an invalid result") from None
    return shaped if structured is None else {**shaped, "structuredContent": structured}


def _message(record: TaskRecord) -> str | None:
    """The status message. 2025-11-25 asks for one that says why a task failed."""
    message = status_message(record)
    if message or status_of(record) != TaskStatus.FAILED.value:
        return message
    return "The tool reported an error" if record.is_error else "The request failed"
