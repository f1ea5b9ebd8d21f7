"""Waiting runs leave memory here, once it is certain that they only wait.

A run adds itself when its tool's own asyncio task waits for an answer or a timer. After a while its asyncio tasks are
looked at, in one look for all runs whose time has come: if the tool's own is the only one, nothing else is at work.
"""

from __future__ import annotations

import asyncio
import contextvars
from math import inf
from typing import Any, Protocol

from mcp_tasks.runtime.branches import tasks_by_value
from mcp_tasks.runtime.rest import WaitingRoom

LOOK_AGAIN = 1.0
"""Seconds until a run that could not be parked is looked at again."""

TOGETHER = 100
"""Runs that are parked at a time, so that a store which groups its commits can."""


class Parkable(Protocol):
    """A run, as far as it is parked."""

    def may_park(self, branches: set[asyncio.Task[Any]]) -> bool:
        """Whether it only waits, given the asyncio tasks that belong to it."""
        ...

    async def park(self) -> None:
        """Leave memory."""
        ...


class Parking:
    """The runs of a process that may leave memory."""

    def __init__(self, mark: contextvars.ContextVar[Any], room: WaitingRoom) -> None:
        self.room = room
        self._mark = mark
        self._due: dict[Parkable, float] = {}
        self._added = asyncio.Event()

    def add(self, run: Parkable, after: float) -> None:
        """Park this run after so many seconds, if it still waits then; at once if too many wait in memory."""
        if after < inf:
            self._due[run] = asyncio.get_running_loop().time() + (0.0 if self.room.is_full else after)
            self._added.set()

    def remove(self, run: Parkable) -> None:
        """It does not wait any more."""
        self._due.pop(run, None)

    async def park_all(self) -> None:
        """Park everything that can be, however short it has waited: the process stops."""
        await self._park(list(self._due))

    async def serve(self) -> None:
        """Park what has waited long enough."""
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now = loop.time()
            due = [run for run, at in self._due.items() if at <= now]
            if due:
                await self._park(due)
            else:
                await self._sleep(min(self._due.values(), default=inf) - now)

    async def _park(self, due: list[Parkable]) -> None:
        tasks = tasks_by_value(self._mark)
        later = asyncio.get_running_loop().time() + LOOK_AGAIN
        able = [run for run in due if run.may_park(tasks.get(run, set()))]
        # Of those that go, the entry goes with them.
        self._due.update(dict.fromkeys((run for run in due if run in self._due), later))
        for start in range(0, len(able), TOGETHER):
            await asyncio.gather(*(run.park() for run in able[start : start + TOGETHER]))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                await self._added.wait()
        except TimeoutError:
            pass
