"""What a server says about hosted tasks, parsed, and what it is told, as the 2025-11-25 wire has it.

A server is a stranger: whatever is not of the right type is refused with an error that says so.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.methods import parse_server_request
from pydantic import ValidationError

from mcp_tasks.core.pacing import FOR_GOOD
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import StoreError, TasksError, UnknownTask
from mcp_tasks.legacy.client.hosting_tasks import HostingFull, TaskHasEnded
from mcp_tasks.legacy.shapes import RELATED_TASK, REQUEST_CANCELLED, VERSION, named_result, related_data
from mcp_tasks.wire.models import QUESTION_META_KEY

AUGMENTABLE: Final[Mapping[str, tuple[str, str]]] = {
    "sampling/createMessage": ("sampling", "createMessage"),
    "elicitation/create": ("elicitation", "create"),
}
"""The requests that may be tasks: the capability that says whether the client takes them at all, and the one below
`tasks.requests` that says that it takes them as tasks."""


def tasks_capability(declared: Mapping[str, Any]) -> dict[str, Any] | None:
    """`capabilities.tasks` for a client that declares these; None if it has a callback for nothing that can be one."""
    requests: dict[str, dict[str, dict[str, Any]]] = {
        name: {verb: {}} for name, verb in AUGMENTABLE.values() if declared.get(name) is not None
    }
    return {"list": {}, "cancel": {}, "requests": requests} if requests else None


def task_id_of(params: Mapping[str, Any]) -> str:
    """The id in the params of `tasks/get` and others. `related-task` in their `_meta` means nothing."""
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise MCPError(code=INVALID_PARAMS, message="taskId must be a string")
    return task_id


def ttl_of(params: Mapping[str, Any]) -> timedelta | None:
    """How long the server wants the task to be kept; None if it does not say."""
    task: object = params.get("task")
    if not isinstance(task, Mapping):
        raise MCPError(code=INVALID_PARAMS, message="task must be an object, such as {} or {'ttl': 60000}")
    ttl: object = cast("Mapping[str, object]", task).get("ttl")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl < math.inf:
        raise MCPError(code=INVALID_PARAMS, message="task.ttl must be a number of milliseconds, and not negative")
    # Before it is made a duration, of which none is that long.
    return timedelta(milliseconds=min(ttl, FOR_GOOD / timedelta(milliseconds=1)))


def plain_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The params without what makes them a task, checked: one that no callback would get makes no task."""
    plain = {name: value for name, value in params.items() if name != "task"}
    try:
        parse_server_request(method, VERSION, plain)
    except ValidationError as exc:
        where = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:3])
        raise MCPError(
            code=INVALID_PARAMS, message=f"Invalid params for {method}: see {where or 'its schema'}"
        ) from exc
    return plain


def question_of(request: Mapping[str, Any]) -> str | None:
    """Which question of which task of the server a request is, where the server is one of ours and says so."""
    match request.get("_meta"):
        case {**meta} if isinstance(meta.get(QUESTION_META_KEY), str):
            related: object = meta.get(RELATED_TASK)
            return json.dumps([related, meta[QUESTION_META_KEY]])
        case _:
            return None


def position_of(params: Mapping[str, Any]) -> int:
    """The place in a listing that a cursor stands for."""
    cursor = params.get("cursor")
    if cursor is None:
        return 0
    try:
        number = int(base64.urlsafe_b64decode(cast(str, cursor).encode("ascii")).decode("ascii"))
    except (AttributeError, binascii.Error, ValueError):
        number = -1
    if not 0 < number < 2**63 or cursor_at(number) != cursor:
        raise MCPError(code=INVALID_PARAMS, message="Invalid cursor: it was not given by this client")
    return number


def cursor_at(position: int) -> str:
    """The cursor for a place in a listing."""
    return base64.urlsafe_b64encode(b"%020d" % position).decode("ascii")


def render_end(record: TaskRecord, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `tasks/result`: that of the request, with `related-task`.

    Raises:
        MCPError: The request ended in this very error; or the task was cancelled, and there is no result.
    """
    if record.status is TaskStatus.COMPLETED:
        return named_result(outcome.get("result") or {}, record.id)
    if record.status is TaskStatus.FAILED and "error" in outcome:
        error = outcome["error"]
        raise MCPError(error["code"], error["message"], related_data(record.id, error.get("data")))
    raise MCPError(REQUEST_CANCELLED, "The task was cancelled: it has no result", related_data(record.id, None))


def refusal(exc: TasksError) -> MCPError:
    """What a server is told when its request is refused."""
    match exc:
        case UnknownTask() | TaskHasEnded():
            return MCPError(code=INVALID_PARAMS, message=str(exc))
        case HostingFull():
            return MCPError(code=INTERNAL_ERROR, message=str(exc))
        case StoreError():
            # Not its text: where our files are is none of the server's business.
            return MCPError(code=INTERNAL_ERROR, message="The client cannot keep tasks now; try again later")
        case _:
            return MCPError(code=INTERNAL_ERROR, message="The client failed")
