"""`TaskFailed`, where clients look for it."""

from mcp_tasks.failure import TaskFailed, task_failed

__all__ = ["TaskFailed", "task_failed"]
