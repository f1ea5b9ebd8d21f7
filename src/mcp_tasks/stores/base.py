"""The seams behind which tasks are kept: `Store`, and beside it `Notifier`.

Above: the runtime, the only caller. Below: one folder or file per backend. A store keeps records and decides
no transition: it compares versions and swaps. `mcp_tasks.testing.store_suite` is this contract as tests; a
store that passes it may be handed to `Tasks(store=...)`.

The contract, once for all verbs:

- *Durable on return.* When `create`, `save`, `delete` or `set_note` returns, a reader in any process that shares the
  store sees it, and it survives whatever the backend promises to survive (a backend says so at the top of its
  file). A write is made whole or not at all. After an error other than `StoreUnavailable` nothing of it is written.
- *A write without an answer may have been made.* `StoreUnavailable.may_have_happened` says so; without it, nothing was
  written. A caller that is cancelled does not know either. A store may repeat a request by itself, and so may its
  caller. A repeated `create` or `save` carries the same write id (`TaskRecord.writes`): the store looks for it before
  it reports a conflict, and answers the repeat like the first. A creation that can no longer be recognised is answered
  with `may_have_happened` (`stores/codec.py`). A repeated `set_note` finds its own value there and says that it was
  kept. If another has written since, it says that it was not: its caller reads the note and decides anew.
- *Other writes may be repeated without an id.* A repeated `delete` names the same version, and a task that is gone is
  what was wanted. `forget_expired` takes only what is still there. `heartbeat` never makes a count smaller, and only
  growth counts. `retire` removes a row that is gone already: a process does not beat any more when it retires.
  `hand_back` has the task offered once more, and only one claim of it succeeds. The tasks of a `hand_out` without an
  answer stay marked until a sweep finds them idle: after a lease or half a minute, whichever is shorter. Observers and
  the audit log miss deletions and expirations without an answer; the other verbs here are not observed.
- *Errors.* A driver's exception never escapes: it becomes `StoreUnavailable` (try again later), `StoreCorrupt` (do
  not) or `ValueNotStorable` (never with this value), with the cause kept.
- *Small rows.* A record is one small row. Request, outcome and journal are kept beside it, and nothing but `request`,
  `outcome` and `journal` reads them: a poll of a task with megabytes of arguments costs what any poll costs. Reading or
  writing something large does not hold the event loop.
- *One bad row is one bad task.* What cannot be read raises `TaskUnreadable` from the verb that reads it for that task
  (`get`, `request`, `outcome`, `journal`, or `create` under its key) and from nothing else. Sweeps therefore return
  ids, which need no decoding; `list` leaves such tasks out.
- *Values, not objects.* What a store returns is nobody else's: who changes the arguments in a request that was read
  changes neither what is kept nor what the next reader gets.
- *One clock.* Time that others can see is the store's time, which `now` reads. A verb that compares instants is given
  the instant as an argument and reads no clock. A heartbeat is no instant: it is a number that grows, and the process
  that watches it measures on its own monotonic clock for how long it has not.
- *Order.* `save` succeeds for exactly one of those who name the same expected version.
- *Strings.* Any string may be asked for, also one that the backend cannot keep: that one is simply not there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Final, Literal, Protocol, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from mcp_tasks.model.record import JournalEntry, Outcome, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import Statement

__all__ = [
    "EVERYBODY",
    "LARGEST_NOTE",
    "UNOWNED",
    "Anyone",
    "ChildrenOf",
    "Forgotten",
    "Hint",
    "IdPage",
    "InSession",
    "Notifier",
    "OwnedBy",
    "Owners",
    "Page",
    "Store",
    "Whose",
    "owned_by",
]

# ---- whose
# Whose tasks are meant: those of an owner, of nobody, of everybody, of a session, or of the task that started them.


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """The tasks of one owner."""

    owner: str


@dataclass(frozen=True, slots=True)
class InSession:
    """The tasks of one session, whoever owns them: those made in it, and those that it took over."""

    session: str


@dataclass(frozen=True, slots=True)
class ChildrenOf:
    """The tasks that one task started, whoever owns them."""

    parent: str


class Anyone(Enum):
    """Whose tasks to list, where that is not one owner."""

    UNOWNED = "unowned"
    EVERYBODY = "everybody"


UNOWNED: Final = Anyone.UNOWNED
"""The tasks that nobody owns: those of clients without a name."""

EVERYBODY: Final = Anyone.EVERYBODY
"""All tasks, whoever owns them: for operators, never for a client."""

Whose: TypeAlias = OwnedBy | InSession | ChildrenOf | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Whose tasks to list. There is no default: who lists must say it."""

Owners: TypeAlias = OwnedBy | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Whose tasks to count: of one owner, of nobody, or of everybody."""


def owned_by(owner: str | None) -> OwnedBy | Literal[Anyone.UNOWNED]:
    """The tasks of a caller, who may have no name."""
    return UNOWNED if owner is None else OwnedBy(owner)


# ---- shares
# The values of `Store` for a fleet: how much of what is queued an engine has, how much may be at work, what waits.


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """How many tasks may be at work at a time, over all processes: of one tool, and of one owner. None for any number.

    A task is at work if a worker has it, it has not ended, and its run does not wait (`TaskRecord.pause`). A run that
    waits in memory gives up its place, and takes it again with a `save` within the limits, as a claim does.

    A task that is resuming is not at work yet, and takes a place from all tasks but those that are resuming themselves:
    of those, each is compared only with what is at work. So the places that become free go to runs that want to go on,
    before any new run begins, and never more tasks are at work than the limit says.
    """

    tool: int | None = None
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A queued task that is handed to an engine, and what decides where it goes."""

    id: str
    owner: str | None
    method: str
    name: str
    queue: str
    priority: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How much of what is queued may be in the hands of an engine at a time. The rest waits in the store.

    Attributes:
        owner: Of one owner, in one queue, of one tool: tasks that are handed out and not claimed, so that what nobody
            serves keeps nothing else back. Those that nobody owns count as one owner's.
        tools: Of each of these tools, by name: tasks that are handed out or at work.
        owner_at_work: Of one owner: tasks that are at work; None for any number. Who has as many is handed no more, and
            who has fewer at most so many at a time, of each queue and tool, as there is room for.
    """

    owner: int
    tools: Mapping[str, int] = field(default_factory=dict[str, int])
    owner_at_work: int | None = None


@dataclass(kw_only=True, slots=True)
class Handing:
    """That a new task is to be handed to an engine right away, and what came of it.

    Attributes:
        share: Within which it is. Several that create at once may go a little beyond it.
        job: What has the engine run the task, for a store that can write it in the same transaction.
        handed: Set by the store: the task is marked as handed out. Otherwise it waits for `hand_out`.
        carried: Set by the store: the job was written with the task, so that it need not be submitted.
    """

    share: Share
    job: Statement | None = None
    handed: bool = False
    carried: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What waits in one queue.

    Attributes:
        ready: How many tasks could run and nobody has; at most `MOST_COUNTED`.
        since: Since when the one has waited that has waited longest, in the store's time: the task's creation, or if it
            was queued again since, what `columns.queued_since` says. One that slept has waited since the moment at
            which it was to wake.
    """

    ready: int
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What is kept of some tasks.

    Attributes:
        open_tasks: How many have not ended; at most `MOST_COUNTED`.
        stored_bytes: Bytes of their requests, outcomes and journals as they are kept, those of ended ones included;
            what is small of every task (its row) counts as nothing.
    """

    open_tasks: int
    stored_bytes: int


MOST_COUNTED: Final = 100_000
"""Where counting stops: no fleet is scaled by what is beyond it."""


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
class Hint:
    """Word that a task changed, and to which version. The store is the truth; a hint may be lost or late."""

    task_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A task that is not there any more, as it was last.

    Attributes:
        record: All of it, if that was wanted and could be read.
    """

    task_id: str
    version: int
    record: TaskRecord | None = None


LARGEST: Final = 64 * 1024
"""Bytes of a request that is read with its task: the task may be one that cannot be run, and then a large request would
have been read for nothing."""

Standing: TypeAlias = Literal["absent", "older", "current"]
"""Whether `open` would make something new, change what is there, or find it as it needs it."""

LARGEST_NOTE: Final = 64 * 1024
"""Bytes. A note is a small thing that a server remembers beside its tasks, and is read whole."""


class Store(Protocol):
    """Keeps task records, their journals, and who is alive to run them."""

    async def open(self) -> None:
        """Make the store ready for use. Opening an open store does nothing.

        Raises:
            StoreUnavailable: It cannot be reached or locked now.
            StoreCorrupt: What is there is not a store of ours.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked for and let go of all resources. Safe twice, and before `open`."""
        ...

    async def now(self) -> datetime:
        """The store's time, aware and in UTC: one clock for all processes that share the store.

        A process reads it every few seconds to know how far its own clock is off, so it must be cheap. It is the clock
        of the server that keeps the tasks, and the machine's where there is no server. It may be set, as any clock.
        """
        ...

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

        With `handing` it is marked as handed out if it is queued and within the share, and `handing` is told. Where the
        task that stands under the key is returned, nothing is handed out.

        With an idempotency `key`: if a task of the same owner and namespace stands under it, nothing is written, and
        that task is returned as it is now. One that has expired as of `record.created_at` does not count, and gives
        way. However many create under one key at once, exactly one of them makes a task.

        With `key_until_end` a task that has ended does not count either, expired or not. It does not give way: it stays
        with all that it has, and only loses the key to the new task. Which of the two rules holds is for the one who
        creates to say, each time.

        With `key_outlives` the key stays with the new task when it is gone, however it went, and for so long: whoever
        creates under it until then is refused. The time runs from the moment at which the task expires, whenever it is
        removed, or from the `now` of `delete`; as with expiry, what it is compared with is `record.created_at`. So it
        is the same whether an expired task is still there or not. A task that has not expired is returned, as without
        it, and how long a key outlives its task is for who made the task to say, not for who finds it. Such keys are
        bounded in number by their time alone. Without a `key` it means nothing.

        With both, the new task's key outlives it, but for those who create with `key_until_end`: to them a task that
        is gone has ended, and they take over its key too.

        If the record has a parent that has not ended, the key stays with the task's id until the parent has ended or
        is gone, whatever becomes of the task itself. If the task has expired or is gone, whoever creates under the key
        with the same parent is refused, and told the id. Once the parent has ended or is gone, no task is created for
        it under a key: a creation that was on its way for so long would start the child again. Neither rule holds with
        `key_until_end`, which takes the key over.

        Raises:
            TaskExists: The id is taken.
            KeySpent: The task of the key has expired or is gone, and the key outlives it, or its parent is
                open; or the parent has ended or is gone. Nothing was written.
            TaskUnreadable: There is a task under the key, but not in a state that can be read.
            ValueNotStorable: The record or the request is too large, or not JSON. Nobody else's write fails with it.
        """
        ...

    async def get(self, task_id: str) -> TaskRecord | None:
        """The record as of now, or None. The one read on the path of every poll: it must be cheap.

        Raises:
            TaskUnreadable: There is such a task, but not in a state that can be read.
        """
        ...

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        """The record as of now; None if the owner has no such task. Another owner's task is not read if the store can
        avoid that, so that it takes as long as if there were none.

        Raises:
            TaskUnreadable: The owner has one, and it cannot be read.
        """
        ...

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        """The record as of now and its request, or None: for a store where each look is a round trip.

        The request is left out if it is larger than `LARGEST`, or missing, or would be another look; then `request`
        is asked for it.

        Raises:
            TaskUnreadable: One of the two cannot be read. `get` and `request` say which.
        """
        ...

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        """The record as of now and how the task ended; None if the owner has no such task, of which nothing is read.

        The outcome is left out if there is none, or it would be another look; then `outcome` is asked for it.

        Raises:
            TaskUnreadable: One of the two cannot be read. `get` and `outcome` say which.
        """
        ...

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under an idempotency key, expired or not; None if none does."""
        ...

    async def request(self, task_id: str) -> TaskRequest | None:
        """What was asked for; None if there is no such task.

        Raises:
            TaskUnreadable: It cannot be read.
        """
        ...

    async def outcome(self, task_id: str) -> Outcome | None:
        """How the task ended; None if it has not, or ended without one, or there is no such task.

        Raises:
            TaskUnreadable: It cannot be read.
        """
        ...

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

        Returns the record as it is now: the given one, or the one that is there if an earlier attempt was made.

        With `limits` it is a claim: so many tasks of the same tool (method and name), or of the same owner, may be at
        work in the namespace, this one included. Of many that claim at once, never more succeed than that.

        A task that stays queued stays as handed out as it was; one that is queued anew is not handed out.

        All of it happens or none, so an answer and the status it changes are never apart. Owner, namespace, method,
        name, parent and creation of a task never change, so a store need not write them again; its session may change.
        The numbers of `entries` are the store's to give: larger than that of every entry which the task has.

        Raises:
            VersionConflict: Somebody saved first, or the task is gone.
            LimitReached: As many as may be are at work. It says nothing of the version.
            ValueNotStorable: The record or an entry is too large, or not JSON. Nobody else's write fails with it.
        """
        ...

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        """Forget the task with all that is kept beside it if it is still at version `expected`.

        Args:
            now: From when the time runs for which a key outlives the task. Without it, from when the task expires, or
                was made if that is not known.

        Raises:
            VersionConflict: Somebody saved first, or the task is gone.
        """
        ...

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        """The entries of the task's journal with a number beyond `after`, in order; empty for an unknown task.

        Raises:
            TaskUnreadable: An entry cannot be read.
        """
        ...

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
        empty, and yet not be the last.

        Raises:
            ValueError: The cursor is not one of ours.
        """
        ...

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of the tasks of the namespace, of one owner, of nobody, or of everybody.

        For limits, asked now and then: it must not read the tasks, and counts those that have expired and are not
        forgotten yet, or that cannot be read, as they are. Of everybody only the open tasks are counted, and
        `stored_bytes` is 0.
        """
        ...

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        """Queued tasks (as in `queued`) that are not handed out, within the share, marked as handed out from now on.

        Those of a higher priority come first. Within one priority owners take turns: of each the task that was made
        first, then of each the second, whatever the number of tasks of one of them. Whoever asks for few at a time
        comes to every owner: a store remembers, for as long as it is open, whose turn it was. What it costs does not
        grow with the number of queued tasks. No task is given to two that ask at once.

        A task that cannot be read is left out.

        Args:
            queues: Only tasks of these queues; None for all.
            mark: False to have the choice without marking it, for an engine that keeps nothing beyond its process.
        """
        ...

    async def hand_back(self, task_id: str) -> None:
        """The task is not in the hands of an engine any more: if it is still queued, it waits for `hand_out` again."""
        ...

    async def backlog(self, namespace: str, now: datetime) -> Mapping[str, Backlog]:
        """What waits in each queue of the namespace that has any: what `queued` and `due` list, counted."""
        ...

    async def queued(
        self, namespace: str, *, handed_out: bool | None = None, cursor: str | None = None, limit: int
    ) -> IdPage:
        """Tasks of the namespace that could run at any time and nobody has, in the order of creation.

        With `handed_out`, only those that are, or are not, marked as handed out.

        These are the ones whose `TaskRecord.ready_at` is `ALWAYS`. With the cursor, tasks that stay queued are given
        exactly once, whatever is created or claimed in between; so it is for `due` and `claimed`.

        Raises:
            ValueError: The cursor is not one of ours. So it is for `due` and `claimed`.
        """
        ...

    async def due(self, namespace: str, now: datetime, *, cursor: str | None = None, limit: int) -> IdPage:
        """Parked tasks of the namespace whose `ready_at` has come, longest overdue first."""
        ...

    async def claimed(self, worker: str, *, cursor: str | None = None, limit: int) -> IdPage:
        """Tasks that `worker` has, in the order of creation."""
        ...

    async def forget_expired(self, now: datetime, *, limit: int, records: bool = False) -> Sequence[Forgotten]:
        """Forget tasks of all namespaces whose time after the end is over, with all that is kept beside them.

        Those longest overdue go first, and are given in that order. It is one act of the backend, whatever the limit,
        so one that is asked for few at a time holds nobody up. Of many that ask at once, each is given other tasks.
        Fewer than `limit` are taken where they are large, or where others are at work on some; none only if nothing is
        left to take.

        Keys that outlived their tasks are forgotten too when their time is over, some of them each time.

        What cannot be read is forgotten too. An act whose answer is lost (a connection broke) may be told to nobody.

        Args:
            records: Whether to give the records, for who has somebody to show them to.
        """
        ...

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        """The version of each of these tasks, in one look; those that are gone are left out."""
        ...

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        """Renew the lease of `worker`: its count becomes `beats`, unless it is more already.

        Returns the count before, 0 if there was none: a worker sees by it that a failover has lost its last heartbeats.

        A worker beats for one namespace, the last that it named. One row per process instead of one per task: a lease
        costs the same with one running task or 10,000.

        Args:
            beats: The worker's own count, which grows with each heartbeat. If the store counted, a worker that was
                retired and is back would repeat counts, and look silent to a process that missed that.
        """
        ...

    async def workers(self, namespace: str) -> dict[str, int]:
        """Every worker that beats for the namespace or has a task in it, and how often it has beaten.

        A worker that has a task but no heartbeat (it retired, or never beat) is listed with 0. One that has a task
        here and beats for another namespace is listed with its beats: it is alive.
        """
        ...

    async def retire(self, worker: str) -> None:
        """Forget the heartbeat of `worker`. Retiring an unknown one does nothing."""
        ...

    async def note(self, namespace: str, name: str) -> bytes | None:
        """The note of this name that the server has, or None. It is read whole, and need not be quick.

        Raises:
            StoreCorrupt: There is such a note, and it cannot be read.
        """
        ...

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        """Keep a note if what is there is `expected`, where None means that nothing is; whether it was kept.

        Of many that expect the same, exactly one keeps its value. Notes are few and small, and stay for good. What is
        in them may be secret: they pass the codec as all parts of a task do.

        Raises:
            StoreCorrupt: There is such a note, and it cannot be read.
            ValueNotStorable: The value has more bytes than `LARGEST_NOTE`.
        """
        ...

    async def standing(self) -> Standing:
        """What `open` would find. Makes and changes nothing, and may be asked before `open`.

        Raises:
            StoreUnavailable: It cannot be reached now.
            StoreCorrupt: What is there is not a store of ours, or one of a newer release that this one may not use.
        """
        ...

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order: for operators. It need not be quick."""
        ...

    def notifier(self) -> Notifier:
        """What carries hints between the processes that share this store."""
        ...


class Notifier(Protocol):
    """Carries hints. Lose every one of them and polling the store still ends right."""

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the others. Never raises: a hint is worth less than the work that caused it."""
        ...

    def listen(self, *, origin: object = None) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Hints from now on, this process's own included (a reader compares versions).

        Those published with the same `origin` need not be given: their publisher knows. Given they do no harm.

        A slow reader loses the older of two hints for one task, never the newest.
        """
        ...


# ---- paging
# A page of a listing that is as full as it can be: where a store passes over much, it is asked again.


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
    records: list[TaskRecord] = list(page.records)
    while page.cursor is not None and len(records) < limit and anyio.current_time() < until:
        # A store that never waits would have the event loop for itself.
        await checkpoint()
        left = limit - len(records)
        page = await look(cursor=page.cursor, limit=left)
        records += page.records
    return Page(records=records, cursor=page.cursor)


# ---- hints
# Hints inside one process: what every notifier hands to its listeners.


class HintFan:
    """Gives each hint to everyone who listens in this process."""

    def __init__(self) -> None:
        self._of_all: set[Inbox] = set()
        # By task, so that a change costs as much as it has listeners, not as much as there are listeners.
        self._of_task: dict[str, set[Inbox]] = {}

    def listened(self) -> Collection[str]:
        """The tasks that somebody listens to in particular."""
        return list(self._of_task)

    def put(self, hint: Hint, *, origin: object = None) -> None:
        """Hand on one hint, but not to where it came from. Call from the event loop's thread."""
        for inbox in self._of_all:
            if origin is None or inbox.origin is not origin:
                inbox.put(hint)
        for inbox in self._of_task.get(hint.task_id, ()):
            inbox.put(hint)

    @contextmanager
    def listen(self, task_ids: Collection[str] | None = None, *, origin: object = None) -> Generator[Inbox]:
        """Hints from now on, of all tasks or of these."""
        inbox = Inbox(origin)
        if task_ids is None:
            self._of_all.add(inbox)
        for task_id in task_ids or ():
            self.add(inbox, task_id)
        try:
            yield inbox
        finally:
            self._of_all.discard(inbox)
            self.leave(inbox)

    def add(self, inbox: Inbox, task_id: str) -> None:
        """Give the hints of one more task to a listener, for as long as it listens."""
        inbox.task_ids.add(task_id)
        self._of_task.setdefault(task_id, set()).add(inbox)

    def leave(self, inbox: Inbox) -> None:
        """Give a listener no more hints of any task that it was given those of in particular."""
        for task_id in list(inbox.task_ids):
            self.remove(inbox, task_id)

    def remove(self, inbox: Inbox, task_id: str) -> None:
        """Give a listener no more hints of a task."""
        inbox.task_ids.discard(task_id)
        listeners = self._of_task.get(task_id, set())
        listeners.discard(inbox)
        if not listeners:
            self._of_task.pop(task_id, None)


class LocalNotifier:
    """A notifier for a store that only one process can have."""

    def __init__(self) -> None:
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        """Tell the listeners of this process."""
        self._fan.put(hint, origin=origin)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Hints from now on."""
        with self._fan.listen(origin=origin) as hints:
            yield hints


class Inbox:
    """The newest unread hint of each task, in the order they first came.

    Args:
        wake: Called with every hint that comes, for a reader that does not wait; it must not raise.

    Attributes:
        task_ids: The tasks that it is given the hints of in particular.
    """

    __slots__ = ("_arrived", "_unread", "_wake", "origin", "task_ids")

    def __init__(self, origin: object = None, *, wake: Callable[[], None] | None = None) -> None:
        self.origin: object = origin
        self.task_ids: set[str] = set()
        self._unread: dict[str, Hint] = {}
        # There is one only while somebody waits: there may be thousands of readers, and an event is larger than the
        # rest of this.
        self._arrived: anyio.Event | None = None
        self._wake = wake

    def put(self, hint: Hint) -> None:
        """Add a hint, unless a newer one of the same task waits."""
        known = self._unread.get(hint.task_id)
        if known is None or known.version < hint.version:
            self._unread[hint.task_id] = hint
        if self._arrived is not None:
            self._arrived.set()
        if self._wake is not None:
            self._wake()

    def pop(self) -> Hint | None:
        """The next hint, or None if none waits."""
        return self._unread.pop(next(iter(self._unread))) if self._unread else None

    async def wait(self) -> None:
        """Return when a hint is there."""
        while not self._unread:
            self._arrived = anyio.Event()
            try:
                await self._arrived.wait()
            finally:
                self._arrived = None

    def __aiter__(self) -> AsyncIterator[Hint]:
        return self

    async def __anext__(self) -> Hint:
        await self.wait()
        return self._unread.pop(next(iter(self._unread)))
