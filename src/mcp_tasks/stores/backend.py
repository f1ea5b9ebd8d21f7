"""`BaseStore`: all that is the same in every store, on top of the raw operations of a backend.

It encodes what is written and decodes what is read, raises the errors of the contract, turns places into cursors, and
recognises a write that is repeated because the answer to an earlier attempt was lost. A backend reads and writes: it
gets plain values and encoded parts, and gives the same. Its raw operations begin with an underscore. A verb that needs
nothing of all this (`heartbeat`, `hand_out`) is the backend's own. `RemoteNotifier` is the same for hints.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import anyio

from mcp_tasks._utils import SHOWN_OF_AN_ID, short_id
from mcp_tasks.errors import KeySpent, StoreUnavailable, TaskExists, TaskUnreadable, UsageError, VersionConflict
from mcp_tasks.model.json import LARGE, is_large
from mcp_tasks.model.record import OTHER_WRITES, JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.stores.base import (
    MOST_COUNTED,
    Backlog,
    Forgotten,
    Handing,
    Hint,
    HintFan,
    IdPage,
    Page,
    Standing,
    Store,
    Whose,
    WorkLimits,
)
from mcp_tasks.stores.codec import (
    Codec,
    Line,
    decode_cursor,
    encode_cursor,
    from_micros,
    in_thread_if,
    size_of,
    to_micros,
)
from mcp_tasks.stores.encryption import Vault

logger: Final = get_logger(__name__)

MAX_REPORTED: Final = 1_000
"""Unreadable tasks remembered as logged; beyond that some are logged again."""

Row: TypeAlias = tuple[str, str | None, str, object]
"""Id, owner, namespace and encoded state of a task."""

Kept: TypeAlias = Row | TaskRecord
"""A task as a backend has it: encoded, or as a record where it keeps records."""

Place: TypeAlias = tuple[int, str]
"""Where a task stands in an index: an instant in microseconds, and its id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Creation:
    """A task to be made, as for `Store.create`."""

    record: TaskRecord
    state: bytes
    request: bytes
    key: str | None
    key_until_end: bool
    key_outlives: timedelta | None
    handing: Handing | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    """What came of a creation.

    Attributes:
        standing: The task that stands under the key; None if the task was made.
        handed: Whether the new task is marked as handed out.
        carried: Whether the job of the engine was written with it.
        spent: Whether the key is taken though its task is gone; then nothing was made.
        child: Which task that was, if its parent is open. None as well if the parent has ended or is gone.
        exists: Whether there is a task of this id already; then nothing was made.
    """

    standing: Kept | None = None
    handed: bool = False
    carried: bool = False
    spent: bool = False
    child: str | None = None
    exists: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A task to be changed, as for `Store.save`."""

    record: TaskRecord
    expected: int
    state: bytes
    lines: Sequence[Line]
    outcome: Outcome | None
    limits: WorkLimits | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A page of a listing, as for `Store.list`: behind `after`, in the order of the listing."""

    namespace: str
    whose: Whose
    now: int
    status: TaskStatus | None
    after: Place | None
    limit: int
    newest_first: bool


class BaseStore(Store):
    """The store behind some raw operations.

    Args:
        place: Where the tasks are kept, without anything secret.
        codec: How what is kept of a task becomes bytes; None for plain JSON.
    """

    def __init__(self, place: str, codec: Codec | None = None) -> None:
        self._place = place
        self._codec = codec or Codec()
        self._turn = anyio.Lock()
        self._is_open = False
        self._reported: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place!r})"

    async def open(self) -> None:
        async with self._turn:
            if not self._is_open:
                await self._open()
                self._is_open = True

    async def close(self) -> None:
        # Shielded: `close` is called in `finally`, often because everything is being cancelled.
        with anyio.CancelScope(shield=True):
            async with self._turn:
                self._is_open = False
                await self._close()

    async def now(self) -> datetime:
        return datetime.now(UTC)

    # Writing

    async def create(
        self,
        record: TaskRecord,
        request: TaskRequest,
        *,
        key: str | None = None,
        key_until_end: bool = False,
        key_outlives: timedelta | None = None,
        handing: Handing | None = None,
    ) -> TaskRecord:
        if handing is not None:
            handing.handed = handing.carried = False
        state = self._codec.encode_state(record)
        created = await self._create(
            Creation(
                record=record,
                state=state,
                request=await self._codec.encode_request_aside(record.id, request),
                key=key,
                key_until_end=key_until_end,
                key_outlives=None if key is None else key_outlives,
                handing=handing,
            )
        )
        if created.spent:
            raise KeySpent(created.child)
        if created.exists:
            return await self._made_before(record)
        if handing is not None:
            handing.handed, handing.carried = created.handed, created.carried
        return record if created.standing is None else self._record(created.standing)

    async def _made_before(self, record: TaskRecord) -> TaskRecord:
        """The task that is there under the id of a new one, if an earlier attempt made it."""
        found = await self._look(record.id)
        if found is not None and _wrote(found, record):
            return found
        if found is not None and found.created_at == record.created_at and _may_have_pushed_out(found, record):
            # So much was written since that it cannot be known.
            raise StoreUnavailable(f"task {short_id(record.id)} may have been created before", may_have_happened=True)
        raise TaskExists(record.id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        state = self._codec.encode_state(record)
        lines: list[Line] = []
        for entry in entries:
            large = is_large(entry.value)
            lines.append((entry.kind, *await in_thread_if(large, self._codec.encode_entry, record.id, entry, large)))
        if outcome is not None:
            large = size_of(outcome) > LARGE
            outcome = await in_thread_if(large, self._codec.encode_outcome, record.id, outcome)
        change = Change(record=record, expected=expected, state=state, lines=lines, outcome=outcome, limits=limits)
        return record if await self._save(change) else await self._saved_before(record, expected)

    async def _saved_before(self, record: TaskRecord, expected: int) -> TaskRecord:
        """The task as it is now, if the save that met a conflict was made by an earlier attempt.

        Writes of a run are recognised for as long as it is the last run. Any other write is recognised until
        `OTHER_WRITES` others came after it. After that its caller meets a conflict and decides anew, which is why each
        such change makes no difference when it is made twice: an answer to a question that is closed, an end of a task
        that has ended, the release of a run that is not the current one.
        """
        current = await self._look(record.id)
        if current is None or not _wrote(current, record):
            raise VersionConflict(record.id, expected, current)
        return current

    async def _look(self, task_id: str) -> TaskRecord | None:
        try:
            return await self.get(task_id)
        except StoreUnavailable as exc:
            # Only a read, but the conflict before it may be with an earlier attempt of the write.
            exc.may_have_happened = True
            raise

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        if not await self._delete(task_id, expected, None if now is None else to_micros(now)):
            raise VersionConflict(task_id, expected)

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        found = await self._forget_expired(to_micros(now), max(limit, 0), records)
        return [Forgotten(task_id, version, self._or_none(kept)) for version, task_id, kept in found]

    # Reading

    async def get(self, task_id: str) -> TaskRecord | None:
        found = await self._get(task_id)
        return None if found is None else self._record(found)

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        try:
            record = await self.get(task_id)
        except TaskUnreadable as exc:
            if exc.owner == owner:
                raise
            return None
        return record if record is not None and record.owner == owner else None

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        record = await self.get(task_id)
        return None if record is None else (record, None)

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        record = await self.get_owned(task_id, owner)
        return None if record is None else (record, None)

    def _with_request(self, kept: Kept, data: object) -> tuple[TaskRecord, TaskRequest | None]:
        """A record and its request, if that was read with it."""
        record = self._record(kept)
        return record, None if data is None else self._codec.decode_request(record.id, data, owner=record.owner)

    async def _with_outcome(self, kept: Kept, body: object, meta: object) -> tuple[TaskRecord, Outcome | None]:
        """A record and its outcome, if it has one."""
        record = self._record(kept)
        return record, None if body is None else await self._decoded_outcome(record.id, record.owner, body, meta)

    async def request(self, task_id: str) -> TaskRequest | None:
        found = await self._request(task_id)
        if found is None:
            return None
        owner, data = found
        decode = partial(self._codec.decode_request, task_id, data, owner=owner)
        return await in_thread_if(isinstance(data, bytes) and len(data) > LARGE, decode)

    async def outcome(self, task_id: str) -> Outcome | None:
        found = await self._outcome(task_id)
        return None if found is None else await self._decoded_outcome(task_id, *found)

    async def _decoded_outcome(self, task_id: str, owner: str | None, body: object, meta: object) -> Outcome:
        size = sum(len(part) for part in (body, meta) if isinstance(part, bytes))
        return await in_thread_if(size > LARGE, partial(self._codec.decode_outcome, task_id, body, meta, owner=owner))

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        owner, lines = await self._journal(task_id, after)
        size = sum(len(value) for *_, value in lines if isinstance(value, bytes))

        def decode() -> Sequence[JournalEntry]:
            return [
                self._codec.decode_entry(task_id, kind, key, value, number=number, owner=owner)
                for number, kind, key, value in lines
            ]

        return await in_thread_if(size > LARGE, decode)

    async def list(
        self,
        namespace: str,
        whose: Whose,
        *,
        now: datetime,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        # One more than asked for tells whether there is a next page.
        listing = Listing(
            namespace=namespace,
            whose=whose,
            now=to_micros(now),
            status=status,
            after=None if cursor is None else decode_cursor(cursor),
            limit=limit + 1,
            newest_first=newest_first,
        )
        found, last = await self._list(listing)
        if len(found) > limit:
            last = found[limit - 1][0] if limit > 0 else None
        records = self._readable(kept for _, kept in found[:limit])
        return Page(records=records, cursor=None if last is None else encode_cursor(*last))

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        return await self._id_page(partial(self._queued, namespace, handed_out), cursor, limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        return await self._id_page(partial(self._due, namespace, to_micros(now)), cursor, limit)

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        return await self._id_page(partial(self._claimed, worker), cursor, limit)

    async def _id_page(self, look: Callable[[Place | None, int], Any], cursor: str | None, limit: int) -> IdPage:
        found: Sequence[Place] = await look(None if cursor is None else decode_cursor(cursor), limit + 1)
        following = encode_cursor(*found[limit - 1]) if len(found) > limit > 0 else None
        return IdPage(ids=[task_id for _, task_id in found[:limit]], cursor=following)

    async def backlog(self, namespace: str, now: datetime) -> Mapping[str, Backlog]:
        found: dict[str, Backlog] = {}
        for queue, count, *firsts in await self._backlog(namespace, to_micros(now)):
            since = min((first for first in firsts if first is not None), default=None)
            if count:
                earliest = None if since is None else from_micros(since)
                found[queue] = Backlog(ready=min(count, MOST_COUNTED), since=earliest)
        return found

    async def standing(self) -> Standing:
        return "current"

    def vault(self) -> AbstractAsyncContextManager[Vault]:
        """The raw operations for encrypting all that is kept (`stores/encryption.py`)."""
        raise UsageError("tasks in memory are nowhere at rest, and there is nothing to encrypt")

    # Notes

    async def note(self, namespace: str, name: str) -> bytes | None:
        data = await self._note(namespace, name)
        return None if data is None else self._codec.decode_note(namespace, name, data)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        encoded = self._codec.encode_note(namespace, name, value)
        was_sent = False
        while True:
            # By its content, which only this side can read: encrypted bytes differ each time, whatever is in them.
            try:
                seen = await self._note(namespace, name)
            except StoreUnavailable as exc:
                # Another note was there than was seen, which may be this one, kept by an attempt without an answer.
                exc.may_have_happened = was_sent
                raise
            found = None if seen is None else self._codec.decode_note(namespace, name, seen)
            if found != expected:
                return found == value
            was_sent = True
            if await self._set_note(namespace, name, seen, encoded):
                return True

    # Decoding

    def _record(self, kept: Kept) -> TaskRecord:
        if isinstance(kept, TaskRecord):
            return kept
        task_id, owner, namespace, state = kept
        return self._codec.decode_state(task_id, state, namespace=namespace, owner=owner)

    def _or_none(self, kept: Kept | None) -> TaskRecord | None:
        """The record, or None: for a task that is gone, and needs no deleting any more."""
        try:
            return None if kept is None else self._record(kept)
        except TaskUnreadable:
            return None

    def _readable(self, found: Iterable[Kept]) -> list[TaskRecord]:
        """The records that can be read. Those that cannot are left out, and logged once."""
        records: list[TaskRecord] = []
        for kept in found:
            try:
                records.append(self._record(kept))
            except TaskUnreadable as exc:
                self._report(exc)
        return records

    def _report(self, unreadable: TaskUnreadable) -> None:
        """Log an unreadable task, unless that was done."""
        task_id = unreadable.task_id
        if task_id in self._reported:
            return
        if len(self._reported) == MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[task_id] = None
        logger.error(
            "%s. Listings leave it out, and all other tasks in %s are unaffected. To delete it: %s",
            unreadable,
            self._place,
            self._deletion(task_id[:SHOWN_OF_AN_ID], len(task_id) <= SHOWN_OF_AN_ID),
        )

    # Raw operations

    async def _open(self) -> None:
        """Connect. It is called again only after `_close`."""

    async def _close(self) -> None:
        """Let go of everything. Safe before `_open`."""

    @abstractmethod
    async def _create(self, new: Creation) -> Created:
        """Keep a new task, unless one stands under its key, or has its id."""

    @abstractmethod
    async def _save(self, change: Change) -> bool:
        """Change a task; False if it is at another version, or gone.

        Raises:
            LimitReached: As many as may be are at work.
        """

    @abstractmethod
    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        """Forget a task; False if it is at another version, or gone."""

    @abstractmethod
    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        """Forget tasks: version, id and, if `records` are wanted, all of each."""

    @abstractmethod
    async def _get(self, task_id: str) -> Kept | None:
        """A task."""

    @abstractmethod
    async def _request(self, task_id: str) -> tuple[str | None, object] | None:
        """The owner of a task and its request; None if there is no such task."""

    @abstractmethod
    async def _outcome(self, task_id: str) -> tuple[str | None, object, object] | None:
        """The owner of a task and the body and the meta of its outcome; None if it has none."""

    @abstractmethod
    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        """The owner of a task, and number, kind, key and value of its journal entries behind a number."""

    @abstractmethod
    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Kept]], Place | None]:
        """Tasks with their places; and the last place that was looked at, if there may be more behind it though there
        are fewer than the limit."""

    @abstractmethod
    async def _queued(
        self, namespace: str, handed_out: bool | None, after: Place | None, limit: int
    ) -> Sequence[Place]:
        """Queued tasks by their creation."""

    @abstractmethod
    async def _due(self, namespace: str, now: int, after: Place | None, limit: int) -> Sequence[Place]:
        """Parked tasks by their `ready_at`."""

    @abstractmethod
    async def _claimed(self, worker: str, after: Place | None, limit: int) -> Sequence[Place]:
        """Tasks of a worker by their creation."""

    @abstractmethod
    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        """Of each queue how many tasks wait, since when one is queued, and when one was to wake."""

    @abstractmethod
    async def _note(self, namespace: str, name: str) -> object:
        """A note as it is kept, or None."""

    @abstractmethod
    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        """Keep a note if what is there is what was seen; whether it was kept."""

    def _deletion(self, start: str, is_whole: bool) -> str:
        """What deletes a task, for people: by its id, or by the beginning of that."""
        raise NotImplementedError


def sql_deletion(table: str, start: str, is_whole: bool) -> str:
    """What deletes a task in SQL."""
    quoted = start.replace("'", "''")
    which = f"= '{quoted}'" if is_whole else f"LIKE '{quoted}%'"
    return f"DELETE FROM {table} WHERE id {which}"  # noqa: S608 - for people to read


def _wrote(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether the write that makes `record` is among those that made `found`."""
    return bool(record.writes) and found.has(record.writes[0])


def _may_have_pushed_out(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether `found` may have had the id of the write that makes `record`, and keeps it no longer."""
    if record.writes and record.writes[0].number:
        return found.attempt > record.attempt
    return sum(not each.number for each in found.writes) >= OTHER_WRITES


# ---- hints


READY: Final = 5.0
"""Seconds that a new listener waits until the process hears others, at most: one that is late only loses hints."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before connecting again."""


class RemoteNotifier(ABC):
    """Gives the hints of this process to its listeners at once, and those of other processes as they come.

    A connection of its own hears the others, for as long as there are listeners.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._fan = HintFan()
        self._listeners = 0
        self._hearing: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as hints:
            self._listeners += 1
            try:
                if self._hearing is None and self._is_open():
                    self._hearing = asyncio.create_task(self._keep_hearing(), name="mcp-tasks hints")
                with anyio.move_on_after(READY) as late:
                    await self._connected.wait()
                if late.cancelled_caught:
                    logger.warning("%s: no hints of other processes for now; polling goes on", self._place)
                yield hints
            finally:
                self._listeners -= 1
                if not self._listeners:
                    with anyio.CancelScope(shield=True):
                        await self.stop()

    async def stop(self) -> None:
        """Hear nothing more of other processes."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _keep_hearing(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._hear(self._connected)
            except Exception as exc:
                if not self._passes(exc):
                    logger.error("%s: hints of other processes cannot be read", self._place, exc_info=quietly())
                logger.debug("%s: listening again (%s)", self._place, type(exc).__name__)
            finally:
                pause = FIRST_PAUSE if self._connected.is_set() else min(2 * pause, LONGEST_PAUSE)
                self._connected.clear()
            await asyncio.sleep(pause)

    def _is_open(self) -> bool:
        """Whether there is a server to hear."""
        return True

    @abstractmethod
    def _passes(self, exc: Exception) -> bool:
        """Whether an error is one of the connection, which is made again."""

    @abstractmethod
    async def _hear(self, connected: asyncio.Event) -> None:
        """Connect, say so, and put hints into the fan until the connection breaks."""
