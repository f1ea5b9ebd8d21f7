"""The reference store: plain dictionaries. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need
not outlive them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.pacing import expires_at, is_expired
from mcp_tasks.core.record import ALWAYS, Outcome, TaskRecord, TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskExists, VersionConflict
from mcp_tasks.stores.base import EVERYBODY, Hint, IdPage, OwnedBy, Page, Whose
from mcp_tasks.stores.columns import decode_cursor, encode_cursor, sort_key, to_micros
from mcp_tasks.stores.hints import LocalNotifier


class MemoryStore:
    """Keeps tasks in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[str, TaskRecord] = {}
        self._requests: dict[str, TaskRequest] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._journals: dict[str, list[JournalEntry]] = {}
        self._keys: dict[tuple[str, str | None, str], str] = {}
        self._beats: dict[str, tuple[str, int]] = {}
        self._notifier = LocalNotifier()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def open(self, namespace: str = "") -> None:
        """Nothing to do: no task here is older than namespaces."""

    async def close(self) -> None:
        """Nothing to do; what is kept stays until the object goes."""

    async def create(self, record: TaskRecord, request: TaskRequest, *, key: str | None = None) -> TaskRecord:
        """Keep a new task, unless one stands under its key."""
        place = None if key is None else (record.namespace, record.owner, key)
        standing = None if place is None else self._records.get(self._keys.get(place, ""))
        if standing is not None and not is_expired(standing, record.created_at):
            return standing
        if record.id in self._records:
            raise TaskExists(record.id)
        if standing is not None:
            self._forget(standing.id)
        self._records[record.id] = record
        self._requests[record.id] = request
        self._journals[record.id] = []
        if place is not None:
            self._keys[place] = record.id
        return record

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None."""
        return self._records.get(task_id)

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for."""
        return self._requests.get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended."""
        return self._outcomes.get(task_id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
    ) -> None:
        """Replace the record if it is still at version `expected`, with what is kept beside it."""
        self._check(record.id, expected)
        self._records[record.id] = record
        journal = self._journals[record.id]
        journal.extend(replace(entry, number=number) for number, entry in enumerate(entries, len(journal) + 1))
        if outcome is not None:
            self._outcomes[record.id] = outcome

    async def delete(self, task_id: str, *, expected: int) -> None:
        """Forget the task if it is still at version `expected`."""
        self._check(task_id, expected)
        self._forget(task_id)

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The task's journal beyond `after`."""
        return tuple(self._journals.get(task_id, ())[after:])

    async def list(
        self,
        namespace: str,
        whose: Whose,
        *,
        now: datetime,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Tasks of the namespace in the order of creation, in one status or any."""
        owner = whose.owner if isinstance(whose, OwnedBy) else None
        found = [
            record
            for record in self._in_order()
            if record.namespace == namespace
            and (whose is EVERYBODY or record.owner == owner)
            and (status is None or record.status is status)
            and not is_expired(record, now)
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

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return self._ids(lambda task: task.worker == worker, _place, cursor, limit)

    async def expired(self, now: datetime, *, limit: int) -> Sequence[Hint]:
        """Id and version of tasks whose time after the end is over, longest overdue first."""
        overdue = [record for record in self._in_order() if is_expired(record, now)]
        overdue.sort(key=lambda record: (expires_at(record), *_place(record)))
        return [Hint(record.id, record.version) for record in overdue[:limit]]

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks; those that are gone are left out."""
        return {task_id: self._records[task_id].version for task_id in task_ids if task_id in self._records}

    async def heartbeat(self, worker: str, *, namespace: str) -> None:
        """Renew the lease of `worker`."""
        self._beats[worker] = namespace, self._beats.get(worker, ("", 0))[1] + 1

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten."""
        beating = {worker for worker, (beats_for, _) in self._beats.items() if beats_for == namespace}
        having = {task.worker for task in self._records.values() if task.namespace == namespace}
        return {worker: self._beats.get(worker, ("", 0))[1] for worker in beating | having if worker is not None}

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`."""
        self._beats.pop(worker, None)

    def notifier(self) -> LocalNotifier:
        """Hints within this process; there is no other that could share this store."""
        return self._notifier

    def _check(self, task_id: str, expected: int) -> None:
        current = self._records.get(task_id)
        if current is None or current.version != expected:
            raise VersionConflict(task_id, expected)

    def _forget(self, task_id: str) -> None:
        del self._records[task_id], self._requests[task_id], self._journals[task_id]
        self._outcomes.pop(task_id, None)
        self._keys = {place: known for place, known in self._keys.items() if known != task_id}

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
