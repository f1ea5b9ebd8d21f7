"""The one place where machine, store and engine meet. It knows no wire and no SDK."""

from mcp_tasks.runtime.context import TaskContext, current_task
from mcp_tasks.runtime.outcome import Failure, Outcome, Success, Withdrawn
from mcp_tasks.runtime.policy import Settings, ToolPolicy
from mcp_tasks.runtime.questions import Asking
from mcp_tasks.runtime.run import Body, Run
from mcp_tasks.runtime.runtime import TaskRuntime
from mcp_tasks.runtime.steps import Retry

__all__ = [
    "Asking",
    "Body",
    "Failure",
    "Outcome",
    "Retry",
    "Run",
    "Settings",
    "Success",
    "TaskContext",
    "TaskRuntime",
    "ToolPolicy",
    "Withdrawn",
    "current_task",
]
