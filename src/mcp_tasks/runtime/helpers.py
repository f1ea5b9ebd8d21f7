"""What is done for a run beside its tool: writing questions and progress, watching the time."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Final

from mcp_tasks.quiet import get_logger, quietly, what

logger: Final = get_logger(__name__)


class Helpers:
    """The asyncio tasks that work for one run and are not part of its tool."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._at_work: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None]:
        """Begin something; should it fail, that is logged."""
        helper = asyncio.get_running_loop().create_task(work, context=context)
        self._at_work.add(helper)
        helper.add_done_callback(self._ended)
        return helper

    def cancel(self) -> None:
        """The run is over."""
        for helper in self._at_work:
            helper.cancel()

    def _ended(self, helper: asyncio.Task[None]) -> None:
        self._at_work.discard(helper)
        if not helper.cancelled() and (failure := helper.exception()) is not None:
            logger.error("task %s…: %s", self._task_id[:12], what(failure), exc_info=quietly(failure))
