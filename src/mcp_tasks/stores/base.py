"""`Store`: keeps tasks, their journals, and the workers that are alive to run them.

Above: the runtime, the only caller. Below: one file or folder for each backend. A store decides no transition: it
compares versions and swaps. It also knows what waits and how much is at work, and dispatches by that, because only it
sees all processes.

The public verbs are here, once for all backends: they encode and decode, raise the errors, make pages and cursors, and
recognise a repeated write. A backend derives from `Store` and implements the raw operations, whose names begin with an
underscore, and the few verbs that need none of that. `mcp_tasks.testing.store_suite` is this contract as tests.

The rules for all verbs:

- *Durable on return.* When a write returns, readers in all processes that share the store see it, and it survives what
  the backend promises to survive (see the top of its file). A write happens whole or not at all. After an error other
  than `StoreUnavailable`, nothing of it happened.
- *A write without an answer may have happened.* `StoreUnavailable.may_have_happened` says so; otherwise nothing was
  written. A caller that is cancelled cannot know either. The store and its callers may repeat any write. A repeated
  `create` or `save` carries the same write id (`TaskRecord.writes`): the store looks for it before it reports a
  conflict, and answers the repeat like the first. If a creation can no longer be recognised, it is answered with
  `may_have_happened`. A repeated `set_note` finds its own value and reports success; if another value is there by now,
  the caller reads the note and decides again. All other writes may be repeated without an id: a task that is gone was
  to be deleted, a heartbeat never makes a count smaller, and tasks that a lost `hand_out` marked are found by a sweep.
- *Errors.* A driver's exception never escapes: it becomes `StoreUnavailable` (try again later), `StoreCorrupt` (do not)
  or `ValueNotStorable` (never with this value), with the cause kept.
- *Small rows.* A record is one small row. Request, outcome and journal are kept beside it and read only where they are
  asked for: polling a task with megabytes of arguments costs what any poll costs. Reading or writing something large
  does not hold the event loop.
- *One bad row is one bad task.* A part that cannot be read raises `TaskUnreadable` from the verb that reads it for that
  task, and from nothing else. Sweeps return ids, which need no decoding; `list` leaves such tasks out.
- *Values, not objects.* Changing what a store returned changes nothing that is kept.
- *One clock.* Time that others can see is the store's time, which `now` reads. A verb that compares instants gets the
  instant as an argument. A heartbeat is a number that grows; observers measure on their own monotonic clocks.
- *Strings.* Any string may be asked for. One that the backend cannot keep is not there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from mcp_tasks._utils import SHOWN_OF_AN_ID, BoundedDict, short_id
from mcp_tasks.errors import (
    KeySpent,
    StoreError,
    StoreUnavailable,
    TaskExists,
    TaskUnreadable,
    UsageError,
    VersionConflict,
)
from mcp_tasks.model.json import LARGE, is_large
from mcp_tasks.model.record import OTHER_WRITES, JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement
from mcp_tasks.quiet import get_logger
from mcp_tasks.stores.codec import (
    LARGEST_NOTE,
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
from mcp_tasks.stores.hints import Hint, HintFan, Inbox, Notifier

__all__ = [
    "EVERYBODY",
    "LARGEST_NOTE",
    "UNOWNED",
    "Anyone",
    "ChildrenOf",
    "Forgotten",
    "Hint",
    "HintFan",
    "IdPage",
    "InSession",
    "Inbox",
    "Notifier",
    "OwnedBy",
    "Owners",
    "Page",
    "Store",
    "Whose",
    "owned_by",
]

logger: Final = get_logger(__name__)

MAX_REPORTED: Final = 1_000
"""Unreadable tasks that are remembered as logged; beyond that some are logged again."""

LARGEST: Final = 64 * 1024
"""Bytes of a request that is read with its task: if the task cannot be run, a larger one would be read for nothing."""

MOST_COUNTED: Final = 100_000
"""Where counting stops: no fleet is scaled by what is beyond it."""

# ---- filters


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """The tasks of one owner."""

    owner: str


@dataclass(frozen=True, slots=True)
class InSession:
    """The tasks of one session, of any owner: those made in it, and those that it took over."""

    session: str


@dataclass(frozen=True, slots=True)
class ChildrenOf:
    """The tasks that one task started, of any owner."""

    parent: str


class Anyone(Enum):
    """Tasks that are not those of one owner."""

    UNOWNED = "unowned"
    EVERYBODY = "everybody"


UNOWNED: Final = Anyone.UNOWNED
"""The tasks without an owner: those of clients without a name."""

EVERYBODY: Final = Anyone.EVERYBODY
"""All tasks, of any owner: for operators, never for a client."""

Whose: TypeAlias = OwnedBy | InSession | ChildrenOf | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Which tasks to list. There is no default: each caller must say it."""

Owners: TypeAlias = OwnedBy | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Which tasks to count: of one owner, without an owner, or all."""

Field: TypeAlias = Literal["", "owner", "session", "parent"]

AnyOwner: TypeAlias = str | Literal[Anyone.EVERYBODY] | None
"""An owner, or None for a task without one; or any of these."""


def owned_by(owner: str | None) -> OwnedBy | Literal[Anyone.UNOWNED]:
    """The tasks of a caller, who may have no name."""
    return UNOWNED if owner is None else OwnedBy(owner)


def narrowed(whose: Whose) -> tuple[Field, str | None]:
    """Which field of a task a filter compares, and with what. For all tasks there is no field."""
    match whose:
        case OwnedBy(owner):
            return "owner", owner
        case InSession(session):
            return "session", session
        case ChildrenOf(parent):
            return "parent", parent
        case _:
            return "owner" if whose is UNOWNED else "", None


# ---- values of the verbs


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """How many tasks of one tool, and of one owner, may be at work at a time, over all processes. None for any number.

    A task is at work if a worker has it, it has not ended, and its run does not wait (`TaskRecord.pause`). A run that
    waits in memory gives up its place, and takes it again with a `save` within the limits, as a claim does.

    A task that is resuming counts against all tasks but those that are resuming themselves: of those, each is compared
    only with what is at work. So free places go to runs that want to go on before any new run begins, and never more
    tasks are at work than the limit says.
    """

    tool: int | None = None
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A queued task that is dispatched to an engine, and what decides where it goes."""

    id: str
    owner: str | None
    method: str
    name: str
    queue: str
    priority: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How much of what is queued may be dispatched to an engine at a time. The rest waits in the store.

    Attributes:
        owner: Tasks of one owner, in one queue, of one tool, that are dispatched and not claimed, so that a tool which
            no worker serves holds nothing else back. Tasks without an owner count as one owner's.
        tools: For each of these tools, by name: tasks that are dispatched or at work.
        owner_at_work: Tasks of one owner that are at work; None for any number. An owner who has as many is dispatched
            no more; one who has fewer is dispatched at most the difference, of each queue and tool.
    """

    owner: int
    tools: Mapping[str, int] = field(default_factory=dict[str, int])
    owner_at_work: int | None = None


@dataclass(kw_only=True, slots=True)
class Handing:
    """That a new task is to be dispatched right away, and what came of it.

    Attributes:
        share: Within which it is. Several that create at once may go a little beyond it.
        job: The engine's job for the task, for a store that can write it in the same transaction.
        handed: Set by the store: the task is marked as dispatched. Otherwise it waits for `hand_out`.
        carried: Set by the store: the job was written with the task, so that it need not be submitted.
    """

    share: Share
    job: Statement | None = None
    handed: bool = False
    carried: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """The tasks that wait in one queue.

    Attributes:
        ready: How many tasks could run and no worker has; at most `MOST_COUNTED`.
        since: Since when the one has waited that has waited longest, in the store's time (`codec.queued_since`). A task
            that slept has waited since the moment at which it was to wake.
    """

    ready: int
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """How much is kept of some tasks.

    Attributes:
        open_tasks: How many have not ended; at most `MOST_COUNTED`.
        stored_bytes: Bytes of requests, outcomes and journals as they are kept, those of ended tasks included. Rows
            count as nothing.
    """

    open_tasks: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some records of a listing, and where the next ones start (None when there are no more)."""

    records: Sequence[TaskRecord]
    cursor: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class IdPage:
    """Some task ids of a sweep, and where the next ones start (None when there are no more)."""

    ids: Sequence[str]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A task that was removed, as it was last.

    Attributes:
        record: All of it, if that was wanted and could be read.
    """

    task_id: str
    version: int
    record: TaskRecord | None = None


Standing: TypeAlias = Literal["absent", "older", "current"]
"""Whether `open` would make something new, change what is there, or find it as it needs it."""

# ---- values of the raw operations

Row: TypeAlias = tuple[str, str | None, str, object]
"""Id, owner, namespace and encoded state of a task."""

Kept: TypeAlias = Row | TaskRecord
"""A task as a backend has it: encoded, or as a record where it keeps records."""

Place: TypeAlias = tuple[int, str]
"""Where a task stands in an index: an instant in microseconds, and its id."""

Part: TypeAlias = Literal["request", "outcome"]
"""A part that is kept beside a row and read with it: the request, or body and meta of the outcome."""


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
    """The result of a creation. `handed` and `carried` are as in `Handing`.

    Nothing was made if a task is `standing` under the key, the key is `spent` though its task (the `child` of a parent
    that is open) is gone, or a task of this id `exists`.
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
    """A page of a listing, as for `Store.list`: tasks behind `after` of which a `field` is `of`."""

    namespace: str
    field: Field
    of: str | None
    now: int
    status: TaskStatus | None
    after: Place | None
    limit: int
    newest_first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A page of ids: queued tasks of a namespace, parked ones up to a `ready_at`, or the tasks of a worker."""

    kind: Literal["queued", "due", "claimed"]
    of: str
    handed_out: bool | None = None
    now: int = 0
    after: Place | None
    limit: int


class Store(ABC):
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
        self._reported: BoundedDict[str, None] = BoundedDict(MAX_REPORTED)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place!r})"

    async def open(self) -> None:
        """Make the store ready for use. Opening an open store does nothing.

        Raises:
            StoreUnavailable: It cannot be reached or locked now.
            StoreCorrupt: There is something else.
        """
        async with self._turn:
            if not self._is_open:
                await self._open()
                self._is_open = True

    async def close(self) -> None:
        """Finish what was asked for and release all resources. Safe twice, and before `open`."""
        # Shielded: `close` is called in `finally`, often because everything is being cancelled.
        with anyio.CancelScope(shield=True):
            async with self._turn:
                self._is_open = False
                await self._close()

    async def standing(self) -> Standing:
        """Whether `open` would find a store. Changes nothing, and may be asked before `open`.

        Raises:
            StoreUnavailable: It cannot be reached now.
            StoreCorrupt: There is something else, or a store of a newer release that this one may not use.
        """
        return "current"

    async def now(self) -> datetime:
        """The store's time, aware and in UTC: one clock for all processes that share the store. It may be set.

        A process reads it every few seconds, so it must be cheap. It is the clock of the server that keeps the tasks,
        and the machine's where there is no server.
        """
        return datetime.now(UTC)

    @abstractmethod
    def notifier(self) -> Notifier:
        """Carries hints between the processes that share this store."""

    def vault(self) -> AbstractAsyncContextManager[Vault]:
        """The raw operations for encrypting all that is kept (`stores/encryption.py`)."""
        raise UsageError("tasks in memory are nowhere at rest, and there is nothing to encrypt")

    # ---- writing

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
        """Keep a new task with its request, and return it.

        With `handing` it is marked as dispatched if it is queued and within the share, and `handing` is told.

        With an idempotency `key`: if a task of the same owner and namespace stands under it, nothing is written, and
        that task is returned as it is now. One that has expired as of `record.created_at` does not count, and is
        removed. However many create under one key at once, exactly one of them makes a task.

        With `key_until_end` a task that has ended does not count either. It stays, and only loses the key to the new
        task. Which of the two rules holds is for each creation to say.

        With `key_outlives` the key stays taken for so long after the new task is gone, and creations under it are
        refused. The time runs from the moment at which the task expires, whenever it is removed, or from the `now` of
        `delete`, and is compared with `record.created_at`: so it does not matter when a sweep comes. A task that has
        not expired is returned, as without it. With both, creations with `key_until_end` take over the key of a task
        that is gone, too.

        If the record has an open parent, the key stays with the task's id until the parent has ended or is gone,
        whatever becomes of the task itself: then further creations under the key with the same parent are refused, and
        told the id. Once the parent has ended or is gone, no task is created for it under a key: a creation that was on
        its way for so long would start the child again. Neither rule holds with `key_until_end`.

        Raises:
            TaskExists: The id is taken.
            KeySpent: The key is taken though its task has expired or is gone, or the parent has ended or is gone.
                Nothing was written.
            TaskUnreadable: There is a task under the key, but not in a state that can be read.
            ValueNotStorable: The record or the request is too large, or not JSON. No other caller's write fails with
                it.
        """
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
        """The task under the id of a new one, if an earlier attempt made it."""
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
        """Replace the record if it is still at version `expected`, append `entries` to its journal, keep its outcome.

        All of it happens or none, so an answer and the status it changes are never apart. It succeeds for exactly one
        of those that name the same version. Returns the record as it is now: the given one, or the one that is there if
        an earlier attempt was made.

        With `limits` it is a claim: so many tasks of the same tool, or of the same owner, may be at work in the
        namespace, this one included. Of many that claim at once, never more succeed than that.

        A task that stays queued stays dispatched if it was; one that is queued anew is not dispatched. Owner,
        namespace, method, name, parent and creation of a task never change; its session may. The store numbers the
        entries: each number is larger than those of all entries that the task has.

        Raises:
            VersionConflict: Another writer was first, or the task is gone.
            LimitReached: As many tasks as allowed are at work. It says nothing of the version.
            ValueNotStorable: The record or an entry is too large, or not JSON. No other caller's write fails with it.
        """
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
        """Remove the task and all that is kept beside it, if it is still at version `expected`.

        Args:
            now: From when the time runs for which a key outlives the task. Without it, from when the task expires, or
                was made if that is not known.

        Raises:
            VersionConflict: Another writer was first, or the task is gone.
        """
        if not await self._delete(task_id, expected, None if now is None else to_micros(now)):
            raise VersionConflict(task_id, expected)

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Remove tasks of all namespaces whose time after the end is over, with all that is kept beside them.

        Those longest overdue go first, and are given in that order. It is one act of the backend, whatever the limit,
        so with a small limit it delays no other caller. Of many that ask at once, each is given other tasks. Fewer than
        `limit` are taken where they are large, or where others work on some; none only if nothing is left. What cannot
        be read is removed too. If the answer is lost, no caller is told of them.

        Keys that outlived their tasks are removed too when their time is over, some of them each time.

        Args:
            records: Whether to give the records, for a caller that has observers to show them to.
        """
        found = await self._forget_expired(to_micros(now), max(limit, 0), records)
        return [
            Forgotten(task_id, version, None if kept is None else self._readable(kept, report=False))
            for version, task_id, kept in found
        ]

    @abstractmethod
    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Dispatch queued tasks within the share: those that are not dispatched yet, and are marked so from now on.

        Those of a higher priority come first. Within one priority owners take turns: of each the oldest task, then of
        each the second, however many tasks one of them has. A store remembers, while it is open, whose turn was last,
        so that small calls come to every owner, too. The cost does not grow with the number of queued tasks. No task is
        given to two that ask at once. A task that cannot be read is left out.

        Args:
            queues: Only tasks of these queues; None for all.
            mark: False to choose without marking, for an engine that keeps nothing beyond its process.
        """

    @abstractmethod
    async def hand_back(self, task_id: str) -> None:
        """Requeue a task: if it is still queued, it waits for `hand_out` again."""

    @abstractmethod
    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        """Renew the lease of `worker`: its count becomes `beats`, unless it is more already.

        Returns the count before, 0 if there was none: a worker sees by it that a failover has lost its last heartbeats.
        A worker beats for one namespace, the last that it named. One row per process instead of one per task: a lease
        costs the same with one running task or 10,000.

        Args:
            beats: The worker's own count, which grows with each heartbeat. If the store counted, a worker that was
                retired and is back would repeat counts, and look silent to a process that missed that.
        """

    @abstractmethod
    async def retire(self, worker: str) -> None:
        """Remove the heartbeat of `worker`. Retiring an unknown one does nothing."""

    # ---- reading one task

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None.

        Raises:
            TaskUnreadable: There is such a task, but not in a state that can be read.
        """
        found = await self._read(task_id)
        return None if found is None else self._record(found[0])

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now; None if the owner has no such task. The owner is compared before the task is read, so
        that another owner's task takes as long as none.

        Raises:
            TaskUnreadable: The owner has one, and it cannot be read.
        """
        found = await self._read(task_id, owner=owner)
        return None if found is None else self._record(found[0])

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        """The record as of now and its request, in one look; None if there is no such task.

        The request is left out if it is larger than `LARGEST`, or missing; then ask `request` for it.

        Raises:
            TaskUnreadable: One of the two cannot be read. `get` and `request` say which.
        """
        found = await self._read(task_id, "request", most=LARGEST)
        if found is None:
            return None
        kept, (data, *_) = found
        record = self._record(kept)
        return record, None if data is None else self._codec.decode_request(record.id, data, owner=record.owner)

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        """The record as of now and its outcome, if it has one, in one look; None if the owner has no such task.

        Raises:
            TaskUnreadable: One of the two cannot be read. `get` and `outcome` say which.
        """
        found = await self._read(task_id, "outcome", owner=owner)
        if found is None:
            return None
        record = self._record(found[0])
        return record, await self._outcome_of(task_id, owner, *found[1])

    async def request(self, task_id: str) -> TaskRequest | None:
        """The request of a task; None if there is no such task.

        Raises:
            TaskUnreadable: It cannot be read.
        """
        found = await self._read(task_id, "request")
        if found is None:
            return None
        kept, (data, *_) = found
        decode = partial(self._codec.decode_request, task_id, data, owner=_owner_of(kept))
        return await in_thread_if(isinstance(data, bytes) and len(data) > LARGE, decode)

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended; None if it has not, or ended without one, or there is no such task.

        Raises:
            TaskUnreadable: It cannot be read.
        """
        found = await self._read(task_id, "outcome")
        return None if found is None else await self._outcome_of(task_id, _owner_of(found[0]), *found[1])

    async def _outcome_of(self, task_id: str, owner: str | None, body: object, meta: object) -> Outcome | None:
        if body is None:
            return None
        size = sum(len(part) for part in (body, meta) if isinstance(part, bytes))
        return await in_thread_if(size > LARGE, partial(self._codec.decode_outcome, task_id, body, meta, owner=owner))

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The entries of the task's journal with a number beyond `after`, in order; empty for an unknown task.

        Raises:
            TaskUnreadable: An entry cannot be read.
        """
        owner, lines = await self._journal(task_id, after)
        size = sum(len(value) for *_, value in lines if isinstance(value, bytes))

        def decode() -> Sequence[JournalEntry]:
            return [
                self._codec.decode_entry(task_id, kind, key, value, number=number, owner=owner)
                for number, kind, key, value in lines
            ]

        return await in_thread_if(size > LARGE, decode)

    @abstractmethod
    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks, in one look; those that are gone are left out. Every poll asks for
        one."""

    @abstractmethod
    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under an idempotency key, expired or not."""

    # ---- reading many tasks

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
        """Tasks of the namespace in the order of creation (then id), in one status or any; not those expired by `now`.

        With `newest_first` the order is reversed, at the same cost: a page reads as many rows as it has.

        The cursor is opaque, and goes on in the order of the page that gave it. Tasks that exist from the first page to
        the last are listed exactly once. Tasks that cannot be read are left out and logged, and a store may pass over
        only so many at a time of those that expired or are in another status. So a page may be short of `limit`, or
        empty, and yet not be the last (`full_page`).

        Raises:
            ValueError: The cursor is not one of ours.
        """
        name, of = narrowed(whose)
        # One more than asked for tells whether there is a next page.
        listing = Listing(
            namespace=namespace,
            field=name,
            of=of,
            now=to_micros(now),
            status=status,
            after=None if cursor is None else decode_cursor(cursor),
            limit=limit + 1,
            newest_first=newest_first,
        )
        found, last = await self._list(listing)
        if len(found) > limit:
            last = found[limit - 1][0] if limit > 0 else None
        records = [record for _, kept in found[:limit] if (record := self._readable(kept)) is not None]
        return Page(records=records, cursor=None if last is None else encode_cursor(*last))

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and no worker has, in the order of creation: those whose
        `TaskRecord.ready_at` is `ALWAYS`. With `handed_out`, only those that are, or are not, dispatched.

        With the cursor, tasks that stay queued are given exactly once, whatever is created or claimed in between; so it
        is for `due` and `claimed`.

        Raises:
            ValueError: The cursor is not one of ours. So it is for `due` and `claimed`.
        """
        return await self._id_page(partial(Sweep, kind="queued", of=namespace, handed_out=handed_out), cursor, limit)

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose `ready_at` has come, longest overdue first."""
        return await self._id_page(partial(Sweep, kind="due", of=namespace, now=to_micros(now)), cursor, limit)

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        return await self._id_page(partial(Sweep, kind="claimed", of=worker), cursor, limit)

    async def _id_page(self, sweep: Callable[..., Sweep], cursor: str | None, limit: int) -> IdPage:
        found = await self._ids(sweep(after=None if cursor is None else decode_cursor(cursor), limit=limit + 1))
        following = encode_cursor(*found[limit - 1]) if len(found) > limit > 0 else None
        return IdPage(ids=[task_id for _, task_id in found[:limit]], cursor=following)

    async def backlog(self, namespace: str, now: datetime) -> Mapping[str, Backlog]:
        """The tasks that wait in each queue of the namespace that has any: those of `queued` and `due`, counted."""
        found: dict[str, Backlog] = {}
        for queue, count, *firsts in await self._backlog(namespace, to_micros(now)):
            since = min((first for first in firsts if first is not None), default=None)
            if count:
                earliest = None if since is None else from_micros(since)
                found[queue] = Backlog(ready=min(count, MOST_COUNTED), since=earliest)
        return found

    @abstractmethod
    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """How much is kept of the tasks of the namespace: of one owner, without an owner, or of all.

        For limits: it must not read the tasks, and counts those that have expired or cannot be read as they are. Of all
        owners together only the open tasks are counted, and `stored_bytes` is 0.
        """

    @abstractmethod
    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten.

        A worker that has a task but no heartbeat (it retired, or never beat) is listed with 0. One that has a task here
        and beats for another namespace is listed with its beats: it is alive.
        """

    @abstractmethod
    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order: for operators. It need not be quick."""

    # ---- notes

    async def note(self, namespace: str, name: str) -> bytes | None:
        """A small value that a server keeps beside its tasks, or None.

        Raises:
            StoreCorrupt: There is such a note, and it cannot be read.
        """
        data = await self._note(namespace, name)
        return None if data is None else self._codec.decode_note(namespace, name, data)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected` (None: nothing); whether it was kept.

        Of many that expect the same, exactly one keeps its value. Notes are few and small, and stay for good. They may
        be secret, and pass the codec as all parts of a task do.

        Raises:
            StoreCorrupt: There is such a note, and it cannot be read.
            ValueNotStorable: The value has more bytes than `LARGEST_NOTE`.
        """
        encoded = self._codec.encode_note(namespace, name, value)
        was_sent = False
        while True:
            # Compared decoded, which only this side can do: encrypted bytes differ each time.
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

    # ---- decoding

    def _record(self, kept: Kept) -> TaskRecord:
        if isinstance(kept, TaskRecord):
            return kept
        task_id, owner, namespace, state = kept
        return self._codec.decode_state(task_id, state, namespace=namespace, owner=owner)

    def _readable(self, kept: Kept, *, report: bool = True) -> TaskRecord | None:
        """The record, or None if it cannot be read, which is logged once for each task."""
        try:
            return self._record(kept)
        except TaskUnreadable as exc:
            if report and exc.task_id not in self._reported:
                self._reported[exc.task_id] = None
                logger.error(
                    "%s. Listings leave it out, and all other tasks in %s are unaffected. To delete it: %s",
                    exc,
                    self._place,
                    self._deletion(exc.task_id[:SHOWN_OF_AN_ID], len(exc.task_id) <= SHOWN_OF_AN_ID),
                )
            return None

    # ---- raw operations

    async def _open(self) -> None:  # noqa: B027 - a store in memory needs none
        """Connect. It is called again only after `_close`."""

    async def _close(self) -> None:  # noqa: B027 - the same
        """Release everything. Safe before `_open`."""

    @abstractmethod
    async def _create(self, new: Creation) -> Created:
        """Keep a new task, unless one stands under its key, or has its id."""

    @abstractmethod
    async def _save(self, change: Change) -> bool:
        """Change a task; False if it is at another version, or gone. Raises `LimitReached`."""

    @abstractmethod
    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        """Remove a task; False if it is at another version, or gone."""

    @abstractmethod
    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        """Remove tasks: version, id and, if `records` are wanted, all of each."""

    @abstractmethod
    async def _read(
        self, task_id: str, part: Part | None = None, *, owner: AnyOwner = EVERYBODY, most: int | None = None
    ) -> tuple[Kept, Sequence[Any]] | None:
        """A task, if it is one of the owner's, and what is kept beside it as `part`: the request, or body and meta of
        the outcome; None for what is not there. A request of more than `most` bytes is left out."""

    @abstractmethod
    async def _journal(self, task_id: str, after: int) -> tuple[str | None, Sequence[tuple[int, str, str, object]]]:
        """The owner of a task, and number, kind, key and value of its journal entries behind a number."""

    @abstractmethod
    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Kept]], Place | None]:
        """Tasks with their places; and the last place that was looked at, if there may be more behind it though there
        are fewer than the limit."""

    @abstractmethod
    async def _ids(self, sweep: Sweep) -> Sequence[Place]:
        """The tasks of a sweep, in its order."""

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
        """How an operator deletes a task, by its id or by the beginning of that."""
        raise NotImplementedError


def _owner_of(kept: Kept) -> str | None:
    return kept.owner if isinstance(kept, TaskRecord) else kept[1]


def _wrote(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether the write that makes `record` is among those that made `found`."""
    return bool(record.writes) and found.has(record.writes[0])


def _may_have_pushed_out(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether `found` may have had the id of the write that makes `record`, and keeps it no longer."""
    if record.writes and record.writes[0].number:
        return found.attempt > record.attempt
    return sum(not each.number for each in found.writes) >= OTHER_WRITES


# ---- helpers of backends

Meanings: TypeAlias = Mapping[str, tuple[type[StoreError], str]]
"""The meanings of a driver's errors, by code or by words in them."""


def meaning_of(
    said: str, meanings: Meanings, place: str, text: str, *, fits: Callable[[str, str], bool] = str.startswith
) -> StoreError | None:
    """The error for what a driver said, if the table has it."""
    for mark, (kind, meaning) in meanings.items():
        if fits(said, mark):
            return kind(f"{place} {meaning} ({text})")
    return None


def sql_deletion(table: str, start: str, is_whole: bool) -> str:
    """How an operator deletes a task in SQL."""
    quoted = start.replace("'", "''")
    which = f"= '{quoted}'" if is_whole else f"LIKE '{quoted}%'"
    return f"DELETE FROM {table} WHERE id {which}"  # noqa: S608 - for people to read


# ---- paging

PATIENCE: Final = 1.0
"""Seconds for which a page is filled. A store passes over several hundred thousand tasks meanwhile."""


async def full_page(
    store: Store,
    namespace: str,
    whose: Whose,
    *,
    now: datetime,
    status: TaskStatus | None = None,
    cursor: str | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> Page:
    """`Store.list`, with a page that is short of `limit` only if it is the last, or took longer than `PATIENCE`.

    Raises:
        ValueError: The cursor is not one of the store's.
    """
    until = anyio.current_time() + PATIENCE
    look = partial(store.list, namespace, whose, now=now, status=status, newest_first=newest_first)
    page = await look(cursor=cursor, limit=limit)
    records = [*page.records]
    while page.cursor is not None and len(records) < limit and anyio.current_time() < until:
        # A store that never waits would have the event loop for itself.
        await checkpoint()
        page = await look(cursor=page.cursor, limit=limit - len(records))
        records += page.records
    return Page(records=records, cursor=page.cursor)
