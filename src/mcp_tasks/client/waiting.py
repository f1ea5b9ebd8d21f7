"""What a wait for a task is made of: what wakes it, and how long it may take."""

from __future__ import annotations

import asyncio

import anyio

from mcp_tasks.client.answerer import Unanswered


class Wake:
    """Something of our own happened to the task: an answer was given, or could not be."""

    def __init__(self) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._failure: Unanswered | None = None

    def answered(self, failure: Unanswered | None) -> None:
        """An answer was given, or failed to be."""
        self._failure = self._failure or failure
        self.event.set()

    def take(self) -> bool:
        """Whether something happened since the last time. Raises what went wrong."""
        if self._failure is not None:
            raise self._failure
        happened = self.event.is_set()
        self.event.clear()
        return happened


class Budget:
    """A time limit that is paused while somebody works on an answer."""

    def __init__(self, scope: anyio.CancelScope, seconds: float | None) -> None:
        self._scope = scope
        self._left = seconds
        # The loop's own clock, which is anyio's too: anyio has none in a callback of the loop, and answers end in one.
        self._now = asyncio.get_running_loop().time
        if seconds is not None:
            scope.deadline = self._now() + seconds

    def pause(self, busy: bool) -> None:
        """Pause the limit, or let it run on."""
        if self._left is None:
            return
        if busy:
            self._left = self._scope.deadline - self._now()
            self._scope.deadline = float("inf")
        else:
            self._scope.deadline = self._now() + self._left


async def first_of(*events: asyncio.Event, until: float) -> None:
    """Wait for the first of these, until a time of the event loop's clock at most."""
    loop = asyncio.get_running_loop()
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(until - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
