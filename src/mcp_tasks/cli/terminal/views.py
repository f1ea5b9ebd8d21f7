"""What is drawn: progress of tasks as bars or as lines, and the words and layouts that all commands share.

Everything but results goes to stderr, so that stdout is what a script wants. Text that comes from a server is
never markup and never control codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, Self, TypeAlias, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.client import Followed, Progress, short_id
from mcp_tasks.client.following import TaskKey

T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], Text | str | None]]
"""What a table shows of each item, by the titles of its columns. Text is a server's, unless it is drawn already."""

COMPLETED_BADLY: Final = "completed with an error"
"""What the protocol calls completed of a tool that says that it failed."""

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

PIPE_WIDTH: Final = 240

NARROW: Final = 100
"""Columns of a terminal below which what does not fit beside each other goes below each other."""

LINE_PAUSE: Final = timedelta(seconds=1)
"""Between two lines about one task that only says how far it is."""

AWAY_PAUSE: Final = timedelta(seconds=10)
"""Between two lines that say that a server is still out of reach."""


@cache
def stderr() -> Console:
    """The console for everything but results."""
    return Console(stderr=True, highlight=False)


@cache
def stdout() -> Console:
    """The console for results. Nothing is cut short in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def can_redraw() -> bool:
    """Whether stderr is a terminal on which things can be drawn anew in place."""
    return stderr().is_terminal and not stderr().is_dumb_terminal


def badge(status: str) -> Text:
    """A status in its colour."""
    mark, style = MARKS.get(status, ("·", ""))
    return Text(f"{mark} {one_line(status).replace('_', ' ')}", style=style)


def ago(instant: datetime, now: datetime | None = None) -> str:
    """How long ago, as people say it."""
    seconds = max(0, int(((now or datetime.now(UTC)) - instant).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def clock(duration: timedelta | None) -> str:
    """A running time: 0:07, 12:34, 1:02:03, 3d 01:02:03; nothing of one that is not known."""
    if duration is None:
        return ""
    minutes, seconds = divmod(max(0, int(duration.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def state_of(task: Followed) -> str:
    """A task's status, in words of its own where that says too little."""
    return COMPLETED_BADLY if task.is_error and task.status == "completed" else task.status


def tool_of(task: Followed) -> str:
    """The tool of a call or a task; of a task that is not ours, its id."""
    return one_line(task.entry.tool or short_id(task.entry.task_id))


def said_by(task: Followed) -> str:
    """A task's message, or what is more important now."""
    if task.away_since is not None:
        return f"server out of reach for {clock(datetime.now(UTC) - task.away_since)}, trying again"
    return one_line(task.message)


def listing(
    columns: Columns[T], items: Iterable[T], *, fixed: int, cut: bool = False, console: Console | None = None
) -> RenderableType:
    """A table whose first columns keep their widths, and whose others give way where it is narrow: they wrap, or are
    `cut`. On a narrow terminal on which it does not fit, a line for the first, and what is in the others below it."""
    rows = [[_cell(draw(item)) for draw in columns.values()] for item in items]
    for cell in (cell for row in rows for cell in row[fixed:] if cut):
        cell.no_wrap, cell.overflow = True, "ellipsis"
    width = (console or stdout()).width
    widths = [max([len(title), *(row[number].cell_len for row in rows)]) for number, title in enumerate(columns)]
    if width >= NARROW or sum(widths) + 2 * len(widths) <= width:
        table = Table(box=None, pad_edge=False, header_style="bright_black")
        for number, title in enumerate(columns):
            table.add_column(title, no_wrap=number < fixed)
        for row in rows:
            table.add_row(*row)
        return table
    blocks: list[RenderableType] = []
    for row in rows:
        line = Text("  ").join(row[:fixed])
        line.overflow = "fold"
        blocks += [line, *(Padding(cell, (0, 0, 0, 2)) for cell in row[fixed:] if cell.plain)]
    return Group(*blocks)


Line: TypeAlias = tuple[str, Text | str | None]
"""What something is called, and what it is, if it is anything."""


def card(lines: Iterable[Line]) -> Table:
    """What is known of one thing, a line each."""
    grid = Table.grid(Column(style="bright_black", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value in lines:
        if value:
            grid.add_row(name, _cell(value))
    return grid


def _cell(value: Text | str | None) -> Text:
    return value if isinstance(value, Text) else Text(one_line(value))


class Board:
    """Where the progress of tasks is shown while somebody waits for them."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to draw, or go on."""

    def stop(self) -> None:
        """Stop drawing."""

    def show(self, task: Followed) -> None:
        """The present state of one task."""

    def drop(self, key: TaskKey, why: str = "") -> None:
        """Show a row no longer; `why` if that is because of a problem."""

    def back(self, task: Followed, after: timedelta) -> None:
        """Say that the server of a task is back."""
        name = short_id(task.entry.task_id) or tool_of(task)
        stderr().print(Text(f"{name}  server is back after {clock(after)}", style="green"), soft_wrap=True)

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Stop drawing while something else is on the terminal."""
        self.stop()
        try:
            yield stderr()
        finally:
            self.start()


def new_board(*, with_ids: bool = False) -> Board:
    """The board for where stderr goes."""
    return BarBoard() if can_redraw() else LineBoard(with_ids=with_ids)


class LineBoard(Board):
    """A line on stderr for each change, for logs and pipes."""

    def __init__(self, *, with_ids: bool = False) -> None:
        self._with_ids = with_ids
        self._shown: dict[TaskKey, tuple[str, str, datetime]] = {}

    def show(self, task: Followed) -> None:
        """A line, unless it only says how far it is and the last one is fresh."""
        if task.task_id is None and task.message is None:
            # A call under way; whoever typed it knows.
            return
        now = datetime.now(UTC)
        away = task.away_since is not None
        text = said_by(task) + (f" ({task.percent}%)" if task.percent is not None and not away else "")
        # That a server is out of reach, or back, is said at once, and then from time to time.
        status = "out of reach" if away else task.status
        last, said, when = self._shown.get(task.entry.key, ("", "", now))
        if status == last and (said == text or now - when < (AWAY_PAUSE if away else LINE_PAUSE)):
            return
        self._shown[task.entry.key] = (status, text, now)
        name = f"{short_id(task.entry.task_id) or tool_of(task)}  " if self._with_ids else ""
        stderr().print(Text(f"{name}{one_line(state_of(task))}  {text}".rstrip()), soft_wrap=True)


class LiveBoard(Board):
    """Tasks that are redrawn in place on stderr.

    Args:
        draw: Draws all of them.
        transient: Whether nothing of it stays when it is stopped.
    """

    def __init__(self, draw: Callable[[Sequence[Followed]], RenderableType], *, transient: bool) -> None:
        self._tasks: dict[TaskKey, Followed] = {}
        self._live = Live(
            get_renderable=lambda: draw(list(self._tasks.values())), console=stderr(), transient=transient
        )

    def start(self) -> None:
        """Draw them, from now on."""
        self._live.start()

    def stop(self) -> None:
        """Draw them for the last time, or take them away."""
        self._live.stop()

    def show(self, task: Followed) -> None:
        """Draw this state from now on."""
        self._tasks[task.entry.key] = task


class BarBoard(LiveBoard):
    """A progress bar per task."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots", style="progress.spinner")
        super().__init__(self._bars, transient=True)

    def show(self, task: Followed) -> None:
        """Redraw a task's bar; one that ended becomes a line that stays."""
        if task.is_final:
            self.drop(task.entry.key)
            stderr().print(_ended(task))
        else:
            super().show(task)

    def drop(self, key: TaskKey, why: str = "") -> None:
        """Take a bar away."""
        if self._tasks.pop(key, None) is not None:
            # Otherwise it is drawn once more, below whatever is printed next.
            self._live.refresh()

    def _bars(self, tasks: Sequence[Followed]) -> RenderableType:
        narrow = stderr().width < NARROW
        tool = Column(no_wrap=True, overflow="ellipsis", max_width=16 if narrow else 40)
        says = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        bars = Table.grid(Column(), tool, Column(), Column(), Column(), says, padding=(0, 1), expand=True)
        for task in tasks:
            done = task.progress or Progress(progress=0)
            bars.add_row(
                self._spinner,
                Text(tool_of(task), style=MARKS.get(task.status, ("", ""))[1]),
                ProgressBar(total=done.total, completed=done.progress, width=12 if narrow else 24),
                Text("" if task.percent is None else f"{task.percent:>3}%", style="cyan"),
                Text(clock(task.elapsed), style="bright_black"),
                Text(said_by(task) or task.status.replace("_", " ")),
            )
        return bars


def _ended(task: Followed) -> Text:
    text = badge(state_of(task))
    text.append(f"  {tool_of(task)}", style="default")
    text.append(f"  {clock(task.elapsed)}", style="bright_black")
    if task.status != "completed" and task.message:
        text.append(f"  {one_line(task.message)}", style="default")
    return text
