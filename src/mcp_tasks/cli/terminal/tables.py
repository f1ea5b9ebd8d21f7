"""The live table of `watch`, and its lines of JSON."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.terminal.rows import Row, clock, first_row, row_key
from mcp_tasks.cli.terminal.text import json_text, one_line
from mcp_tasks.cli.terminal.views import badge, stderr
from mcp_tasks.client import LedgerEntry


class TableBoard:
    """A row per task, redrawn in place."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._rows = {row_key(entry): first_row(entry, "connecting") for entry in entries}
        self._live = Live(get_renderable=self._table, console=stderr(), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, row: Row) -> None:
        """Redraw a row."""
        self._rows[row.key] = row

    def drop(self, key: str, why: str = "") -> None:
        """A task that cannot be seen stays, and says so."""
        self._rows[key] = replace(self._rows[key], status="unknown", message=why)

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Take the table away for a while."""
        self._live.stop()
        try:
            yield stderr()
        finally:
            self._live.start()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bright_black", expand=True)
        for name in ("id", "tool", "status"):
            table.add_column(name, no_wrap=True)
        table.add_column("progress", width=22)
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self._rows.values():
            message = Text(row.says)
            table.add_row(
                Text(row.short_id),
                Text(one_line(row.tool)),
                badge(row.status),
                _progress(row),
                clock(row.elapsed),
                message,
            )
        return table


class JsonBoard:
    """A line of JSON on stdout per change."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lines need no end."""

    def show(self, row: Row) -> None:
        """Print a state."""
        fields = {
            "taskId": row.task_id,
            "tool": row.tool,
            "status": row.status,
            "statusMessage": row.message,
            "progress": row.done,
            "total": row.total,
            "outOfReachSince": None if row.away_since is None else row.away_since.isoformat(),
            "outOfReachSeconds": None if row.back_after is None else round(row.back_after.total_seconds(), 1),
        }
        click.echo(json_text({key: value for key, value in fields.items() if value is not None}))

    def drop(self, key: str, why: str = "") -> None:
        """A line that was printed stays."""

    @contextmanager
    def aside(self) -> Generator[Console]:
        """Lines are not in the way."""
        yield stderr()


def _progress(row: Row) -> ProgressBar | Text:
    if row.status == "completed":
        return ProgressBar(total=1, completed=1, width=20)
    if row.percent is None:
        return Text("")
    return ProgressBar(total=100, completed=row.percent, width=20)
