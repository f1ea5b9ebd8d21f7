"""Our errors as exceptions of the SDK: the only ones that pass through it with their text."""

from __future__ import annotations

from datetime import timedelta

from mcp.shared.exceptions import MCPError
from mcp_types import ErrorData

from mcp_tasks.errors import QuestionTimedOut
from mcp_tasks.protocol.errors import to_error_data


class AnswerTimedOut(MCPError, QuestionTimedOut):
    """`QuestionTimedOut` as a tool gets it: caught as a `TimeoutError`, and with a text for the client if it is not."""

    def __init__(self, error: ErrorData, timeout: timedelta | None) -> None:
        MCPError.__init__(self, code=error.code, message=error.message, data=error.data)
        self.timeout = timeout


def to_mcp_error(exc: Exception) -> MCPError:
    """The exception that the SDK answers with the error of `exc`: `exc` itself, if it can be sent as it is."""
    error = to_error_data(exc)
    if isinstance(exc, QuestionTimedOut):
        return AnswerTimedOut(error, exc.timeout)
    return exc if isinstance(exc, MCPError) and exc.error == error else MCPError.from_error_data(error)
