"""What is drawn: progress of tasks as bars, as a table or as lines, and the tables of `ls` and `watch`.

Everything but results goes to stderr, so that stdout is what a script wants. Text that comes from a server is
never markup and never control codes.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.terminal.rows import Row, clock
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.client import LedgerEntry

STYLES: Final[Mapping[str, str]] = {
    "working": "blue",
    "input_required": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
}
"""Colours of the statuses, as the MCP Inspector has them."""

MARKS: Final[Mapping[str, str]] = {
    "working": "●",
    "input_required": "?",
    "completed": "✔",
    "failed": "✘",
    "cancelled": "○",
}

PIPE_WIDTH: Final = 240

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
    return Text(f"{MARKS.get(status, '·')} {one_line(status).replace('_', ' ')}", style=STYLES.get(status, ""))


def ago(instant: datetime, now: datetime | None = None) -> str:
    """How long ago, as people say it."""
    seconds = max(0, int(((now or datetime.now(UTC)) - instant).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


class Board(Protocol):
    """Where the progress of tasks is shown while somebody waits for them."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

    def show(self, row: Row) -> None:
        """The present state of one task."""
        ...

    def drop(self, key: str, why: str = "") -> None:
        """Show a row no longer; `why` if that is because of a problem."""
        ...

    def aside(self) -> AbstractContextManager[Console]:
        """Stop drawing while something else is on the terminal."""
        ...


def new_board(*, with_ids: bool = False) -> Board:
    """The board for where stderr goes."""
    return BarBoard() if can_redraw() else LineBoard(with_ids=with_ids)


class LineBoard:
    """A line on stderr for each change, for logs and pipes."""

    def __init__(self, *, with_ids: bool = False) -> None:
        self._with_ids = with_ids
        self._shown: dict[str, tuple[str, str, datetime]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lines need no end."""

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
        stderr().print(Text(f"{name}{one_line(row.status)}  {text}".rstrip()), soft_wrap=True)

    def drop(self, key: str, why: str = "") -> None:
        """A line that was printed stays."""

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Lines are not in the way."""
        yield stderr()


class BarBoard:
    """A progress bar per task, redrawn in place on stderr."""

    def __init__(self) -> None:
        self._rows: dict[str, TaskID] = {}
        self._bars = Progress(
            SpinnerColumn(),
            _ToolColumn(),
            BarColumn(bar_width=24),
            _ShareColumn(),
            _ElapsedColumn(),
            _MessageColumn(table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=stderr(),
            transient=True,
            expand=True,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def show(self, row: Row) -> None:
        """Redraw a task's bar; one that ended becomes a line that stays."""
        if row.is_final:
            self.drop(row.key)
            stderr().print(_ended(row))
            return
        if row.key not in self._rows:
            self._rows[row.key] = self._bars.add_task(row.tool, total=None)
        self._bars.update(self._rows[row.key], total=row.total, completed=row.done or 0, row=row)

    def drop(self, key: str, why: str = "") -> None:
        """Take a bar away."""
        bar = self._rows.pop(key, None)
        if bar is not None:
            self._bars.remove_task(bar)
            # Otherwise it is drawn once more, below whatever is printed next.
            self._bars.refresh()

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Take the bars away for a while."""
        self._bars.stop()
        try:
            yield stderr()
        finally:
            self._bars.start()


class _ToolColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        row: Row | None = task.fields.get("row")
        return Text(one_line(task.description), style=STYLES.get(row.status, "") if row is not None else "")


class _ShareColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:>3.0f}%" if task.total else "", style="cyan")


class _ElapsedColumn(ProgressColumn):
    # The default is to draw a column anew at most twice a second.
    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        row: Row | None = task.fields.get("row")
        return Text(clock(row.elapsed) if row is not None else "", style="bright_black")


class _MessageColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        row: Row | None = task.fields.get("row")
        if row is None:
            return Text("")
        return Text(row.says or row.status.replace("_", " "))


def _ended(row: Row) -> Text:
    text = badge(row.status)
    text.append(f"  {one_line(row.tool)}", style="default")
    text.append(f"  {clock(row.elapsed)}", style="bright_black")
    if row.status != "completed" and row.message:
        text.append(f"  {one_line(row.message)}", style="default")
    return text


def task_table(entries: Sequence[LedgerEntry], *, short: Mapping[str, str]) -> Table:
    """Remembered tasks, as `ls` shows them."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("id", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("tool", no_wrap=True)
    table.add_column("started", no_wrap=True)
    # These two give way where it is narrow, because their columns may be wrapped; what is in them may not.
    table.add_column("message")
    table.add_column("server", style="bright_black")
    for entry in entries:
        table.add_row(
            Text(one_line(short[entry.task_id])),
            badge(entry.status),
            Text(one_line(entry.tool)),
            ago(entry.started_at),
            Text(one_line(entry.message), no_wrap=True, overflow="ellipsis"),
            Text(one_line(entry.server.rpartition(" && ")[2]), no_wrap=True, overflow="ellipsis"),
        )
    return table
