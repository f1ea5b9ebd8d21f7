"""The signals that stop a process: for a web server, a stdio server and a worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Final, Self, TypeAlias

from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.child_process import kill_children

logger: Final = get_logger(__name__)

Handler: TypeAlias = Callable[[int, FrameType | None], object]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LAST_WORDS: Final = 0.1
"""Seconds for last messages to clients. They only need the event loop and a socket."""


class Stopping:
    """Whether a serving process is about to stop. It sees the signal before its web server does, which would wait for
    requests that do not end by themselves.

    Args:
        patience: Seconds for which a stop waits for requests that await `exiting`.
        drain: Has tools end meanwhile, and no more of them start.

    Attributes:
        event: Set once the process is told to stop.
    """

    def __init__(self, patience: float = 0.0, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._patience = patience
        self._drain = drain
        self._exit = asyncio.Event()
        self._waiting = 0
        self._idle = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._installed: list[tuple[signal.Signals, Handler, Handler]] = []
        self._held: list[Callable[[], object]] = []

    def watch(self) -> None:
        """Go before the installed handlers. Does nothing if there are none, or off the main thread.

        Called again, it goes before handlers that were installed since: a server whose tasks start before its web
        server does has the web server's handlers in front of ours.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            is_ours = any(previous is ours for _, ours, _ in self._installed)
            if callable(previous) and previous is not signal.default_int_handler and not is_ours:
                ours = self._before(previous, self._loop)
                self._installed.append((number, ours, previous))
                signal.signal(number, ours)

    async def exiting(self) -> None:
        """Return once the process has to exit. Until then a stop waits for callers of this, for its patience."""
        self._waiting += 1
        try:
            await self._exit.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle.set()

    def end(self) -> None:
        """The last server of the process stops: nothing waits any more."""
        self.event.set()
        self._exit.set()
        if self._keeping is not None:
            self._keeping.cancel()
        self.unwatch()

    def unwatch(self) -> None:
        """Restore the handlers, except where another one was installed meanwhile."""
        for number, ours, previous in reversed(self._installed):
            if signal.getsignal(number) is ours:
                signal.signal(number, previous)
        self._installed.clear()
        # Last: a handler may end the process.
        self._hand_on()

    def _before(self, previous: Handler, loop: asyncio.AbstractEventLoop) -> Handler:
        def begin() -> None:
            self.event.set()
            if self._waiting and self._patience:
                self._keeping = loop.create_task(self._keep(loop), name="mcp-tasks-stopping")
            else:
                self._leave(loop)

        def handler(number: int, frame: FrameType | None) -> None:
            self._held.append(partial(previous, number, frame))
            if len(self._held) == 1 and not self.event.is_set():
                # This handler may have been restored after the end of the loop.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(begin)
                    return
            # A second signal is passed on at once: the loop may be busy for long.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._exit.set)
            self._hand_on()

        return handler

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drain, and let requests wait for the end of their tasks meanwhile."""
        try:
            async with asyncio.timeout(self._patience):
                if self._drain is not None:
                    await self._drain()
                # They may have left before, and come back.
                while self._waiting:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass
        except Exception:
            logger.error("a drain could not begin; the process stops at once", exc_info=quietly())
        self._leave(loop)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._exit.set()
        loop.call_later(_LAST_WORDS, self._hand_on)

    def _hand_on(self) -> None:
        while self._held:
            self._held.pop(0)()


@contextmanager
def hurried_by_sigterm() -> Generator[asyncio.Event]:
    """An event for SIGTERM, if that would end the process at once; the process ends when this is left.

    A stdio host closes the input of its server, and sends SIGTERM two seconds later if the server still runs: in the
    middle of a drain, which would lose everything that has not been handed over.
    """
    hurry = asyncio.Event()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield hurry
        return
    signal.signal(signal.SIGTERM, lambda _number, _frame: hurry.set())
    try:
        yield hurry
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if hurry.is_set():
            _end_now(signal.SIGTERM, None)


def _end_now(number: int, _frame: FrameType | None) -> None:
    """End the process as this signal usually does, which runs no exit handlers: child processes have to end first."""
    kill_children()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class Orders:
    """The signals of a worker: SIGTERM or SIGINT to stop, and a second one to hurry. A third ends the process as usual,
    but leaves no child processes.

    Where there are no signals to handle (Windows, or off the main thread), the caller has to cancel.
    """

    def __init__(self) -> None:
        self.stop: asyncio.Event = asyncio.Event()
        self.hurry: asyncio.Event = asyncio.Event()
        self._previous: dict[signal.Signals, Handler | int | None] = {}

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            for number in _SIGNALS:
                previous = signal.getsignal(number)
                loop.add_signal_handler(number, self._told)
                self._previous[number] = previous
        except (NotImplementedError, RuntimeError, ValueError):
            self._previous.clear()
        return self

    def __exit__(self, *exc: object) -> None:
        self._let_go(self._previous)

    def _told(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            return
        self.hurry.set()
        self._let_go({})
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end_now)

    def _let_go(self, restored: Mapping[signal.Signals, Handler | int | None]) -> None:
        """Stop handling signals, and restore these handlers."""
        for number in self._previous:
            asyncio.get_running_loop().remove_signal_handler(number)
            if (previous := restored.get(number)) is not None:
                signal.signal(number, previous)
        self._previous = {}
