"""`TaskFailed`, where clients look for it, and `CallLost`: both are errors of the SDK's as well as ours."""

from __future__ import annotations

from typing import Any, Self

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from mcp_tasks.errors import TasksError
from mcp_tasks.failure import TaskFailed, task_failed

__all__ = ["CallLost", "TaskFailed", "task_failed"]


class CallLost(TasksError, MCPError):
    """A call got no answer. Code that handles the `MCPError` of a plain call handles this one too.

    Attributes:
        tool: Which tool was called.
        may_have_run: Whether the call may have been made. If not, it was never sent.
        idempotency_key: The key that it was made under. Where the server honours it, another call under the same one
            comes to the same task. It is not in the text, as it may be all that keeps others from that task.
        error: The JSON-RPC error that the SDK made of it; `code`, `message` and `data` are its parts.
    """

    tool: str = ""
    may_have_run: bool = True
    idempotency_key: str | None = None
    _how_to_go_on: str = ""

    # No constructor of its own: the SDK builds errors by the parameters of its class, and so does unpickling.

    @classmethod
    def of(cls, exc: Exception, *, tool: str, key: str | None, may_have_run: bool, is_honoured: bool) -> Self:
        """The exception for a call that failed with this one."""
        code, data = (exc.code, exc.error.data) if isinstance(exc, MCPError) else (CONNECTION_CLOSED, None)
        lost = cls(code, exc.message if isinstance(exc, MCPError) else str(exc) or type(exc).__name__, data)
        lost.tool, lost.idempotency_key, lost.may_have_run = tool, key, may_have_run
        lost._how_to_go_on = _how_to_go_on(may_have_run=may_have_run, is_honoured=is_honoured and key is not None)
        return lost

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.error.data), self.__dict__

    def __str__(self) -> str:
        return f"the call of {self.tool!r} got no answer: {self.message.rstrip('.')}. {self._how_to_go_on}"


def _how_to_go_on(*, may_have_run: bool, is_honoured: bool) -> str:
    if not may_have_run:
        return "It was never sent, so it was not made: call again when the server can be reached."
    if is_honoured:
        return (
            "It may have been made. Make it again with idempotency_key=exc.idempotency_key: if it was, that gives its "
            "task, and nothing runs twice."
        )
    return (
        "It may have been made, and this server does not say that it honours idempotency keys: find out before you "
        "make it again."
    )
