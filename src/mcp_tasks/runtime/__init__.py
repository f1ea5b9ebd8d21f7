"""The one place where machine, store and engine meet. It knows no wire and no SDK."""

from mcp_tasks.runtime.context import TaskContext, current_task
from mcp_tasks.runtime.policy import Settings, ToolPolicy
from mcp_tasks.runtime.run import Body, Failure, Outcome, Run, Success, Withdrawn
from mcp_tasks.runtime.runtime import TaskRuntime

__all__ = [
    "Body",
    "Failure",
    "Outcome",
    "Run",
    "Settings",
    "Success",
    "TaskContext",
    "TaskRuntime",
    "ToolPolicy",
    "Withdrawn",
    "current_task",
]
