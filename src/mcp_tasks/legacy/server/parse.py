"""What requests of 2025-11-25 say of tasks. What is malformed is refused with -32602, in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast, get_args

from mcp_types import INVALID_PARAMS

from mcp_tasks.adapters.era import Offer
from mcp_tasks.core.json import JsonObject
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.input import Action


def parse_task_id(params: JsonObject) -> str:
    """The task that `tasks/get`, `tasks/result` or `tasks/cancel` names. Whatever `_meta` says is not looked at.

    Raises:
        RpcError: There is no id, or it is not a string.
    """
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
    return task_id


def parse_input(params: JsonObject) -> tuple[str | None, Mapping[str, Any]]:
    """The key of the question that `tasks/sendInput` answers, None for the only one; and the answer.

    Raises:
        RpcError: One of the params is not of its type.
    """
    action, content, key, response = (params.get(name) for name in ("action", "content", "key", "response"))
    if key is not None and not isinstance(key, str):
        raise RpcError(INVALID_PARAMS, "params.key must be a string: the key of a question")
    for name, given in (("content", content), ("response", response)):
        if given is not None and not isinstance(given, Mapping):
            raise RpcError(INVALID_PARAMS, f"params.{name} must be an object")
    if response is not None:
        return key, cast("Mapping[str, Any]", response)
    if action not in (None, *get_args(Action)):
        raise RpcError(INVALID_PARAMS, f"params.action must be one of {', '.join(get_args(Action))}")
    answer: dict[str, Any] = {"action": action or "accept"}
    return key, answer if content is None else {**answer, "content": content}


def parse_cursor(params: JsonObject) -> str | None:
    """Where `tasks/list` is to go on; None for the first page.

    Raises:
        RpcError: It is not a string.
    """
    cursor = params.get("cursor")
    if cursor is not None and not isinstance(cursor, str):
        raise RpcError(INVALID_PARAMS, "params.cursor must be a string: the nextCursor of an earlier page")
    return cursor


def parse_retention(task: Any, offer: Offer) -> timedelta | None:
    """How long the task of a call is kept after its end, by its `params.task` and what the author allows.

    `ttl` is what the caller asks for: left out, as long as the author keeps such tasks; null, as long as is allowed.

    Raises:
        RpcError: `params.task` is not an object, or its `ttl` not a number of milliseconds.
    """
    check_task(task)
    wish = cast("Mapping[str, Any]", task)
    if "ttl" not in wish:
        return offer.retention
    return _capped(wish["ttl"], offer.max_retention)


def check_task(task: Any) -> None:
    """Refuse a malformed `params.task`.

    Raises:
        RpcError: It is not an object, or its `ttl` is not a number of milliseconds.
    """
    if not isinstance(task, Mapping):
        raise RpcError(INVALID_PARAMS, 'params.task must be an object, such as {"ttl": 60000}')
    ttl = cast("Mapping[str, Any]", task).get("ttl")
    # A bool is an int to Python, and no number of milliseconds.
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    # Not `isfinite`: it raises for a whole number that no float can hold, which is no more a duration than infinity.
    if ttl is not None and not (is_number and 0 <= ttl <= sys.float_info.max):
        raise RpcError(INVALID_PARAMS, "params.task.ttl must be a number of milliseconds, not negative, or null")


def _capped(ttl: float | None, longest: timedelta | None) -> timedelta | None:
    if ttl is None:
        return longest
    try:
        asked = timedelta(milliseconds=ttl)
    except OverflowError:
        # Longer than there are dates for.
        return longest
    return asked if longest is None else min(asked, longest)


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """The token under which a caller wants to hear of progress; None if it does not."""
    token = meta.get("progressToken")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None
