"""Small helpers of every package: bounded dictionaries, background tasks, short ids."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

SHOWN_OF_AN_ID: Final = 12
"""Characters of a task's id that logs show: enough to find its lines, and far from enough to find the task."""


class BoundedDict(OrderedDict[K, V]):
    """A dictionary of the entries that were set last, `most` at a time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class BackgroundTasks:
    """Asyncio tasks that nothing awaits. asyncio itself keeps no task alive.

    Args:
        failed: Called with the exception of each task that fails.
    """

    def __init__(self, failed: Callable[[BaseException], None] | None = None) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter([*self._running])

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Begin some work."""
        return self.keep(asyncio.get_running_loop().create_task(work, name=name, context=context))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keep a task until it ends."""
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in self:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        # Looked at in any case, so that asyncio does not report it as never retrieved.
        if not task.cancelled() and (exc := task.exception()) is not None and self._failed is not None:
            self._failed(exc)


async def shielded(future: asyncio.Future[T]) -> T:
    """Wait for a future that goes on if the caller is cancelled.

    If it then fails, `asyncio.shield` has the event loop log its exception with the message, from Python 3.14 on. Here
    the code that started the work decides what is logged.
    """
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise
    return future.result()


def short_id(task_id: str) -> str:
    """As much of a task's id as may be logged: the whole id may be enough to see the task.

    An id is what a server says it is, so characters that cannot be printed are escaped.
    """
    start = task_id[:SHOWN_OF_AN_ID]
    shown = start if start.isascii() and start.isprintable() else ascii(start)[1:-1]
    return shown if len(task_id) <= SHOWN_OF_AN_ID else f"{shown}…"
