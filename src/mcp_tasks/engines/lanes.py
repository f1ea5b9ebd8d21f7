"""Ids in line for a slot: by priority, then in two lanes that take turns, in each of which owners take turns. Owners
who have their share of the slots are passed over while others are in line.

Putting an id in line and taking one costs the same however many are in line, and whosever they are.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict, deque
from collections.abc import Set
from dataclasses import dataclass, field

from mcp_tasks.engines.base import Lane


class Lanes:
    """Ids in line: the urgent first, new ones and those submitted again by turns. No id is in line twice."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._ids: set[str] = set()
        self._counts: Counter[Lane] = Counter()
        self.priorities: list[int] = []
        """Those that have ids in line, the lowest first."""

    def __len__(self) -> int:
        return len(self._ids)

    def count(self, lane: Lane) -> int:
        """How many are in one lane."""
        return self._counts[lane]

    def put(self, task_id: str, lane: Lane, *, owner: str | None = None, priority: int = 0) -> None:
        """Put an id at the end of the line of its owner, unless it is in line already."""
        if task_id in self._ids:
            return
        self._ids.add(task_id)
        self._counts[lane] += 1
        if priority not in self._levels:
            self._levels[priority] = _Level()
            insort(self.priorities, priority)
        self._levels[priority].lanes[lane].put(task_id, owner)

    def take(self, passed_over: Set[str] = frozenset()) -> tuple[str, str | None]:
        """Take the id whose turn it is, and whose it is: one of an owner that is not passed over, if there is any."""
        found = self._find(passed_over) or self._find(frozenset())
        if found is None:
            raise IndexError("nobody is in line")
        task_id, owner, lane = found
        self._ids.remove(task_id)
        self._counts[lane] -= 1
        return task_id, owner

    def _find(self, passed_over: Set[str]) -> tuple[str, str | None, Lane] | None:
        for priority in reversed(self.priorities):
            level = self._levels[priority]
            found = level.take(passed_over)
            if found is not None:
                if level.is_empty:
                    del self._levels[priority]
                    self.priorities.remove(priority)
                return found
        return None

    def clear(self) -> None:
        """Forget every id."""
        self._levels.clear()
        self._ids.clear()
        self._counts.clear()
        self.priorities.clear()


class _Owners:
    """The ids of one lane, with owners that take turns: whoever had one goes to the end."""

    def __init__(self) -> None:
        # Not a dict: to find the first of one from which many were taken takes the longer the more there were.
        self._lines: OrderedDict[str | None, deque[str]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def put(self, task_id: str, owner: str | None) -> None:
        self._lines.setdefault(owner, deque()).append(task_id)

    def take(self, passed_over: Set[str]) -> tuple[str, str | None] | None:
        # As many steps as there are owners that have their share, at most, and one: these are few, by what a share is.
        for owner in self._lines:
            if owner not in passed_over:
                line = self._lines.pop(owner)
                task_id = line.popleft()
                if line:
                    self._lines[owner] = line
                return task_id, owner
        return None


@dataclass(slots=True)
class _Level:
    """The ids of one priority."""

    lanes: dict[Lane, _Owners] = field(default_factory=lambda: {"new": _Owners(), "again": _Owners()})
    next_lane: Lane = "again"

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in line."""
        return not any(self.lanes.values())

    def take(self, passed_over: Set[str]) -> tuple[str, str | None, Lane] | None:
        """The id whose turn it is, its owner and its lane; None if all owners are passed over."""
        for lane in (self.next_lane, _other(self.next_lane)):
            taken = self.lanes[lane].take(passed_over)
            if taken is not None:
                self.next_lane = _other(lane)
                return *taken, lane
        return None


def _other(lane: Lane) -> Lane:
    return "new" if lane == "again" else "again"
