"""Durable long-running tasks for MCP servers built on the official Python SDK.

The names of the first hour are here, and are imported when they are asked for: whoever needs only a store or only the
client does not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_tasks.errors import TasksError
    from mcp_tasks.model.limits import Limits
    from mcp_tasks.model.record import TaskStatus
    from mcp_tasks.protocol.shapes import EXTENSION_ID, CreateTaskResult, Task
    from mcp_tasks.runtime import Retry, Settings, TaskChange, TaskContext, current_task
    from mcp_tasks.server import Accepted, Caller, Fallback, Host, TaskMode, Tasks, elicit

    __version__: str

__all__ = [
    "EXTENSION_ID",
    "Accepted",
    "Caller",
    "CreateTaskResult",
    "Fallback",
    "Host",
    "Limits",
    "Retry",
    "Settings",
    "Task",
    "TaskChange",
    "TaskContext",
    "TaskMode",
    "TaskStatus",
    "Tasks",
    "TasksError",
    "__version__",
    "current_task",
    "elicit",
]

_HOMES = {
    "EXTENSION_ID": "mcp_tasks.protocol.shapes",
    "Accepted": "mcp_tasks.server",
    "Caller": "mcp_tasks.server",
    "CreateTaskResult": "mcp_tasks.protocol.shapes",
    "Fallback": "mcp_tasks.server",
    "Host": "mcp_tasks.server",
    "Limits": "mcp_tasks.model.limits",
    "Retry": "mcp_tasks.runtime",
    "Settings": "mcp_tasks.runtime",
    "Task": "mcp_tasks.protocol.shapes",
    "TaskChange": "mcp_tasks.runtime",
    "TaskContext": "mcp_tasks.runtime",
    "TaskMode": "mcp_tasks.server",
    "TaskStatus": "mcp_tasks.model.record",
    "Tasks": "mcp_tasks.server",
    "TasksError": "mcp_tasks.errors",
    "current_task": "mcp_tasks.runtime",
    "elicit": "mcp_tasks.server",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading it takes longer than importing this module.
        return import_module("importlib.metadata").version("mcp-tasks")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
