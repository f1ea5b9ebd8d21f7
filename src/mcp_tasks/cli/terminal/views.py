"""What is drawn: progress of tasks as bars or as lines, and the words and layouts that all commands share.

Everything but results goes to stderr, so that stdout is what a script wants. Text that comes from a server is
never markup and never control codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.terminal.rows import Row, clock
from mcp_tasks.cli.terminal.text import one_line

MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "working": ("●", "blue"),
    "input_required": ("?", "yellow"),
    "completed": ("✔", "green"),
    "completed with an error": ("✘", "red"),
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


def listing(
    titles: Sequence[str], rows: Sequence[Sequence[Text]], *, fixed: int, console: Console | None = None
) -> RenderableType:
    """A table whose first columns keep their widths, and whose others give way where it is narrow. On a narrow terminal
    on which it does not fit, a line for the first, and what is in the others below it."""
    width = (console or stdout()).width
    widths = [max([len(title), *(row[number].cell_len for row in rows)]) for number, title in enumerate(titles)]
    if width >= NARROW or sum(widths) + 2 * len(widths) <= width:
        table = Table(box=None, pad_edge=False, header_style="bright_black")
        for number, title in enumerate(titles):
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

    def show(self, row: Row) -> None:
        """The present state of one task."""

    def drop(self, key: str, why: str = "") -> None:
        """Show a row no longer; `why` if that is because of a problem."""

    def back(self, row: Row, after: timedelta) -> None:
        """Say that the server of a task is back."""
        name = row.short_id or one_line(row.tool)
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
        self._shown: dict[str, tuple[str, str, datetime]] = {}

    def show(self, row: Row) -> None:
        """A line, unless it only says how far it is and the last one is fresh."""
        if row.task_id is None and row.message is None:
            # A call under way; whoever typed it knows.
            return
        now = datetime.now(UTC)
        away = row.away_since is not None
        text = row.says + (f" ({row.percent}%)" if row.percent is not None and not away else "")
        # That a server is out of reach, or back, is said at once, and then from time to time.
        status = "out of reach" if away else row.status
        last, said, when = self._shown.get(row.key, ("", "", now))
        if status == last and (said == text or now - when < (AWAY_PAUSE if away else LINE_PAUSE)):
            return
        self._shown[row.key] = (status, text, now)
        name = f"{row.short_id or one_line(row.tool)}  " if self._with_ids else ""
        stderr().print(Text(f"{name}{one_line(row.state)}  {text}".rstrip()), soft_wrap=True)


class BarBoard(Board):
    """A progress bar per task, redrawn in place on stderr."""

    def __init__(self) -> None:
        self._rows: dict[str, TaskID] = {}
        narrow = stderr().width < NARROW
        tool = Column(no_wrap=True, overflow="ellipsis", max_width=16 if narrow else 40)
        self._bars = Progress(
            SpinnerColumn(),
            _RowColumn(lambda row: Text(one_line(row.tool), style=MARKS.get(row.status, ("", ""))[1]), tool),
            BarColumn(bar_width=12 if narrow else 24),
            _RowColumn(lambda row: Text("" if row.percent is None else f"{row.percent:>3}%", style="cyan")),
            _RowColumn(lambda row: Text(clock(row.elapsed), style="bright_black")),
            _RowColumn(
                lambda row: Text(row.says or row.status.replace("_", " ")),
                Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=stderr(),
            transient=True,
            expand=True,
        )

    def start(self) -> None:
        """Draw the bars."""
        self._bars.start()

    def stop(self) -> None:
        """Take them away."""
        self._bars.stop()

    def show(self, row: Row) -> None:
        """Redraw a task's bar; one that ended becomes a line that stays."""
        if row.is_final:
            self.drop(row.key)
            stderr().print(_ended(row))
            return
        if row.key not in self._rows:
            # With its row, because what a column draws at first stays for a while.
            self._rows[row.key] = self._bars.add_task(row.tool, total=None, row=row)
        self._bars.update(self._rows[row.key], total=row.total, completed=row.done or 0, row=row)

    def drop(self, key: str, why: str = "") -> None:
        """Take a bar away."""
        bar = self._rows.pop(key, None)
        if bar is not None:
            self._bars.remove_task(bar)
            # Otherwise it is drawn once more, below whatever is printed next.
            self._bars.refresh()


class _RowColumn(ProgressColumn):
    """A column of bars that is drawn from the row of its task."""

    # The default is to draw a column anew at each refresh; the clock needs no more than this.
    max_refresh = 0.5

    def __init__(self, draw: Callable[[Row], Text], column: Column | None = None) -> None:
        super().__init__(column)
        self._draw = draw

    def render(self, task: Task) -> Text:
        row: Row | None = task.fields.get("row")
        return Text("") if row is None else self._draw(row)


def _ended(row: Row) -> Text:
    text = badge(row.state)
    text.append(f"  {one_line(row.tool)}", style="default")
    text.append(f"  {clock(row.elapsed)}", style="bright_black")
    if row.status != "completed" and row.message:
        text.append(f"  {one_line(row.message)}", style="default")
    return text
