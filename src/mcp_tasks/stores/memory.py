"""The reference store: plain dictionaries. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need
not outlive them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.pacing import expires_at, is_expired
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import NEVER_SEEN, Page
from mcp_tasks.stores.codec import decode_cursor, encode_cursor, sort_key
from mcp_tasks.stores.hints import LocalNotifier


class MemoryStore:
    """Keeps tasks in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._journals: dict[str, list[JournalEntry]] = {}
        self._holders: dict[str, datetime] = {}
        self._notifier = LocalNotifier()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do; what is kept stays until the object goes."""

    async def create(self, record: TaskRecord) -> None:
        """Keep a new task."""
        if record.id in self._records:
            raise TaskExists(record.id)
        self._records[record.id] = record
        self._journals[record.id] = []

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        return self._records.get(task_id)

    async def save(self, record: TaskRecord, *, expected: int, entries: Sequence[JournalEntry] = ()) -> None:
        """Replace the record if it is still at version `expected`, and append to its journal."""
        self._check(record.id, expected)
        self._records[record.id] = record
        self._journals[record.id].extend(entries)

    async def delete(self, task_id: str, *, expected: int) -> None:
        """Forget the task and its journal if it is still at version `expected`."""
        self._check(task_id, expected)
        del self._records[task_id], self._journals[task_id]

    async def journal(self, task_id: str) -> Sequence[JournalEntry]:
        """The task's journal in the order of writing."""
        return tuple(self._journals.get(task_id, ()))

    async def list(
        self,
        *,
        owner: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Tasks in the order of creation, of one owner or all, in one status or any."""
        found = [
            record
            for record in self._in_order()
            if (owner is None or record.owner == owner) and (status is None or record.status is status)
        ]
        start = 0 if cursor is None else bisect_right(found, decode_cursor(cursor), key=_place)
        page = found[start : start + limit]
        more = start + limit < len(found)
        return Page(records=page, cursor=encode_cursor(page[-1]) if more and page else None)

    async def queued(self, now: datetime, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks that could run at `now` and nobody has, oldest first."""
        return [record for record in self._in_order() if record.is_queued(now)][:limit]

    async def held(self, holder: str, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks that `holder` has, oldest first."""
        return [record for record in self._in_order() if record.holder == holder][:limit]

    async def expired(self, now: datetime, *, limit: int) -> Sequence[TaskRecord]:
        """Tasks whose time after the end is over, longest overdue first."""
        overdue = [record for record in self._in_order() if is_expired(record, now)]
        return sorted(overdue, key=lambda record: (expires_at(record), *_place(record)))[:limit]

    async def beat(self, holder: str, *, until: datetime) -> None:
        """Note that `holder` is alive."""
        self._holders[holder] = until

    async def holders(self) -> dict[str, datetime]:
        """Every holder that ever beat or still has a task."""
        having = {record.holder: NEVER_SEEN for record in self._records.values() if record.holder is not None}
        return having | self._holders

    async def retire(self, holder: str) -> None:
        """Forget that `holder` was alive."""
        self._holders.pop(holder, None)

    def notifier(self) -> LocalNotifier:
        """Hints within this process; there is no other that could share this store."""
        return self._notifier

    def _check(self, task_id: str, expected: int) -> None:
        current = self._records.get(task_id)
        if current is None or current.version != expected:
            raise VersionConflict(task_id, expected)

    def _in_order(self) -> Sequence[TaskRecord]:
        return sorted(self._records.values(), key=_place)


def _place(record: TaskRecord) -> tuple[int, str]:
    return sort_key(record), record.id
