"""What requests of 2025-11-25 say of tasks. What is malformed is refused with -32602, in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from mcp_types import INVALID_PARAMS

from mcp_tasks.adapters.era import Offer
from mcp_tasks.core.json import JsonObject
from mcp_tasks.protocol.errors import RpcError


def parse_task_id(params: JsonObject) -> str:
    """The task that `tasks/get`, `tasks/result` or `tasks/cancel` names. Whatever `_meta` says is not looked at.

    Raises:
        RpcError: There is no id, or it is not a string.
    """
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
    return task_id


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
