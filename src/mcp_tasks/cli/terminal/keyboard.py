"""Lines and Ctrl-C from a terminal, without holding up the event loop: the task goes on while somebody types.

The terminal stays in its usual mode, so that it does the editing and Ctrl-C is a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Interrupt(Exception):
    """Ctrl-C (or Ctrl-D) while a line was being read."""


class Keyboard:
    """The keyboard of whoever runs the command. Made inside the event loop."""

    def __init__(self) -> None:
        self._reading: asyncio.Future[str] | None = None
        self._pressed = asyncio.Event()

    @contextmanager
    def listening(self) -> Generator[None]:
        """Take Ctrl-C for ourselves while this is entered."""
        loop = asyncio.get_running_loop()
        before = signal.signal(signal.SIGINT, lambda _number, _frame: loop.call_soon_threadsafe(self._press))
        try:
            with _no_echo_of_controls():
                yield
        finally:
            signal.signal(signal.SIGINT, before)

    async def interrupted(self) -> None:
        """Wait for a Ctrl-C that comes while no line is being read."""
        await self._pressed.wait()
        self._pressed.clear()

    async def line(self, prompt: Text, console: Console) -> str:
        """One line that somebody types after `prompt`.

        Raises:
            Interrupt: They pressed Ctrl-C or Ctrl-D instead.
        """
        console.print(prompt, end="", soft_wrap=True)
        loop = asyncio.get_running_loop()
        self._reading = reading = loop.create_future()
        try:
            if sys.platform == "win32":
                threading.Thread(target=_read_on_thread, args=(loop, reading), daemon=True).start()
            else:
                loop.add_reader(sys.stdin, _read, reading)
            return await reading
        except (Interrupt, asyncio.CancelledError):
            # What is printed next is no part of the prompt.
            console.print()
            raise
        finally:
            self._reading = None
            if sys.platform != "win32":
                loop.remove_reader(sys.stdin)

    @staticmethod
    def forget_typed() -> None:
        """Drop what was typed before anything was asked: it cannot be meant as an answer."""
        if sys.platform != "win32":
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)

    def _press(self) -> None:
        if self._reading is None or self._reading.done():
            self._pressed.set()
        else:
            self._reading.set_exception(Interrupt())


@contextmanager
def _no_echo_of_controls() -> Generator[None]:
    """Keep a terminal from writing ^C into a progress bar."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def is_terminal() -> bool:
    """Whether there is somebody to ask: both what we read and what we draw on is a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _read(reading: asyncio.Future[str]) -> None:
    # A terminal gives whole lines, so this takes one and does not block.
    _settle(reading, os.read(sys.stdin.fileno(), 65536).decode(sys.stdin.encoding or "utf-8", "replace"))


def _read_on_thread(loop: asyncio.AbstractEventLoop, reading: asyncio.Future[str]) -> None:
    loop.call_soon_threadsafe(_settle, reading, sys.stdin.readline())


def _settle(reading: asyncio.Future[str], text: str) -> None:
    if text and not reading.done():
        reading.set_result(text.rstrip("\r\n"))
    elif not reading.done():
        reading.set_exception(Interrupt())
