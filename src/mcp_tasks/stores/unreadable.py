"""Tasks that cannot be read are logged once, with what to do about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import SHOWN_OF_AN_ID, TaskUnreadable
from mcp_tasks.quiet import get_logger

MAX_REPORTED = 1_000
"""Unreadable tasks remembered as logged; beyond that some are logged again."""

logger: Final = get_logger(__name__)


class UnreadableLog:
    """Logs what a listing had to leave out.

    Args:
        place: Where the tasks are kept, without anything secret.
        deletion: What deletes a task by its id, in the words of the backend.
    """

    def __init__(self, place: str, deletion: Callable[[str], str]) -> None:
        self._place = place
        self._deletion = deletion
        self._reported: dict[str, None] = {}

    def readable(self, decode: Callable[..., TaskRecord], rows: Iterable[Sequence[Any]]) -> list[TaskRecord]:
        """The records of some rows. What cannot be read is left out and logged once."""
        records: list[TaskRecord] = []
        for row in rows:
            try:
                records.append(decode(*row))
            except TaskUnreadable as exc:
                self.report(exc)
        return records

    def report(self, unreadable: TaskUnreadable) -> None:
        """Log the task, unless that was done."""
        if unreadable.task_id in self._reported:
            return
        if len(self._reported) == MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[unreadable.task_id] = None
        logger.error(
            "%s. Listings leave it out, and all other tasks in %s are unaffected. To delete it: %s",
            unreadable,
            self._place,
            self._deletion(unreadable.task_id),
        )


def sql_deletion(table: str, spelled: Callable[[str], str] = str) -> Callable[[str], str]:
    """What deletes a task by its id in SQL, with no more of the id than a log may have."""

    def deletion(task_id: str) -> str:
        start = spelled(task_id[:SHOWN_OF_AN_ID]).replace("'", "''")
        which = f"= '{start}'" if len(task_id) <= SHOWN_OF_AN_ID else f"LIKE '{start}%'"
        return f"DELETE FROM {table} WHERE id {which}"  # noqa: S608 - for people to read

    return deletion


def if_readable(decode: Callable[..., TaskRecord], *row: Any) -> TaskRecord | None:
    """The record of a row, or None: for one that is gone, and needs no deleting any more."""
    try:
        return decode(*row)
    except TaskUnreadable:
        return None
