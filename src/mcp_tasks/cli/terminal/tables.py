"""The live table of `watch`, its lines of JSON, and the table of `ls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mcp_tasks.cli.terminal.rows import Row, clock, row_key, row_of, state_of
from mcp_tasks.cli.terminal.text import fields, json_text, one_line
from mcp_tasks.cli.terminal.views import NARROW, Board, ago, badge, listing, stderr
from mcp_tasks.client import LedgerEntry
from mcp_tasks.client.ledger import UNKNOWN

BAR: Final = 20


class TableBoard(Board):
    """A row per task, redrawn in place."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._rows = {row_key(entry): row_of(entry, message="connecting") for entry in entries}
        self._live = Live(get_renderable=self._table, console=stderr(), refresh_per_second=4)

    def start(self) -> None:
        """Draw the table."""
        self._live.start()

    def stop(self) -> None:
        """Draw it for the last time."""
        self._live.stop()

    def show(self, row: Row) -> None:
        """Redraw a row."""
        self._rows[row.key] = row

    def drop(self, key: str, why: str = "") -> None:
        """A task that cannot be seen stays, and says so."""
        self._rows[key] = replace(self._rows[key], status="unknown", message=why)

    def _table(self) -> RenderableType:
        rows = [
            (
                Text(row.short_id),
                badge(_brief(row.state)),
                Text(clock(row.elapsed)),
                _progress(row),
                Text(one_line(row.tool), no_wrap=True, overflow="ellipsis"),
                Text(row.says, no_wrap=True, overflow="ellipsis"),
            )
            for row in self._rows.values()
        ]
        return listing(("id", "status", "time", "progress", "tool", "message"), rows, fixed=4, console=stderr())


class JsonBoard(Board):
    """A line of JSON on stdout per change."""

    def show(self, row: Row, away: timedelta | None = None) -> None:
        """Print a state."""
        shown = fields(
            taskId=row.task_id,
            tool=row.tool,
            status=row.status,
            isError=row.is_error or None,
            statusMessage=row.message,
            progress=row.done,
            total=row.total,
            outOfReachSince=None if row.away_since is None else row.away_since.isoformat(),
            outOfReachSeconds=None if away is None else round(away.total_seconds(), 1),
        )
        click.echo(json_text(shown))

    def back(self, row: Row, after: timedelta) -> None:
        """Print the last state again, and for how long it was all that was known."""
        self.show(row, after)


def task_table(entries: Sequence[LedgerEntry], *, short: Mapping[str, str]) -> RenderableType:
    """Remembered tasks, as `ls` shows them."""
    rows = [
        (
            Text(one_line(short[entry.task_id])),
            badge(_brief(state_of(entry))),
            Text(ago(entry.started_at)),
            Text(took(entry)),
            *(
                Text(one_line(text), no_wrap=True, overflow="ellipsis", style=style)
                for text, style in (
                    (f"{entry.tool} {entry.arguments or ''}", ""),
                    (entry.message, ""),
                    (entry.server_label, "bright_black"),
                )
            ),
        )
        for entry in entries
    ]
    return listing(("id", "status", "started", "took", "call", "message", "server"), rows, fixed=4)


def took(entry: LedgerEntry) -> str:
    """How long a task took, or has been running."""
    if entry.status == UNKNOWN or (entry.is_final and entry.finished_at is None):
        return ""
    return clock((entry.finished_at or datetime.now(UTC)) - entry.started_at)


def _brief(state: str) -> str:
    """A state for a column, which is as wide as its longest."""
    return "tool error" if state == "completed with an error" else state


def _progress(row: Row) -> Text:
    share = 100 if row.status == "completed" else row.percent
    if share is None:
        return Text("")
    if stderr().width < NARROW:
        return Text(f"{share}%")
    done = BAR * share // 100
    return Text.assemble(
        ("━" * done, "bar.finished" if share == 100 else "bar.complete"), ("━" * (BAR - done), "bar.back")
    )
