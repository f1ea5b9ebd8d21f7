"""The reference store: dictionaries and sorted lists. It is the oracle that every other store is compared with.

Weakness, on purpose: everything is gone with the process. Use it in tests, and for servers whose tasks need not outlive
them.

Requests and journals are kept as bytes, as other stores keep them: a tool that changes its arguments does not change
those of the next run, and what no store could keep is refused here too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, TypeAlias, TypeVar

from mcp_tasks.errors import LimitReached
from mcp_tasks.model.limits import is_expired
from mcp_tasks.model.record import ALWAYS, Outcome, TaskRecord
from mcp_tasks.stores.base import (
    EVERYBODY,
    MOST_COUNTED,
    AnyOwner,
    Change,
    Created,
    Creation,
    Kept,
    Listing,
    Notifier,
    Owners,
    Part,
    Place,
    Ready,
    Share,
    Store,
    Sweep,
    Usage,
    WorkLimits,
    narrowed,
)
from mcp_tasks.stores.codec import (
    MICROSECOND,
    Line,
    expiry,
    from_micros,
    is_at_work,
    is_resuming,
    queued_since,
    ready,
    size_of,
    sort_key,
)
from mcp_tasks.stores.fairness import TOOL_METHOD, Choice, Room, Route, Step, Turns, Waiting, ready_of

K = TypeVar("K", bound=Hashable)

Position: TypeAlias = tuple[Any, ...]
"""Where something stands: values that are compared one after the other, the last of them unique."""

Owner: TypeAlias = tuple[()] | tuple[str]
"""An owner that can be compared with others: no owner comes first."""

Under: TypeAlias = tuple[str, Owner, str]
"""Namespace, owner and idempotency key."""


class Ordered:
    """Positions in order, in groups: the indexes of a store that has no database to keep them.

    Adding and removing moves what stands behind, at about a nanosecond for ten positions. New ones stand at the end
    almost always, and a list beats a tree up to some millions.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[Position]] = {}

    def add(self, group: Hashable, position: Position) -> None:
        """Add a position that is not there."""
        insort(self._groups.setdefault(group, []), position)

    def remove(self, group: Hashable, position: Position) -> None:
        """Remove a position that is there."""
        positions = self._groups[group]
        del positions[bisect_left(positions, position)]
        if not positions:
            del self._groups[group]

    def after(self, group: Hashable, position: Position = ()) -> Iterator[Position]:
        """The positions behind one, which need not be there. Add and remove nothing before the last was taken."""
        positions = self._groups.get(group, [])
        for number in range(bisect_right(positions, position), len(positions)):
            yield positions[number]

    def before(self, group: Hashable, position: Position | None = None) -> Iterator[Position]:
        """The same backwards: the positions before one, or all, from the last to the first."""
        positions = self._groups.get(group, [])
        for number in range(len(positions) if position is None else bisect_left(positions, position), 0, -1):
            yield positions[number - 1]

    def count(self, group: Hashable, step: Position = ()) -> int:
        """How many positions of the group begin with `step`."""
        positions = self._groups.get(group, [])
        return self._behind(positions, step) - bisect_left(positions, step)

    def following(self, group: Hashable, step: Position = (), after: Any = None) -> Any:
        """The next value of positions that begin with `step`: the smallest beyond `after`, or None."""
        positions = self._groups.get(group, [])
        number = bisect_left(positions, step) if after is None else self._behind(positions, (*step, after))
        if number == len(positions) or positions[number][: len(step)] != step:
            return None
        return positions[number][len(step)]

    def heads(self, group: Hashable) -> Iterator[Any]:
        """The first values of positions of the group, each once."""
        head = self.following(group)
        while head is not None:
            yield head
            head = self.following(group, after=head)

    def _behind(self, positions: list[Position], step: Position) -> int:
        """Where the positions end that begin with `step`."""
        return bisect_right(positions, step, key=lambda position: position[: len(step)])


@dataclass(slots=True)
class _Task:
    """All that is kept of a task.

    Attributes:
        size: Bytes of request, journal and outcome.
        under: Where its idempotency key is, as long as it has it, and
        outlives: for how long the key outlives it.
        since: Since when it is queued; None if it is not.
        handed: Whether it is queued and dispatched.
    """

    record: TaskRecord
    request: bytes
    size: int
    under: Under | None
    outlives: timedelta | None
    lines: list[Line] = field(default_factory=list[Line])
    outcome: Outcome | None = None
    since: int | None = None
    handed: bool = False

    def free_at(self, gone: int | None = None) -> int:
        """When its key is free, if the task is gone since then, or else expired."""
        gone = expiry(self.record) if gone is None else gone
        return (sort_key(self.record) if gone is None else gone) + (self.outlives or timedelta(0)) // MICROSECOND


def _add(counter: Counter[K], place: K, number: int) -> None:
    """Count, and keep no zeros: owners come and go."""
    counter[place] += number
    if not counter[place]:
        del counter[place]


def _owner(owner: str | None) -> Owner:
    return () if owner is None else (owner,)


def _route(record: TaskRecord) -> Route:
    return record.queue, _owner(record.owner), (record.method, record.name)


def _places(task: _Task) -> Iterator[tuple[Hashable, Position]]:
    """Where the task is to be found: an index, and its position there."""
    record = task.record
    namespace, task_id, created, expires = record.namespace, record.id, (sort_key(record), record.id), expiry(record)
    queue, owner, tool = route = _route(record)
    yield ("", namespace, None), created
    yield ("owner", namespace, record.owner), created
    if record.session is not None:
        yield ("session", namespace, record.session), created
    if record.parent is not None:
        yield ("parent", namespace, record.parent), created
    if record.worker is not None:
        yield ("claimed", record.worker), created
        yield ("working", namespace), (record.worker, task_id)
    if task.since is not None:
        yield ("queued", namespace), created
        yield ("queued", namespace, task.handed), created
        yield ("backlog", namespace), (queue, task.since, task_id)
        if task.handed:
            yield ("handed", namespace, route), (task_id,)
            yield ("in hand of tool", namespace, tool), ("handed", task_id)
        else:
            yield ("waiting", namespace), (queue, -record.priority, owner, tool, *created)
    elif (ready_at := ready(record)) is not None:
        yield ("parked", namespace), (ready_at, task_id)
        yield ("parked by queue", namespace), (queue, ready_at, task_id)
    if is_at_work(record):
        mark = "resuming" if is_resuming(record) else "at work"
        yield ("at work of owner", namespace, owner), (mark, task_id)
        yield ("in hand of tool", namespace, tool), (mark, task_id)
    if expires is not None:
        yield "expiring", (expires, *created)


class _Waiting(Waiting):
    """The tasks that wait in one namespace."""

    def __init__(self, order: Ordered, tasks: dict[str, _Task], namespace: str) -> None:
        self._order = order
        self._tasks = tasks
        self._namespace = namespace

    def room(self, share: Share) -> Room:
        return Room(self, share, {(TOOL_METHOD, name): limit for name, limit in share.tools.items()})

    def following(self, step: Step, after: Any = None) -> Any:
        return self._order.following(("waiting", self._namespace), step, after)

    def tasks(self, step: Step) -> Iterator[Any]:
        waiting = self._order.after(("waiting", self._namespace), step)
        return (place[len(step) :] for place in takewhile(lambda place: place[: len(step)] == step, waiting))

    def ready(self, task_id: str) -> Ready:
        return ready_of(self._tasks[task_id].record)

    def handed(self, route: Route, most: int) -> int:
        return self._order.count(("handed", self._namespace, route))

    def owner_at_work(self, owner: Owner, most: int) -> int:
        return self._order.count(("at work of owner", self._namespace, owner))

    def of_tool(self, tool: tuple[str, str], most: int) -> int:
        return self._order.count(("in hand of tool", self._namespace, tool))


class MemoryStore(Store):
    """Keeps tasks in this process's memory. They stay until the object goes, also when the store is closed."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._tasks: dict[str, _Task] = {}
        self._order = Ordered()
        self._open_tasks: Counter[tuple[str, Owner | None]] = Counter()
        self._bytes: Counter[tuple[str, Owner]] = Counter()
        self._keys: dict[Under, str] = {}
        # Keys whose tasks are gone, until when they are taken, and the same in the order of that.
        self._spent: dict[Under, int] = {}
        self._spent_until: list[tuple[int, Under]] = []
        self._children: dict[str, dict[Under, str]] = {}
        self._turns: Turns = {}
        self._beats: dict[str, tuple[str, int]] = {}
        self._notes: dict[tuple[str, str], bytes] = {}
        self._notifier = Notifier()

    def __repr__(self) -> str:
        return "MemoryStore()"

    def notifier(self) -> Notifier:
        """Hints within this process; no other can share this store."""
        return self._notifier

    # ---- writing

    async def _create(self, new: Creation) -> Created:
        record, now = new.record, sort_key(new.record)
        under = None if new.key is None else (record.namespace, _owner(record.owner), new.key)
        standing = None if under is None else self._tasks.get(self._keys.get(under, ""))
        loses_key = new.key_until_end and standing is not None and standing.record.is_final
        if standing is not None and not loses_key and not is_expired(standing.record, record.created_at):
            return Created(standing=standing.record)
        parent = self._tasks.get(record.parent or "")
        if parent is not None and parent.record.is_final:
            parent = None
        if under is not None and not new.key_until_end:
            children = {} if parent is None else self._children.get(parent.record.id, {})
            if record.parent is not None and (parent is None or under in children):
                return Created(spent=True, child=children.get(under))
            if standing is None:
                free_at = self._spent.get(under, now)
            else:
                free_at = now if standing.outlives is None else standing.free_at()
            if free_at > now:
                return Created(spent=True)
        if record.id in self._tasks:
            return Created(exists=True)
        if standing is not None:
            self._free_key(standing) if loses_key else self._forget(standing)
        task = _Task(record, new.request, 0, under, new.key_outlives)
        self._put(task, record)
        self._grow(task, len(new.request))
        if under is not None:
            self._spent.pop(under, None)
            self._keys[under] = record.id
            if parent is not None:
                self._children.setdefault(parent.record.id, {})[under] = record.id
        if new.handing is not None and task.since is not None:
            room = _Waiting(self._order, self._tasks, record.namespace).room(new.handing.share)
            self._mark(task, handed=room.has(_route(record)))
        return Created(handed=task.handed)

    async def _save(self, change: Change) -> bool:
        record, outcome = change.record, change.outcome
        task = self._tasks.get(record.id)
        if task is None or task.record.version != change.expected:
            return False
        self._check_limits(task.record, change.limits or WorkLimits())
        self._put(task, record)
        task.lines += change.lines
        self._grow(task, sum(len(value) for _, _, value in change.lines))
        if outcome is not None:
            self._grow(task, size_of(outcome) - (0 if task.outcome is None else size_of(task.outcome)))
            task.outcome = outcome
        return True

    def _check_limits(self, record: TaskRecord, limits: WorkLimits) -> None:
        owner, tool = _owner(record.owner), (record.method, record.name)
        # Of tasks that are resuming, none counts against another.
        marks = ("at work",) if is_resuming(record) else ("at work", "resuming")
        for what, limit, group in (
            ("tool", limits.tool, ("in hand of tool", record.namespace, tool)),
            ("owner", limits.owner, ("at work of owner", record.namespace, owner)),
        ):
            counts = (self._order.count(group, (mark,)) - self._order.count(group, (mark, record.id)) for mark in marks)
            if limit is not None and sum(counts) >= limit:
                raise LimitReached(record.id, what)

    async def _delete(self, task_id: str, expected: int, now: int | None) -> bool:
        task = self._tasks.get(task_id)
        if task is None or task.record.version != expected:
            return False
        self._forget(task, now)
        return True

    async def _forget_expired(self, now: int, limit: int, records: bool) -> Sequence[tuple[int, str, Kept | None]]:
        overdue = takewhile(lambda place: place[0] <= now, self._order.after("expiring"))
        found = [self._tasks[task_id] for _, _, task_id in islice(overdue, limit)]
        for task in found:
            self._forget(task)
        while self._spent_until and self._spent_until[0][0] <= now:
            until, under = heappop(self._spent_until)
            if self._spent.get(under) == until:
                del self._spent[under]
        return [(task.record.version, task.record.id, task.record if records else None) for task in found]

    async def hand_out(
        self, namespace: str, share: Share, *, queues: Collection[str] | None = None, mark: bool = True, limit: int
    ) -> Sequence[Ready]:
        waiting = _Waiting(self._order, self._tasks, namespace)
        chosen = Choice(waiting, waiting.room(share), queues, limit).make(namespace, self._turns)
        for task in chosen if mark else ():
            self._mark(self._tasks[task.id], handed=True)
        return chosen

    async def hand_back(self, task_id: str) -> None:
        task = self._tasks.get(task_id)
        if task is not None and task.since is not None:
            self._mark(task, handed=False)

    async def heartbeat(self, worker: str, *, namespace: str, beats: int) -> int:
        before = self._beats.get(worker, ("", 0))[1]
        self._beats[worker] = namespace, max(before, beats)
        return before

    async def retire(self, worker: str) -> None:
        self._beats.pop(worker, None)

    async def _set_note(self, namespace: str, name: str, seen: object, value: bytes) -> bool:
        if self._notes.get((namespace, name)) != seen:
            return False
        self._notes[namespace, name] = value
        return True

    def _put(self, task: _Task, record: TaskRecord) -> None:
        """Have a task as this record."""
        is_new = record.id not in self._tasks
        before = set[tuple[Hashable, Position]]() if is_new else set(_places(task))
        self._count(record, (not record.is_final) - (not is_new and not task.record.is_final))
        self._tasks[record.id] = task
        task.record = record
        if record.is_final:
            self._children.pop(record.id, None)
        if record.ready_at != ALWAYS:
            task.since, task.handed = None, False
        elif task.since is None:
            task.since = queued_since(record)
        self._move(before, set(_places(task)))

    def _mark(self, task: _Task, *, handed: bool) -> None:
        before = set(_places(task))
        task.handed = handed
        self._move(before, set(_places(task)))

    def _move(self, before: set[tuple[Hashable, Position]], now: set[tuple[Hashable, Position]]) -> None:
        for group, position in before - now:
            self._order.remove(group, position)
        for group, position in now - before:
            self._order.add(group, position)

    def _count(self, record: TaskRecord, number: int) -> None:
        for owner in (_owner(record.owner), None) if number else ():
            _add(self._open_tasks, (record.namespace, owner), number)

    def _grow(self, task: _Task, size: int) -> None:
        task.size += size
        _add(self._bytes, (task.record.namespace, _owner(task.record.owner)), size)

    def _forget(self, task: _Task, now: int | None = None) -> None:
        self._children.pop(task.record.id, None)
        self._move(set(_places(task)), set())
        self._count(task.record, -(not task.record.is_final))
        self._grow(task, -task.size)
        del self._tasks[task.record.id]
        if task.under is not None:
            under, until = task.under, task.free_at(now)
            self._free_key(task)
            if task.outlives is not None:
                self._spent[under] = until
                heappush(self._spent_until, (until, under))

    def _free_key(self, task: _Task) -> None:
        if task.under is not None:
            self._keys.pop(task.under, None)
            task.under = None

    # ---- reading

    async def _read(
        self, task_id: str, part: Part | None = None, *, owner: AnyOwner = EVERYBODY, most: int | None = None
    ) -> tuple[Kept, Sequence[Any]] | None:
        task = self._tasks.get(task_id)
        if task is None or (owner is not EVERYBODY and task.record.owner != owner):
            return None
        if part == "request":
            return task.record, (task.request if most is None or len(task.request) <= most else None,)
        outcome = task.outcome
        return task.record, (None, None) if outcome is None else (outcome.body, outcome.meta)

    async def _journal(self, task_id: str, after: int) -> tuple[None, Sequence[tuple[int, str, str, bytes]]]:
        task = self._tasks.get(task_id)
        return None, [(number, *line) for number, line in enumerate(task.lines[after:] if task else (), after + 1)]

    async def _list(self, listing: Listing) -> tuple[Sequence[tuple[Place, Kept]], None]:
        index, order = (listing.field, listing.namespace, listing.of), self._order
        places = order.before(index, listing.after) if listing.newest_first else order.after(index, listing.after or ())
        now = from_micros(listing.now)
        wanted = (
            ((created, task_id), record)
            for created, task_id in places
            if (record := self._tasks[task_id].record).status is (listing.status or record.status)
            and not is_expired(record, now)
        )
        return list(islice(wanted, listing.limit)), None

    async def _ids(self, sweep: Sweep) -> Sequence[Place]:
        group: Hashable = {"queued": "queued", "due": "parked", "claimed": "claimed"}[sweep.kind], sweep.of
        if sweep.handed_out is not None:
            group = (*group, sweep.handed_out)
        found: Iterator[Any] = self._order.after(group, sweep.after or ())
        if sweep.kind == "due":
            found = takewhile(lambda place: place[0] <= sweep.now, found)
        return list(islice(found, sweep.limit))

    async def _backlog(self, namespace: str, now: int) -> Iterable[tuple[str, int, int | None, int | None]]:
        order, queued, parked = self._order, ("backlog", namespace), ("parked by queue", namespace)
        for_each: list[tuple[str, int, int | None, int | None]] = []
        for queue in {*order.heads(queued), *order.heads(parked)}:
            sleeping = order.after(parked, (queue,))
            woken = takewhile(lambda place, queue=queue: place[0] == queue and place[1] <= now, sleeping)
            due = [ready_at for _, ready_at, _ in islice(woken, MOST_COUNTED)]
            count = order.count(queued, (queue,)) + len(due)
            for_each.append((queue, count, order.following(queued, (queue,)), due[0] if due else None))
        return for_each

    async def _note(self, namespace: str, name: str) -> bytes | None:
        return self._notes.get((namespace, name))

    async def versions(self, task_ids: Collection[str]) -> dict[str, int]:
        return {task_id: self._tasks[task_id].record.version for task_id in task_ids if task_id in self._tasks}

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        return self._keys.get((namespace, _owner(owner), key))

    async def usage(self, namespace: str, whose: Owners) -> Usage:
        if whose is EVERYBODY:
            return Usage(open_tasks=min(self._open_tasks[namespace, None], MOST_COUNTED), stored_bytes=0)
        place = namespace, _owner(narrowed(whose)[1])
        return Usage(open_tasks=min(self._open_tasks[place], MOST_COUNTED), stored_bytes=self._bytes[place])

    async def workers(self, namespace: str) -> dict[str, int]:
        beating = [worker for worker, (beats_for, _) in self._beats.items() if beats_for == namespace]
        having = self._order.heads(("working", namespace))
        return {worker: self._beats.get(worker, ("", 0))[1] for worker in (*beating, *having)}

    async def namespaces(self) -> Sequence[str]:
        beating = (namespace for namespace, _ in self._beats.values())
        return sorted({*(task.record.namespace for task in self._tasks.values()), *beating})
