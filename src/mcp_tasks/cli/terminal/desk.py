"""The person who waits, if there is one: where questions are asked and where Ctrl-C leads.

One thing at a time is on the terminal: a question, or the menu after Ctrl-C. While somebody works on either, the
clock of a `--timeout` is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from mcp_tasks.cli.forms.form import Form
from mcp_tasks.cli.terminal.exits import Detached
from mcp_tasks.cli.terminal.keyboard import Interrupt, Keyboard, is_terminal
from mcp_tasks.cli.terminal.menus import chosen
from mcp_tasks.cli.terminal.views import Board
from mcp_tasks.client import Follower
from mcp_tasks.client.questions import Question

T = TypeVar("T")

TICK = 0.2
"""How often a time limit is looked at, in seconds. It is paused at times, so a single timer will not do."""


class TimeUp(Exception):
    """The `--timeout` is over."""


class Decision(Enum):
    """What somebody who pressed Ctrl-C wants."""

    CANCEL = auto()
    DETACH = auto()
    STOP = auto()
    """Nobody was asked: `--on-abandon` says what becomes of the tasks."""


class Desk:
    """Where whoever runs the command sits. Made inside the event loop.

    Attributes:
        is_staffed: Whether there is somebody to ask.
        can_cancel: Whether there is a task to cancel, and not just a call under way.
    """

    def __init__(self, board: Board, *, limit: float | None = None) -> None:
        self.is_staffed: bool = is_terminal()
        self.can_cancel: bool = False
        self._board = board
        self._keyboard = Keyboard()
        self._busy = asyncio.Lock()
        self._decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._spent = 0.0
        self._pauses = 0

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the person.

        Raises:
            Later: They leave the question open.
        """
        async with self._busy:
            with self._pause(), self._board.aside() as console:
                while True:
                    try:
                        return await Form(question, self._keyboard, console).fill_in()
                    except Interrupt:
                        await self._decide(console)

    async def supervise(self, work: Coroutine[Any, Any, T], follower: Follower | None = None) -> T:
        """Do `work` until it ends, the time is up, or the person stops it.

        Args:
            follower: Follows the tasks that can be cancelled. The work goes on until they have ended.

        Raises:
            Detached: The person no longer wants to wait.
            TimeUp: The limit is over.
        """
        with self._keyboard.listening():
            working = asyncio.ensure_future(work)
            attending = asyncio.ensure_future(self._attend())
            try:
                while not await self._done(working, attending):
                    decision = attending.result()
                    if follower is None or decision is not Decision.CANCEL:
                        if follower is not None and decision is Decision.DETACH:
                            follower.leave_all()
                        raise Detached
                    await follower.cancel_all()
                    self._decided = asyncio.get_running_loop().create_future()
                    attending = asyncio.ensure_future(self._attend())
                return await working
            finally:
                await _stop(working, attending)

    async def _done(self, working: asyncio.Future[Any], attending: asyncio.Future[Decision]) -> bool:
        """Wait until the work has ended (True), or a decision was made (False)."""
        loop = asyncio.get_running_loop()
        while not working.done():
            before = loop.time()
            await asyncio.wait({working, attending}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
            if not self._pauses:
                self._spent += loop.time() - before
            if working.done():
                break
            if attending.done():
                return False
            if self._limit is not None and self._spent >= self._limit:
                raise TimeUp
        return True

    async def _attend(self) -> Decision:
        """Wait for the person to decide something."""
        while True:
            pressed = asyncio.ensure_future(self._keyboard.interrupted())
            await asyncio.wait({pressed, self._decided}, return_when=asyncio.FIRST_COMPLETED)
            if self._decided.done():
                pressed.cancel()
                return self._decided.result()
            if not self.is_staffed or not self.can_cancel:
                return Decision.STOP
            async with self._busy:
                with self._pause(), self._board.aside() as console:
                    decision = await self._menu(console)
            if decision is not None:
                return decision

    async def _decide(self, console: Console) -> None:
        """Ctrl-C at a question: either go on with it, or never come back from here."""
        decision = await self._menu(console) if self.can_cancel else Decision.STOP
        if decision is not None:
            self._decided.set_result(decision)
            await asyncio.Event().wait()

    async def _menu(self, console: Console) -> Decision | None:
        self._keyboard.forget_typed()
        prompt = "[c]ancel, [d]etach or [w]ait on (Ctrl-C again detaches): "
        while True:
            try:
                text = await self._keyboard.line(Text(prompt, style="yellow"), console)
            except Interrupt:
                text = "d"
            match chosen(text or "w", ("cancel", "detach", "wait")):
                case "cancel":
                    return Decision.CANCEL
                case "detach":
                    return Decision.DETACH
                case "wait":
                    return None
                case _:
                    # Cancelling cannot be taken back, so nothing is guessed.
                    console.print(Text("Type c, d or w, or the whole word.", style="red"))

    @contextmanager
    def _pause(self) -> Generator[None]:
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


async def _stop(*futures: asyncio.Future[Any]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
