"""Who is told of everything that happens to tasks, and how: without ever breaking or delaying one.

Observers are called in a thread of their own, one change after the other. What happens is handed over in batches, so
that a change costs the event loop next to nothing. The queue has a bound: an observer that cannot keep up loses
changes, and the log says how many. One that raises is named in the log once, and goes on being called.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeAlias, get_args, runtime_checkable

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import Event, TaskCreated, TaskDeleted
from mcp_tasks.core.record import TaskRecord

logger: Final = logging.getLogger(__name__)

Observed: TypeAlias = Event | TaskCreated | TaskDeleted
"""What an observer is told of."""

EVERYTHING: frozenset[type[Observed]] = frozenset(get_args(Observed))

MAX_WAITING = 10_000
"""Changes that may wait for the observers. Beyond it, new ones are dropped."""

TOGETHER_FOR = 0.02
"""Seconds for which changes are collected before they are handed over: waking a thread costs more than a change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskChange:
    """Something happened to a task.

    Attributes:
        before: The task until then; None for one that was created.
        event: What happened.
        after: The task from then on; None for one that was deleted. Of several events that are written together, each
            has a change of its own, and only the last `after` is ever in the store.
        actor: Who did it.
    """

    before: TaskRecord | None
    event: Observed
    after: TaskRecord | None
    actor: Actor

    @property
    def task(self) -> TaskRecord:
        """The task as it is known last."""
        task = self.after or self.before
        if task is None:
            raise ValueError("a change is one of some task: `before` or `after` must be given")
        return task


Observer: TypeAlias = Callable[[TaskChange], None]


@runtime_checkable
class Choosy(Protocol):
    """An observer that does not want to be told of everything."""

    def __call__(self, change: TaskChange, /) -> None: ...

    def wanted(self) -> Collection[type[Observed]]:
        """What it wants to be told of, as of now. Asked at the start and every few seconds, not with every change."""
        ...


_Interest: TypeAlias = tuple[Observer, frozenset[type[Observed]]]


class Observers:
    """Everybody who observes the tasks of one runtime."""

    def __init__(self, observers: Sequence[Observer], *, max_waiting: int = MAX_WAITING) -> None:
        self._observers = tuple(observers)
        self._max_waiting = max_waiting
        self._interests: Sequence[_Interest] = ()
        self._wanted: frozenset[type[Observed]] = frozenset()
        self._batch: list[TaskChange] = []
        self._dropped = 0
        self._worker: _Teller | None = None
        self.ask()

    def ask(self) -> None:
        """Ask the observers again what they want to be told of."""
        self._interests = [(observer, _wanted_by(observer)) for observer in self._observers]
        self._wanted = frozenset[type[Observed]]().union(*(wanted for _, wanted in self._interests))

    def want(self, event: type[Observed]) -> bool:
        """Whether anybody wants to be told of such an event."""
        return event in self._wanted

    def tell(self, change: TaskChange) -> None:
        """Tell them of a change, soon. Call from the event loop's thread."""
        if type(change.event) not in self._wanted:
            return
        if self._worker is None:
            self._worker = _Teller(lambda: self._interests)
        if len(self._batch) + self._worker.waiting >= self._max_waiting:
            self._dropped += 1
            return
        self._batch.append(change)
        if len(self._batch) == 1:
            asyncio.get_running_loop().call_later(TOGETHER_FOR, self._hand_over)

    async def stop(self, timeout: timedelta) -> None:
        """Tell them what is left, for up to `timeout`."""
        self._hand_over()
        # What comes later is not told: nobody would end the thread for it.
        self._wanted = frozenset()
        worker, self._worker = self._worker, None
        if worker is not None and not await worker.finish(timeout):
            logger.warning("the observers of tasks were not told of everything: they did not end within %s", timeout)

    def abandon(self) -> None:
        """Tell them nothing more."""
        self._batch, self._wanted = [], frozenset()
        if self._worker is not None:
            self._worker.forget()

    def _hand_over(self) -> None:
        if self._dropped:
            logger.warning("%d changes of tasks were not observed: the observers are too slow", self._dropped)
            self._dropped = 0
        if self._batch and self._worker is not None:
            batch, self._batch = self._batch, []
            self._worker.put(batch)


class _Teller:
    """The thread in which observers are called."""

    def __init__(self, interests: Callable[[], Sequence[_Interest]]) -> None:
        self._interests = interests
        self._batches: queue.SimpleQueue[list[TaskChange] | None] = queue.SimpleQueue()
        self._put = 0
        self._told = 0
        self._forgotten = False
        self._failed: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        # A daemon: an observer that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="mcp-tasks-observers", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many changes the observers have not been told of yet. Each number is written by one thread only."""
        return self._put - self._told

    def put(self, batch: list[TaskChange]) -> None:
        self._put += len(batch)
        self._batches.put(batch)

    def forget(self) -> None:
        """End without telling what is left."""
        self._forgotten = True
        self._batches.put(None)

    async def finish(self, timeout: timedelta) -> bool:
        """End once everything is told; False if that takes too long."""
        self._batches.put(None)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._ended.wait()
        except TimeoutError:
            self._forgotten = True
            return False
        return True

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            for change in batch:
                for observer, wanted in self._interests():
                    if type(change.event) in wanted and not self._forgotten:
                        self._call(observer, change)
                self._told += 1
        # The event loop may be closed by now; then nobody waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _call(self, observer: Observer, change: TaskChange) -> None:
        try:
            observer(change)
        except BaseException:
            # Whatever it is: the next change is another one, and the other observers have done nothing wrong.
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                logger.exception("an observer of tasks failed, and is called again without another word: %r", observer)


def _wanted_by(observer: Observer) -> frozenset[type[Observed]]:
    return frozenset(observer.wanted()) if isinstance(observer, Choosy) else EVERYTHING
