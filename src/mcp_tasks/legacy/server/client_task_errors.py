"""What can go wrong with a task of the client, for the tool that asked for it.

Each is an error of the SDK's as well: only those pass through it with their text, if the tool does not catch them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from mcp_tasks.errors import InvalidResponse, TasksError, TaskWasCancelled, UnknownTask
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED

# The parameters of the SDK's own class come first in each of these: it builds errors by them.


class ClientTasksUnsupported(TasksError, MCPError):
    """The client does not host such tasks; nothing was sent. `ctx.elicit` is the way to ask."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)


class ClientTaskTimedOut(TasksError, MCPError, TimeoutError):
    """The client's task did not end in the time given. It goes on: come back for it with `client_task`.

    Attributes:
        task_id: Which task.
    """

    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        super().__init__(code, message, data)
        self.task_id = task_id


class _Unknown(UnknownTask, MCPError):
    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class _Cancelled(TaskWasCancelled, MCPError):
    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class _Invalid(InvalidResponse, MCPError):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        MCPError.__init__(self, code, message, data)


@contextmanager
def for_tools() -> Generator[None]:
    """In here, our own errors are raised as what a tool may let pass: caught as what they are, and with their text."""
    try:
        yield
    except UnknownTask as exc:
        raise _Unknown(INTERNAL_ERROR, str(exc), task_id=exc.task_id) from exc
    except TaskWasCancelled as exc:
        raise _Cancelled(REQUEST_CANCELLED, str(exc), task_id=exc.task_id) from exc
    except InvalidResponse as exc:
        raise _Invalid(INTERNAL_ERROR, str(exc)) from exc
