"""Telling those who watch of looks at tasks and of refusals: one place for all doors, and nothing where nobody watches.

A refusal is told by the door that answers with it. The short way hands refusals over, and so tells none but its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import AnswerRefused, KeyRefused, LimitExceeded, OwnerRequired, StoreError, UnknownTask
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.accesses import Refusal, TaskAccess, Verb

_VERBS: Final[Mapping[str, Verb]] = {
    "tasks/get": "read",
    "tasks/result": "read",
    "tasks/list": "list",
    "tasks/update": "answer",
    "tasks/cancel": "cancel",
    "subscriptions/listen": "listen",
    "tools/call": "create",
    "prompts/get": "create",
    "resources/read": "create",
}

_LONGEST_ID: Final = 256
"""Of what a caller names and is refused: it may be anything, and waits in memory for those who are told."""


def tell_look(runtime: TaskRuntime, record: TaskRecord, method: str) -> None:
    """A caller has been shown a task of its own."""
    if runtime.tracing is not None:
        runtime.tracing.touched(record)
    if runtime.observers.want(TaskAccess):
        verb, at = _VERBS.get(method, "read"), runtime.now().timestamp()
        runtime.observers.note(TaskAccess(verb, method, record.owner, at, record.id, record.name))


def tell_local_look(runtime: TaskRuntime, record: TaskRecord) -> None:
    """Code of the server's own has looked at a task, for nobody that could be named."""
    if runtime.observers.want(TaskAccess):
        runtime.observers.note(TaskAccess("read", "local", None, runtime.now().timestamp(), record.id, record.name))


def tell_listing(runtime: TaskRuntime, owner: str | None, method: str, shown: int) -> None:
    """A caller has been shown tasks of its own, so many of them."""
    if runtime.observers.want(TaskAccess):
        runtime.observers.note(TaskAccess("list", method, owner, runtime.now().timestamp(), detail=f"{shown} tasks"))


def tell_listening(runtime: TaskRuntime, owner: str | None, named: int, own: Sequence[str]) -> None:
    """A caller is told of tasks of its own from now on. Ids that it named and that are none were failed look-ups."""
    observers, method, now = runtime.observers, "subscriptions/listen", runtime.now().timestamp()
    if observers.want(TaskAccess):
        for task_id in own:
            observers.note(TaskAccess("listen", method, owner, now, task_id))
    if named > len(own):
        observers.note(TaskAccess("listen", method, owner, now, refused=Refusal.UNKNOWN, times=named - len(own)))


def tell_refusal(
    runtime: TaskRuntime, owner: str | None, method: str, why: Exception, *, task_id: object = None
) -> None:
    """A request is answered with a refusal."""
    if not runtime.observers.want(Refusal):
        return
    refusal, detail = refusal_of(why)
    named = task_id[:_LONGEST_ID] if isinstance(task_id, str) else None
    verb, at = _VERBS.get(method, "read"), runtime.now().timestamp()
    runtime.observers.note(TaskAccess(verb, method, owner, at, task_id=named, refused=refusal, detail=detail))


def refusal_of(why: Exception) -> tuple[Refusal, str | None]:
    """Why a request is refused, in one word, and which limit or what of the key it is."""
    cause = why.__cause__ if isinstance(why, RpcError) and why.__cause__ is not None else why
    match cause:
        case UnknownTask():
            return Refusal.UNKNOWN, None
        case LimitExceeded():
            return Refusal.LIMIT, cause.limit
        case KeyRefused():
            return Refusal.KEY, cause.reason
        case OwnerRequired():
            return Refusal.OWNER, None
        case AnswerRefused():
            return Refusal.ANSWER, None
        case StoreError():
            return Refusal.FAILED, None
        case _:
            return _by_code(why) if isinstance(why, RpcError) else (Refusal.FAILED, None)


def _by_code(why: RpcError) -> tuple[Refusal, str | None]:
    if isinstance(why.data, Mapping):
        data = cast("Mapping[str, Any]", why.data)
        reason = str(data.get("reason"))
        if reason == "limit":
            return Refusal.LIMIT, str(data.get("limit"))
        if reason.startswith("key_"):
            return Refusal.KEY, reason
    match why.code:
        case value if value == INVALID_REQUEST:
            return Refusal.OWNER, None
        case value if value in (METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY):
            return Refusal.UNDECLARED, None
        case value if value in (INVALID_PARAMS, HEADER_MISMATCH):
            return Refusal.MALFORMED, None
        case _:
            return Refusal.FAILED, None
