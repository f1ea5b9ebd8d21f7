"""Whoever waits at a terminal, or reads its lines later: states are drawn, questions asked, and Ctrl-C offers a choice.

While somebody works on a question, or on the menu after Ctrl-C, no time of a `--timeout` passes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.text import Text

from mcp_tasks.cli.connection import Chosen
from mcp_tasks.cli.fields import chosen_word
from mcp_tasks.cli.follow import Followed, Follower, Hooks
from mcp_tasks.cli.forms import ask, how_to_answer
from mcp_tasks.cli.options import SECRETS, Access, Options, Waiting
from mcp_tasks.cli.questions import Question, result_texts
from mcp_tasks.cli.servers import ServerAddress
from mcp_tasks.cli.terminal import (
    WHAT_BECAME,
    Board,
    Detached,
    Exit,
    Interrupt,
    Keyboard,
    Problem,
    clean,
    command_line,
    is_terminal,
    one_line,
    print_json,
    problem_of,
    say,
)
from mcp_tasks.client import LedgerEntry
from mcp_tasks.client.ledger import short_id
from mcp_tasks.model.json import JsonObject

# ---- outcomes
# What became of a call or a task: in words, as JSON, and as an exit code.


HOW_TO_SAVE: Final = "--save DIR writes it to a file"

_EXITS: Final[Mapping[str, Exit]] = {
    "tool_error": Exit.TOOL_ERROR,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
    "input_required": Exit.INPUT_REQUIRED,
}
"""For outcomes that are not well. What somebody has chosen is no failure."""


def report(followed: Sequence[Followed], options: Options, *, save: Path | None = None, as_list: bool = False) -> int:
    """Print how calls or tasks stand; gives the exit code: that of the first that is not well."""
    outcomes = [with_files(each, save) for each in followed]
    if options.output == "json":
        values = [as_json(outcome) for outcome in outcomes]
        print_json(values if as_list else values[0])
    else:
        for outcome in outcomes:
            _print(outcome, options.access, named=as_list and len(outcomes) > 1)
    return next((code for outcome in outcomes if (code := _exit_of(outcome))), Exit.OK)


def with_files(followed: Followed, save: Path | None) -> Followed:
    """The same, after the files in its result were written into a folder. If they cannot be, that is said, and the
    result is printed all the same: it may be nowhere else."""
    if save is None:
        return followed
    followed = followed.save(save)
    named = "\n".join(result_texts(followed.result or {}, followed.saved))
    for path in followed.saved.values():
        # What is text is printed as it is, without a word on where it went.
        if str(path) not in named:
            say(f"Saved {path}")
    if followed.not_saved is not None and (problem := problem_in(followed)) is not None:
        problem.show()
    return followed


def problem_in(followed: Followed) -> Problem | None:
    """What kept us from knowing more, or from writing a file with `--save`."""
    if followed.problem is not None:
        return problem_of(followed.problem)
    if followed.status == "input_required" and followed.fate in ("cancelled", "not cancelled"):
        why = "the task asks something and there is no terminal to ask at"
        return Problem(why + WHAT_BECAME[followed.fate], Exit.INPUT_REQUIRED)
    if followed.not_saved is not None:
        return Problem(f"--save: {followed.not_saved}", problem_of(followed.not_saved).code)
    return None


def as_json(followed: Followed) -> dict[str, Any]:
    """The value that `--output json` prints, with the problem as it is said here."""
    problem = problem_in(followed)
    return followed.to_json() | ({} if problem is None else {"problem": problem.message})


def _exit_of(followed: Followed) -> Exit:
    problem = problem_in(followed)
    return _EXITS.get(followed.outcome) or (Exit.OK if problem is None else problem.code)


def say_how_to_return(entries: Sequence[LedgerEntry], access: Access, *, goes_on: bool = True) -> None:
    """The command that comes back to tasks; they go on, as far as we know and their servers do."""
    over_stdio = any(ServerAddress.parse(entry.server).url is None for entry in entries)
    title = "The task goes on. " if len(entries) == 1 else "The tasks go on. "
    come_back = command_line("wait", *(short_id(entry.task_id) for entry in entries), options=access.repeated)
    say(f"{title if goes_on and not over_stdio else ''}Come back with:\n  {come_back}")
    if over_stdio:
        # Whether a tool may be run again is not for a client to know.
        fate = "A task whose tool may be run again goes on\nwhen you come back; any other ends as interrupted."
        say(f"Its stdio server ends with this command. {fate}")


def _print(followed: Followed, access: Access, *, named: bool) -> None:
    entry, problem = followed.entry, problem_in(followed)
    if named:
        say(f"── {short_id(entry.task_id)}  {one_line(entry.tool)}: {followed.state.replace('_', ' ')}", "bold")
    if problem is not None and followed.not_saved is None:
        say(one_line(problem.message), "red")
        if problem.hint:
            say(f"  {problem.hint}")
        if problem.code in (Exit.TIMEOUT, Exit.UNREACHABLE) and followed.task_id and followed.fate != "cancelled":
            say_how_to_return([entry], access, goes_on=problem.code is Exit.TIMEOUT)
        return
    if followed.status in ("completed", "failed") and followed.error is None and followed.result is not None:
        print_result(followed.result, followed.saved)
    elif followed.status == "failed":
        say(f"The call failed: {one_line(followed.failure)}", "red")
    elif followed.status == "cancelled":
        say(f"The task was cancelled{f': {one_line(followed.message)}' if followed.message else '.'}")
    elif followed.status == "input_required":
        _print_questions(followed, access)


def print_result(result: JsonObject, saved: Mapping[int, Path]) -> None:
    """A tool's result, as text: on stdout, or on stderr if it is an error."""
    failed = bool(result.get("isError"))
    if failed:
        say("The tool failed:", "red")
    stream = sys.stderr if failed else sys.stdout
    for text in result_texts(result, saved, unsaved=HOW_TO_SAVE):
        # What goes into a file or a pipe goes there as it came; on stderr it is for people to read, at once or later.
        click.echo(clean(text) if failed or stream.isatty() else SECRETS.hidden_in(text), file=stream)


def _print_questions(followed: Followed, access: Access) -> None:
    short, questions, repeated = short_id(followed.entry.task_id), followed.questions, access.repeated
    lines = how_to_answer(followed.entry.task_id, questions, repeated)
    if questions:
        say("\n  ".join(["The task asks:", *(line for question in questions for line in question.describe())]))
        title = "Answer with (or --decline, or --cancel), then come back:"
        lines.append(command_line("wait", short, options=repeated))
    else:
        # A server of 2025-11-25 says what it asks to whoever stays to answer.
        title = "The task asks something. Answer it on a terminal, or without one:"
        lines.insert(0, command_line("answer", short, options=repeated))
    say("\n  ".join([title, *lines]))


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
