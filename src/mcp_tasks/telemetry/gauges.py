"""What is so at this moment: in this process, and in the store for the whole fleet. Looked at when somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from mcp_tasks.core.limits import LIMITS, Limits
from mcp_tasks.errors import StoreError
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.telemetry.contract import (
    HANDED_OVER,
    LEASE,
    LIMIT,
    LISTENERS,
    OPEN,
    QUEUE_AGE,
    QUEUE_READY,
    RUNNING,
    SHORT_WAY,
    UNOBSERVED,
    Metric,
)
from mcp_tasks.telemetry.numbers import Labels

logger: Final = get_logger(__name__)

LOOK_LIMIT: Final = 3.0
"""Seconds that the store may take."""

KEPT_FOR: Final = 1.0
"""Seconds for which an answer of the store is given again: however many ask, it is asked once."""

Values: TypeAlias = Mapping[Metric, Mapping[Labels, float]]


class Queued(NamedTuple):
    """What waits in one queue."""

    ready: int
    oldest_age: float


class Served(Protocol):
    """What the short way has counted."""

    listeners: int

    @property
    def answered(self) -> Mapping[str, int]:
        """By method."""
        ...

    @property
    def handed_over(self) -> Mapping[Any, int]:
        """By reason."""
        ...


class Gauges:
    """What is to be seen of one `Tasks` object.

    Args:
        backlog: What waits in each queue.
        served: What the short way has counted.

    Attributes:
        runtime: The one that is running now.
    """

    def __init__(
        self, backlog: Callable[[TaskRuntime], Awaitable[Mapping[str, Queued]]], served: Callable[[], Served]
    ) -> None:
        self.runtime: TaskRuntime | None = None
        self._backlog = backlog
        self._served = served
        self._shared: Values = {}
        self._looked_at = float("-inf")
        self._lost_before = 0

    def leave(self) -> None:
        """The runtime has stopped."""
        if self.runtime is not None:
            # It is a count for the life of the process, and the next runtime begins with none.
            self._lost_before += self.runtime.observers.lost
        self.runtime, self._shared, self._looked_at = None, {}, float("-inf")

    def here(self) -> Values:
        """What can be seen without waiting for anything."""
        served = self._served()
        found: dict[Metric, Mapping[Labels, float]] = {
            SHORT_WAY: {(method,): count for method, count in dict(served.answered).items()},
            HANDED_OVER: {(str(reason),): count for reason, count in dict(served.handed_over).items()},
            LISTENERS: {(): served.listeners},
            UNOBSERVED: {(): self._lost_before},
        }
        runtime = self.runtime
        if runtime is not None:
            found[UNOBSERVED] = {(): self._lost_before + runtime.observers.lost}
            found[RUNNING] = {(): len(runtime.at_work())}
            found[LIMIT] = _limits(runtime.limits)
            if runtime.runs_tools:
                found[LEASE] = {(): int(runtime.lease.is_valid)}
        return found

    def shared(self) -> Values:
        """What the store said last."""
        return self._shared

    async def look(self) -> None:
        """Ask the store, if that was not done just now. What it does not answer is not told: a number that is old looks
        like one that is true."""
        now = asyncio.get_running_loop().time()
        runtime = self.runtime
        if runtime is None or now < self._looked_at + KEPT_FOR:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                queues = await self._backlog(runtime)
                usage = await runtime.store.usage(runtime.namespace, EVERYBODY)
        except (TimeoutError, StoreError) as exc:
            logger.debug("the store could not be asked what waits: %s", what(exc))
            self._shared = {}
            return
        self._shared = {
            QUEUE_READY: {(queue,): found.ready for queue, found in queues.items()},
            QUEUE_AGE: {(queue,): found.oldest_age for queue, found in queues.items()},
            OPEN: {(): usage.open_tasks},
        }


def _limits(limits: Limits) -> Mapping[Labels, float]:
    values = {name: getattr(limits, name) for name in LIMITS}
    return {
        (name,): value.total_seconds() if isinstance(value, timedelta) else float(value)
        for name, value in values.items()
        if value is not None
    }
