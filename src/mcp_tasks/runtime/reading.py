"""Finding tasks for those who ask about them, with as few looks at the store as it takes."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mcp_tasks.core.pacing import is_expired
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.errors import TaskUnreadable, UnknownTask
from mcp_tasks.stores.together import ReadsOwned, ReadsTogether

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

MAX_ID_LENGTH = 256
"""Longer than any id of ours; a longer one names no task, and need not be looked up to know that."""


class Reading:
    """Reads the tasks of one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._together = runtime.store if isinstance(runtime.store, ReadsTogether) else None
        # Whose a task is has to be known before any of it is read or decoded: a stranger would notice by the time that
        # there is such a task.
        self._owned = runtime.store if isinstance(runtime.store, ReadsOwned) else None

    async def find(self, task_id: str) -> TaskRecord:
        """The task as it is now, whoever owns it.

        Raises:
            UnknownTask: This server has no such task.
            TaskUnreadable: It has, and its row cannot be read.
        """
        await self._runtime.early.until_written(task_id)
        try:
            record = await self._runtime.store.get(task_id) if len(task_id) <= MAX_ID_LENGTH else None
        except TaskUnreadable as exc:
            self._runtime.janitor.note_trouble(task_id, exc)
            raise
        return self._here(task_id, record, self._runtime.now())

    async def get(self, task_id: str, *, owner: str | None) -> TaskRecord:
        """The task as it is now, for its owner.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        if self._owned is None:
            return await self._get_compared(task_id, owner)
        await self._runtime.early.until_written(task_id)
        try:
            record = await self._owned.get_owned(task_id, owner) if len(task_id) <= MAX_ID_LENGTH else None
        except TaskUnreadable as exc:
            self._runtime.janitor.note_trouble(task_id, exc)
            raise
        return _owned(self._here(task_id, record, self._runtime.now()), owner)

    async def _get_compared(self, task_id: str, owner: str | None) -> TaskRecord:
        """The same from a store that reads a task to see whose it is."""
        try:
            record = await self.find(task_id)
        except TaskUnreadable as exc:
            if exc.owner == owner:
                raise
            raise UnknownTask(task_id) from exc
        return _owned(record, owner)

    async def get_with_outcome(self, task_id: str, *, owner: str | None) -> tuple[TaskRecord, Outcome | None]:
        """The task as it is now, for its owner, and how it ended where the store gives that in the same look. Where it
        does not, the store has to be asked for it.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        if self._together is not None and len(task_id) <= MAX_ID_LENGTH:
            await self._runtime.early.until_written(task_id)
            try:
                record, outcome = await self._together.get_with_outcome(task_id, owner) or (None, None)
            except TaskUnreadable:
                # Which of the two it is, and what is to be done, is found by asking for each.
                return await self.get(task_id, owner=owner), None
            return _owned(self._here(task_id, record, self._runtime.now()), owner), outcome
        return await self.get(task_id, owner=owner), None

    async def is_current(self, record: TaskRecord, *, owner: str | None, now: datetime) -> bool:
        """Whether a task that was read before is still as it was then. No more of it is read than its version.

        Raises:
            UnknownTask: There is no such task for this owner, by now or at all.
        """
        version = (await self._runtime.store.versions((record.id,))).get(record.id)
        if version is not None and version != record.version:
            return False
        _owned(self._here(record.id, None if version is None else record, now), owner)
        return True

    def _here(self, task_id: str, record: TaskRecord | None, now: datetime) -> TaskRecord:
        if record is None or record.namespace != self._runtime.namespace or is_expired(record, now):
            raise UnknownTask(task_id)
        return record


def _owned(record: TaskRecord, owner: str | None) -> TaskRecord:
    if record.owner != owner:
        raise UnknownTask(record.id)
    return record
