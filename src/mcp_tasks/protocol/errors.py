"""Our exceptions as JSON-RPC errors: the only place that knows their codes.

An exception that is not ours is a defect here or in a tool; its text may hold anything and stays on the server. Every
message is valid Unicode, so that every client can parse it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, REQUEST_TIMEOUT, ErrorData

from mcp_tasks.errors import (
    AnswerRefused,
    KeyRefused,
    LimitExceeded,
    OwnerRequired,
    QuestionTimedOut,
    ReplayMismatch,
    RunStopped,
    StoreError,
    StoreUnavailable,
    TasksError,
    TaskUnreadable,
    UnknownTask,
)
from mcp_tasks.model.json import JsonObject, JsonValue, valid_json, valid_text
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED, MAY_HAVE_HAPPENED, UNAVAILABLE
from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

_STORE_UNAVAILABLE = "The task store cannot take the request now; try again later"
_STORE_SILENT = (
    "The task store did not answer: the request may have been carried out. Do not simply repeat a call: check first "
    "whether it was made"
)
_TASK_UNREADABLE = "This task cannot be read; the server's log says why"


class RpcError(Exception):
    """A request is refused with this JSON-RPC error. Adapters send it in the way of their transport."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        self.error: ErrorData = ErrorData(code=code, message=valid_text(message), data=valid_json(data))
        super().__init__(self.error.message)

    @property
    def code(self) -> int:
        """The code, one of those that JSON-RPC, MCP or SEP-2663 define."""
        return self.error.code

    @property
    def message(self) -> str:
        """What went wrong, for people."""
        return self.error.message

    @property
    def data(self) -> JsonValue:
        """What went wrong, for programs."""
        return self.error.data


class refusing:
    """In here, an error of the runtime is the refusal of a request."""

    # No generator: that would cost a poll more than its look at the store.

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(exc, TasksError):
            error = to_error_data(exc)
            raise RpcError(error.code, error.message, error.data) from exc


@contextmanager
def discreet(method: str) -> Generator[None]:
    """In here, a defect of ours refuses the request with an internal error that says nothing of it; the log does.

    For wires on which the SDK would send the text of an exception that it does not know.
    """
    try:
        yield
    except (RpcError, TasksError):
        raise
    except Exception as exc:
        if isinstance(getattr(exc, "error", None), ErrorData):
            raise
        logger.error("%s failed, and its client was told of an internal error", method, exc_info=quietly())
        error = to_error_data(exc)
        raise RpcError(error.code, error.message, error.data) from exc


def to_error_data(exc: Exception) -> ErrorData:
    """The JSON-RPC error that a client sees for `exc`."""
    # An `RpcError`, or one of the SDK's own.
    error: object = getattr(exc, "error", None)
    if not isinstance(error, ErrorData):
        error = _error_data(exc)
    return ErrorData(code=error.code, message=valid_text(error.message), data=valid_json(error.data))


def describe(exc: Exception) -> JsonObject:
    """The error as a plain object, for a failed task."""
    error: dict[str, Any] = to_error_data(exc).model_dump(by_alias=True, mode="json", exclude_none=True)
    return error


def _error_data(exc: Exception) -> ErrorData:
    match exc:
        case UnknownTask():
            # SEP-2663: -32602 for an invalid or nonexistent id. Unknown, expired and another's are one case.
            return ErrorData(code=INVALID_PARAMS, message=str(exc))
        case OwnerRequired():
            # Neither MCP nor the SDK has a code for it: a request without a token is refused before it is JSON-RPC.
            return ErrorData(code=INVALID_REQUEST, message=str(exc), data={"reason": "owner_required"})
        case KeyRefused():
            return ErrorData(code=INVALID_PARAMS, message=str(exc), data={"reason": exc.reason})
        case LimitExceeded():
            return ErrorData(code=LIMIT_EXCEEDED, message=str(exc), data=_limit_data(exc))
        case AnswerRefused():
            return ErrorData(code=exc.code, message=exc.message, data=exc.data)
        case QuestionTimedOut():
            return ErrorData(code=REQUEST_TIMEOUT, message=str(exc))
        case RunStopped() | ReplayMismatch():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc), data={"reason": exc.reason})
        case StoreUnavailable(may_have_happened=True):
            return ErrorData(code=INTERNAL_ERROR, message=_STORE_SILENT, data={"reason": MAY_HAVE_HAPPENED})
        case StoreUnavailable():
            return ErrorData(code=INTERNAL_ERROR, message=_STORE_UNAVAILABLE, data={"reason": UNAVAILABLE})
        case TaskUnreadable():
            return ErrorData(code=INTERNAL_ERROR, message=_TASK_UNREADABLE)
        case StoreError():
            return ErrorData(code=INTERNAL_ERROR, message="The task store failed")
        case TasksError():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc))
        case _:
            return ErrorData(code=INTERNAL_ERROR, message="Internal server error")


def _limit_data(exc: LimitExceeded) -> JsonObject:
    data: dict[str, Any] = {"reason": "limit", "limit": exc.limit}
    if exc.retry_after is not None:
        # Up: a client that comes back a moment too early would be told to wait for no time at all.
        data["retryAfterMs"] = math.ceil(exc.retry_after / timedelta(milliseconds=1))
    return data
