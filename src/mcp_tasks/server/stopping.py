"""Noticing that the process is told to stop, before its web server waits for what will not end by itself.

A web server that is told to stop lets open responses finish, and only then ends the server's lifespan. A listen stream
never finishes, so it would keep the process for good; ASGI has no way to tell it. What tells is the signal. Where a
handler for it is installed (as uvicorn does), this one goes before it and calls it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Whether the process is about to stop."""

    def __init__(self) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._installed: dict[signal.Signals, tuple[Handler, Handler]] = {}

    def watch(self) -> None:
        """Go before the handlers that are installed. Does nothing where there are none, or off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if callable(previous) and previous is not signal.default_int_handler:
                ours = self._before(previous, loop)
                self._installed[number] = (ours, previous)
                signal.signal(number, ours)

    def unwatch(self) -> None:
        """Put back what was there, unless somebody else has put something there meanwhile."""
        for number, (ours, previous) in self._installed.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, previous)
        self._installed.clear()

    def _before(self, previous: Handler, loop: asyncio.AbstractEventLoop) -> Handler:
        def handler(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.event.set)
            previous(number, frame)

        return handler


async def until_told_to_stop() -> None:
    """Return when the process gets SIGTERM. What else ends it cancels whoever waits here."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, told.set)
    except (NotImplementedError, RuntimeError, ValueError):
        # Windows, or not the main thread: then it is for the caller to cancel.
        await told.wait()
        return
    try:
        await told.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
