"""Which queued tasks are dispatched: those of a higher priority first, and owners by turns.

`Choice` looks at what waits by seeks in an index whose entries are ordered by queue, priority (the highest first),
owner, tool, creation and id. From each entry it goes to the next queue, priority, owner or tool and reads nothing in
between: ten thousand tasks of one owner, or of a tool without room, cost what one costs. A store that can run Python
between two looks derives from `Waiting`. Redis does the same in a script (`redis/lua/hand_out.lua`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from math import inf
from typing import Any, TypeAlias

from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.base import Ready, Share

Step: TypeAlias = tuple[Any, ...]
"""The first values of an entry of the index, as the store writes them. Priorities are negative."""

Route: TypeAlias = tuple[Any, Any, Any]
"""Queue, owner and tool, as the store writes them."""

Position: TypeAlias = tuple[int, Any]
"""Creation and id of a task, as the store writes them."""

Turns: TypeAlias = dict[tuple[str, int], Any]
"""The owner whose turn was last, for each server and priority."""

TOOL_METHOD = "tools/call"
"""The method of the tasks that a share of a tool counts."""


def ready_of(record: TaskRecord) -> Ready:
    """A task as it is dispatched."""
    return Ready(
        id=record.id,
        owner=record.owner,
        method=record.method,
        name=record.name,
        queue=record.queue,
        priority=record.priority,
    )


class Hands(ABC):
    """How many tasks of one server are in hand: dispatched, or at work. Counting may stop at `most`."""

    @abstractmethod
    def handed(self, route: Route, most: int) -> int:
        """Tasks of the route that are dispatched and not claimed."""

    @abstractmethod
    def owner_at_work(self, owner: Any, most: int) -> int:
        """Tasks of the owner that are at work."""

    @abstractmethod
    def of_tool(self, tool: Any, most: int) -> int:
        """Tasks of the tool that are dispatched or at work."""


class Waiting(Hands):
    """The tasks of one server that are queued and not dispatched."""

    @abstractmethod
    def following(self, step: Step, after: Any = None) -> Any:
        """The next value of entries that begin with `step`: the smallest beyond `after`, or None."""

    @abstractmethod
    def tasks(self, step: Step) -> Iterator[Position]:
        """The tasks of a queue, priority, owner and tool in the order of creation."""

    @abstractmethod
    def ready(self, task_id: Any) -> Ready | None:
        """The task, if it can be read."""


class Room:
    """How many more tasks may be dispatched within a share. Each number is counted when it is asked for.

    Args:
        limits: The limits of tools, which are named as in the index.
    """

    def __init__(self, hands: Hands, share: Share, limits: Mapping[Any, int]) -> None:
        self._hands = hands
        self._share = share
        self._limits = limits
        self._tools: dict[Any, float] = {}
        self._owners: dict[Any, float] = {}
        self._routes: dict[Route, float] = {}

    def of_owner(self, owner: Any) -> float:
        """How many more tasks of the owner may be at work."""
        if owner not in self._owners:
            limit = self._share.owner_at_work
            self._owners[owner] = inf if limit is None else limit - self._hands.owner_at_work(owner, limit)
        return self._owners[owner]

    def has(self, route: Route) -> bool:
        """Whether one more task of the route may be dispatched."""
        _, owner, tool = route
        if tool not in self._tools:
            limit = self._limits.get(tool)
            self._tools[tool] = inf if limit is None else limit - self._hands.of_tool(tool, limit)
        if self._tools[tool] <= 0:
            return False
        if route not in self._routes:
            most = self._share.owner
            self._routes[route] = min(most - self._hands.handed(route, most), self.of_owner(owner))
        return self._routes[route] > 0

    def take(self, route: Route) -> None:
        """Count one more task of a route that has room."""
        self._routes[route] -= 1
        self._tools[route[2]] -= 1


class Choice:
    """One choice among what waits, within a share.

    Args:
        queues: The queues to choose from, named as in the index; None for all.
    """

    def __init__(self, waiting: Waiting, room: Room, queues: Collection[Any] | None, limit: int) -> None:
        self._waiting = waiting
        self._room = room
        self._queues = list(self._distinct(()) if queues is None else dict.fromkeys(queues))
        self._limit = limit
        self._chosen: list[Ready] = []

    def make(self, namespace: str, turns: Turns) -> list[Ready]:
        """The tasks, in the order in which they are dispatched."""
        for rank in sorted({rank for queue in self._queues for rank in self._distinct((queue,))}):
            if len(self._chosen) >= self._limit:
                break
            served = self._choose_at(rank, turns.get((namespace, rank)))
            if served is not None:
                turns[namespace, rank] = served
        return self._chosen

    def _choose_at(self, rank: int, last: Any) -> Any:
        """Choose among the tasks of one priority; gives the owner whose turn was last."""
        served = None
        # In the first round each owner is looked up when its turn comes: mostly there are enough tasks before that.
        ring: Iterable[tuple[Any, Iterator[tuple[Position, Route]]]]
        ring = ((owner, self._line(rank, owner)) for owner in self._ring(rank, last))
        while True:
            left: list[tuple[Any, Iterator[tuple[Position, Route]]]] = []
            for owner, line in ring:
                if self._take(line):
                    served = owner
                    left.append((owner, line))
                    if len(self._chosen) >= self._limit:
                        return served
            if not left:
                return served
            ring = left

    def _take(self, line: Iterator[tuple[Position, Route]]) -> bool:
        """Choose the next task of an owner, if there is one within the share."""
        for (_, task_id), route in line:
            if self._room.has(route) and (ready := self._waiting.ready(task_id)) is not None:
                self._chosen.append(ready)
                self._room.take(route)
                return True
        return False

    def _ring(self, rank: int, last: Any) -> Iterator[Any]:
        """The owners that have tasks of this priority, each once, beginning behind the one whose turn was last."""
        if last is None:
            return self._owners(rank)
        return chain(self._owners(rank, after=last), self._owners(rank, until=last))

    def _owners(self, rank: int, *, after: Any = None, until: Any = None) -> Iterator[Any]:
        while True:
            following = [self._waiting.following((queue, rank), after) for queue in self._queues]
            found = [owner for owner in following if owner is not None]
            if not found:
                return
            after = min(found)
            if until is not None and after > until:
                return
            yield after

    def _line(self, rank: int, owner: Any) -> Iterator[tuple[Position, Route]]:
        """The tasks of an owner in the order of creation, over all queues and tools."""
        if self._room.of_owner(owner) <= 0:
            return iter(())
        steps = [(queue, rank, owner) for queue in self._queues]
        return merge(*(self._of_tool(step, tool) for step in steps for tool in self._distinct(step)))

    def _of_tool(self, step: Step, tool: Any) -> Iterator[tuple[Position, Route]]:
        queue, _, owner = step
        route = queue, owner, tool
        if self._room.has(route):
            for position in self._waiting.tasks((*step, tool)):
                yield position, route
                if not self._room.has(route):
                    return

    def _distinct(self, step: Step) -> Iterator[Any]:
        value = self._waiting.following(step)
        while value is not None:
            yield value
            value = self._waiting.following(step, value)
