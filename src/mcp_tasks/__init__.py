"""Durable long-running tasks for MCP servers built on the official Python SDK."""

from mcp_tasks.errors import TasksError
from mcp_tasks.runtime import Settings, TaskContext, current_task
from mcp_tasks.server import TaskMode, Tasks

__all__ = ["Settings", "TaskContext", "TaskMode", "Tasks", "TasksError", "current_task"]
