"""What is shown of one task, wherever it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.client import LedgerEntry, TaskSnapshot
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.core.status import FINAL_STATUSES

COMPLETED_BADLY: Final = "completed with an error"
"""What the protocol calls completed of a tool that says that it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One task, or one call that is not a task (yet).

    Attributes:
        key: Tells rows apart.
        done: How far it is, of `total` if that is known.
        is_error: Whether it has completed with a result by which the tool says that it failed.
        away_since: Since when its server is out of reach; None if it is not.
        started: By this machine's clock, which need not be the server's.
    """

    key: str
    tool: str
    status: str
    message: str | None = None
    done: float | None = None
    total: float | None = None
    task_id: str | None = None
    is_error: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None
    away_since: datetime | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL_STATUSES

    @property
    def state(self) -> str:
        """The status in words of its own where that says too little."""
        return COMPLETED_BADLY if self.is_error and self.status == "completed" else self.status

    @property
    def elapsed(self) -> timedelta:
        """How long it has taken."""
        return (self.ended or datetime.now(UTC)) - self.started

    @property
    def percent(self) -> int | None:
        """How far it is, where that is known and it has not ended."""
        if self.done is None or not self.total or self.is_final:
            return None
        return max(0, min(100, int(100 * self.done / self.total)))

    @property
    def says(self) -> str:
        """The task's message, or what is more important now."""
        if self.away_since is not None:
            away = clock(datetime.now(UTC) - self.away_since)
            return f"server out of reach for {away}, trying again"
        return one_line(self.message)

    @property
    def short_id(self) -> str:
        """As much of the id as tells tasks apart."""
        return "" if self.task_id is None else short_id(self.task_id)


def row_key(entry: LedgerEntry) -> str:
    """What tells a task's row apart."""
    return " ".join(entry.key)


def state_of(entry: LedgerEntry) -> str:
    """How a task was last seen, as `Row.state` has it."""
    return COMPLETED_BADLY if entry.is_error and entry.status == "completed" else entry.status


def clock(duration: timedelta) -> str:
    """A running time: 0:07, 12:34, 1:02:03, 3d 01:02:03."""
    minutes, seconds = divmod(max(0, int(duration.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def row_of(entry: LedgerEntry, snapshot: TaskSnapshot | None = None, *, message: str | None = None) -> Row:
    """A task in its present state, or one of which nothing was seen yet, with a message of ours."""
    row = Row(
        key=row_key(entry),
        tool=entry.tool or short_id(entry.task_id),
        status=entry.status,
        message=message,
        task_id=entry.task_id,
        started=entry.started_at,
    )
    if snapshot is None:
        return row
    progress = snapshot.progress
    return replace(
        row,
        status=snapshot.status.value,
        message=snapshot.message,
        done=None if progress is None else progress.progress,
        total=None if progress is None else progress.total,
        is_error=bool((snapshot.result or {}).get("isError")),
        # Both by the server's clock, so their difference is right whatever that clock says.
        ended=entry.started_at + (snapshot.updated_at - snapshot.created_at) if snapshot.is_final else None,
    )
