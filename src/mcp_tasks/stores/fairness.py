"""Which queued tasks are handed out: those of a higher priority first, and owners by turns.

What waits is looked at by seeks in an index whose entries are ordered by queue, priority (the highest first), owner,
tool, creation and id. From each entry one can go to the next queue, priority, owner or tool: what is skipped is not
looked at, so ten thousand tasks of one owner, or of a tool that has no room, cost what one costs.

For stores that have such an index and run Python between two looks: `Waiting` is what they give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from typing import Any, Protocol, TypeAlias

from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.base import Ready, Share

Step: TypeAlias = tuple[Any, ...]
"""The first values of an entry of the index, as the store writes them."""

Place: TypeAlias = tuple[int, Any]
"""Creation and id of a task, as the store writes them."""

TOOL_METHOD = "tools/call"
"""The method of the tasks that a share of a tool counts."""


Route: TypeAlias = tuple[Any, Any, Any]
"""Queue, owner and tool, as the store writes them."""


class Hands(Protocol):
    """How many tasks of one server are in hand: handed out, or at work. All are named as in the index."""

    def handed(self, route: Route, most: int) -> int:
        """How many tasks of the route are handed out and not claimed; counting may stop at `most`."""
        ...

    def owner_at_work(self, owner: Any, most: int) -> int:
        """How many tasks of the owner are at work."""
        ...

    def of_tool(self, tool: Any, most: int) -> int:
        """How many tasks of the tool are handed out or at work."""
        ...


class Waiting(Hands, Protocol):
    """The tasks of one server that are queued and not handed out."""

    def following(self, step: Step, after: Any = None) -> Any:
        """What entries that begin with `step` have next, beyond `after`: its smallest value, or None.

        Priorities are negative here, so that the highest comes first.
        """
        ...

    def tasks(self, step: Step) -> Iterator[Place]:
        """The tasks of a queue, priority, owner and tool in the order of creation."""
        ...

    def ready(self, task_id: Any) -> Ready | None:
        """The task, if it can be read."""
        ...


def ready_of(record: TaskRecord) -> Ready:
    """A task as it is handed out."""
    return Ready(
        id=record.id,
        owner=record.owner,
        method=record.method,
        name=record.name,
        queue=record.queue,
        priority=record.priority,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """What a share leaves.

    Attributes:
        limits: The shares of tools, named as in the index.
    """

    hands: Hands
    share: Share
    limits: dict[Any, int]

    def of_route(self, route: Route) -> int:
        """How many more tasks of the route may be handed out, as far as the owner has room."""
        return self.share.owner - self.hands.handed(route, self.share.owner)

    def of_owner(self, owner: Any) -> int | None:
        """How many more tasks of the owner may be at work; None for any number."""
        limit = self.share.owner_at_work
        return None if limit is None else limit - self.hands.owner_at_work(owner, limit)

    def of_tool(self, tool: Any) -> int | None:
        """How many more tasks of the tool may be handed out; None for any number."""
        limit = self.limits.get(tool)
        return None if limit is None else limit - self.hands.of_tool(tool, limit)

    def has(self, route: Route) -> bool:
        """Whether one more task of the route may be handed out."""
        _, owner, tool = route
        rooms = (self.of_tool(tool), self.of_owner(owner), self.of_route(route))
        return all(room is None or room > 0 for room in rooms)


@dataclass(slots=True)
class Turns:
    """Whose turn it was last, for each server and priority."""

    last: dict[tuple[str, int], Any] = field(default_factory=dict[tuple[str, int], Any])


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
        self._owners: dict[Any, int | None] = {}
        self._routes: dict[Route, int] = {}
        self._tools: dict[Any, int | None] = {}
        self._chosen: list[Ready] = []

    def make(self, namespace: str, turns: Turns) -> list[Ready]:
        """The tasks, in the order in which they are handed out."""
        for rank in self._ranks():
            if self._is_full:
                break
            key = namespace, rank
            last = self._choose_at(rank, turns.last.get(key))
            if last is not None:
                turns.last[key] = last
        return self._chosen

    @property
    def _is_full(self) -> bool:
        return len(self._chosen) >= self._limit

    def _choose_at(self, rank: int, last: Any) -> Any:
        """Choose among the tasks of one priority; whose task was the last."""
        lines: dict[Any, Iterator[tuple[Place, Route]]] = {}
        served = None
        # In the first round each owner is looked up when it has its turn: mostly there are enough tasks before that.
        for owner in self._ring(rank, last):
            lines[owner] = self._line(rank, owner)
            if self._take(owner, lines):
                served = owner
            if self._is_full:
                return served
        while lines:
            for owner in list(lines):
                if self._take(owner, lines):
                    served = owner
                if self._is_full:
                    return served
        return served

    def _take(self, owner: Any, lines: dict[Any, Iterator[tuple[Place, Route]]]) -> bool:
        """Choose the next task of an owner; an owner who has none within the share is out."""
        for (_, task_id), route in lines[owner]:
            if self._is_full_for(route) or (ready := self._waiting.ready(task_id)) is None:
                continue
            self._chosen.append(ready)
            self._routes[route] -= 1
            _, _, tool = route
            if (room := self._tools[tool]) is not None:
                self._tools[tool] = room - 1
            return True
        del lines[owner]
        return False

    def _is_full_for(self, route: Route) -> bool:
        _, _, tool = route
        if tool not in self._tools:
            self._tools[tool] = self._room.of_tool(tool)
        room = self._tools[tool]
        return (room is not None and room <= 0) or self._route_room(route) <= 0

    def _route_room(self, route: Route) -> int:
        if route not in self._routes:
            _, owner, _ = route
            of_route, of_owner = self._room.of_route(route), self._owner_room(owner)
            self._routes[route] = of_route if of_owner is None else min(of_route, of_owner)
        return self._routes[route]

    def _owner_room(self, owner: Any) -> int | None:
        if owner not in self._owners:
            self._owners[owner] = self._room.of_owner(owner)
        return self._owners[owner]

    def _ranks(self) -> list[int]:
        return sorted({rank for queue in self._queues for rank in self._distinct((queue,))})

    def _ring(self, rank: int, last: Any) -> Iterator[Any]:
        """The owners that have tasks of this priority, each once, beginning behind the one who was last."""
        if last is None:
            return self._owners_between(rank)
        return chain(self._owners_between(rank, after=last), self._owners_between(rank, until=last))

    def _owners_between(self, rank: int, *, after: Any = None, until: Any = None) -> Iterator[Any]:
        while True:
            following = [self._waiting.following((queue, rank), after) for queue in self._queues]
            found = [owner for owner in following if owner is not None]
            if not found:
                return
            after = min(found)
            if until is not None and after > until:
                return
            yield after

    def _line(self, rank: int, owner: Any) -> Iterator[tuple[Place, Route]]:
        """The tasks of an owner in the order of creation, over all queues and tools."""
        of_owner = self._owner_room(owner)
        if of_owner is not None and of_owner <= 0:
            return iter(())
        steps = [(queue, rank, owner) for queue in self._queues]
        return merge(*(self._of_tool(step, tool) for step in steps for tool in self._distinct(step)))

    def _of_tool(self, step: Step, tool: Any) -> Iterator[tuple[Place, Route]]:
        queue, _, owner = step
        route = queue, owner, tool
        if self._is_full_for(route):
            return
        for place in self._waiting.tasks((*step, tool)):
            yield place, route
            if self._is_full_for(route):
                return

    def _distinct(self, step: Step) -> Iterator[Any]:
        value = self._waiting.following(step)
        while value is not None:
            yield value
            value = self._waiting.following(step, value)
