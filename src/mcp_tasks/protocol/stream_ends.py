"""When streams end that nobody ends: with the token that opened them, or after so long.

One clock for all, however many there are: a stream has a place in the second in which it ends, and no timer.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from datetime import timedelta
from typing import Final, TypeAlias

from mcp_tasks.protocol.caller import Caller, Identity

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
