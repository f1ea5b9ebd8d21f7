"""Output, exit codes and the keyboard: what all commands share.

Everything but results goes to stderr, so that stdout is what a script wants. Text that comes from a server is never
markup and never control codes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import click
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks import errors
from mcp_tasks.cli.follow import COMPLETED_BADLY, Followed, TaskKey
from mcp_tasks.cli.options import SECRETS
from mcp_tasks.client import CallLost, LedgerEntry, Progress
from mcp_tasks.client.backend import ACCESS_REFUSED
from mcp_tasks.client.ledger import UNKNOWN, is_dropped, printable, short_id
from mcp_tasks.model.values import clock

# ---- text
# Text of servers, made fit for a terminal; the one place for it.


def clean(text: str) -> str:
    """Text without control characters and secrets, on its lines."""
    return printable(SECRETS.hidden_in(text))


def one_line(text: str | None) -> str:
    """The same on one line."""
    return " ".join(clean(text or "").split())


def command_line(name: str, *words: str, options: str = "") -> str:
    """A command to be copied. `words` may be a server's: they stay single words that are no options. `options` are
    ours."""
    quoted = [shlex.quote(one_line(word)) for word in words]
    if any(word.startswith("-") for word in quoted):
        return " ".join(["mcp-tasks", name + options, "--", *quoted])
    return " ".join(["mcp-tasks", name, *quoted]) + options


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A JSON value to be printed: control characters are escaped in it, and the value is the same, but for secrets."""
    text = json.dumps(SECRETS.hidden_in_json(value), indent=indent, ensure_ascii=False)
    return text if text.isascii() else _UNPRINTED.sub(_escaped, text)


# `json.dumps` escapes the controls below the space by itself.
_UNPRINTED: Final = re.compile(r"[^ -~\n]")


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return json.dumps(char)[1:-1] if is_dropped(char) else char


T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], Text | str | None]]
"""The columns of a table, by their titles. A `str` is a server's text, a `Text` is drawn already."""

Line: TypeAlias = tuple[str, Text | str | None]
"""A name and its value, if it has one."""

MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "working": ("●", "blue"),
    "input_required": ("?", "yellow"),
    "completed": ("✔", "green"),
    COMPLETED_BADLY: ("✘", "red"),
    "tool error": ("✘", "red"),
    "failed": ("✘", "red"),
    "cancelled": ("○", "bright_black"),
}
"""Marks of the statuses, and colours as the MCP Inspector has them."""

_HELD: Final = list[list[Text]]()
"""Lines that wait until the terminal is free."""

NARROW: Final = 100
"""Columns of a terminal below which tables become blocks."""


@cache
def stderr() -> Console:
    """The console for everything but results."""
    return Console(stderr=True, highlight=False)


@cache
def stdout() -> Console:
    """The console for results. Nothing is cut short in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 240)


def can_redraw() -> bool:
    """Whether stderr is a terminal on which things can be drawn anew in place."""
    return stderr().is_terminal and not stderr().is_dumb_terminal


def say(text: Text | str, style: str = "") -> None:
    """Print on stderr; after the question, if one is on the terminal. Text of a server in it is on one line each, or
    meant to be on several."""
    line = text if isinstance(text, Text) else Text(clean(text), style=style)
    if _HELD:
        _HELD[-1].append(line)
    else:
        stderr().print(line, soft_wrap=True)


@contextmanager
def holding_lines() -> Generator[None]:
    """Have lines wait while something else is on the terminal."""
    _HELD.append([])
    try:
        yield
    finally:
        for line in _HELD.pop():
            say(line)


class Log(logging.Handler):
    """Log lines, which may have text of servers in them, among the other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), "bright_black")


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def badge(status: str) -> Text:
    """A status in its colour."""
    mark, style = MARKS.get(status, ("·", ""))
    return Text(f"{mark} {one_line(status).replace('_', ' ')}", style=style)


def status_of(task: Followed) -> Text:
    """A task's state for a column, which is as wide as its longest."""
    return badge("tool error" if task.state == COMPLETED_BADLY else task.status)


def table_of(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose columns keep their widths."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(clean(value)) for value in row))
    return table


def listing(
    columns: Columns[T], items: Iterable[T], *, fixed: int, cut: bool = False, console: Console | None = None
) -> RenderableType:
    """A table whose first columns keep their widths, and whose others wrap, or are `cut`. If it does not fit on a
    narrow terminal, a line for the first columns, and the others below it."""
    rows = [[_cell(draw(item)) for draw in columns.values()] for item in items]
    for cell in (cell for row in rows for cell in row[fixed:] if cut):
        cell.no_wrap, cell.overflow = True, "ellipsis"
    width = (console or stdout()).width
    widths = [max([len(title), *(row[number].cell_len for row in rows)]) for number, title in enumerate(columns)]
    if width >= NARROW or sum(widths) + 2 * len(widths) <= width:
        headers = [Column(title, no_wrap=number < fixed) for number, title in enumerate(columns)]
        table = Table(*headers, box=None, pad_edge=False, header_style="bright_black")
        for row in rows:
            table.add_row(*row)
        return table
    blocks: list[RenderableType] = []
    for row in rows:
        line = Text("  ", overflow="fold").join(row[:fixed])
        blocks += [line, *(Padding(cell, (0, 0, 0, 2)) for cell in row[fixed:] if cell.plain)]
    return Group(*blocks)


def card(lines: Iterable[Line]) -> Table:
    """The known facts about one thing, a line each."""
    grid = Table.grid(Column(style="bright_black", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value in lines:
        if value:
            grid.add_row(name, _cell(value))
    return grid


def _cell(value: Text | str | None) -> Text:
    return value if isinstance(value, Text) else Text(one_line(value))


# ---- boards
# The progress of tasks while a command waits for them: bars, a table, lines, or lines of JSON.


LINE_PAUSE: Final = 1.0
"""Seconds between two lines of progress about one task."""

AWAY_PAUSE: Final = 10.0
"""Seconds between two lines that say that a server is still out of reach."""


class Board:
    """Shows tasks.

    Args:
        draw: Draws all of them, repeatedly, in place and on a thread of its own.
        with_ids: Whether there are several tasks to tell apart.
    """

    def __init__(self, draw: Callable[[], RenderableType] | None = None, *, with_ids: bool = False) -> None:
        self.with_ids: bool = with_ids
        self._tasks: dict[TaskKey, Followed] = {}
        self._draw = draw
        self._stays = False
        self._live = Live(console=stderr())
        self._terminal = asyncio.Lock()

    def start(self) -> None:
        """Begin to draw, or go on."""
        if self._draw is not None:
            # A new one each time: an earlier one would remove what it drew, and something else is there now.
            self._live = Live(get_renderable=self._draw, console=stderr(), transient=not self._stays)
            self._live.start()

    def stop(self) -> None:
        """Draw for the last time, or remove what is drawn."""
        self._live.stop()

    def show(self, task: Followed) -> None:
        """Show the present state of one task."""
        self._tasks[task.entry.key] = task

    def drop(self, task: Followed, why: str = "") -> None:
        """Show a task no longer; `why` if that is because of a problem."""
        if self._tasks.pop(task.entry.key, None) is not None and self._live.is_started:
            # Otherwise it is drawn once more, below the next output.
            self._live.refresh()

    def back(self, task: Followed, after: timedelta) -> None:
        """Say that the server of a task is back, and draw the task as it is now: nothing else may happen for long."""
        if task.entry.key in self._tasks:
            self._tasks[task.entry.key] = task
        say(f"{_short_name(task)}  server is back after {clock(after)}", "green")

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[Console]:
        """Stop drawing while something else is on the terminal: one thing at a time."""
        async with self._terminal:
            self._live.transient = True
            self.stop()
            try:
                with holding_lines():
                    yield stderr()
            finally:
                self.start()


class LineBoard(Board):
    """A line on stderr for each change, for logs and pipes."""

    def __init__(self, *, with_ids: bool = False) -> None:
        super().__init__(with_ids=with_ids)
        self._said: dict[TaskKey, tuple[Followed, str, float]] = {}

    def stop(self) -> None:
        # Lines of progress that wait: something else comes now, or nothing more.
        for task in [*self._tasks.values()]:
            self._say_now(task)

    def show(self, task: Followed) -> None:
        """Print a line; a little later, if it has only progress and the last one is fresh."""
        if task.task_id is None and task.message is None:
            # A call under way, which was just typed.
            return
        super().show(task)
        last, line, when = self._said.get(task.entry.key, (None, "", 0.0))
        if last is None or (task.status, task.away_since) != (last.status, last.away_since):
            self._say_now(task)
        elif self._line(task) == line:
            self.drop(task)
        else:
            pause = LINE_PAUSE if task.away_since is None else AWAY_PAUSE
            asyncio.get_running_loop().call_at(when + pause, self._say_now, task)

    def back(self, task: Followed, after: timedelta) -> None:
        # A line that waits says that the server is away.
        self.drop(task)
        super().back(task, after)

    def _say_now(self, task: Followed) -> None:
        """Print the state of a task, unless that is done, or there is a newer state."""
        if self._tasks.get(task.entry.key) is task:
            self.drop(task)
            line = self._line(task)
            self._said[task.entry.key] = task, line, asyncio.get_running_loop().time()
            say(line)

    def _line(self, task: Followed) -> str:
        name = f"{_short_name(task)}  " if self.with_ids else ""
        share = "" if task.percent is None or task.away_since is not None else f" ({task.percent}%)"
        return f"{name}{one_line(task.state)}  {one_line(task.says)}{share}".rstrip()


class BarBoard(Board):
    """A progress bar per task."""

    def __init__(self, *, with_ids: bool = False) -> None:
        super().__init__(self._bars, with_ids=with_ids)
        self._spinner = Spinner("dots", style="progress.spinner")

    def show(self, task: Followed) -> None:
        """Redraw a task's bar; one that ended becomes a line that stays."""
        if not task.is_final:
            super().show(task)
            return
        self.drop(task)
        names, took = "  ".join(self._names(task)), (f"  {clock(task.elapsed)}", "bright_black")
        why = "" if task.status == "completed" or not task.message else f"  {one_line(task.message)}"
        say(Text.assemble(badge(task.state), f"  {names}", took, why))

    def _bars(self) -> RenderableType:
        narrow = stderr().width < NARROW
        tool = Column(no_wrap=True, overflow="ellipsis", max_width=16 if narrow else 40)
        says = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ids = [Column(no_wrap=True)] if self.with_ids else []
        bars = Table.grid(Column(), tool, *ids, Column(), Column(), Column(), says, padding=(0, 1), expand=True)
        width = 24 if not narrow else 6 if self.with_ids else 12
        for task in [*self._tasks.values()]:
            done = task.progress or Progress(progress=0)
            name, *id_shown = self._names(task)
            bars.add_row(
                self._spinner,
                Text(name, style=MARKS.get(task.status, ("", ""))[1]),
                *id_shown,
                ProgressBar(total=done.total, completed=done.progress, width=width),
                Text("" if task.percent is None else f"{task.percent:>3}%", style="cyan"),
                Text(clock(task.elapsed), style="bright_black"),
                Text(one_line(task.says) or task.status.replace("_", " ")),
            )
        return bars

    def _names(self, task: Followed) -> list[str]:
        """Its tool, and the id if there are several tasks to tell apart."""
        return [one_line(task.name), *([short_id(task.entry.task_id)] if self.with_ids else [])]


class TableBoard(Board):
    """A row per task, redrawn in place. It stays when the watching ends."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        super().__init__(self._table)
        self._stays = True
        for entry in entries:
            self.show(Followed(entry=replace(entry, message="connecting")))

    def drop(self, task: Followed, why: str = "") -> None:
        # A task that cannot be seen stays, and says so.
        self.show(Followed(entry=replace(task.entry, status=UNKNOWN, message=why)))

    def _table(self) -> RenderableType:
        columns: Columns[Followed] = {
            "id": lambda task: short_id(task.entry.task_id),
            "status": status_of,
            "time": lambda task: clock(task.elapsed),
            "progress": _progress,
            "tool": lambda task: task.name,
            "message": lambda task: task.says,
        }
        return listing(columns, [*self._tasks.values()], fixed=4, cut=True, console=stderr())


def _progress(task: Followed) -> Text:
    share = 100 if task.status == "completed" else task.percent
    if share is None or stderr().width < NARROW:
        return Text("" if share is None else f"{share}%")
    done, style = share // 5, "bar.finished" if share == 100 else "bar.complete"
    return Text.assemble(("━" * done, style), ("─" * (20 - done), "bar.back"))


class JsonBoard(Board):
    """A line of JSON on stdout per change."""

    def show(self, task: Followed, **more: Any) -> None:
        click.echo(json_text(task.state_to_json() | more))

    def back(self, task: Followed, after: timedelta) -> None:
        self.show(task, outOfReachSeconds=round(after.total_seconds(), 1))

    def drop(self, task: Followed, why: str = "") -> None:
        self.show(task, problem=why)


def _short_name(task: Followed) -> str:
    return short_id(task.entry.task_id) or one_line(task.name)


def new_board(*, with_ids: bool = False) -> Board:
    """The board that fits the kind of stderr."""
    return BarBoard(with_ids=with_ids) if can_redraw() else LineBoard(with_ids=with_ids)


# ---- exits
# How a command ends: its exit code, and the problem it names.


class Exit(IntEnum):
    """Exit codes, for scripts. Documented in docs/cli.md; a number never changes its meaning."""

    OK = 0
    TOOL_ERROR = 1
    """The tool ran and says that it failed (`isError`). For `doctor`: something is wrong with the server."""
    USAGE = 2
    FAILED = 3
    """The call or its task failed with a JSON-RPC error."""
    CANCELLED = 4
    TIMEOUT = 5
    UNREACHABLE = 6
    """The server cannot be used: it is not there, refuses the credentials, or is not an MCP server."""
    INPUT_REQUIRED = 7
    """The task asks something and there is no terminal to ask at."""
    UNKNOWN_TASK = 8
    LEDGER = 9
    STORE = 10
    """The store of a server's tasks, or its engine, cannot be used."""
    SERVER_CODE = 11
    """The code of a server raised while it was imported, started or stopped."""
    DEFECT = 70
    OUTPUT = 74
    """The output cannot be written: the disk is full."""
    INTERRUPTED = 130


WHAT_BECAME: Final[Mapping[errors.Fate, str]] = {
    "left": "",
    "cancelled": "; it was cancelled",
    "not cancelled": "; it could not be cancelled",
}
"""The fate of a task that was given up, after the reason."""


class Problem(Exception):
    """Something that ends a command, in words for the user.

    Attributes:
        code: The exit code it ends the command with.
        hint: What to do about it, if there is something.
        is_error: False if the user chose to end it so.
    """

    def __init__(self, message: str, code: Exit, *, hint: str | None = None, is_error: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.is_error = is_error

    def show(self) -> None:
        """Print it to stderr."""
        if self.is_error:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        if self.message or self.is_error:
            # Cleaned here, because most problems quote a server, and pass through a dozen places.
            click.secho(one_line(self.message), fg=None if self.is_error else "yellow", err=True)
        for line in (self.hint or "").splitlines():
            click.echo(f"  {clean(line)}", err=True)


class Detached(Problem):
    """The user stopped waiting, and was told how to come back; the task goes on."""

    def __init__(self) -> None:
        super().__init__("", Exit.INTERRUPTED, is_error=False)


def store_problem(exc: errors.StoreError | errors.UsageError) -> Problem:
    """The problem of a command on a server's store."""
    return Problem(str(exc), Exit.STORE if isinstance(exc, errors.StoreError) else Exit.USAGE)


def problem_of(exc: BaseException) -> Problem:
    """An exception of the library as a problem, with the options that help."""
    if isinstance(exc, Problem):
        return exc
    code, hint, what = Exit.USAGE, getattr(exc, "hint", ""), exc.what if isinstance(exc, errors.Explained) else str(exc)
    match exc:
        case errors.ServerUnreachable():
            code, hint = Exit.UNREACHABLE, f"{hint}\n{_TO_REACH_IT.get(exc.reason, '').format(exc.scheme)}"
        case errors.InvalidInput(reason="task"):
            ways = "`mcp-tasks ls` lists those in the ledger; `wait` or `show` any other by its whole id and --server."
            code, hint = Exit.UNKNOWN_TASK, f"{hint}\n{ways}"
        case errors.InvalidInput(reason="address") if hint:
            hint = "Name its server with --server, and give the whole ID."
        case errors.InvalidInput(reason="server"):
            ways = "`mcp-tasks servers` lists the servers with names, and `mcp-tasks servers add NAME SERVER` adds one."
            ways += "\nIf another mcp.json has it, name that file: --config FILE."
            hint = f"{hint}\n{ways}"
        case errors.InvalidInput(reason="several_questions"):
            what = f"{what}; choose one with --question"
        case errors.QuestionUnseen():
            code = Exit.FAILED
        case errors.UnknownTask():
            what = "the server does not know this task: it may have expired, or belong to another user"
            code, what, hint = Exit.UNKNOWN_TASK, f"{what}; {hint}" if hint else what, ""
        case errors.WaitTimedOut():
            code, noun = Exit.TIMEOUT, "task" if exc.task_id else "call"
            what = f"the {noun} did not end within {exc.seconds:.15g} s{WHAT_BECAME[exc.fate]}"
        case CallLost():
            made = "may have been made" if exc.may_have_run else "was not made"
            code, what = Exit.UNREACHABLE, f"the call got no answer: {exc.message}. It {made}"
        case MCPError():
            gone = exc.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT, ACCESS_REFUSED)
            code, what = Exit.UNREACHABLE if gone else Exit.FAILED, f"the server answers: {exc}"
        case errors.StoreError():
            # The ledger is the only store here.
            what = what if "ledger" in what else f"the ledger cannot be used: {what}"
            code, hint = Exit.LEDGER, "\n".join([*getattr(exc, "__notes__", []), "--ledger names another."])
        case OSError():
            code = Exit.UNREACHABLE
        case errors.Explained() | errors.BadValue() | errors.InvalidOption():
            pass
        case _:
            code = Exit.FAILED
    return Problem(what, code, hint=hint.strip())


_TO_REACH_IT: Final[Mapping[errors.UnreachableReason, str]] = {
    "credentials": "--header 'Authorization:{} ...'; a bearer token with --token-file FILE, --token - for a prompt, or "
    "MCP_TASKS_TOKEN.",
    "exited": "-v says more.",
    "other": "-v says more.",
}
"""The options that help with a server that cannot be used, by the reason."""


# ---- keyboard
# Lines and Ctrl-C from a terminal, without blocking the event loop: the task goes on while the user types.


class Interrupt(Exception):
    """Ctrl-C (or Ctrl-D) while a line was being read."""


class Keyboard:
    """The user's keyboard. Made inside the event loop."""

    def __init__(self) -> None:
        self._reading: asyncio.Future[str] | None = None
        self._pressed = asyncio.Event()

    @contextmanager
    def listening(self) -> Generator[None]:
        """Handle Ctrl-C here while this is entered, and keep the terminal from writing ^C into a progress bar."""
        loop = asyncio.get_running_loop()
        handler = signal.signal(signal.SIGINT, lambda _number, _frame: loop.call_soon_threadsafe(self._press))
        try:
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
        finally:
            signal.signal(signal.SIGINT, handler)

    async def interrupted(self) -> None:
        """Wait for a Ctrl-C that comes while no line is being read."""
        await self._pressed.wait()
        self._pressed.clear()

    async def line(self, prompt: Text, console: Console) -> str:
        """One line that is typed after `prompt`.

        Raises:
            Interrupt: Ctrl-C or Ctrl-D was pressed instead.
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
            # The next output is not part of the prompt.
            console.print()
            raise
        finally:
            self._reading = None
            if sys.platform != "win32":
                loop.remove_reader(sys.stdin)

    @staticmethod
    def forget_typed() -> None:
        """Drop keys that were typed before the question: they cannot be meant as an answer."""
        if sys.platform != "win32":
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)

    def _press(self) -> None:
        if self._reading is None or self._reading.done():
            self._pressed.set()
        else:
            self._reading.set_exception(Interrupt())


def is_terminal() -> bool:
    """Whether there is a person to ask: both stdin and stderr are a terminal."""
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
