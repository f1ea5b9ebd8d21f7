"""Hints: notifications that a task changed. They are an optimisation; every process also polls the store.

`HintFan` gives hints to the listeners of one process. A notifier does so for all processes that share a store.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

READY: Final = 5.0
"""Seconds that a new listener waits for the connection on which this process hears others. A late one loses hints."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before connecting again."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A task changed, and has this version now. The store is the truth; a hint may be lost or late."""

    task_id: str
    version: int


class Inbox:
    """The newest unread hint of each task, in the order in which they first came.

    Args:
        wake: Called with every hint, for a reader that does not wait; it must not raise.

    Attributes:
        task_ids: The tasks that this inbox was added to one by one.
    """

    __slots__ = ("_arrived", "_unread", "_wake", "origin", "task_ids")

    def __init__(self, origin: object = None, *, wake: Callable[[], None] | None = None) -> None:
        self.origin: object = origin
        self.task_ids: set[str] = set()
        self._unread: dict[str, Hint] = {}
        # Only while a reader waits: there may be thousands of inboxes, and an event is larger than the rest of one.
        self._arrived: anyio.Event | None = None
        self._wake = wake

    def put(self, hint: Hint) -> None:
        """Add a hint, unless a newer one of the same task waits."""
        known = self._unread.get(hint.task_id)
        if known is None or known.version < hint.version:
            self._unread[hint.task_id] = hint
        if self._arrived is not None:
            self._arrived.set()
        if self._wake is not None:
            self._wake()

    def pop(self) -> Hint | None:
        """The next hint, if there is one."""
        return self._unread.pop(next(iter(self._unread))) if self._unread else None

    async def wait(self) -> None:
        """Return when there is a hint."""
        while not self._unread:
            self._arrived = anyio.Event()
            try:
                await self._arrived.wait()
            finally:
                self._arrived = None

    def __aiter__(self) -> AsyncIterator[Hint]:
        return self

    async def __anext__(self) -> Hint:
        await self.wait()
        return self._unread.pop(next(iter(self._unread)))


class HintFan:
    """Gives each hint to all listeners of this process. Call it from the event loop's thread."""

    def __init__(self) -> None:
        self._of_all: set[Inbox] = set()
        # By task, so that a change costs as much as it has listeners.
        self._of_task: dict[str, set[Inbox]] = {}

    def listened(self) -> Collection[str]:
        """The tasks that have listeners of their own."""
        return list(self._of_task)

    def put(self, hint: Hint, *, origin: object = None) -> None:
        """Give one hint to all listeners but those of its origin."""
        for inbox in self._of_all:
            if origin is None or inbox.origin is not origin:
                inbox.put(hint)
        for inbox in self._of_task.get(hint.task_id, ()):
            inbox.put(hint)

    @contextmanager
    def listen(self, task_ids: Collection[str] | None = None, *, origin: object = None) -> Generator[Inbox]:
        """Hints from now on, of all tasks or of these."""
        inbox = Inbox(origin)
        if task_ids is None:
            self._of_all.add(inbox)
        for task_id in task_ids or ():
            self.add(inbox, task_id)
        try:
            yield inbox
        finally:
            self._of_all.discard(inbox)
            self.leave(inbox)

    def add(self, inbox: Inbox, task_id: str) -> None:
        """Give the hints of one more task to a listener, for as long as it listens."""
        inbox.task_ids.add(task_id)
        self._of_task.setdefault(task_id, set()).add(inbox)

    def leave(self, inbox: Inbox) -> None:
        """Give a listener no more hints of the tasks that it was added to one by one."""
        for task_id in list(inbox.task_ids):
            self.remove(inbox, task_id)

    def remove(self, inbox: Inbox, task_id: str) -> None:
        """Give a listener no more hints of a task."""
        inbox.task_ids.discard(task_id)
        listeners = self._of_task.get(task_id, set())
        listeners.discard(inbox)
        if not listeners:
            self._of_task.pop(task_id, None)


class Notifier:
    """Carries hints in one process. Stores that processes share derive from it."""

    def __init__(self) -> None:
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell all listeners. Never raises: a hint is worth less than the work that caused it."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on, those of this process included: a reader compares versions.

        Hints that were published with the same `origin` may be left out. A slow reader loses the older of two hints for
        one task, never the newest.
        """
        with self._fan.listen(origin=origin) as hints:
            yield hints


class RemoteNotifier(Notifier, ABC):
    """Gives hints of this process to its listeners at once, and those of other processes as they come.

    A connection of its own hears the others, for as long as there are listeners.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._listeners = 0
        self._hearing: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as hints:
            if not self._listeners:
                # An event belongs to one event loop, and a store may be used in one after another.
                self._connected = asyncio.Event()
            self._listeners += 1
            try:
                if self._hearing is None and self._is_open():
                    self._hearing = asyncio.create_task(self._keep_hearing(), name="mcp-tasks hints")
                with anyio.move_on_after(READY) as late:
                    await self._connected.wait()
                if late.cancelled_caught:
                    logger.warning("%s: change notifications of other processes are unavailable; polling", self._place)
                yield hints
            finally:
                self._listeners -= 1
                if not self._listeners:
                    with anyio.CancelScope(shield=True):
                        await self.stop()

    async def stop(self) -> None:
        """Hear nothing more of other processes."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _keep_hearing(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._hear(self._connected)
            except Exception as exc:
                if not self._passes(exc):
                    logger.error("%s: change notifications cannot be read", self._place, exc_info=quietly())
                logger.debug("%s: listening again (%s)", self._place, type(exc).__name__)
            finally:
                pause = FIRST_PAUSE if self._connected.is_set() else min(2 * pause, LONGEST_PAUSE)
                self._connected.clear()
            await asyncio.sleep(pause)

    def _is_open(self) -> bool:
        """Whether there is a server to hear."""
        return True

    @abstractmethod
    def _passes(self, exc: Exception) -> bool:
        """Whether an error is one of the connection, which is made again."""

    @abstractmethod
    async def _hear(self, connected: asyncio.Event) -> None:
        """Connect, set the event, and put hints into the fan until the connection breaks."""
