"""What a request leaves to be done whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)


class Later:
    """Work that goes on after the request that began it."""

    def __init__(self) -> None:
        # asyncio itself keeps no task alive.
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin it."""
        task = asyncio.create_task(work, name="mcp-tasks-later")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # The server stops, most likely.
            logger.debug("what a request left to be done was not: %s", what(problem))
