"""Waiting for a task on an open call, for as long as its caller can."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

import anyio

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, TaskUnreadable, UnknownTask
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

AT_FIRST: Final = 0.05
"""Seconds for which a task is waited for and nothing else."""

LEAST: Final = 0.2
"""Seconds that a store has to tell how a task is, also on a call that has no time left."""

AWAY: Final = 0.2
"""Seconds until it is asked again when it could not."""


async def wait_for(
    runtime: TaskRuntime,
    record: TaskRecord,
    until: Callable[[TaskRecord], bool],
    limit: timedelta | None,
    *,
    see: Callable[[TaskRecord], Awaitable[None]],
    beside: Callable[[], Coroutine[Any, Any, None]],
    over: Sequence[Callable[[], Awaitable[object]]],
) -> TaskRecord:
    """The task once `until` holds for it, or as it was seen last when the time is over or one of `over` returns.

    Args:
        see: Called with each state of the task that is seen.
        beside: What goes on meanwhile; cancelled in the end.
        over: Each returns when there is no use in waiting any longer.

    Raises:
        UnknownTask: The task is gone.
        TaskUnreadable: Its row cannot be read.
    """
    follower = _Follower(runtime, record, until, see)
    deadline = math.inf if limit is None else time.monotonic() + limit.total_seconds()
    # Most tools are quick, and what goes on beside is set up in vain for them.
    if await follower.follow(min(AT_FIRST, deadline - time.monotonic())) or deadline <= time.monotonic():
        return follower.seen
    problem: Exception | None = None
    async with anyio.create_task_group() as group:

        async def end_after(event: Callable[[], Awaitable[object]]) -> None:
            await event()
            group.cancel_scope.cancel()

        group.start_soon(beside)
        for event in over:
            group.start_soon(end_after, event)
        try:
            await follower.follow(deadline - time.monotonic())
        except (UnknownTask, TaskUnreadable) as exc:
            # Out of the group it would come wrapped.
            problem = exc
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return follower.seen


class _Follower:
    """Looks at a task whenever it may have changed."""

    def __init__(
        self,
        runtime: TaskRuntime,
        record: TaskRecord,
        until: Callable[[TaskRecord], bool],
        see: Callable[[TaskRecord], Awaitable[None]],
    ) -> None:
        self.seen = record
        self._runtime = runtime
        self._until = until
        self._see = see
        self._is_away = False

    async def follow(self, seconds: float) -> bool:
        """Look until there is nothing to wait for, or the time is over; whether the former."""
        ends = anyio.current_time() + seconds
        with self._runtime.hints.listen([self.seen.id]) as hints:
            # A call that has no time left still gets what is there, unless the store takes too long to tell.
            with anyio.move_on_after(max(seconds, LEAST)):
                if await self._look():
                    return True
            with anyio.CancelScope(deadline=ends):
                while True:
                    # A hint may be lost; the store is the truth. One that comes while that is away is lost on us.
                    pause = AWAY if self._is_away else self._runtime.settings.look_interval.total_seconds()
                    with anyio.move_on_after(pause):
                        await anext(hints)
                    if await self._look():
                        return True
        return False

    async def _look(self) -> bool:
        """See how the task is; whether there is nothing to wait for."""
        try:
            found = await self._runtime.store.get(self.seen.id)
        except TaskUnreadable:
            raise
        except StoreError as exc:
            # It is kept and may be running: what was seen last still holds, for all that is known.
            logger.debug("task %s… cannot be looked at now: %s", self.seen.id[:12], exc)
            self._is_away = True
            return False
        self._is_away = False
        if found is None:
            raise UnknownTask(self.seen.id)
        self.seen = found
        await self._see(found)
        return self._until(found)
