"""Where the progress of tasks is shown while somebody waits for them: bars, a table, lines, or lines of JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
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
from mcp_tasks.cli.terminal.views import clock, said_by, state_of, stderr, tool_of
from mcp_tasks.client import Followed, LedgerEntry, Progress, short_id
from mcp_tasks.client.following import TaskKey
from mcp_tasks.client.ledger_entry import UNKNOWN

BAR: Final = 20
"""Columns of the bar in a table."""

LINE_PAUSE: Final = 1.0
"""Seconds between two lines about one task that only says how far it is."""

AWAY_PAUSE: Final = 10.0
"""Seconds between two lines that say that a server is still out of reach."""


class Board:
    """Where tasks are shown.

    Args:
        draw: Draws all of them, again and again in place.
        transient: Whether nothing of that stays when it is stopped.
    """

    def __init__(
        self, draw: Callable[[Sequence[Followed]], RenderableType] | None = None, *, transient: bool = True
    ) -> None:
        self._tasks: dict[TaskKey, Followed] = {}
        self._draw = draw
        self._transient = transient
        self._live: Live | None = None
        self._held: list[Text] | None = None

    def start(self) -> None:
        """Begin to draw, or go on."""
        draw = self._draw
        if draw is not None:
            # A new one each time: what was drawn once is taken away when it goes on, and something else is there now.
            self._live = Live(
                get_renderable=lambda: draw([*self._tasks.values()]), console=stderr(), transient=self._transient
            )
            self._live.start()

    def stop(self) -> None:
        """Draw for the last time, or take away what is drawn."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: Text) -> None:
        """A line that stays; as soon as the terminal is free, if somebody is asked something there."""
        if self._held is None:
            stderr().print(line, soft_wrap=True)
        else:
            self._held.append(line)

    def show(self, task: Followed) -> None:
        """The present state of one task."""
        self._tasks[task.entry.key] = task

    def drop(self, task: Followed, why: str = "") -> None:
        """Show a task no longer; `why` if that is because of a problem."""
        if self._tasks.pop(task.entry.key, None) is not None and self._live is not None:
            # Otherwise it is drawn once more, below whatever is printed next.
            self._live.refresh()

    def back(self, task: Followed, after: timedelta) -> None:
        """Say that the server of a task is back."""
        name = short_id(task.entry.task_id) or tool_of(task)
        self.say(Text(f"{name}  server is back after {clock(after)}", style="green"))

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Stop drawing while something else is on the terminal."""
        self.stop()
        held = self._held = list[Text]()
        try:
            yield stderr()
        finally:
            self._held = None
            self.start()
            for line in held:
                self.say(line)


class LineBoard(Board):
    """A line on stderr for each change, for logs and pipes."""

    def __init__(self, *, with_ids: bool = False) -> None:
        super().__init__()
        self._with_ids = with_ids
        self._shown: dict[TaskKey, tuple[str, str, float]] = {}
        self._later: dict[TaskKey, tuple[asyncio.TimerHandle, Followed]] = {}

    def stop(self) -> None:
        """Say what was to be said a little later: something else comes now, or nothing more."""
        for timer, task in [*self._later.values()]:
            timer.cancel()
            self._print(task)

    def drop(self, task: Followed, why: str = "") -> None:
        """Say no more of a task."""
        if task.entry.key in self._later:
            self._later.pop(task.entry.key)[0].cancel()

    def show(self, task: Followed) -> None:
        """A line; a little later, if it only says how far it is and the last one is fresh."""
        if task.task_id is None and task.message is None:
            # A call under way; whoever typed it knows.
            return
        key, now = task.entry.key, time.monotonic()
        self.drop(task)
        status, text = _words_of(task)
        last, said, when = self._shown.get(key, ("", "", now))
        fresh_for = when + (LINE_PAUSE if task.away_since is None else AWAY_PAUSE) - now
        if status != last or (said != text and fresh_for <= 0):
            self._print(task)
        elif said != text:
            timer = asyncio.get_running_loop().call_later(fresh_for, self._print, task)
            self._later[key] = timer, task

    def _print(self, task: Followed) -> None:
        status, text = _words_of(task)
        self._later.pop(task.entry.key, None)
        self._shown[task.entry.key] = status, text, time.monotonic()
        name = f"{short_id(task.entry.task_id) or tool_of(task)}  " if self._with_ids else ""
        self.say(Text(f"{name}{one_line(state_of(task))}  {text}".rstrip()))


def _words_of(task: Followed) -> tuple[str, str]:
    """What a line says of a task: its status, which is said at once and of which a server out of reach is one, and the
    rest, which is said from time to time."""
    if task.away_since is not None:
        return "out of reach", said_by(task)
    return task.status, said_by(task) + ("" if task.percent is None else f" ({task.percent}%)")


class BarBoard(Board):
    """A progress bar per task."""

    def __init__(self, *, with_ids: bool = False) -> None:
        self._spinner = Spinner("dots", style="progress.spinner")
        self._with_ids = with_ids
        super().__init__(self._bars)

    def show(self, task: Followed) -> None:
        """Redraw a task's bar; one that ended becomes a line that stays."""
        if task.is_final:
            self.drop(task)
            self.say(self._ended(task))
        else:
            super().show(task)

    def _bars(self, tasks: Sequence[Followed]) -> RenderableType:
        narrow = stderr().width < views.NARROW
        tool = Column(no_wrap=True, overflow="ellipsis", max_width=16 if narrow else 40)
        says = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ids = [Column(no_wrap=True)] if self._with_ids else []
        bars = Table.grid(Column(), tool, *ids, Column(), Column(), Column(), says, padding=(0, 1), expand=True)
        width = 24 if not narrow else 6 if self._with_ids else 12
        for task in tasks:
            done = task.progress or Progress(progress=0)
            bars.add_row(
                self._spinner,
                Text(tool_of(task), style=views.MARKS.get(task.status, ("", ""))[1]),
                *self._ids(task),
                ProgressBar(total=done.total, completed=done.progress, width=width),
                Text("" if task.percent is None else f"{task.percent:>3}%", style="cyan"),
                Text(clock(task.elapsed), style="bright_black"),
                Text(said_by(task) or task.status.replace("_", " ")),
            )
        return bars

    def _ended(self, task: Followed) -> Text:
        text = views.badge(state_of(task))
        for part in (tool_of(task), *self._ids(task)):
            text.append(f"  {part}", style="default")
        text.append(f"  {clock(task.elapsed)}", style="bright_black")
        if task.status != "completed" and task.message:
            text.append(f"  {one_line(task.message)}", style="default")
        return text

    def _ids(self, task: Followed) -> list[str]:
        """The id, where there are several tasks to tell apart."""
        return [short_id(task.entry.task_id)] if self._with_ids else []


class TableBoard(Board):
    """A row per task, redrawn in place. It stays when the watching ends."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        super().__init__(_table, transient=False)
        for entry in entries:
            self.show(Followed(entry=replace(entry, message="connecting")))

    def drop(self, task: Followed, why: str = "") -> None:
        """A task that cannot be seen stays, and says so."""
        self.show(Followed(entry=replace(task.entry, status=UNKNOWN, message=why)))


class JsonBoard(Board):
    """A line of JSON on stdout per change."""

    def show(self, task: Followed, **more: Any) -> None:
        """Print a state."""
        try:
            click.echo(json_text(task.state_to_json() | more))
        except BrokenPipeError:
            # Whoever read it has seen enough; otherwise it would be a problem of the task.
            raise SystemExit from None

    def back(self, task: Followed, after: timedelta) -> None:
        """Print the last state again, and for how long it was all that was known."""
        self.show(task, outOfReachSeconds=round(after.total_seconds(), 1))

    def drop(self, task: Followed, why: str = "") -> None:
        """Print why no more is known of a task, if there is a reason."""
        if why:
            self.show(task, problem=why)


def _table(tasks: Sequence[Followed]) -> RenderableType:
    columns: views.Columns[Followed] = {
        "id": lambda task: short_id(task.entry.task_id),
        "status": views.status_of,
        "time": lambda task: clock(task.elapsed),
        "progress": _progress,
        "tool": tool_of,
        "message": said_by,
    }
    return views.listing(columns, tasks, fixed=4, cut=True, console=stderr())


def _progress(task: Followed) -> Text:
    share = 100 if task.status == "completed" else task.percent
    if share is None:
        return Text("")
    if stderr().width < views.NARROW:
        return Text(f"{share}%")
    done = BAR * share // 100
    return Text.assemble(
        ("━" * done, "bar.finished" if share == 100 else "bar.complete"), ("─" * (BAR - done), "bar.back")
    )


def new_board(*, with_ids: bool = False) -> Board:
    """The board for where stderr goes."""
    return BarBoard(with_ids=with_ids) if views.can_redraw() else LineBoard(with_ids=with_ids)
