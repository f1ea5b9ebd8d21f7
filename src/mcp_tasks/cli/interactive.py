"""A command that waits: states are drawn, questions asked, Ctrl-C offers a choice, and results are printed or saved.

While a question, or the menu after Ctrl-C, is on the terminal, no time of a `--timeout` passes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.text import Text

from mcp_tasks.cli.connection import Chosen
from mcp_tasks.cli.fields import chosen_word
from mcp_tasks.cli.follow import Event, Followed, Follower, Watcher, blocks_of
from mcp_tasks.cli.options import SECRETS, Access, Options, Waiting
from mcp_tasks.cli.prompt import ask, how_to_answer
from mcp_tasks.cli.questions import Question
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
from mcp_tasks.errors import InvalidOption, InvalidResponse, TasksError
from mcp_tasks.model.json import JsonObject

T = TypeVar("T")

HOW_TO_SAVE: Final = "--save DIR writes it to a file"

_EXITS: Final[Mapping[str, Exit]] = {
    "tool_error": Exit.TOOL_ERROR,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
    "input_required": Exit.INPUT_REQUIRED,
}
"""Exit codes of the outcomes that are failures. One that the user chose is none."""


# ---- outcomes
# A finished call or task: in words, as JSON, and as an exit code.


def report(followed: Sequence[Followed], options: Options, *, save: Path | None = None, as_list: bool = False) -> int:
    """Print calls or tasks; returns the exit code of the first failure."""
    outcomes = [with_files(each, save) for each in followed]
    if options.output == "json":
        values = [as_json(outcome) for outcome in outcomes]
        print_json(values if as_list else values[0])
    else:
        for outcome in outcomes:
            _print(outcome, options.access, named=as_list and len(outcomes) > 1)
    return next((code for outcome in outcomes if (code := _exit_of(outcome))), Exit.OK)


def with_files(followed: Followed, save: Path | None) -> Followed:
    """Write the files of a result into a folder. If that fails, a message says so, and the result is printed all the
    same: it may be nowhere else."""
    if save is None or followed.result is None:
        return followed
    saved, problem = save_files(followed.result, save, followed.entry.tool)
    followed = replace(followed, saved=saved, not_saved=problem)
    named = "\n".join(result_texts(followed.result or {}, saved))
    for path in saved.values():
        # A text file is printed as it is, without its path.
        if str(path) not in named:
            say(f"Saved {path}")
    if problem is not None and (said := problem_in(followed)) is not None:
        said.show()
    return followed


def problem_in(followed: Followed) -> Problem | None:
    """Why no more is known of a task, or why a file of `--save` was not written."""
    if followed.problem is not None:
        return problem_of(followed.problem)
    if followed.status == "input_required" and followed.fate in ("cancelled", "not cancelled"):
        why = "the task asks something and there is no terminal to ask at"
        return Problem(why + WHAT_BECAME[followed.fate], Exit.INPUT_REQUIRED)
    if followed.not_saved is not None:
        return Problem(f"--save: {followed.not_saved}", problem_of(followed.not_saved).code)
    return None


def as_json(followed: Followed) -> dict[str, Any]:
    """The value that `--output json` prints."""
    problem = problem_in(followed)
    return followed.to_json() | ({} if problem is None else {"problem": problem.message})


def _exit_of(followed: Followed) -> Exit:
    problem = problem_in(followed)
    return _EXITS.get(followed.outcome) or (Exit.OK if problem is None else problem.code)


def say_how_to_return(entries: Sequence[LedgerEntry], access: Access, *, goes_on: bool = True) -> None:
    """Print the command that comes back to tasks. They go on, as far as is known, if their servers do."""
    over_stdio = any(ServerAddress.parse(entry.server).url is None for entry in entries)
    title = "The task goes on. " if len(entries) == 1 else "The tasks go on. "
    come_back = command_line("wait", *(short_id(entry.task_id) for entry in entries), options=access.repeated)
    say(f"{title if goes_on and not over_stdio else ''}Come back with:\n  {come_back}")
    if over_stdio:
        # A client does not know whether a tool may be run again.
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
        _print_result(followed.result, followed.saved)
    elif followed.status == "failed":
        say(f"The call failed: {one_line(followed.failure)}", "red")
    elif followed.status == "cancelled":
        say(f"The task was cancelled{f': {one_line(followed.message)}' if followed.message else '.'}")
    elif followed.status == "input_required":
        _print_questions(followed, access)


def _print_result(result: JsonObject, saved: Mapping[int, Path]) -> None:
    """A tool's result, as text: on stdout, or on stderr if it is an error."""
    failed = bool(result.get("isError"))
    if failed:
        say("The tool failed:", "red")
    stream = sys.stderr if failed else sys.stdout
    for text in result_texts(result, saved, unsaved=HOW_TO_SAVE):
        # Output into a file or a pipe is unchanged; on stderr it is for people to read, at once or later.
        click.echo(clean(text) if failed or stream.isatty() else SECRETS.hidden_in(text), file=stream)


def _print_questions(followed: Followed, access: Access) -> None:
    short, questions, repeated = short_id(followed.entry.task_id), followed.questions, access.repeated
    lines = how_to_answer(followed.entry.task_id, questions, repeated)
    if questions:
        say("\n  ".join(["The task asks:", *(line for question in questions for line in question.describe())]))
        title = "Answer with (or --decline, or --cancel), then come back:"
        lines.append(command_line("wait", short, options=repeated))
    else:
        # A server of 2025-11-25 sends its question to a client that stays to answer.
        title = "The task asks something. Answer it on a terminal, or without one:"
        lines.insert(0, command_line("answer", short, options=repeated))
    say("\n  ".join([title, *lines]))


# ---- results
# Results in words, and their images, sounds and files written into a folder.


_APPLICATIONS: Final = frozenset({"json", "pdf", "zip", "gzip", "xml", "octet-stream", "x-tar", "rtf"})
_SUFFIXES: Final = {"audio/wav": ".wav", "audio/mp3": ".mp3", "image/jpg": ".jpg", "application/xml": ".xml"}
"""Those that Python does not know, or knows by another name."""

_MOST: Final = 100_000
"""Files of one name in a folder."""


def result_texts(
    result: JsonObject, saved: Mapping[int, Path] | None = None, *, unsaved: str = "not saved"
) -> list[str]:
    """A tool's result in words, block by block, as the server wrote them.

    Args:
        saved: The files of it that were written, by the number of their block.
        unsaved: The remark on a file that was not written.
    """
    where = {number: f"saved as {path}" for number, path in (saved or {}).items()}
    texts = [_text_of(block, where.get(number, unsaved)) for number, block in enumerate(blocks_of(result))]
    if not texts and result.get("structuredContent") is not None:
        return [json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)]
    return texts


def _text_of(block: JsonObject, where: str) -> str:
    match block:
        case {"type": "text"}:
            return str(block.get("text", ""))
        case {"type": "image" | "audio" as kind}:
            size = len(str(block.get("data", "")).rstrip("=")) * 3 // 4
            return f"[{kind}, {block.get('mimeType', 'unknown type')}, {size} bytes; {where}]"
        case {"type": "resource", "resource": {"text": str(text)}} if text:
            return text
        case {"type": "resource", "resource": {"uri": uri}}:
            return f"[resource {uri}; {where}]"
        case {"type": "resource_link"}:
            return f"[resource {block.get('uri', '')}]"
        case _:
            return f"[{block.get('type', 'unknown')} content, only in the JSON of the result]"


def save_files(result: JsonObject, folder: Path, tool: str) -> tuple[dict[int, Path], TasksError | None]:
    """Write the files in a tool's result into a folder, named after the tool.

    Returns:
        Their paths, by the number of their block; and the first problem with one: an `InvalidOption` if the folder
        cannot be written to, an `InvalidResponse` if a file is not valid. The others are written all the same.
    """
    saved: dict[int, Path] = {}
    problem: TasksError | None = None
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", tool)[:40].strip("-") or "result"
    for number, block in enumerate(blocks_of(result)):
        try:
            match block:
                case {"type": "image" | "audio", "data": str(data)}:
                    found, mime = _decoded(data), block.get("mimeType", "")
                case {"type": "resource", "resource": {"blob": str(data)} as resource}:
                    found, mime = _decoded(data), resource.get("mimeType", "")
                case {"type": "resource", "resource": {"text": str(text)} as resource}:
                    found, mime = text.encode(errors="replace"), resource.get("mimeType", "")
                case _:
                    continue
            is_text = block["type"] == "resource" and "blob" not in block["resource"]
            saved[number] = _write(folder, name, _suffix(str(mime), text=is_text), found)
        except TasksError as exc:
            problem = problem or exc
    return saved, problem


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as exc:
        raise InvalidResponse(f"a file in the result is not base64, and cannot be saved: {exc}") from exc


def _suffix(mime: str, *, text: bool) -> str:
    kind, _, name = mime.partition(";")[0].strip().lower().partition("/")
    known = kind in ("image", "audio", "video", "text") or (kind == "application" and name in _APPLICATIONS)
    guessed = _SUFFIXES.get(f"{kind}/{name}") or mimetypes.guess_extension(f"{kind}/{name}")
    return (guessed if known else None) or (".txt" if text else ".bin")


def _write(folder: Path, name: str, suffix: str, data: bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = folder / f"{name}-{number}{suffix}"
            try:
                # Only if nothing is there, not even a link.
                file = path.open("xb")
            except FileExistsError:
                continue
            try:
                with file:
                    file.write(data)
            except OSError:
                # Half a file is worse than none.
                path.unlink(missing_ok=True)
                raise
            return path
    except OSError as exc:
        raise InvalidOption(f"{str(folder)!r} cannot be written to: {exc.strerror or exc}") from exc
    raise InvalidOption(f"{str(folder)!r} has too many files that are called {name}")


# ---- attending


class Attending(Watcher):
    """Follows calls and tasks for the user of a command. Made inside the event loop."""

    def __init__(self, board: Board, access: Access, waiting: Waiting, *, asks: bool = True) -> None:
        self.can_answer: bool = is_terminal()
        self.follower: Follower = Follower(self, asks=asks, on_abandon=waiting.on_abandon, timeout=waiting.timeout)
        self._board = board
        self._access = access
        self._keyboard = Keyboard()
        self._given_up = asyncio.Event()
        self._cancelling: list[asyncio.Future[None]] = []

    async def stay(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` until it ends, or the user stops it; if they cancel the tasks, until these have ended.

        Raises:
            Detached: The user no longer wants to wait, and was told how to come back.
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
        """Stay until tasks have ended; returns their last states."""
        return await self.stay(self.follower.follow(chosen.entries, chosen.connect, headers=self._access.credentials))

    async def ask(self, question: Question) -> dict[str, Any] | None:
        """Ask the user, unless they are cancelling everything; None if they leave the question open."""
        async with self._board.aside() as console:
            waits = not self._cancelling
            while waits:
                try:
                    return await ask(question, self._keyboard, console)
                except Interrupt:
                    waits = await self._waits_on(console)
        # The terminal is free again, and the wait for this answer is stopped, or sees its task end.
        return await asyncio.get_running_loop().create_future()

    def tell(self, followed: Followed, event: Event, detail: Any = None) -> None:
        match event:
            case "changed":
                self._board.show(followed)
            case "withdrawn":
                say("The question was withdrawn.", "yellow")
            case "refused":
                say(one_line(f"The server refused the answer, and the question is asked again: {detail}"), "red")
            case "back":
                self._board.back(followed, detail)
            case "ended":
                # Its result is printed, or its task is drawn.
                self._board.drop(followed)
            case "problem":
                self._board.drop(followed, problem_of(detail).message)
            case "not cancelled":
                say(one_line(f"{followed.task_id} could not be cancelled: {detail}"), "red")

    async def answer(self, followed: Followed, question: Question) -> dict[str, Any] | None:
        if not question.is_elicitation:
            say(one_line(f"The task sends a {question.method} request, which cannot be answered here."), "yellow")
            return None
        if self._board.with_ids:
            question = replace(question, tool=f"{question.tool} ({short_id(followed.entry.task_id)})")
        return await self.ask(question)

    async def _attend(self) -> None:
        """Have the user choose at every Ctrl-C that comes while nothing is asked."""
        while True:
            await self._keyboard.interrupted()
            async with self._board.aside() as console:
                await self._waits_on(console)

    async def _waits_on(self, console: Console) -> bool:
        """Whether to go on after Ctrl-C; otherwise the user's other choice is under way."""
        # With nothing to choose, or no person to, `--on-abandon` says what becomes of the tasks.
        decision = await self._menu(console) if self.can_answer and self.follower.can_cancel else "stop"
        if decision == "cancel":
            # Meanwhile Ctrl-C still works: a server may take its time, or be gone.
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
                    # Cancelling cannot be undone, so nothing is guessed.
                    console.print(Text("Type c, d or w, or the whole word.", style="red"))
        except Interrupt:
            return "detach"

    def _say_goodbye(self) -> None:
        """Say what becomes of the tasks; nothing does of tasks that were only watched."""
        tasks = [followed for followed in self.follower.seen.values() if followed.task_id and not followed.is_final]
        if not self.follower.asks or not self.follower.seen:
            return
        if not tasks:
            say("The call was given up before it became a task.")
        elif any(followed.fate == "cancelled" for followed in tasks):
            say("The task was cancelled." if len(tasks) == 1 else "The tasks that had not ended were cancelled.")
        else:
            say_how_to_return([followed.entry for followed in tasks], self._access)
