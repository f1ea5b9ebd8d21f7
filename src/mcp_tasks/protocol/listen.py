"""Listening to tasks (SEP-2663, "Task Status Notifications"): which ones, and what is told of them.

Knows no stream. An adapter acknowledges `task_ids` and then sends what `states` or `follow` gives, for as long as it is
read. A reader that is slow gets fewer states, never older ones: what waits for it is at most one hint per task.
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
from mcp_tasks.protocol.dialect import Dialect, Message, outcome_of, outcome_to_send
from mcp_tasks.protocol.limits import Unread
from mcp_tasks.protocol.owners import Caller, Identity
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import Hint, Inbox

# ---- stream ends
# When streams end that nobody ends: with the token that opened them, or after so long.


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

    def after(self, caller: Caller) -> int | None:
        """The second in which a stream of the caller ends that begins now; None for one that lasts."""
        return self.after_token(caller.identity)

    def after_token(self, identity: Identity | None) -> int | None:
        """The same, for one that was opened with a token, or without."""
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


logger: Final = get_logger(__name__)

_LOOKUPS_AT_A_TIME: Final = 50
"""Tasks that are looked up before others have their turn: a store may answer without ever giving way."""


class Listening:
    """The states of some tasks, from now on.

    Attributes:
        task_ids: The tasks that are honoured: the caller's own.
        owner: The caller whose they are.
        method: The notification that carries a state.
        close: To be called when the stream is over, or was not begun; twice does nothing. Until then it counts as one
            of its owner's.

    Args:
        ends: What ends streams in time,
        ends_in: and in which second this one; None for one that lasts.
    """

    __slots__ = ("_dialect", "_ends", "_ends_in", "_runtime", "_unread", "close", "method", "owner", "task_ids")

    def __init__(
        self,
        runtime: TaskRuntime,
        dialect: Dialect,
        task_ids: Sequence[str],
        owner: str | None = None,
        *,
        ends: StreamEnds | None = None,
        ends_in: int | None = None,
        closed: Callable[[], None] = lambda: None,
        unread: Unread | None = None,
    ) -> None:
        self.close: Callable[[], None] = closed
        self._runtime = runtime
        self._dialect = dialect
        self._ends = ends
        self._ends_in = ends_in
        self._unread = unread
        self.task_ids: Sequence[str] = task_ids
        self.owner: str | None = owner
        self.method: str = dialect.notification_method

    def follow(self, wake: Callable[[], None] | None = None, end: End | None = None) -> Following:
        """Follow the tasks from now on, to be stopped when done.

        Args:
            wake: Called whenever there may be something to tell, for who does not wait.
            end: Called when the stream's time is over: the token that opened it has expired, or it has lasted for as
                long as any may.
        """
        following = Following(self._runtime, self._dialect, self.task_ids, wake, self._unread)
        if end is not None and self._ends is not None and self._ends_in is not None:
            following.end_in(self._ends, self._ends_in, end)
        return following

    async def states(self, end: End | None = None) -> AsyncGenerator[Message]:
        """The state of each task at once, and then whenever it changed. Never ends by itself; close it when done, and
        when `end` is called.

        Raises:
            LimitExceeded: As `Following.next`.
        """
        following = self.follow(end=end)
        try:
            while True:
                while (state := await following.next()) is not None:
                    yield state
                await following.wait()
        finally:
            following.stop()


class Following:
    """What one listener has been told of its tasks, and what it has yet to be told.

    Args:
        wake: Called whenever there may be something to tell.
        unread: What large states count in, if they do.
    """

    __slots__ = ("_dialect", "_ending", "_inbox", "_runtime", "_sent", "_unread")

    def __init__(
        self,
        runtime: TaskRuntime,
        dialect: Dialect,
        task_ids: Sequence[str],
        wake: Callable[[], None] | None,
        unread: Unread | None = None,
    ) -> None:
        self._unread = unread
        self._runtime = runtime
        self._dialect = dialect
        self._sent = dict.fromkeys(task_ids, 0)
        self._ending: tuple[StreamEnds, int, End] | None = None
        self._inbox = Inbox(wake=wake)
        for task_id in task_ids:
            runtime.hints.add(self._inbox, task_id)
            # As it is by now; a change before we listened would otherwise never be told.
            self._inbox.put(Hint(task_id, 1))

    async def next(self) -> Message | None:
        """A state that is newer than what was told of its task; None if there is none now.

        Raises:
            LimitExceeded: There is one, and no room for it beside what its client has not read. The stream is to end,
                and the client to open another.
        """
        while (hint := self._inbox.pop()) is not None:
            told = self._sent[hint.task_id]
            if hint.version > told:
                state, self._sent[hint.task_id] = await self._newer(hint.task_id, than=told)
                if state is not None:
                    return state
        return None

    async def wait(self) -> None:
        """Return when there may be something to tell."""
        await self._inbox.wait()

    def end_in(self, ends: StreamEnds, second: int, end: End) -> None:
        """Have the stream ended in that second, unless it stops before."""
        self._ending = ends, second, end
        ends.add(second, end)

    def stop(self) -> None:
        """Be told nothing more."""
        self._runtime.hints.leave(self._inbox)
        if self._ending is not None:
            (ends, second, end), self._ending = self._ending, None
            ends.leave(second, end)

    async def _newer(self, task_id: str, *, than: int) -> tuple[Message | None, int]:
        """The task's state if it is newer, and the version that the listener has after it."""
        runtime = self._runtime
        try:
            record = await runtime.store.get(task_id)
            if record is None or record.version <= than:
                return None, than
            if self._unread is None:
                outcome = await outcome_of(runtime, record)
            else:
                outcome = await outcome_to_send(runtime, record, self._unread)
        except (StoreError, UnknownTask):
            # The client polls as well; the next change is told again.
            return None, than
        return self._dialect.notification(record, outcome, runtime.now()), record.version


async def honoured(runtime: TaskRuntime, task_ids: Sequence[str], owner: str | None, *, methods: Set[str]) -> list[str]:
    """The owner's tasks among those named, if they are of one of these methods. The others are left out, whatever they
    are.

    Ids alone: a stream lasts long, and what they stand for would be kept for as long.
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
            # Told to whoever asks for it; the stream is for the others.
            logger.error("no notifications for task %s…: %s", task_id[:12], exc.why)
            continue
        if record.method in methods:
            own.append(task_id)
    return own
