"""Hints between processes that share one file, found by looking at it.

SQLite tells nobody of a change. `PRAGMA data_version` says, for a few microseconds, whether any other
connection has committed; only then are the changed tasks asked for, by index.

Weaknesses: a change of another process is heard of up to `interval` late, and not at all while this process
does not wait for hints (it catches up when it does). That a task was deleted is not told to other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import anyio

from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.hints import HintFan, Inbox
from mcp_tasks.stores.sqlite.connection import from_text

Read: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Any]]
"""Runs one query and returns all its rows."""

_DATA_VERSION = "PRAGMA data_version"
_POSITION = "SELECT seq FROM meta"
_CHANGED = "SELECT id, version, seq FROM tasks INDEXED BY tasks_seq WHERE seq > ? ORDER BY seq LIMIT ?"

MAX_CHANGES = 5_000
"""Changes taken in one look, some milliseconds; more than one batch of the writer can have."""


class SqliteNotifier:
    """Gives this process's hints to its listeners at once, and those of other processes by polling."""

    def __init__(self, read: Read, *, interval: timedelta) -> None:
        self._read = read
        self._interval = interval.total_seconds()
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process; the others see the change in the file."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on. Those of the same origin may come late, when the file is looked at, instead of at once."""
        with self._fan.listen(origin=origin) as inbox:
            yield _Listener(inbox, self._read, self._interval)


class _Listener:
    """Waits for hints of this process and looks at the file in between.

    The look is part of waiting for the next hint rather than a background job: there is nothing to stop, and
    nobody polls for a listener that is busy or gone.
    """

    def __init__(self, inbox: Inbox, read: Read, interval: float) -> None:
        self._inbox = inbox
        self._read = read
        self._interval = interval
        self._given: dict[str, int] = {}
        self._now = asyncio.get_running_loop().time
        self._data_version: Sequence[Any] = read(_DATA_VERSION, ())
        self._position: int = read(_POSITION, ())[0][0]
        self._next_look = self._now() + interval

    def __aiter__(self) -> AsyncIterator[Hint]:
        return self

    async def __anext__(self) -> Hint:
        while True:
            # Asked for every hint; anyio would find out each time which event loop this is.
            if self._now() >= self._next_look:
                self._look()
            hint = self._inbox.pop()
            if hint is not None:
                self._given[hint.task_id] = hint.version
                return hint
            with anyio.move_on_after(self._next_look - self._now()):
                await self._inbox.wait()

    def _look(self) -> None:
        self._next_look = self._now() + self._interval
        try:
            data_version = self._read(_DATA_VERSION, ())
            if data_version != self._data_version and self._take_changes():
                self._data_version = data_version
        except (StoreError, UsageError):
            # Closed, or busy: a hint is worth less than the listener's work. The next look may do better.
            return

    def _take_changes(self) -> bool:
        """Put what changed into the inbox; whether that was all."""
        rows = self._read(_CHANGED, (self._position, MAX_CHANGES))
        for task_id, version, _ in rows:
            # A change of our own was told when it was published, which is after its commit: it is among these
            # rows at the latest in the first look after that, so one round of memory is enough.
            if self._given.get(from_text(task_id), 0) < version:
                self._inbox.put(Hint(from_text(task_id), version))
        self._given.clear()
        complete = len(rows) < MAX_CHANGES
        if rows:
            # A full answer may have cut a batch in two: then its number is asked for again.
            self._position = rows[-1][2] - (not complete)
        return complete
