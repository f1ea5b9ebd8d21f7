"""The reference store: plain dictionaries. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need
not outlive them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.pacing import expires_at, is_expired
from mcp_tasks.core.record import ALWAYS, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import Hint, IdPage, Page
from mcp_tasks.stores.codec import decode_cursor, encode_cursor, sort_key, to_micros
from mcp_tasks.stores.hints import LocalNotifier


class MemoryStore:
    """Keeps tasks in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._journals: dict[str, list[JournalEntry]] = {}
        self._beats: dict[str, tuple[str, int]] = {}
        self._notifier = LocalNotifier()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def open(self, namespace: str = "") -> None:
        """Nothing to do: no task here is older than namespaces."""

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
        return Page(records=page, cursor=encode_cursor(*_place(page[-1])) if more and page else None)

    async def queued(self, namespace: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation."""
        return self._ids(lambda task: task.namespace == namespace and task.ready_at == ALWAYS, _place, cursor, limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose time has come, longest overdue first."""

        def is_due(task: TaskRecord) -> bool:
            return task.namespace == namespace and task.ready_at is not None and ALWAYS < task.ready_at <= now

        return self._ids(is_due, _ready_place, cursor, limit)

    async def held(self, holder: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `holder` has, in the order of creation."""
        return self._ids(lambda task: task.holder == holder, _place, cursor, limit)

    async def expired(self, now: datetime, *, limit: int) -> Sequence[Hint]:
        """Id and version of tasks whose time after the end is over, longest overdue first."""
        overdue = [record for record in self._in_order() if is_expired(record, now)]
        overdue.sort(key=lambda record: (expires_at(record), *_place(record)))
        return [Hint(record.id, record.version) for record in overdue[:limit]]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        return {task_id: self._records[task_id].version for task_id in task_ids if task_id in self._records}

    async def beat(self, holder: str, *, namespace: str) -> None:
        """Renew the lease of `holder`."""
        self._beats[holder] = namespace, self._beats.get(holder, ("", 0))[1] + 1

    async def holders(self, namespace: str) -> dict[str, int]:
        """Every holder that beats for the namespace or has a task in it, and how often it has beaten."""
        beating = {holder for holder, (beats_for, _) in self._beats.items() if beats_for == namespace}
        having = {task.holder for task in self._records.values() if task.namespace == namespace}
        return {holder: self._beats.get(holder, ("", 0))[1] for holder in beating | having if holder is not None}

    async def retire(self, holder: str) -> None:
        """Forget the heartbeat of `holder`."""
        self._beats.pop(holder, None)

    def notifier(self) -> LocalNotifier:
        """Hints within this process; there is no other that could share this store."""
        return self._notifier

    def _check(self, task_id: str, expected: int) -> None:
        current = self._records.get(task_id)
        if current is None or current.version != expected:
            raise VersionConflict(task_id, expected)

    def _ids(
        self,
        wanted: Callable[[TaskRecord], bool],
        place: Callable[[TaskRecord], tuple[int, str]],
        cursor: str | None,
        limit: int,
    ) -> IdPage:
        found = sorted((record for record in self._records.values() if wanted(record)), key=place)
        start = 0 if cursor is None else bisect_right(found, decode_cursor(cursor), key=place)
        page = found[start : start + limit]
        more = start + limit < len(found)
        return IdPage(ids=[task.id for task in page], cursor=encode_cursor(*place(page[-1])) if more and page else None)

    def _in_order(self) -> Sequence[TaskRecord]:
        return sorted(self._records.values(), key=_place)


def _place(record: TaskRecord) -> tuple[int, str]:
    return sort_key(record), record.id


def _ready_place(record: TaskRecord) -> tuple[int, str]:
    return to_micros(record.ready_at or ALWAYS), record.id
