"""What goes wrong with one task, said once, while everything else goes on."""

from __future__ import annotations

from typing import Final

from mcp_tasks.errors import StoreError, TaskUnreadable
from mcp_tasks.quiet import get_logger, quietly, short_id, what

logger: Final = get_logger(__name__)

MAX_TROUBLES = 10_000
"""Tasks of which is remembered that they gave trouble."""


class Troubles:
    """The tasks and tools that one process has had trouble with."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._missing_tools: set[str] = set()

    def note(self, task_id: str, exc: Exception) -> int:
        """Log what is wrong with a task, once; how often it was so by now."""
        known = self._tasks.pop(task_id, 0)
        self._tasks[task_id] = known + 1
        while len(self._tasks) > MAX_TROUBLES:
            del self._tasks[next(iter(self._tasks))]
        if known == 0:
            said = exc.why if isinstance(exc, TaskUnreadable) else what(exc)
            shown = None if isinstance(exc, StoreError) else quietly(exc)
            task = short_id(task_id)
            logger.error("task %s is left as it is, and the others go on: %s", task, said, exc_info=shown)
        return known + 1

    def note_missing_tool(self, tool: str) -> None:
        """Log once that tasks of a tool wait for a process that has it."""
        if tool not in self._missing_tools and len(self._missing_tools) < MAX_TROUBLES:
            self._missing_tools.add(tool)
            logger.warning("this server has no tool %r; its tasks wait for a process that has it", tool)
