"""Callers that went away before they were answered, and whose tools are to stop with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from mcp_tasks.errors import StoreError, UnknownTask
from mcp_tasks.fallback.later import Later
from mcp_tasks.protocol.methods import actor_of
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

LEFT: Final = "The caller went away"

MOMENT: Final = 2.0
"""Seconds in which a server that stops is known to do so. It cancels its requests first, as if their callers had left,
gives them a second to say so to clients that do not read any more, and only then ends its lifespan."""


class GoneCallers:
    """Stops the work of such callers.

    Args:
        stopping: Returns when the server stops.
    """

    def __init__(self, stopping: Callable[[], Awaitable[object]], later: Later) -> None:
        self._stopping = stopping
        self._later = later

    def left(self, runtime: TaskRuntime, task_id: str, is_wanted: Callable[[], bool]) -> None:
        """A caller has left: cancel its task, unless it is the server that stops, or somebody else wants the result.

        This goes on by itself: the server does not stop before its requests have ended, and its tools are to go on.
        """
        self._later.do(self._cancel(runtime, task_id, is_wanted))

    async def _cancel(self, runtime: TaskRuntime, task_id: str, is_wanted: Callable[[], bool]) -> None:
        with anyio.move_on_after(MOMENT):
            await self._stopping()
            return
        if is_wanted():
            return
        try:
            record = await runtime.find(task_id)
            await runtime.cancel(record, LEFT, actor=actor_of(record))
        except UnknownTask:
            # It left before there was one.
            pass
        except StoreError as exc:
            logger.warning("task %s… was not cancelled, though its caller went away: %s", task_id[:12], exc)
