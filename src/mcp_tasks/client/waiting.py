"""What a wait for a task is made of: what wakes it, and how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from mcp_tasks.client.answerer import Unanswered


class Wake:
    """Ends a wait for a task when a question of the task could not be answered."""

    def __init__(self) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._failure: Unanswered | None = None

    def fail(self, failure: Unanswered) -> None:
        """A question could not be answered."""
        self._failure = self._failure or failure
        self.event.set()

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self._failure is not None:
            raise self._failure


class Budget:
    """A time limit that is paused while somebody works on an answer.

    Args:
        seconds: How long; None for no limit.
        move: Told when the time is up, by the event loop's clock, whenever that changes; None for never.
    """

    def __init__(self, seconds: float | None, move: Callable[[float | None], None]) -> None:
        self._move = move
        # The loop's own clock, which is anyio's too: anyio has none in a callback of the loop, and answers end in one.
        self._now = asyncio.get_running_loop().time
        self._end = None if seconds is None else self._now() + seconds
        self._left = 0.0
        self._pauses = 0
        move(self._end)

    def pause(self, busy: bool) -> None:
        """Pause the limit, or let it run on."""
        if self._end is None:
            return
        if busy:
            self._left = self._end - self._now()
            self._move(None)
        else:
            self._end = self._now() + self._left
            self._move(self._end)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause the limit while this is entered, by however many at once."""
        if not self._pauses:
            self.pause(True)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self.pause(False)


async def first_of(*events: asyncio.Event, until: float) -> None:
    """Wait for the first of these, until a time of the event loop's clock at most."""
    loop = asyncio.get_running_loop()
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(until - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
