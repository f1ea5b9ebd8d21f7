"""The server side of the extension: parse, call the runtime, render."""

from mcp_tasks.server.extension import Tasks
from mcp_tasks.server.options import TaskMode

__all__ = ["TaskMode", "Tasks"]
