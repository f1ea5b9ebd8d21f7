"""The one place where machine, store and engine meet. It knows no wire and no SDK."""

from mcp_tasks.model.options import TaskOptions
from mcp_tasks.runtime.context import Asking, TaskContext, current_task
from mcp_tasks.runtime.observers import Observer, TaskChange
from mcp_tasks.runtime.policy import Settings
from mcp_tasks.runtime.run import AskedOnCall, Body, Ending, Failure, Run, Success
from mcp_tasks.runtime.runtime import TaskRuntime
from mcp_tasks.runtime.steps import Retry

__all__ = [
    "AskedOnCall",
    "Asking",
    "Body",
    "Ending",
    "Failure",
    "Observer",
    "Retry",
    "Run",
    "Settings",
    "Success",
    "TaskChange",
    "TaskContext",
    "TaskOptions",
    "TaskRuntime",
    "current_task",
]
