"""An event loop on which hours pass in milliseconds, and the same things happen every time.

Its time is a number. Where another loop would sleep until the next timer, this one moves the number there. Its asyncio
tasks are numbered, because sets of them are walked in the order of their hashes, which by default are addresses.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


TURN = 0.0005
"""Seconds that a turn of the loop takes: where something turns until a time has come, it does come."""


LAST = 20_000.0
"""Seconds after which a simulation that has not come to its end never will."""


class Stuck(Exception):
    """The simulation will not come to its end: nothing is scheduled, or something turns in a circle."""


class _TimeMachine(selectors.DefaultSelector):
    """Moves the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or self.now > LAST):
            raise Stuck
        self.now += timeout or TURN
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """An asyncio task whose hash is its number."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own.

    Attributes:
        mishaps: What asyncio would have reported: exceptions that were never retrieved, tasks that were dropped.
    """

    def __init__(self) -> None:
        self._machine = _TimeMachine()
        super().__init__(self._machine)
        self.mishaps: list[str] = []
        self._numbers = count(1)
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._machine.now

    def now(self) -> datetime:
        """The time as people tell it."""
        return EPOCH + timedelta(seconds=self.time())

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _NumberedTask:
        return _NumberedTask(next(self._numbers), coro, loop=loop, **options)

    def _note(self, loop: asyncio.AbstractEventLoop, trouble: Mapping[str, Any]) -> None:
        self.mishaps.append(f"{trouble.get('message')}: {trouble.get('exception')!r}")


def simulate(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """What `main` returns, on a loop of its own; what asyncio reports meanwhile is a failure."""
    loop = SimulatedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main(loop))
    assert not loop.mishaps, loop.mishaps
    return result
