"""The one place through which every change of a task goes: its creation, what happens to it, its deletion.

A change is decided by the machine and made by the store with a compare-and-swap. From here everybody is told of it: the
run of the task, if it is at work in this process, listeners and other processes by a hint, and observers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import (
    KeyTaken,
    StaleRun,
    StoreUnavailable,
    TaskUnreadable,
    TransitionRefused,
    UnknownTask,
    ValueNotStorable,
    VersionConflict,
)
from mcp_tasks.model.limits import is_expired
from mcp_tasks.model.machine import Event, TaskCreated, TaskDeleted, apply
from mcp_tasks.model.record import OTHER_WRITES, Actor, JournalEntry, Outcome, TaskRecord, TaskRequest, WriteId
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.child_process import end_orphans
from mcp_tasks.runtime.lease import is_gone
from mcp_tasks.runtime.observers import Observed, Observers, TaskChange
from mcp_tasks.stores.base import Handing, Hint, HintFan, Inbox, Store, WorkLimits
from mcp_tasks.stores.codec import new_write_id

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

KEY_OUTLIVES: Final = timedelta(days=1)
"""How long the idempotency key of a client stays with a task that is gone."""

MAX_REMEMBERED = 5_000
"""Tasks whose versions are remembered as written here: more than are written between two looks at a file."""


class Changes:
    """Changes tasks, and tells everybody.

    Args:
        clock: The time of a change.
        saw: Told of every record that is written here, before anybody else.
        origin: Who is not to be given hints of changes that were made here.
        grew: Told whose task had an outcome written, and of how many bytes.

    Attributes:
        unheard: Hints that were passed over because of changes of ours, which then were not made.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], datetime],
        observers: Observers,
        saw: Callable[[TaskRecord], None],
        origin: object,
        grew: Callable[[str | None, int], None] | None = None,
    ) -> None:
        self.hints: HintFan = HintFan()
        self._store = store
        self._now = clock
        self._observers = observers
        self._saw = saw
        self._origin = origin
        self._grew = grew
        # Not a dict: finding the first of one from which many were taken takes the longer the more there were.
        self._written: BoundedDict[str, int] = BoundedDict(MAX_REMEMBERED)
        self._being_written: dict[str, int] = {}
        self._passed_over: dict[str, Hint] = {}
        self.unheard: Inbox = Inbox()
        # Of changes whose answer was lost: how observers are told, once it is known that they were made.
        self._unconfirmed: BoundedDict[WriteId, Callable[[], None]] = BoundedDict(MAX_REMEMBERED)
        # Changes that observers were told of: a run and the writes after an outage may make the same one.
        self._told: BoundedDict[WriteId, None] = BoundedDict(MAX_REMEMBERED)
        self._is_over = False

    def end(self) -> None:
        """Write nothing more: for all that others can see, this process has died."""
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
        write: WriteId | None = None,
    ) -> TaskRecord:
        """Keep a new task to which `events` have happened already; or the task that stands under the key.

        `write` is the id of the claim with which its run began, if one did.

        Raises:
            KeyTaken: Under the idempotency key of a client stands another call.
            KeySpent: What stood there is gone, and the key is not free yet.
        """
        record = record.written(write or new_write_id())
        history = _apply(record, events, record.created_at)
        kept: dict[str, Any] = {} if record.fingerprint is None else {"key_outlives": KEY_OUTLIVES}
        # Before it is written: a look at the store may find it there before this goes on. No other has such an id.
        new = history[-1]
        self._remember(new)
        created = await self._store.create(new, request, key=key, key_until_end=key_until_end, handing=handing, **kept)
        if created.id == record.id:
            if handing is not None and created is not new:
                # Made by an attempt whose answer was lost. It is submitted in any case: twice does no harm.
                handing.handed, handing.carried = True, False
            self._observe(None, TaskCreated(), record, actor)
            self._observe_all(history, events, actor)
            if handing is None and created.is_queued(self._now()):
                # Nobody listens to it yet, but a process that has room may start it. An engine that carries ids has
                # been handed it, or will be.
                await self._store.notifier().publish(Hint(created.id, created.version), origin=self._origin)
        elif created.fingerprint != record.fingerprint:
            raise KeyTaken
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
        """Apply events to the task as it was at `record`, once; within `limits`, if it is a claim or a run goes on.

        A caller that may repeat the change after `StoreUnavailable` chooses its `write` id, and names it each time: if
        an earlier attempt was made after all, that is this change.

        Returns the record as it is then: newer than the change, if the change was made by an earlier attempt.

        Raises:
            VersionConflict: The task is not at that version any more.
            LimitReached: As many as may be are at work.
            TransitionRefused: The events do not fit it.
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
        changed = history[-1]
        if changed is not record:
            write = write or new_write_id()
            written = changed.written(write)
            history = [written if each is changed else each for each in history]
            self._being_written[record.id] = changed.version
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
            self._remember(changed)
            self._saw(changed)
            self._tell(write, history, events, actor, outcome)
            hint = Hint(changed.id, changed.version)
            self.hints.put(hint)
            await self._store.notifier().publish(hint, origin=self._origin)
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
        """Apply events to the task, starting from `record`, and again from what it is by then if another was first.

        With a `write` id that an earlier attempt had, the change is made only if that attempt did not make it. Where
        the store has lost what made `record`, it went back in time, and `restore` says what to go on from.

        Raises:
            LimitReached: As many as may be are at work.
            TransitionRefused: The events do not fit the task as it is by now.
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
        """Write a task as its run knows it, from version `known`, over what a store has that went back in time.

        Raises:
            VersionConflict: The task is not at the version `expected` any more.
        """
        logger.error(
            "the task store went back in time: task %s… was at version %d, and is at %d. Its run writes again what was "
            "lost. See the table of failovers in docs/scale.md",
            record.id[:12],
            known,
            expected,
        )
        saved = await self._store.save(record, expected=expected, entries=entries)
        self._remember(saved)
        self._saw(saved)
        hint = Hint(saved.id, saved.version)
        self.hints.put(hint)
        await self._store.notifier().publish(hint, origin=self._origin)
        return saved

    async def reload(self, task_id: str) -> TaskRecord:
        """The task as it is now.

        Raises:
            UnknownTask: The task is gone.
        """
        record = await self._store.get(task_id)
        if record is None:
            raise UnknownTask(task_id)
        return record

    async def delete(self, task_id: str, *, expected: int, actor: Actor) -> None:
        """Forget a task that is still at version `expected`.

        Raises:
            VersionConflict: It is not, or is gone.
        """
        record = await self._last_seen(task_id) if self._observers.want(TaskDeleted) else None
        await self._store.delete(task_id, expected=expected, now=self._now())
        if record is not None:
            self._observe(record, TaskDeleted(), None, actor)

    async def forget_expired(self, *, limit: int, actor: Actor) -> int:
        """Forget some tasks whose time after the end is over; how many."""
        told = self._observers.want(TaskDeleted)
        forgotten = await self._store.forget_expired(self._now(), limit=limit, records=told)
        for task in forgotten:
            # Of what cannot be read there is no record to be shown.
            if task.record is not None:
                self._observe(task.record, TaskDeleted(), None, actor)
        return len(forgotten)

    async def _last_seen(self, task_id: str) -> TaskRecord | None:
        try:
            return await self._store.get(task_id)
        except TaskUnreadable:
            # It is deleted like any other. Whoever observes has no record to be shown.
            return None

    def wrote(self, hint: Hint) -> bool:
        """Whether the change was made here, or one after it, as far as is remembered; or is just being made here.

        A store that finds changes by looking gives a process hints of its own changes too, and may see one before the
        process has been told that it is made. If another's change was first after all, the hint is `unheard`.
        """
        if hint.version <= self._written.get(hint.task_id, 0):
            return True
        if hint.version <= self._being_written.get(hint.task_id, 0):
            self._passed_over[hint.task_id] = hint
            return True
        return False

    def _remember(self, record: TaskRecord) -> None:
        # Newest last, so that the one that is forgotten is the one whose hint has long come.
        self._written[record.id] = record.version

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
        self._note_growth(history[-1], outcome)
        self._observe_all(history, events, actor)

    def _note_growth(self, record: TaskRecord, outcome: Outcome | None) -> None:
        if outcome is not None and self._grew is not None:
            self._grew(record.owner, len(outcome.body))

    def _observe_all(self, history: Sequence[TaskRecord], events: Sequence[Event], actor: Actor) -> None:
        for before, event, after in zip(history, events, history[1:], strict=False):
            if after is not before:
                self._observe(before, event, after, actor)

    def _observe(
        self,
        before: TaskRecord | None,
        event: Observed,
        after: TaskRecord | None,
        actor: Actor,
    ) -> None:
        if self._observers.want(type(event)):
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
    """Who wrote as the current (or last) run."""
    return next((each.writer for each in record.writes if each.number), None)


def _apply(record: TaskRecord, events: Sequence[Event], now: datetime) -> list[TaskRecord]:
    """The record and what each of the events makes of it, one after the other."""
    history = [record]
    for event in events:
        history.append(apply(history[-1], event, now))
    return history


# ---- late writes
# What runs did and could not write, because their process had lost touch with the store.


@dataclass(eq=False, kw_only=True, slots=True)
class Write:
    """What a run has to write: all of it or nothing.

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
        """Make the change; `restore` is for a store that went back in time, as in `Changes.change`."""
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
    """What is written when the lease is renewed, where the task is still this process's then: also what is being
    written, and has no answer."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._flushing = asyncio.Lock()
        # In the order in which things were done.
        self._waiting: dict[Write, TaskRecord] = {}

    def add(self, record: TaskRecord, write: Write) -> None:
        """Write this when the lease is renewed, if it is not settled before."""
        self._waiting[write] = record

    def settled(self, write: Write) -> None:
        """It is made, or need not be."""
        self._waiting.pop(write, None)

    async def flush(self) -> None:
        """Write everything now, in the order in which it was done.

        Raises:
            StoreError: The store does not take it yet. What is left is kept for the next time.
        """
        async with self._flushing:
            while self._waiting:
                write, record = next(iter(self._waiting.items()))
                # Its run may be writing it at the same time: with one id it is made once.
                write.id = write.id or new_write_id()
                try:
                    await write.to(self._changes, record)
                except (TransitionRefused, UnknownTask, ValueNotStorable) as exc:
                    logger.debug("what a run of task %s… did is not written: %s", record.id[:12], exc)
                self.settled(write)


# ---- reading
# Finding tasks for those who ask about them, with as few looks at the store as it takes.


MAX_ID_LENGTH = 256
"""Longer than any id of ours; a longer one names no task, and need not be looked up to know that."""


class Reading:
    """Reads the tasks of one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime

    async def find(self, task_id: str) -> TaskRecord:
        """The task as it is now, whoever owns it.

        Raises:
            UnknownTask: This server has no such task.
            TaskUnreadable: It has, and its row cannot be read.
        """
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
        try:
            # The owner is compared before any of the task is read or decoded: a stranger would notice by the time that
            # there is such a task.
            record = await self._runtime.store.get_owned(task_id, owner) if len(task_id) <= MAX_ID_LENGTH else None
        except TaskUnreadable as exc:
            self._runtime.janitor.note_trouble(task_id, exc)
            raise
        return _owned(self._here(task_id, record, self._runtime.now()), owner)

    async def get_with_outcome(self, task_id: str, *, owner: str | None) -> tuple[TaskRecord, Outcome | None]:
        """The task as it is now, for its owner, and how it ended where the store gives that in the same look. Where it
        does not, the store has to be asked for it.

        Raises:
            UnknownTask: There is no such task for this owner.
            TaskUnreadable: There is, and its row cannot be read.
        """
        if len(task_id) > MAX_ID_LENGTH:
            raise UnknownTask(task_id)
        try:
            record, outcome = await self._runtime.store.get_with_outcome(task_id, owner) or (None, None)
        except TaskUnreadable:
            # Which of the two it is, and what is to be done, is found by asking for each.
            return await self.get(task_id, owner=owner), None
        return _owned(self._here(task_id, record, self._runtime.now()), owner), outcome

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
