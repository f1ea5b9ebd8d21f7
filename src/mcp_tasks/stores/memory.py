"""The reference store: dictionaries and sorted lists. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need
not outlive them.

Requests and journals are kept as bytes, as other stores keep them: what a tool does to its arguments is not done to
what the next run gets, and what no store could keep is refused here too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice, takewhile
from typing import Any, TypeAlias, TypeVar

from mcp_tasks.errors import LimitReached
from mcp_tasks.model.limits import is_expired
from mcp_tasks.model.record import ALWAYS, Outcome, TaskRecord
from mcp_tasks.stores.backend import BaseStore, Change, Created, Creation, Kept, Listing
from mcp_tasks.stores.backend import Place as Standing
from mcp_tasks.stores.base import (
    EVERYBODY,
    MOST_COUNTED,
    ChildrenOf,
    InSession,
    LocalNotifier,
    OwnedBy,
    Owners,
    Ready,
    Share,
    Usage,
    Whose,
    WorkLimits,
)
from mcp_tasks.stores.codec import (
    MICROSECOND,
    Line,
    expiry,
    from_micros,
    is_at_work,
    is_resuming,
    queued_since,
    size_of,
    sort_key,
    to_micros,
)
from mcp_tasks.stores.codec import ready as columns_ready
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Room, Route, Step, Turns, ready_of

# ---- ordered
# Sorted lists in groups: the indexes of a store that has no database to keep them.


Place: TypeAlias = tuple[Any, ...]
"""Where something stands: values that are compared one after the other, the last of them unique."""


class Ordered:
    """Places in order, in groups. Giving some costs as much as is given, however many there are.

    Adding and removing moves what stands behind, at about a nanosecond for ten places: what is new stands at the end
    almost always, and a list beats a tree up to some millions.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[Place]] = {}

    def add(self, group: Hashable, place: Place) -> None:
        """Add a place that is not there."""
        insort(self._groups.setdefault(group, []), place)

    def remove(self, group: Hashable, place: Place) -> None:
        """Remove a place that is there."""
        places = self._groups[group]
        del places[bisect_left(places, place)]
        if not places:
            del self._groups[group]

    def after(self, group: Hashable, place: Place = ()) -> Iterator[Place]:
        """The places behind `place`, which need not be there. Add and remove nothing before the last was taken."""
        places = self._groups.get(group, [])
        for number in range(bisect_right(places, place), len(places)):
            yield places[number]

    def before(self, group: Hashable, place: Place | None = None) -> Iterator[Place]:
        """The same backwards: the places before `place`, or all, from the last to the first."""
        places = self._groups.get(group, [])
        for number in range(len(places) if place is None else bisect_left(places, place), 0, -1):
            yield places[number - 1]

    def count(self, group: Hashable, step: Place = ()) -> int:
        """How many places of the group begin with `step`."""
        places = self._groups.get(group, [])
        return self._behind(places, step) - bisect_left(places, step)

    def following(self, group: Hashable, step: Place, after: Any = None) -> Any:
        """What places that begin with `step` have next, beyond `after`: its smallest value, or None."""
        places = self._groups.get(group, [])
        number = bisect_left(places, step) if after is None else self._behind(places, (*step, after))
        if number == len(places) or places[number][: len(step)] != step:
            return None
        return places[number][len(step)]

    def _behind(self, places: list[Place], step: Place) -> int:
        """Where the places end that begin with `step`."""
        return bisect_right(places, step, key=lambda place: place[: len(step)])

    def heads(self, group: Hashable) -> Iterator[Any]:
        """What places of the group begin with, each once."""
        places, number = self._groups.get(group, []), 0
        while number < len(places):
            head = places[number][0]
            yield head
            number = bisect_right(places, head, lo=number, key=lambda place: place[0])


# ---- places
# Where a task is to be found in a store that keeps its indexes itself: groups of `Ordered`, and the place in each.


_AT_ANY_TIME = to_micros(ALWAYS)

Owner: TypeAlias = tuple[()] | tuple[str]
"""An owner that can be compared with others: nobody comes first."""

Tool: TypeAlias = tuple[str, str]
"""Method and name."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a store knows of a queued task beside its record.

    Attributes:
        handed: Whether it is handed out.
        since: When it was queued.
    """

    handed: bool
    since: int


def wait_of(record: TaskRecord, before: Wait | None) -> Wait | None:
    """What is known of a task that is saved, by what was; None if it is not queued."""
    if columns_ready(record) != _AT_ANY_TIME:
        return None
    return before or Wait(handed=False, since=queued_since(record))


def places(record: TaskRecord, wait: Wait | None) -> Iterator[tuple[Hashable, Place]]:
    """Where the task is to be found, and at which place there."""
    namespace, created, expires = record.namespace, created_place(record), expiry(record)
    yield ("listed", namespace), created
    yield ("owned", namespace, owner_of(record)), created
    if record.session is not None:
        yield ("session", namespace, record.session), created
    if record.parent is not None:
        yield ("parent", namespace, record.parent), created
    if record.worker is not None:
        yield ("claimed", record.worker), created
        yield ("working", namespace), (record.worker, record.id)
    if wait is not None:
        yield from _queued(record, wait)
    elif (ready_at := columns_ready(record)) is not None:
        yield ("parked", namespace), (ready_at, record.id)
        yield ("parked by queue", namespace), (record.queue, ready_at, record.id)
    if is_at_work(record):
        mark = "resuming" if is_resuming(record) else "at work"
        yield ("at work of owner", namespace, owner_of(record)), (mark, record.id)
        yield ("in hand of tool", namespace, tool_of(record)), (mark, record.id)
    if expires is not None:
        yield "expiring", (expires, *created)


def _queued(record: TaskRecord, wait: Wait) -> Iterator[tuple[Hashable, Place]]:
    namespace, created = record.namespace, created_place(record)
    yield ("queued", namespace), created
    yield ("queued", namespace, wait.handed), created
    yield ("backlog", namespace), (record.queue, wait.since, record.id)
    if wait.handed:
        yield ("handed", namespace, route_of(record)), (record.id,)
        yield ("in hand of tool", namespace, tool_of(record)), ("handed", record.id)
    else:
        step = record.queue, -record.priority, owner_of(record), tool_of(record)
        yield ("waiting", namespace), (*step, *created)


def created_place(record: TaskRecord) -> Place:
    """Where a task stands among all: by creation, then id."""
    return sort_key(record), record.id


def owner_of(record: TaskRecord) -> Owner:
    """The owner of a task, as one that can be compared."""
    return () if record.owner is None else (record.owner,)


def tool_of(record: TaskRecord) -> Tool:
    """The tool of a task."""
    return record.method, record.name


def route_of(record: TaskRecord) -> Route:
    """What a share counts together."""
    return record.queue, owner_of(record), tool_of(record)


def listed(namespace: str, whose: Whose) -> Hashable:
    """Where to look for the tasks of a listing."""
    if isinstance(whose, InSession):
        return "session", namespace, whose.session
    if isinstance(whose, ChildrenOf):
        return "parent", namespace, whose.parent
    if whose is EVERYBODY:
        return "listed", namespace
    return "owned", namespace, (whose.owner,) if isinstance(whose, OwnedBy) else ()


class Waiting:
    """What waits in one namespace, for a choice among it."""

    def __init__(self, order: Ordered, records: Mapping[str, TaskRecord], namespace: str) -> None:
        self._order = order
        self._records = records
        self._namespace = namespace

    def room(self, share: Share) -> Room:
        """What a share leaves."""
        return Room(self, share, {(TOOL_METHOD, name): limit for name, limit in share.tools.items()})

    def following(self, step: Step, after: Any = None) -> Any:
        """What follows in the order of queue, priority, owner and tool."""
        return self._order.following(("waiting", self._namespace), step, after)

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool."""
        waiting = self._order.after(("waiting", self._namespace), step)
        return (place[len(step) :] for place in takewhile(lambda place: place[: len(step)] == step, waiting))

    def ready(self, task_id: str) -> Ready:
        """The task."""
        return ready_of(self._records[task_id])

    def handed(self, route: Route, most: int) -> int:
        """How many tasks of the route are handed out."""
        return self._order.count(("handed", self._namespace, route))

    def owner_at_work(self, owner: Owner, most: int) -> int:
        """How many tasks of the owner are at work."""
        return self._order.count(("at work of owner", self._namespace, owner))

    def of_tool(self, tool: Tool, most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        return self._order.count(("in hand of tool", self._namespace, tool))


# ---- tally
# What is kept of whose tasks, and the keys that outlive them, in a store that counts for itself.


K = TypeVar("K", bound=Hashable)

Under: TypeAlias = tuple[str, Owner, str]
"""Namespace, owner and key."""


class Tally:
    """Open tasks and stored bytes of each owner."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, Owner | None]] = Counter()
        self._bytes: Counter[tuple[str, Owner]] = Counter()
        self._size: Counter[str] = Counter()

    def move(self, before: TaskRecord | None, now: TaskRecord | None) -> None:
        """A task changed: it is new if it was not before, and gone if it is not any more."""
        if before is not None and not before.is_final:
            self._count(before, -1)
        if now is not None and not now.is_final:
            self._count(now, 1)
        if before is not None and now is None:
            self.grow(before, -self._size[before.id])
            del self._size[before.id]

    def grow(self, record: TaskRecord, size: int) -> None:
        """So many bytes more are kept of a task."""
        self._size[record.id] += size
        _add(self._bytes, (record.namespace, owner_of(record)), size)

    def usage(self, namespace: str, whose: Owners) -> Usage:
        """What is kept of some tasks."""
        owner = None if whose is EVERYBODY else (whose.owner,) if isinstance(whose, OwnedBy) else ()
        count = min(self._open[namespace, owner], MOST_COUNTED)
        return Usage(open_tasks=count, stored_bytes=0 if owner is None else self._bytes[namespace, owner])

    def _count(self, record: TaskRecord, number: int) -> None:
        for owner in (owner_of(record), None):
            _add(self._open, (record.namespace, owner), number)


class SpentKeys:
    """Keys that are taken though their task is gone."""

    def __init__(self) -> None:
        self._until: dict[Under, int] = {}
        self._order = Ordered()

    def copy(self) -> SpentKeys:
        """The same keys."""
        keys = SpentKeys()
        for under, until in self._until.items():
            keys.spend(under, until)
        return keys

    def is_spent(self, under: Under, now: int) -> bool:
        """Whether a key is taken."""
        return self._until.get(under, now) > now

    def spend(self, under: Under, until: int) -> None:
        """The task of a key is gone."""
        self.free(under)
        self._until[under] = until
        self._order.add("until", (until, under))

    def free(self, under: Under) -> None:
        """A key is another task's now."""
        if (until := self._until.pop(under, None)) is not None:
            self._order.remove("until", (until, under))

    def forget(self, now: int) -> None:
        """Forget those whose time is over."""
        for _, under in list(takewhile(lambda place: place[0] <= now, self._order.after("until"))):
            self.free(under)


def _add(counter: Counter[K], place: K, number: int) -> None:
    """Count, and keep no zeros: owners come and go."""
    counter[place] += number
    if not counter[place]:
        del counter[place]


class MemoryStore(BaseStore):
    """Keeps tasks in this process's memory."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._records: dict[str, TaskRecord] = {}
        self._requests: dict[str, bytes] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._journals: dict[str, list[Line]] = {}
        self._keys: dict[Under, str] = {}
        self._key_of: dict[str, tuple[Under, timedelta | None]] = {}
        self._spent = SpentKeys()
        self._children: dict[str, dict[Under, str]] = {}
        self._tally = Tally()
        self._order = Ordered()
        self._waits: dict[str, Wait] = {}
        self._turns = Turns()
        self._beats: dict[str, tuple[str, int]] = {}
        self._notes: dict[tuple[str, str], bytes] = {}
        self._notifier = LocalNotifier()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do; the tasks stay until the object goes."""

    async def _create(self, new: Creation) -> Created:
        record = new.record
        under = None if new.key is None else (record.namespace, owner_of(record), new.key)
        standing = None if under is None else self._records.get(self._keys.get(under, ""))
        loses_key = new.key_until_end and standing is not None and standing.is_final
        if standing is not None and not loses_key and not is_expired(standing, record.created_at):
            return Created(standing=standing)
        parent = self._open_parent(record)
        if under is not None and not new.key_until_end:
            if record.parent is not None and (not parent or under in self._children.get(parent, {})):
                return Created(spent=True, child=self._children.get(parent, {}).get(under))
            if self._is_spent(under, standing, sort_key(record)):
                return Created(spent=True)
        if record.id in self._records:
            return Created(exists=True)
        if standing is not None:
            self._free_key(standing.id) if loses_key else self._forget(standing.id)
        self._put(record)
        self._requests[record.id] = new.request
        self._tally.grow(record, len(new.request))
        self._journals[record.id] = []
        if under is not None:
            self._spent.free(under)
            self._keys[under] = record.id
            self._key_of[record.id] = under, new.key_outlives
            if parent:
                self._children.setdefault(parent, {})[under] = record.id
        if new.handing is None or record.id not in self._waits:
            return Created()
        room = Waiting(self._order, self._records, record.namespace).room(new.handing.share)
        handed = room.has(route_of(record))
        if handed:
            self._mark(record.id, handed=True)
        return Created(handed=handed)

    async def _save(self, change: Change) -> bool:
        record = change.record
        current = self._records.get(record.id)
        if current is None or current.version != change.expected:
            return False
        self._check_limits(record, change.limits or WorkLimits())
        self._put(record)
        self._journals[record.id] += change.lines
        self._tally.grow(record, sum(len(value) for _, _, value in change.lines))
        if (outcome := change.outcome) is not None:
            before = self._outcomes.get(record.id)
            self._tally.grow(record, size_of(outcome) - (0 if before is None else size_of(before)))
            self._outcomes[record.id] = outcome
        return True

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        current = self._records.get(task_id)
        if current is None or current.version != expected:
            return False
        self._forget(task_id, now)
        return True

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        overdue = takewhile(lambda place: place[0] <= now, self._order.after("expiring"))
        found = [self._records[task_id] for _, _, task_id in islice(overdue, limit)]
        for record in found:
            self._forget(record.id)
        self._spent.forget(now)
        return [(record.version, record.id, record if records else None) for record in found]

    async def _get(self, task_id: str) -> Kept | None:
        return self._records.get(task_id)

    async def _request(self, task_id: str) -> tuple[None, bytes] | None:
        data = self._requests.get(task_id)
        return None if data is None else (None, data)

    async def _outcome(self, task_id: str) -> tuple[None, bytes, bytes | None] | None:
        outcome = self._outcomes.get(task_id)
        return None if outcome is None else (None, outcome.body, outcome.meta)

    async def _journal(self, task_id: str, after: int) -> tuple[None, Sequence[tuple[int, str, str, bytes]]]:
        lines = self._journals.get(task_id, [])[after:]
        return None, [(number, *line) for number, line in enumerate(lines, after + 1)]

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Standing, Kept]], None]:
        index, now = listed(listing.namespace, listing.whose), from_micros(listing.now)
        order = self._order
        places = order.before(index, listing.after) if listing.newest_first else order.after(index, listing.after or ())
        wanted = (
            ((created, task_id), record)
            for created, task_id in places
            if (record := self._records[task_id]).status is (listing.status or record.status)
            and not is_expired(record, now)
        )
        return list(islice(wanted, listing.limit)), None

    async def _queued(
        self, namespace: str, handed_out: bool | None, after: Standing | None, limit: int
    ) -> Sequence[Standing]:
        group = ("queued", namespace) if handed_out is None else ("queued", namespace, handed_out)
        return self._page(group, after, limit)

    async def _due(self, namespace: str, now: int, after: Standing | None, limit: int) -> Sequence[Standing]:
        parked = self._page(("parked", namespace), after, limit)
        return list(takewhile(lambda place: place[0] <= now, parked))

    async def _claimed(self, worker: str, after: Standing | None, limit: int) -> Sequence[Standing]:
        return self._page(("claimed", worker), after, limit)

    def _page(self, group: Hashable, after: Standing | None, limit: int) -> list[Any]:
        return list(islice(self._order.after(group, after or ()), limit))

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        order, queued, parked = self._order, ("backlog", namespace), ("parked by queue", namespace)
        for_each: list[tuple[str, int, int | None, int | None]] = []
        for queue in {*order.heads(queued), *order.heads(parked)}:
            sleeping = takewhile(lambda place, queue=queue: place[0] == queue, order.after(parked, (queue,)))
            woken = takewhile(lambda place: place[1] <= now, sleeping)
            due = [ready_at for _, ready_at, _ in islice(woken, MOST_COUNTED)]
            count = order.count(queued, (queue,)) + len(due)
            for_each.append((queue, count, order.following(queued, (queue,)), due[0] if due else None))
        return for_each

    async def _note(self, namespace: str, name: str) -> bytes | None:
        return self._notes.get((namespace, name))

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        if self._notes.get((namespace, name)) != seen:
            return False
        self._notes[namespace, name] = value
        return True

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        return self._keys.get((namespace, () if owner is None else (owner,), key))

    async def namespaces(self) -> Sequence[str]:
        beating = (namespace for namespace, _ in self._beats.values())
        return sorted({*(record.namespace for record in self._records.values()), *beating})

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        return self._tally.usage(namespace, whose)

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        waiting = Waiting(self._order, self._records, namespace)
        chosen = Choice(waiting, waiting.room(share), queues, limit).make(namespace, self._turns)
        for ready in chosen if mark else ():
            self._mark(ready.id, handed=True)
        return chosen

    async def hand_back(self, task_id: str) -> None:
        if task_id in self._waits:
            self._mark(task_id, handed=False)

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        return {task_id: self._records[task_id].version for task_id in task_ids if task_id in self._records}

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        before = self._beats.get(worker, ("", 0))[1]
        self._beats[worker] = namespace, max(before, beats)
        return before

    async def workers(self, namespace: str) -> dict[str, int]:
        beating = [worker for worker, (beats_for, _) in self._beats.items() if beats_for == namespace]
        having = self._order.heads(("working", namespace))
        return {worker: self._beats.get(worker, ("", 0))[1] for worker in (*beating, *having)}

    async def retire(self, worker: str) -> None:
        self._beats.pop(worker, None)

    def notifier(self) -> LocalNotifier:
        """Hints within this process; no other can share this store."""
        return self._notifier

    def _check_limits(self, record: TaskRecord, limits: WorkLimits) -> None:
        by = {
            "tool": (limits.tool, ("in hand of tool", record.namespace, tool_of(record))),
            "owner": (limits.owner, ("at work of owner", record.namespace, owner_of(record))),
        }
        marks = ("at work",) if is_resuming(self._records[record.id]) else ("at work", "resuming")
        for what, (limit, group) in by.items():
            others = sum(
                self._order.count(group, (mark,)) - self._order.count(group, (mark, record.id)) for mark in marks
            )
            if limit is not None and others >= limit:
                raise LimitReached(record.id, what)

    def _open_parent(self, record: TaskRecord) -> str:
        """The id of the task's parent if that has not ended, and is there."""
        parent = self._records.get(record.parent or "")
        return "" if parent is None or parent.is_final else parent.id

    def _put(self, record: TaskRecord) -> None:
        if record.is_final:
            self._children.pop(record.id, None)
        self._move(record.id, record, wait_of(record, self._waits.get(record.id)))

    def _mark(self, task_id: str, *, handed: bool) -> None:
        self._move(task_id, self._records[task_id], replace(self._waits[task_id], handed=handed))

    def _is_spent(self, under: Under, standing: TaskRecord | None, now: int) -> bool:
        """Whether a key is taken under which no task stands, or one that has expired."""
        if standing is None:
            return self._spent.is_spent(under, now)
        _, outlives = self._key_of[standing.id]
        return outlives is not None and _until(standing, outlives) > now

    def _forget(self, task_id: str, now: int | None = None) -> None:
        record = self._records[task_id]
        self._children.pop(task_id, None)
        self._move(task_id, None, None)
        del self._requests[task_id], self._journals[task_id]
        self._outcomes.pop(task_id, None)
        under, outlives = self._key_of.get(task_id, (None, None))
        self._free_key(task_id)
        if under is not None and outlives is not None:
            self._spent.spend(under, _until(record, outlives, now))

    def _move(self, task_id: str, record: TaskRecord | None, wait: Wait | None) -> None:
        """Have the task where it belongs now: nowhere, if there is no record of it any more."""
        earlier = self._records.pop(task_id, None)
        self._tally.move(earlier, record)
        before = set(() if earlier is None else places(earlier, self._waits.pop(task_id, None)))
        now = set(() if record is None else places(record, wait))
        for group, place in before - now:
            self._order.remove(group, place)
        for group, place in now - before:
            self._order.add(group, place)
        if record is not None:
            self._records[task_id] = record
        if wait is not None:
            self._waits[task_id] = wait

    def _free_key(self, task_id: str) -> None:
        if (taken := self._key_of.pop(task_id, None)) is not None:
            self._keys.pop(taken[0], None)


def _until(record: TaskRecord, outlives: timedelta, now: int | None = None) -> int:
    """Until when the key of a task is taken that is gone since `now`, or else expired."""
    gone = expiry(record) if now is None else now
    return (sort_key(record) if gone is None else gone) + outlives // MICROSECOND
