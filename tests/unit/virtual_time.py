"""An event loop whose time is not waited for: when there is nothing to do, the next timer is due at once.

What it runs must not wait for threads, processes or sockets, which take time of another kind.
"""

import asyncio
import selectors
from typing import Any, Final

import anyio
import pytest


class _Skipping(selectors.SelectSelector):
    """Moves the time on where another selector would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that lives through hours in an instant."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now

    def advance(self, seconds: float) -> None:
        """Move the time on, and let nothing happen meanwhile."""
        self._skipping.now += seconds


SIMULATED: Final[tuple[str, dict[str, object]]] = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""The backend of tests that run on such a loop."""

simulated: Final = pytest.mark.parametrize("anyio_backend", [pytest.param(SIMULATED, id="simulated time")])
"""For one test of a file whose others run on real time."""


async def time_passes(seconds: float) -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "this would be waited for"
    await anyio.sleep(seconds)  # sleep: the time is simulated


def block(seconds: float) -> None:
    """Let simulated time go by in which the event loop does nothing, as if a tool had blocked it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "this would be waited for"
    loop.advance(seconds)
