"""The live table of `watch`, its lines of JSON, and the table of `ls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import click
from rich.console import RenderableType
from rich.text import Text

from mcp_tasks.cli.terminal.text import fields, json_text, one_line
from mcp_tasks.cli.terminal.views import (
    NARROW,
    Board,
    Columns,
    LiveBoard,
    ago,
    badge,
    clock,
    listing,
    said_by,
    state_of,
    stderr,
    tool_of,
)
from mcp_tasks.client import Followed, LedgerEntry, short_id
from mcp_tasks.client.following import TaskKey
from mcp_tasks.client.ledger_entry import UNKNOWN

BAR: Final = 20


def task_table(entries: Sequence[LedgerEntry], *, short: Mapping[str, str]) -> RenderableType:
    """Remembered tasks, as `ls` shows them."""
    columns: Columns[Followed] = {
        "id": lambda task: short[task.entry.task_id],
        "status": _status,
        "started": lambda task: ago(task.entry.started_at),
        "took": lambda task: clock(task.elapsed),
        "call": lambda task: f"{task.entry.tool} {task.entry.arguments or ''}",
        "message": lambda task: task.message,
        "server": lambda task: Text(one_line(task.entry.server_label), style="bright_black"),
    }
    return listing(columns, [Followed(entry=entry) for entry in entries], fixed=4, cut=True)


class TableBoard(LiveBoard):
    """A row per task, redrawn in place. It stays when the watching ends."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        super().__init__(_watched, transient=False)
        for entry in entries:
            self.show(Followed(entry=replace(entry, message="connecting")))

    def drop(self, key: TaskKey, why: str = "") -> None:
        """A task that cannot be seen stays, and says so."""
        self.show(Followed(entry=replace(self._tasks[key].entry, status=UNKNOWN, message=why)))


class JsonBoard(Board):
    """A line of JSON on stdout per change."""

    def show(self, task: Followed, away: timedelta | None = None) -> None:
        """Print a state."""
        progress = None if task.snapshot is None else task.snapshot.progress
        shown = fields(
            taskId=task.task_id,
            tool=tool_of(task),
            status=task.status,
            isError=task.is_error or None,
            statusMessage=task.message,
            progress=progress and progress.progress,
            total=progress and progress.total,
            outOfReachSince=task.away_since and task.away_since.isoformat(),
            outOfReachSeconds=away and round(away.total_seconds(), 1),
        )
        try:
            click.echo(json_text(shown))
        except BrokenPipeError:
            # Whoever read it has seen enough; otherwise it would be a problem of the task.
            raise SystemExit from None

    def back(self, task: Followed, after: timedelta) -> None:
        """Print the last state again, and for how long it was all that was known."""
        self.show(task, after)


def _watched(tasks: Sequence[Followed]) -> RenderableType:
    return listing(_WATCHED, tasks, fixed=4, cut=True, console=stderr())


def _status(task: Followed) -> Text:
    """A status for a column, which is as wide as its longest."""
    return badge(task.status if state_of(task) == task.status else "tool error")


def _progress(task: Followed) -> Text:
    share = 100 if task.status == "completed" else task.percent
    if share is None:
        return Text("")
    if stderr().width < NARROW:
        return Text(f"{share}%")
    done = BAR * share // 100
    return Text.assemble(
        ("━" * done, "bar.finished" if share == 100 else "bar.complete"), ("━" * (BAR - done), "bar.back")
    )


_WATCHED: Final[Columns[Followed]] = {
    "id": lambda task: short_id(task.entry.task_id),
    "status": _status,
    "time": lambda task: clock(task.elapsed),
    "progress": _progress,
    "tool": tool_of,
    "message": said_by,
}
