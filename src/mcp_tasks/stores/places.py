"""Where a task is to be found in a store that keeps its indexes itself: groups of `Ordered`, and the place in each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from typing import Any, TypeAlias

from mcp_tasks.core.record import ALWAYS, TaskRecord
from mcp_tasks.stores.base import EVERYBODY, ChildrenOf, InSession, OwnedBy, Whose
from mcp_tasks.stores.columns import (
    earliest,
    expiry,
    is_at_work,
    is_resuming,
    queued_since,
    ready,
    sort_key,
    to_micros,
)
from mcp_tasks.stores.fairness import TOOL_METHOD, Room, Route, Step, ready_of
from mcp_tasks.stores.ordered import Ordered, Place
from mcp_tasks.stores.shares import MOST_COUNTED, Backlog, Ready, Share

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
    if ready(record) != _AT_ANY_TIME:
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
    elif (ready_at := ready(record)) is not None:
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


def listing(namespace: str, whose: Whose) -> Hashable:
    """Where to look for the tasks of a listing."""
    if isinstance(whose, InSession):
        return "session", namespace, whose.session
    if isinstance(whose, ChildrenOf):
        return "parent", namespace, whose.parent
    if whose is EVERYBODY:
        return "listed", namespace
    return "owned", namespace, (whose.owner,) if isinstance(whose, OwnedBy) else ()


def backlog_of(order: Ordered, namespace: str, now: datetime) -> dict[str, Backlog]:
    """What is queued in each queue, or slept and is to wake by now."""
    queued, parked, instant = ("backlog", namespace), ("parked by queue", namespace), to_micros(now)
    found: dict[str, Backlog] = {}
    for queue in {*order.heads(queued), *order.heads(parked)}:
        sleeping = takewhile(lambda place, queue=queue: place[0] == queue, order.after(parked, (queue,)))
        woken = takewhile(lambda place: place[1] <= instant, sleeping)
        due = [ready_at for _, ready_at, _ in islice(woken, MOST_COUNTED)]
        since = order.following(queued, (queue,))
        if count := order.count(queued, (queue,)) + len(due):
            found[queue] = Backlog(ready=min(count, MOST_COUNTED), since=earliest(since, *due[:1]))
    return found


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
