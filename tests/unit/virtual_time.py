"""An event loop whose time is not waited for: when there is nothing to do, the next timer is due at once.

What it runs must not wait for threads, processes or sockets, which take time of another kind.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


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
