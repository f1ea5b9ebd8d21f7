"""Our exceptions as JSON-RPC errors: the only place that knows their codes.

What is no exception of ours is a defect here or in a tool; its text may hold anything and stays on the server. What
does go out is valid Unicode: an error that no client can parse answers nobody.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, REQUEST_TIMEOUT, ErrorData

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.text import valid_json, valid_text
from mcp_tasks.errors import (
    QuestionTimedOut,
    ReplayMismatch,
    RunStopped,
    StoreError,
    StoreUnavailable,
    TasksError,
    TaskUnreadable,
    UnknownTask,
)

_STORE_UNAVAILABLE = "The task store cannot take the request now; try again later"
_TASK_UNREADABLE = "This task cannot be read; the server's log says why"


def to_error_data(exc: Exception) -> ErrorData:
    """The JSON-RPC error that a client sees for `exc`."""
    error = _error_data(exc)
    return ErrorData(code=error.code, message=valid_text(error.message), data=valid_json(error.data))


def _error_data(exc: Exception) -> ErrorData:
    match exc:
        case MCPError():
            return exc.error
        case UnknownTask():
            # SEP-2663: -32602 for an invalid or nonexistent id. Unknown, expired and another's are one case.
            return ErrorData(code=INVALID_PARAMS, message=str(exc))
        case QuestionTimedOut():
            return ErrorData(code=REQUEST_TIMEOUT, message=str(exc))
        case RunStopped():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"reason": exc.reason})
        case ReplayMismatch():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"reason": "replay"})
        case StoreUnavailable():
            return ErrorData(code=INTERNAL_ERROR, message=_STORE_UNAVAILABLE)
        case TaskUnreadable():
            return ErrorData(code=INTERNAL_ERROR, message=_TASK_UNREADABLE)
        case StoreError():
            return ErrorData(code=INTERNAL_ERROR, message="The task store failed")
        case TasksError():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc))
        case _:
            return ErrorData(code=INTERNAL_ERROR, message="Internal server error")


class AnswerTimedOut(MCPError, QuestionTimedOut):
    """`QuestionTimedOut` as a tool gets it: caught as a `TimeoutError`, and with a text for the client if it is not."""

    def __init__(self, error: ErrorData, timeout: timedelta | None) -> None:
        MCPError.__init__(self, code=error.code, message=error.message, data=error.data)
        self.timeout = timeout


def to_mcp_error(exc: Exception) -> MCPError:
    """The exception that the SDK turns into that error: `exc` itself, if the SDK can send it as it is."""
    error = to_error_data(exc)
    if isinstance(exc, QuestionTimedOut):
        return AnswerTimedOut(error, exc.timeout)
    return exc if isinstance(exc, MCPError) and exc.error == error else MCPError.from_error_data(error)


def describe(exc: Exception) -> JsonObject:
    """The error as a plain object, for a failed task."""
    error: dict[str, Any] = to_error_data(exc).model_dump(by_alias=True, mode="json", exclude_none=True)
    return error
