"""Every change of a task: its creation, what happens to it, its deletion.

The machine decides a change, and the store makes it with a compare-and-swap. After that its run in this process,
listeners, other processes and observers are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from mcp_tasks._utils import BoundedDict, short_id
from mcp_tasks.errors import (
    KeyRefused,
    StaleRun,
    StoreUnavailable,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    ValueNotStorable,
    VersionConflict,
)
from mcp_tasks.model.machine import Event, TaskCreated, TaskDeleted, apply
from mcp_tasks.model.record import OTHER_WRITES, Actor, JournalEntry, Outcome, TaskRecord, TaskRequest, WriteId
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.child_process import end_orphans
from mcp_tasks.runtime.lease import is_gone
from mcp_tasks.runtime.observers import Observed, Observers, TaskChange
from mcp_tasks.stores.base import Handing, Hint, HintFan, Inbox, Store, WorkLimits
from mcp_tasks.stores.codec import new_write_id

logger: Final = get_logger(__name__)

KEY_OUTLIVES: Final = timedelta(days=1)
"""How long the idempotency key of a client is kept after its task is gone."""

MAX_REMEMBERED = 5_000
"""Tasks whose versions are remembered as written here: more than are written between two looks at a file."""


class Changes:
    """Makes the changes of tasks.

    Args:
        clock: The time of a change.
        origin: Is not notified of changes that are made here.
        saw: Called with every record that is written here, before listeners are told.
        grew: Called with an owner, and the size of the outcome that was written for one of the owner's tasks.

    Attributes:
        hints: Notifies the listeners of this process.
        unheard: Notifications that were skipped because of changes made here, which then failed.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], datetime],
        observers: Observers,
        origin: object,
        saw: Callable[[TaskRecord], None] | None = None,
        grew: Callable[[str | None, int], None] | None = None,
    ) -> None:
        self.hints: HintFan = HintFan()
        self.unheard: Inbox = Inbox()
        self._store = store
        self._now = clock
        self._observers = observers
        self._origin = origin
        self._saw = saw
        self._grew = grew
        # Not a dict: finding the first entry of one from which many were taken takes the longer the more there were.
        self._written: BoundedDict[str, int] = BoundedDict(MAX_REMEMBERED)
        self._being_written: dict[str, int] = {}
        self._passed_over: dict[str, Hint] = {}
        # Changes whose answer was lost: how observers are told once it is known that they were made.
        self._unconfirmed: BoundedDict[WriteId, Callable[[], None]] = BoundedDict(MAX_REMEMBERED)
        # Changes that observers were told of: a run and the writes after an outage may make the same one.
        self._told: BoundedDict[WriteId, None] = BoundedDict(MAX_REMEMBERED)
        self._is_over = False

    def end(self) -> None:
        """Write nothing more, as if this process had died."""
        self._is_over = True

    async def create(
        self,
        record: TaskRecord,
        request: TaskRequest,
        *events: Event,
        actor: Actor,
        key: str | None = None,
        key_until_end: bool = False,
        handing: Handing | None = None,
    ) -> TaskRecord:
        """Store a new task to which `events` have happened; or return the existing task under the key.

        Raises:
            KeyRefused: The idempotency key belongs to another call.
            KeySpent: Its task is gone, and the key is not free yet.
        """
        record = record if record.writes else record.written(new_write_id())
        history = _apply(record, events, record.created_at)
        new = history[-1]
        kept: dict[str, Any] = {} if record.fingerprint is None else {"key_outlives": KEY_OUTLIVES}
        # Before it is written: a look at the store may find it there before this goes on. The id is new.
        self._written[new.id] = new.version
        created = await self._store.create(new, request, key=key, key_until_end=key_until_end, handing=handing, **kept)
        if created.id != record.id:
            if created.fingerprint != record.fingerprint:
                raise KeyRefused("key_taken")
            return created
        if handing is not None and created is not new:
            # Made by an attempt whose answer was lost. It is submitted in any case: twice does no harm.
            handing.handed, handing.carried = True, False
        self._observe([None, *history], [TaskCreated(), *events], actor)
        if handing is None and created.is_queued(self._now()):
            # It has no listeners yet, but a process that has room may start it. An engine that carries ids has been
            # given this one, or will be.
            await self._store.notifier().publish(Hint(created.id, created.version), origin=self._origin)
        return created

    async def swap(
        self,
        record: TaskRecord,
        *events: Event,
        actor: Actor,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
        write: WriteId | None = None,
    ) -> TaskRecord:
        """Apply events to the task as it was at `record`, once. `limits` are for a claim, or a run that goes on.

        A caller that may repeat the change after `StoreUnavailable` chooses its `write` id, and passes it each time: if
        an earlier attempt was made after all, that is this change. The returned record is then newer than the change.

        Raises:
            VersionConflict: The task is no longer at that version.
            LimitReached: A concurrency limit is reached.
            TransitionRefused: The events do not fit the task.
            StoreUnavailable: The store cannot take it now, or this process has ended.
        """
        if self._is_over and getattr(events[0], "attempt", None) is None:
            # Not of a run: a client is to ask another process.
            raise StoreUnavailable("this process has ended")
        if self._is_over:
            raise StaleRun(record.id, record.status, type(events[0]).__name__, "its process is gone")
        if write is not None and write.number > 1 and not any(each.writer == write.writer for each in record.writes):
            # After a failover two runs may have the same number.
            raise StaleRun(record.id, record.status, type(events[0]).__name__, "another run has claimed it")
        history = _apply(record, events, self._now())
        last = history[-1]
        if last is record:
            return record
        write = write or new_write_id()
        written = last.written(write)
        history = [written if each is last else each for each in history]
        self._being_written[record.id] = written.version
        try:
            changed = await self._store.save(
                written, expected=record.version, entries=entries, outcome=outcome, limits=limits
            )
        except BaseException as exc:
            if isinstance(exc, StoreUnavailable) and exc.may_have_happened:
                self._unconfirmed[write] = partial(self._tell, write, history, events, actor, outcome)
            if (hint := self._passed_over.get(record.id)) is not None:
                self.unheard.put(hint)
            raise
        finally:
            self._being_written.pop(record.id, None)
            self._passed_over.pop(record.id, None)
        self._unconfirmed.pop(write, None)
        self._tell(write, history, events, actor, outcome)
        await self._publish(changed)
        if changed.is_final and record.processes and (record.worker is None or is_gone(record.worker)):
            # There is no run that could end them, and none will come.
            await end_orphans(record)
        return changed

    async def change(
        self,
        record: TaskRecord,
        *events: Event,
        actor: Actor,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
        write: WriteId | None = None,
        restore: Callable[[TaskRecord], Awaitable[TaskRecord]] | None = None,
    ) -> TaskRecord:
        """Apply events to the task, starting from `record`, and again from what it has become if another was first.

        With a `write` id that an earlier attempt had, the change is made only if that attempt did not make it. If the
        store has lost what made `record`, it went back in time, and `restore` returns the record to go on from.

        Raises:
            LimitReached: A concurrency limit is reached.
            TransitionRefused: The events do not fit the task as it has become.
            UnknownTask: The task is gone.
        """
        write, known = write or new_write_id(), record
        while not record.has(write):
            try:
                return await self.swap(
                    record, *events, actor=actor, entries=entries, outcome=outcome, limits=limits, write=write
                )
            except VersionConflict as exc:
                record = exc.current or await self.reload(record.id)
            while restore is not None and is_older(record, known):
                try:
                    record = known = await restore(record)
                except VersionConflict as exc:
                    record = exc.current or await self.reload(record.id)
        if (tell := self._unconfirmed.pop(write, None)) is not None:
            tell()
        return record

    async def restore(
        self, record: TaskRecord, *, known: int, expected: int, entries: Sequence[JournalEntry]
    ) -> TaskRecord:
        """Write a task as its run knows it, from version `known`, to a store that went back in time."""
        logger.error(
            "the task store went back in time: task %s was at version %d, and is at %d. Its run writes again what was "
            "lost. See the table of failovers in docs/scale.md",
            short_id(record.id),
            known,
            expected,
        )
        saved = await self._store.save(record, expected=expected, entries=entries)
        await self._publish(saved)
        return saved

    async def reload(self, task_id: str) -> TaskRecord:
        record = await self._store.get(task_id)
        if record is None:
            raise UnknownTask(task_id)
        return record

    async def delete(self, task_id: str, *, expected: int, actor: Actor) -> None:
        record = None
        if TaskDeleted in self._observers.wanted:
            try:
                record = await self._store.get(task_id)
            except TaskUnreadable as exc:
                # It is deleted like any other. There is no record to show to observers.
                logger.debug("%s", exc)
        await self._store.delete(task_id, expected=expected, now=self._now())
        if record is not None:
            self._observe([record, None], [TaskDeleted()], actor)

    async def forget_expired(self, *, limit: int, actor: Actor) -> int:
        """Delete up to `limit` expired tasks; how many."""
        wanted = TaskDeleted in self._observers.wanted
        forgotten = await self._store.forget_expired(self._now(), limit=limit, records=wanted)
        for task in forgotten:
            # A task that cannot be read has no record to show.
            if task.record is not None:
                self._observe([task.record, None], [TaskDeleted()], actor)
        return len(forgotten)

    def wrote(self, hint: Hint) -> bool:
        """Whether this process made the change or a later one, as far as is remembered, or is making it.

        A store that finds changes by looking notifies a process of its own changes too, and may do so before the
        process knows that they are made. If another's change was first after all, the hint is `unheard`.
        """
        if hint.version <= self._written.get(hint.task_id, 0):
            return True
        if hint.version <= self._being_written.get(hint.task_id, 0):
            self._passed_over[hint.task_id] = hint
            return True
        return False

    async def _publish(self, record: TaskRecord) -> None:
        # Newest last, so that the one that is forgotten is the one whose hint came long ago.
        self._written[record.id] = record.version
        if self._saw is not None:
            self._saw(record)
        hint = Hint(record.id, record.version)
        self.hints.put(hint)
        await self._store.notifier().publish(hint, origin=self._origin)

    def _tell(
        self,
        write: WriteId,
        history: Sequence[TaskRecord],
        events: Sequence[Event],
        actor: Actor,
        outcome: Outcome | None,
    ) -> None:
        if write in self._told:
            return
        self._told[write] = None
        if outcome is not None and self._grew is not None:
            self._grew(history[-1].owner, len(outcome.body))
        self._observe(history, events, actor)

    def _observe(self, history: Sequence[TaskRecord | None], events: Sequence[Observed], actor: Actor) -> None:
        for before, event, after in zip(history, events, history[1:], strict=False):
            if after is not before and type(event) in self._observers.wanted:
                self._observers.tell(TaskChange(before=before, event=event, after=after, actor=actor, at=self._now()))


def is_older(stored: TaskRecord, known: TaskRecord) -> bool:
    """Whether the store, which was read after `known` was written there, has lost that write.

    After a failover others may have written as often as before, or more often: versions alone do not tell.
    """
    if stored.version < known.version:
        return True
    if not known.writes or stored.has(known.writes[0]):
        return False
    if stored.version == known.version:
        return True
    if stored.is_final or stored.attempt > known.attempt:
        return False
    if stored.attempt == known.attempt and _writer_of(stored) != _writer_of(known):
        return False
    others = [each for each in stored.writes if not each.number]
    pushed_out = len(others) == OTHER_WRITES and not any(each in known.writes for each in others)
    return known.writes[0].number > 0 or not pushed_out


def _writer_of(record: TaskRecord) -> str | None:
    return next((each.writer for each in record.writes if each.number), None)


def _apply(record: TaskRecord, events: Sequence[Event], now: datetime) -> list[TaskRecord]:
    history = [record]
    for event in events:
        history.append(apply(history[-1], event, now))
    return history


# ---- late writes
# Writes of runs that failed because their process had lost touch with the store.


@dataclass(eq=False, kw_only=True, slots=True)
class Write:
    """A write of a run: all of it or nothing.

    Attributes:
        id: The same for each attempt. It is given with the first one, because numbers follow the order of writing.
        made: Whether it was made, or refused for good; None while neither is known.
    """

    events: Sequence[Event]
    actor: Actor
    entries: Sequence[JournalEntry] = ()
    outcome: Outcome | None = None
    limits: WorkLimits | None = None
    id: WriteId | None = None
    made: bool | None = None

    async def to(
        self,
        changes: Changes,
        record: TaskRecord,
        restore: Callable[[TaskRecord], Awaitable[TaskRecord]] | None = None,
    ) -> TaskRecord:
        return await changes.change(
            record,
            *self.events,
            actor=self.actor,
            entries=self.entries,
            outcome=self.outcome,
            limits=self.limits,
            write=self.id,
            restore=restore,
        )


class LateWrites:
    """Writes without an answer. When the lease is renewed they are repeated, if the task still belongs to this
    process."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._flushing = asyncio.Lock()
        # In the order in which things were done.
        self._waiting: dict[Write, TaskRecord] = {}

    def add(self, record: TaskRecord, write: Write) -> None:
        """Make this write when the lease is renewed, unless it is settled before."""
        self._waiting[write] = record

    def settled(self, write: Write) -> None:
        """The write is made, or is not needed."""
        self._waiting.pop(write, None)

    async def flush(self) -> None:
        """Make all writes now, in their order."""
        async with self._flushing:
            while self._waiting:
                write, record = next(iter(self._waiting.items()))
                # Its run may be making it at the same time: with one id it is made once.
                write.id = write.id or new_write_id()
                try:
                    await write.to(self._changes, record)
                except (TransitionRefused, UnknownTask, ValueNotStorable) as exc:
                    logger.debug("a write of a run of task %s is not made: %s", short_id(record.id), exc)
                self.settled(write)
