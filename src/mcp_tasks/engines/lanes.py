"""Ids in line for a slot, in two lanes that take turns."""

from __future__ import annotations

from mcp_tasks.engines.base import Lane


class Lanes:
    """Ids in line: new ones, and those submitted again, by turns. No id is in line twice."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, dict[str, None]] = {"new": {}, "again": {}}
        self._next: Lane = "again"

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def count(self, lane: Lane) -> int:
        """How many are in one lane."""
        return len(self._lanes[lane])

    def put(self, task_id: str, lane: Lane) -> None:
        """Put an id at the end of its lane, unless it is in line already."""
        if not any(task_id in ids for ids in self._lanes.values()):
            self._lanes[lane][task_id] = None

    def take(self) -> str:
        """Take the id whose turn it is."""
        lane = self._next if self._lanes[self._next] else _other(self._next)
        self._next = _other(lane)
        task_id = next(iter(self._lanes[lane]))
        del self._lanes[lane][task_id]
        return task_id

    def clear(self) -> None:
        """Forget every id."""
        for ids in self._lanes.values():
            ids.clear()


def _other(lane: Lane) -> Lane:
    return "new" if lane == "again" else "again"
