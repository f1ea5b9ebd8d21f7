"""Where the progress of tasks is shown while somebody waits for them: bars, a table, lines, or lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.terminal import views
from mcp_tasks.cli.terminal.text import json_text, one_line
from mcp_tasks.client import Followed, LedgerEntry, Progress, short_id
from mcp_tasks.client.following import TaskKey
from mcp_tasks.client.ledger_entry import UNKNOWN
from mcp_tasks.core.durations import clock

LINE_PAUSE: Final = 1.0
"""Seconds between two lines about one task that only says how far it is."""

AWAY_PAUSE: Final = 10.0
"""Seconds between two lines that say that a server is still out of reach."""


class Board:
    """Where tasks are shown.

    Args:
        draw: Draws all of them, again and again in place, and on a thread of its own.
        with_ids: Whether there are several tasks to tell apart.
    """

    def __init__(self, draw: Callable[[], RenderableType] | None = None, *, with_ids: bool = False) -> None:
        self.with_ids: bool = with_ids
        self._tasks: dict[TaskKey, Followed] = {}
        self._draw = draw
        self._stays = False
        self._live = Live(console=views.stderr())
        self._terminal = asyncio.Lock()

    def start(self) -> None:
        """Begin to draw, or go on."""
        if self._draw is not None:
            # A new one each time: what was drawn once is taken away when it goes on, and something else is there now.
            self._live = Live(get_renderable=self._draw, console=views.stderr(), transient=not self._stays)
            self._live.start()

    def stop(self) -> None:
        """Draw for the last time, or take away what is drawn."""
        self._live.stop()

    def show(self, task: Followed) -> None:
        """The present state of one task."""
        self._tasks[task.entry.key] = task

    def drop(self, task: Followed, why: str = "") -> None:
        """Show a task no longer; `why` if that is because of a problem."""
        if self._tasks.pop(task.entry.key, None) is not None and self._live.is_started:
            # Otherwise it is drawn once more, below whatever is printed next.
            self._live.refresh()

    def back(self, task: Followed, after: timedelta) -> None:
        """Say that the server of a task is back, and draw the task as it is now: nothing else may happen for long."""
        if task.entry.key in self._tasks:
            self._tasks[task.entry.key] = task
        views.say(f"{_short_name(task)}  server is back after {clock(after)}", "green")

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[Console]:
        """Stop drawing while something else is on the terminal: one thing at a time."""
        async with self._terminal:
            self._live.transient = True
            self.stop()
            try:
                with views.holding_lines():
                    yield views.stderr()
            finally:
                self.start()


class LineBoard(Board):
    """A line on stderr for each change, for logs and pipes."""

    def __init__(self, *, with_ids: bool = False) -> None:
        super().__init__(with_ids=with_ids)
        self._said: dict[TaskKey, tuple[Followed, str, float]] = {}

    def stop(self) -> None:
        """Say what was to be said a little later: something else comes now, or nothing more."""
        for task in [*self._tasks.values()]:
            self._say_now(task)

    def show(self, task: Followed) -> None:
        """A line; a little later, if it only says how far it is and the last one is fresh."""
        if task.task_id is None and task.message is None:
            # A call under way; whoever typed it knows.
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
        """A line. One that says that the server is away, and was for later, is not said any more."""
        self.drop(task)
        super().back(task, after)

    def _say_now(self, task: Followed) -> None:
        """Say how a task stands, unless that has been said, or something newer is to be said of it."""
        if self._tasks.get(task.entry.key) is task:
            self.drop(task)
            line = self._line(task)
            self._said[task.entry.key] = task, line, asyncio.get_running_loop().time()
            views.say(line)

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
        views.say(Text.assemble(views.badge(task.state), f"  {names}", took, why))

    def _bars(self) -> RenderableType:
        narrow = views.stderr().width < views.NARROW
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
                Text(name, style=views.MARKS.get(task.status, ("", ""))[1]),
                *id_shown,
                ProgressBar(total=done.total, completed=done.progress, width=width),
                Text("" if task.percent is None else f"{task.percent:>3}%", style="cyan"),
                Text(clock(task.elapsed), style="bright_black"),
                Text(one_line(task.says) or task.status.replace("_", " ")),
            )
        return bars

    def _names(self, task: Followed) -> list[str]:
        """Its tool, and the id where there are several tasks to tell apart."""
        return [one_line(task.name), *([short_id(task.entry.task_id)] if self.with_ids else [])]


class TableBoard(Board):
    """A row per task, redrawn in place. It stays when the watching ends."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        super().__init__(self._table)
        self._stays = True
        for entry in entries:
            self.show(Followed(entry=replace(entry, message="connecting")))

    def drop(self, task: Followed, why: str = "") -> None:
        """A task that cannot be seen stays, and says so."""
        self.show(Followed(entry=replace(task.entry, status=UNKNOWN, message=why)))

    def _table(self) -> RenderableType:
        columns: views.Columns[Followed] = {
            "id": lambda task: short_id(task.entry.task_id),
            "status": views.status_of,
            "time": lambda task: clock(task.elapsed),
            "progress": _progress,
            "tool": lambda task: task.name,
            "message": lambda task: task.says,
        }
        return views.listing(columns, [*self._tasks.values()], fixed=4, cut=True, console=views.stderr())


def _progress(task: Followed) -> Text:
    share = 100 if task.status == "completed" else task.percent
    if share is None or views.stderr().width < views.NARROW:
        return Text("" if share is None else f"{share}%")
    done, style = share // 5, "bar.finished" if share == 100 else "bar.complete"
    return Text.assemble(("━" * done, style), ("─" * (20 - done), "bar.back"))


class JsonBoard(Board):
    """A line of JSON on stdout per change."""

    def show(self, task: Followed, **more: Any) -> None:
        """Print a state."""
        click.echo(json_text(task.state_to_json() | more))

    def back(self, task: Followed, after: timedelta) -> None:
        """Print the last state again, and for how long it was all that was known."""
        self.show(task, outOfReachSeconds=round(after.total_seconds(), 1))

    def drop(self, task: Followed, why: str = "") -> None:
        """Print why no more is known of a task."""
        self.show(task, problem=why)


def _short_name(task: Followed) -> str:
    return short_id(task.entry.task_id) or one_line(task.name)


def new_board(*, with_ids: bool = False) -> Board:
    """The board for where stderr goes."""
    return BarBoard(with_ids=with_ids) if views.can_redraw() else LineBoard(with_ids=with_ids)
