"""Listening to tasks (SEP-2663, "Task Status Notifications"): which ones, and which states are sent.

Knows no stream. An entry point acknowledges `task_ids` and then sends the messages of `states` or `next`, as long as
they are read. A reader that is slow gets fewer states, never older ones: at most one hint per task waits for it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence, Set
from contextlib import contextmanager
from contextvars import Context
from datetime import timedelta
from typing import Final, TypeAlias

import anyio.lowlevel

from mcp_tasks.errors import StoreError, TaskUnreadable, UnknownTask
from mcp_tasks.protocol.outcomes import Unread, outcome_to_send
from mcp_tasks.protocol.owners import Identity
from mcp_tasks.protocol.shapes import Message, render_detailed, render_outcome
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import Hint, Inbox

logger: Final = get_logger(__name__)

# ---- stream ends
# When streams end by themselves: with the token that opened them, or after so long.


LONGEST_SLEEP: Final = 30.0
"""Seconds after which the time is looked at again: it may have been set, or the machine slept."""

SPREAD: Final = 0.1
"""The part of its longest life by which a stream may end sooner. Streams that were opened together, after a restart, do
not all come back together then."""

End: TypeAlias = Callable[[], None]
"""Ends one stream."""


def expiry(identity: Identity | None) -> int | None:
    """The second in which a token has expired; None if it does not."""
    # To its last second it is valid, as the SDK has it.
    return None if identity is None or not identity.expires_at else math.floor(identity.expires_at) + 1


class StreamEnds:
    """Ends streams in time.

    Args:
        life: How long a stream lasts at most; None for as long as its token.
        now: The time, in seconds since 1970, as tokens have it.
    """

    def __init__(self, life: timedelta | None = None, now: Callable[[], float] = time.time) -> None:
        self._life = None if life is None else life.total_seconds()
        self._now = now
        self._due: dict[int, set[End]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next = 0

    def after_token(self, identity: Identity | None) -> int | None:
        """The second in which a stream ends that begins now; None for one that lasts.

        Args:
            identity: The token that it was opened with, if any.
        """
        expires = expiry(identity)
        if self._life is None:
            return expires
        now = self._now()
        # Up, and yet no later than it may: a short life is not over at once.
        spread = math.ceil(now + self._life * random.uniform(1 - SPREAD, 1))  # noqa: S311 - it is no secret
        life = min(spread, math.floor(now + self._life))
        return life if expires is None else min(life, expires)

    def add(self, second: int, end: End) -> None:
        """Have a stream ended in that second."""
        self._due.setdefault(second, set()).add(end)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop or second < self._next:
            self._schedule(loop)

    def leave(self, second: int, end: End) -> None:
        """Forget a stream that has ended otherwise."""
        ending = self._due.get(second)
        if ending is not None:
            ending.discard(end)
            if not ending:
                del self._due[second]
        if not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def ending(self, second: int | None, end: End) -> Generator[None]:
        """While the block lasts, have a stream ended in that second; None for one that lasts."""
        if second is None:
            yield
            return
        self.add(second, end)
        try:
            yield
        finally:
            self.leave(second, end)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = min(self._due)
        wait = min(max(self._next - self._now(), 0.0), LONGEST_SLEEP)
        # In a context of its own: it outlasts the request that happens to be the first.
        self._timer = loop.call_later(wait, self._tick, context=Context())
        self._loop = loop

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        for second in sorted(each for each in self._due if each <= now):
            for end in self._due.pop(second):
                end()
        if self._due:
            self._schedule(asyncio.get_running_loop())


# ---- listening


_LOOKUPS_AT_A_TIME: Final = 50
"""Tasks that are looked up before others have their turn: a store may answer without ever giving way."""


class Listening:
    """The states of some tasks, from the moment that it is started.

    Attributes:
        task_ids: The tasks that are honoured: the caller's own.

    Args:
        ends: Ends streams in time.
        second: The second in which this one ends; None for one that lasts.
        unread: Counts large states until they are read.
        closed: Called when it is closed.
    """

    __slots__ = ("_closed", "_end", "_ends", "_inbox", "_runtime", "_second", "_sent", "_unread", "task_ids")

    def __init__(
        self,
        runtime: TaskRuntime,
        task_ids: Sequence[str],
        *,
        ends: StreamEnds,
        second: int | None,
        unread: Unread,
        closed: Callable[[], None],
    ) -> None:
        self.task_ids: Sequence[str] = task_ids
        self._runtime = runtime
        self._ends = ends
        self._second = second
        self._unread = unread
        self._closed = closed
        self._end: End | None = None
        self._inbox: Inbox | None = None
        self._sent: dict[str, int] = {}

    def start(self, end: End, wake: Callable[[], None] | None = None) -> None:
        """Follow the tasks from now on.

        Args:
            end: Called when the stream's time is over: the token that opened it has expired, or it has lasted for as
                long as any may.
            wake: Called whenever there may be a new state, for a reader that does not wait.
        """
        self._inbox = inbox = Inbox(wake=wake)
        for task_id in self.task_ids:
            self._sent[task_id] = 0
            self._runtime.hints.add(inbox, task_id)
            # As it is by now: a change before we listened would otherwise never be sent.
            inbox.put(Hint(task_id, 1))
        if self._second is not None:
            self._end = end
            self._ends.add(self._second, end)

    def close(self) -> None:
        """End it. It may be closed twice, or before it was started; until then it counts as one of its owner's."""
        if self._inbox is not None:
            self._runtime.hints.leave(self._inbox)
            self._inbox = None
        if self._end is not None and self._second is not None:
            self._ends.leave(self._second, self._end)
            self._end = None
        self._closed()

    async def states(self, end: End) -> AsyncGenerator[Message]:
        """The state of each task at once, and then whenever it changed. Never ends by itself; close it when done, and
        when `end` is called.

        Raises:
            LimitExceeded: As `next`.
        """
        self.start(end)
        while self._inbox is not None:
            while (state := await self.next()) is not None:
                yield state
            await self._inbox.wait()

    async def next(self) -> Message | None:
        """A state that is newer than the last one of its task; None if there is none now.

        Raises:
            LimitExceeded: There is one, and no room for it beside those that its client has not read. The stream is to
                end, and the client to open another.
        """
        while self._inbox is not None and (hint := self._inbox.pop()) is not None:
            sent, runtime = self._sent[hint.task_id], self._runtime
            if hint.version <= sent:
                continue
            try:
                record = await runtime.store.get(hint.task_id)
                if record is None or record.version <= sent:
                    continue
                outcome = await outcome_to_send(runtime, record, self._unread)
            except (StoreError, UnknownTask):
                # The client polls as well; the next change is sent again.
                continue
            self._sent[hint.task_id] = record.version
            return Message(fields=render_detailed(record, runtime.now()), large=render_outcome(record, outcome))
        return None


async def honoured(runtime: TaskRuntime, task_ids: Sequence[str], owner: str | None, *, methods: Set[str]) -> list[str]:
    """The owner's tasks among those named, if they are of one of these methods. The others are left out, whatever they
    are.

    Ids alone: a stream lasts long, and the records would be kept for as long.
    """
    own: list[str] = []
    for number, task_id in enumerate(task_ids, start=1):
        if number % _LOOKUPS_AT_A_TIME == 0:
            await anyio.lowlevel.checkpoint()
        try:
            record = await runtime.get(task_id, owner=owner)
        except UnknownTask:
            continue
        except TaskUnreadable as exc:
            # Told to a caller that asks for it; the stream is for the others.
            logger.error("no notifications for task %s…: %s", task_id[:12], exc.why)
            continue
        if record.method in methods:
            own.append(task_id)
    return own
