"""Hints inside one process: what every notifier hands to its listeners.

A listener holds at most one hint per task, the newest. A slow reader therefore costs as much memory as it
has tasks to look at, and never more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio

from mcp_tasks.stores.base import Hint


class HintFan:
    """Gives each hint to everyone who listens in this process."""

    def __init__(self) -> None:
        self._of_all: set[Inbox] = set()
        # By task, so that a change costs as much as it has listeners, not as much as there are listeners.
        self._of_task: dict[str, set[Inbox]] = {}

    def listened(self) -> Collection[str]:
        """The tasks that somebody listens to in particular."""
        return list(self._of_task)

    def put(self, hint: Hint, *, origin: object = None) -> None:
        """Hand on one hint, but not to where it came from. Call from the event loop's thread."""
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
        """Give a listener no more hints of any task that it was given those of in particular."""
        for task_id in list(inbox.task_ids):
            self.remove(inbox, task_id)

    def remove(self, inbox: Inbox, task_id: str) -> None:
        """Give a listener no more hints of a task."""
        inbox.task_ids.discard(task_id)
        listeners = self._of_task.get(task_id, set())
        listeners.discard(inbox)
        if not listeners:
            self._of_task.pop(task_id, None)


class LocalNotifier:
    """A notifier for a store that only one process can have."""

    def __init__(self) -> None:
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as hints:
            yield hints


class Inbox:
    """The newest unread hint of each task, in the order they first came.

    Args:
        wake: Called with every hint that comes, for a reader that does not wait; it must not raise.

    Attributes:
        task_ids: The tasks that it is given the hints of in particular.
    """

    __slots__ = ("_arrived", "_unread", "_wake", "origin", "task_ids")

    def __init__(self, origin: object = None, *, wake: Callable[[], None] | None = None) -> None:
        self.origin: object = origin
        self.task_ids: set[str] = set()
        self._unread: dict[str, Hint] = {}
        # There is one only while somebody waits: there may be thousands of readers, and an event is larger than the
        # rest of this.
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
        """The next hint, or None if none waits."""
        return self._unread.pop(next(iter(self._unread))) if self._unread else None

    async def wait(self) -> None:
        """Return when a hint is there."""
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
