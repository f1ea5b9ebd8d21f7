"""Whoever waits at a terminal, or reads its lines later: states are drawn, questions asked, and Ctrl-C offers a choice.

While somebody works on a question, or on the menu after Ctrl-C, no time of a `--timeout` passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from mcp_tasks.cli.forms.form import ask
from mcp_tasks.cli.options import Access, Waiting
from mcp_tasks.cli.remembered import Chosen
from mcp_tasks.cli.terminal.boards import Board
from mcp_tasks.cli.terminal.exits import Detached, problem_of
from mcp_tasks.cli.terminal.keyboard import Interrupt, Keyboard, is_terminal
from mcp_tasks.cli.terminal.outcomes import say_how_to_return
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import say
from mcp_tasks.client import Followed, Follower, Hooks, Question, short_id
from mcp_tasks.client.conversions import chosen_word

T = TypeVar("T")


class Attending(Hooks):
    """Follows calls and tasks for whoever runs a command. Made inside the event loop.

    Attributes:
        can_answer: Whether there is somebody to ask.
        follower: Does the following, as it is told, and tells us.
    """

    def __init__(self, board: Board, access: Access, waiting: Waiting, *, asks: bool = True) -> None:
        self.can_answer: bool = is_terminal()
        self.follower: Follower = Follower(self, asks=asks, on_abandon=waiting.on_abandon, timeout=waiting.timeout)
        self._board = board
        self._access = access
        self._keyboard = Keyboard()
        self._given_up = asyncio.Event()
        self._cancelling: list[asyncio.Future[None]] = []

    async def stay(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` until it ends, or the person stops it; if they cancel the tasks, until these have ended.

        Raises:
            Detached: The person no longer wants to wait, and was told how to come back.
        """
        with self._keyboard.listening():
            working, given_up = asyncio.ensure_future(work), asyncio.ensure_future(self._given_up.wait())
            attending = asyncio.ensure_future(self._attend())
            try:
                self._board.start()
                await asyncio.wait({working, given_up}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return await working
            finally:
                for future in (attending, given_up, *self._cancelling, working):
                    future.cancel()
                    await asyncio.gather(future, return_exceptions=True)
                self._board.stop()
        self._say_goodbye()
        raise Detached

    async def follow(self, chosen: Chosen) -> list[Followed]:
        """Stay until tasks have ended; how each stands then."""
        return await self.stay(self.follower.follow(chosen.entries, chosen.connect, headers=self._access.credentials))

    async def ask(self, question: Question) -> dict[str, Any] | None:
        """Ask the person, unless they are cancelling all there is; None if they leave the question open."""
        async with self._board.aside() as console:
            waits = not self._cancelling
            while waits:
                try:
                    return await ask(question, self._keyboard, console)
                except Interrupt:
                    waits = await self._waits_on(console)
        # The terminal is free again, and whoever wants the answer is stopped, or sees its task end.
        return await asyncio.get_running_loop().create_future()

    # What happens to calls and tasks

    def on_change(self, followed: Followed) -> None:
        """Draw it."""
        self._board.show(followed)

    async def on_question(self, followed: Followed, question: Question) -> dict[str, Any] | None:
        """Ask the person."""
        if not question.is_elicitation:
            say(one_line(f"The task sends a {question.method} request, which cannot be answered here."), "yellow")
            return None
        if self._board.with_ids:
            question = replace(question, tool=f"{question.tool} ({short_id(followed.entry.task_id)})")
        return await self.ask(question)

    def on_withdrawn(self, followed: Followed, key: str) -> None:
        """Say so, because somebody was typing."""
        say("The question was withdrawn.", "yellow")

    def on_refused(self, followed: Followed, key: str, problem: Exception) -> None:
        """Say so, because it is asked again."""
        say(one_line(f"The server refused the answer, and the question is asked again: {problem}"), "red")

    def on_back(self, followed: Followed, after: timedelta) -> None:
        """Say that the server is back, in a line that stays."""
        self._board.back(followed, after)

    def on_call_ended(self, followed: Followed) -> None:
        """Draw no more of it: its result is printed, or its task is drawn."""
        self._board.drop(followed)

    def on_problem(self, followed: Followed, problem: Exception) -> None:
        """Draw no more of it."""
        self._board.drop(followed, problem_of(problem).message)

    def on_not_cancelled(self, followed: Followed, problem: Exception) -> None:
        """Say so."""
        say(one_line(f"{followed.task_id} could not be cancelled: {problem}"), "red")

    # What the person decides

    async def _attend(self) -> None:
        """Have the person choose at every Ctrl-C that comes while nothing is asked."""
        while True:
            await self._keyboard.interrupted()
            async with self._board.aside() as console:
                await self._waits_on(console)

    async def _waits_on(self, console: Console) -> bool:
        """Whether to go on after Ctrl-C; otherwise what was chosen instead is under way."""
        # With nothing to choose, or nobody who can, `--on-abandon` says what becomes of the tasks.
        decision = await self._menu(console) if self.can_answer and self.follower.can_cancel else "stop"
        if decision == "cancel":
            # Meanwhile Ctrl-C is listened to: a server may take its time, or be gone.
            self._cancelling.append(asyncio.ensure_future(self.follower.cancel_all()))
        elif decision != "wait":
            if decision == "detach":
                self.follower.leave_all()
            self._given_up.set()
        return decision == "wait"

    async def _menu(self, console: Console) -> str:
        self._keyboard.forget_typed()
        cancel = "[c]ancel all, [d]etach, " if self._board.with_ids else "[c]ancel, [d]etach or "
        prompt = Text(f"{cancel}[w]ait on (Ctrl-C again detaches): ", style="yellow")
        try:
            with self.follower.paused():
                while True:
                    line = await self._keyboard.line(prompt, console)
                    if word := chosen_word(line or "wait", ("cancel", "detach", "wait")):
                        return word
                    # Cancelling cannot be taken back, so nothing is guessed.
                    console.print(Text("Type c, d or w, or the whole word.", style="red"))
        except Interrupt:
            return "detach"

    def _say_goodbye(self) -> None:
        """Say what becomes of what was waited for; of what was only watched, nothing does."""
        tasks = [followed for followed in self.follower.seen.values() if followed.task_id and not followed.is_final]
        if not self.follower.asks or not self.follower.seen:
            return
        if not tasks:
            say("The call was given up before it became a task.")
        elif any(followed.fate == "cancelled" for followed in tasks):
            say("The task was cancelled." if len(tasks) == 1 else "The tasks that had not ended were cancelled.")
        else:
            say_how_to_return([followed.entry for followed in tasks], self._access)
