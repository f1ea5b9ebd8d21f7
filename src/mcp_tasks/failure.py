"""`TaskFailed`, the one exception of ours that is an error of the SDK's as well: client and server raise it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from mcp_tasks.errors import TasksError


class TaskFailed(TasksError, MCPError):
    """The task failed. Code that handles the `MCPError` of a plain call handles this one too.

    Attributes:
        task_id: Which task.
        error: The JSON-RPC error that it carries; `code`, `message` and `data` are its parts.
    """

    # The parameters of the SDK's own class come first: it builds errors by them, and so does unpickling.
    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        super().__init__(code, message, data)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"task {self.task_id} failed: {self.message}" if self.task_id else self.message


def task_failed(task_id: str, error: Mapping[str, Any], message: str | None) -> TaskFailed:
    """The exception for the error of a failed task, malformed or not."""
    code, said = error.get("code"), error.get("message")
    return TaskFailed(
        code if isinstance(code, int) else 0,
        said if isinstance(said, str) else message or "the server does not say why",
        error.get("data"),
        task_id=task_id,
    )


def is_over_limit(exc: MCPError) -> bool:
    """Whether the transport refused an answer for its size, which is the same the next time."""
    # The SDK has the code of a cut connection for this too, and the reason in the text alone.
    return exc.code == CONNECTION_CLOSED and "byte limit" in exc.message
