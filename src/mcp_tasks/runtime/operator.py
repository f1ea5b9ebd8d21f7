"""What an operator does directly at the store, without a server: look, cancel, run again, delete, drain.

An operator is not a process that runs tools: nothing is swept, claimed or upgraded from here. Changes of a task go
through the machine and by compare-and-swap, so that the processes that run it and observers learn of them.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from mcp_tasks.errors import TaskUnreadable, UnknownTask, UsageError, VersionConflict
from mcp_tasks.model.machine import TaskCancelled
from mcp_tasks.model.record import Actor, JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime.changes import Changes
from mcp_tasks.runtime.launch import new_task_id
from mcp_tasks.runtime.lease import draining_workers, is_gone, set_draining
from mcp_tasks.runtime.observers import Observer, Observers
from mcp_tasks.runtime.store_clock import StoreClock
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, InSession, OwnedBy, Page, Store, Whose

MOST_LOOKED_AT: Final = 10_000
"""Tasks that are looked at for one page: where few fit, it is short."""

LOOKED_AT_ONCE: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which tasks to list; None for any.

    Attributes:
        owner: Of this owner; an empty one for tasks that nobody owns.
        before: Made before this instant.
        worker: Claimed by this worker now.
        errors: Only those that failed, or whose tool ended with an error.
    """

    status: TaskStatus | None = None
    tool: str | None = None
    owner: str | None = None
    session: str | None = None
    queue: str | None = None
    worker: str | None = None
    before: datetime | None = None
    errors: bool = False

    def fits(self, record: TaskRecord) -> bool:
        """Whether the task is one of them."""
        pairs = (
            (self.status, record.status),
            (self.tool, record.name),
            (self.owner, record.owner or ""),
            (self.session, record.session),
            (self.queue, record.queue),
            (self.worker, record.worker),
        )
        is_error = record.is_error or record.status is TaskStatus.FAILED
        return (
            all(wanted is None or wanted == found for wanted, found in pairs)
            and (self.before is None or record.created_at < self.before)
            and (is_error or not self.errors)
        )

    @property
    def whose(self) -> Whose:
        """The narrowest listing that has them all."""
        if self.session is not None:
            return InSession(self.session)
        if self.owner is not None:
            return OwnedBy(self.owner) if self.owner else UNOWNED
        return EVERYBODY


TELLING: Final = timedelta(seconds=5)
"""How long observers may take to write down what was done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dossier:
    """Everything that is stored of one task.

    Attributes:
        unreadable: The parts that cannot be read, and why.
    """

    record: TaskRecord
    request: TaskRequest | None
    journal: Sequence[JournalEntry]
    outcome: Outcome | None
    unreadable: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSeen:
    """A worker as the store knows it.

    Attributes:
        beats: How often it has beaten; 0 for one that has signed off, and still has tasks.
        claimed: How many tasks it has; at most as many as are counted.
        draining: The operator who wants it to drain; None if there is none.
        is_gone: Whether its process is known to have ended: only for one of this machine.
    """

    name: str
    namespace: str
    beats: int
    claimed: int
    draining: str | None
    is_gone: bool


MOST_CLAIMED: Final = 1_000
"""Tasks of a worker that are counted."""


class Operator:
    """Acts on the tasks of a store, as an operator.

    Args:
        name: The name of the operator, for observers.
        clock: The time of tasks, in place of the store's. For tests.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        observers: Sequence[Observer] = (),
        clock: Callable[[], datetime] | None = None,
        new_id: Callable[[], str] = new_task_id,
    ) -> None:
        self.actor: Actor = Actor("operator", name)
        self.store = store
        store_clock = StoreClock(store)
        self._store_clock = store_clock if clock is None else None
        self.now: Callable[[], datetime] = clock or store_clock.now
        self._new_id = new_id
        self._observers = Observers(observers)
        self._changes = Changes(store, clock=self.now, observers=self._observers, origin=self)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Operator]:
        """The store, open for this operator. It is neither made nor upgraded: that is for servers.

        Raises:
            UsageError: There is no store there, or it is one of an older release.
            StoreError: It cannot be used; the message says why.
        """
        await check_there(self.store)
        measuring: asyncio.Task[None] | None = None
        try:
            await self.store.open()
            if self._store_clock is not None:
                await self._store_clock.measure()
                measuring = asyncio.create_task(self._store_clock.keep_measuring())
            yield self
        finally:
            if measuring is not None:
                measuring.cancel()
            await self._observers.stop(TELLING)
            await self.store.close()

    # Looking

    async def list(
        self, namespaces: Sequence[str], wanted: Wanted, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """Tasks of these namespaces, one after the other, each in the order of creation. A short page need not be the
        last: only so many tasks are looked at for one.

        Raises:
            ValueError: The cursor is not one of ours.
        """
        records: list[TaskRecord] = []
        start, within = ("", None) if cursor is None else _read_cursor(cursor)
        looks = MOST_LOOKED_AT // LOOKED_AT_ONCE
        for namespace in sorted(name for name in namespaces if name >= start):
            place = within if namespace == start else None
            while True:
                if looks <= 0 or len(records) >= limit:
                    return Page(records=records, cursor=_cursor(namespace, place))
                looks -= 1
                page = await self._page(namespace, wanted, place, LOOKED_AT_ONCE)
                fits = [number for number, record in enumerate(page.records, 1) if wanted.fits(record)]
                if len(fits) > limit - len(records):
                    # The next page begins behind the last task that is shown, and only the store has that cursor.
                    page = await self._page(namespace, wanted, place, fits[limit - len(records) - 1])
                records += [record for record in page.records if wanted.fits(record)]
                place = page.cursor
                is_past = wanted.before is not None and page.records and page.records[-1].created_at >= wanted.before
                if place is None or is_past:
                    break
        return Page(records=records, cursor=None)

    async def _page(self, namespace: str, wanted: Wanted, cursor: str | None, limit: int) -> Page:
        store = self.store
        if wanted.worker is None:
            return await store.list(
                namespace, wanted.whose, now=self.now(), status=wanted.status, cursor=cursor, limit=limit
            )
        ids = await store.claimed(wanted.worker, cursor=cursor, limit=limit)
        records: list[TaskRecord] = []
        for task_id in ids.ids:
            with suppress(TaskUnreadable):
                record = await store.get(task_id)
                if record is not None and record.namespace == namespace:
                    records.append(record)
        return Page(records=records, cursor=ids.cursor)

    async def find(self, task_id: str) -> TaskRecord:
        """The task as it is now, of any owner, expired or not.

        Raises:
            UnknownTask: There is no such task.
            TaskUnreadable: There is, and its row cannot be read.
        """
        return await self._changes.reload(task_id)

    async def look(self, task_id: str) -> Dossier:
        """Everything that is stored of a task, and which parts cannot be read."""
        record = await self.find(task_id)
        unreadable: dict[str, str] = {}
        parts: dict[str, Any] = {"request": None, "journal": (), "outcome": None}
        for part in parts:
            try:
                parts[part] = await getattr(self.store, part)(task_id)
            except TaskUnreadable as exc:
                unreadable[part] = exc.why
        return Dossier(record=record, unreadable=unreadable, **parts)

    async def workers(self, namespaces: Sequence[str]) -> Sequence[WorkerSeen]:
        """The workers of these namespaces."""
        seen: list[WorkerSeen] = []
        for namespace in namespaces:
            draining = await draining_workers(self.store, namespace)
            for name, beats in sorted((await self.store.workers(namespace)).items()):
                claimed = await self.store.claimed(name, limit=MOST_CLAIMED)
                seen.append(
                    WorkerSeen(
                        name=name,
                        namespace=namespace,
                        beats=beats,
                        claimed=len(claimed.ids),
                        draining=draining.get(name),
                        is_gone=is_gone(name),
                    )
                )
        return seen

    # Acting

    async def cancel(self, record: TaskRecord, reason: str) -> TaskRecord:
        """End a task as cancelled, wherever it runs. One that has ended stays as it is.

        Raises:
            UnknownTask: It is gone.
        """
        return await self._changes.change(record, TaskCancelled(reason=reason), actor=self.actor)

    async def run_again(self, record: TaskRecord) -> TaskRecord:
        """A new task that asks for the same as one that has ended, for the same owner, queued for any worker.

        While it has not ended, running the same task again returns this one.

        Raises:
            UsageError: The task has not ended.
            UnknownTask: It is gone.
            TaskUnreadable: What was asked for cannot be read.
        """
        if not record.is_final:
            raise UsageError(f"{record.id} has not ended: it is {record.status.value}. Cancel it first")
        request = await self.store.request(record.id)
        if request is None:
            raise UnknownTask(record.id)
        now = self.now()
        new = TaskRecord(
            id=self._new_id(),
            owner=record.owner,
            name=record.name,
            method=record.method,
            namespace=record.namespace,
            created_at=now,
            updated_at=now,
            retention=record.retention,
            poll_interval=record.poll_interval,
            session=record.session,
            queue=record.queue,
            priority=record.priority,
            rerun_of=record.id,
        )
        created = await self._changes.create(
            new, request, actor=self.actor, key=f"mcp-tasks/rerun/{record.id}", key_until_end=True
        )
        if created.rerun_of != record.id:
            raise UsageError(f"{created.id} stands under the key for running {record.id} again, and is another task")
        return created

    async def delete(self, record: TaskRecord) -> None:
        """Delete a task that has ended, with all that is kept of it.

        Raises:
            UsageError: It has not ended.
            UnknownTask: It is gone already.
        """
        while True:
            if not record.is_final:
                raise UsageError(f"{record.id} has not ended: it is {record.status.value}. Cancel it first")
            try:
                return await self._changes.delete(record.id, expected=record.version, actor=self.actor)
            except VersionConflict:
                record = await self.find(record.id)

    async def delete_unreadable(self, task_id: str) -> None:
        """Delete a task whose row cannot be read, so that it can neither be run nor shown."""
        versions = await self.store.versions([task_id])
        if task_id not in versions:
            raise UnknownTask(task_id)
        await self._changes.delete(task_id, expected=versions[task_id], actor=self.actor)

    async def drain(self, worker: WorkerSeen) -> None:
        """Have a worker take nothing more. It hears of it with one of its next heartbeats."""
        await set_draining(self.store, worker.namespace, add={worker.name: self.actor.name or "an operator"})

    async def undrain(self, worker: WorkerSeen) -> None:
        """Have a worker that drains take tasks again."""
        await set_draining(self.store, worker.namespace, remove=[worker.name])


async def check_there(store: Store) -> None:
    """Check that there is a store that can be opened without creating or upgrading it.

    Raises:
        UsageError: There is none there, or it is one of an older release.
        StoreError: It cannot be used; the message says why.
    """
    standing = await store.standing()
    if standing == "absent":
        raise UsageError(f"there is no task store ({store!r}): no server has kept tasks there yet")
    if standing == "older":
        raise UsageError(
            f"{store!r} is of an older release. A server or worker of this release upgrades it when it starts; until "
            "then, use the release that wrote it"
        )


def _cursor(namespace: str, within: str | None) -> str:
    return urlsafe_b64encode(json.dumps([namespace, within]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[str, str | None]:
    try:
        value: Any = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        namespace, within = cast("list[Any]", value)
    except (ValueError, TypeError) as exc:
        raise ValueError("it is not a cursor of this listing") from exc
    if not isinstance(namespace, str) or not isinstance(within, str | None):
        raise ValueError("it is not a cursor of this listing")
    return namespace, within
