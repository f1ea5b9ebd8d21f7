"""For how long tasks have been idle, as one process sees it.

Times of two machines are never compared, so nobody can say how long a queued task has waited: a process remembers when
it first saw it queued at its version, and counts from there on a clock of its own. What it submits again it leaves
alone for as long as the task was idle before, so the pauses double, up to some minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

SHORTEST_PAUSE = timedelta(seconds=1)
"""Between the first submission of a task and the next."""

LONGEST_PAUSE = timedelta(minutes=5)
"""However long a task has been idle, it is submitted again after this long: its id may have been lost each time."""

MAX_KNOWN = 10_000
"""Tasks that are remembered at a time: some megabytes."""

TURNS = 16
"""Of the tasks that cannot be remembered, another part is submitted in each round, so that each has its turn."""


@dataclass(slots=True)
class _Sighting:
    version: int
    since: float
    """When the task was first seen at this version."""
    quiet_until: float
    """Until when it is left alone, because it was submitted not long ago."""
    round: int
    """The last round of looks in which it was seen."""


class Idleness:
    """What one process remembers of the idle tasks of a listing.

    Args:
        clock: Seconds on a clock that is never set.
        limit: How many tasks are remembered.
    """

    def __init__(self, clock: Callable[[], float], *, limit: int = MAX_KNOWN) -> None:
        self._clock = clock
        self._limit = limit
        self._round = 0
        # Apart, in the order in which they got there: what was submitted longest ago can be forgotten for others. What
        # has not been must not, or with enough tasks none would ever have been idle for long.
        self._waiting: dict[str, _Sighting] = {}
        self._submitted: dict[str, _Sighting] = {}
        self._crowded = False
        self.was_crowded: bool = False
        """Whether there were more tasks in the last round than can be remembered."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._submitted)

    @property
    def any_waiting(self) -> bool:
        """Whether there are tasks that were seen and have not been submitted."""
        return bool(self._waiting)

    def is_over(self, task_id: str, version: int, patience: timedelta) -> bool:
        """Whether the task, seen idle now, is to be submitted; if so, it is taken to be submitted.

        It has to have been idle for `patience`, and for as long again as it had been when it was last submitted.
        """
        now = self._clock()
        sighting = self._see(task_id, version, now)
        if sighting is None:
            return self.was_crowded and hash(task_id) % TURNS == self._round % TURNS
        if now < max(sighting.since + patience.total_seconds(), sighting.quiet_until):
            return False
        pause = min(max(now - sighting.since, SHORTEST_PAUSE.total_seconds()), LONGEST_PAUSE.total_seconds())
        sighting.quiet_until = now + pause
        self._waiting.pop(task_id, None)
        self._submitted.pop(task_id, None)
        self._submitted[task_id] = sighting
        return True

    def is_still(self, task_id: str, version: int) -> None:
        """The task has another version by now, and has been idle all the time."""
        sighting = self._waiting.get(task_id) or self._submitted.get(task_id)
        if sighting is not None:
            sighting.version = version

    def end_round(self) -> None:
        """All tasks of the listing have been seen; those that were not are idle no more."""
        for known in (self._waiting, self._submitted):
            for task_id in [task_id for task_id, sighting in known.items() if sighting.round != self._round]:
                del known[task_id]
        self._round += 1
        self.was_crowded, self._crowded = self._crowded, False

    def _see(self, task_id: str, version: int, now: float) -> _Sighting | None:
        """What is known of the task; None if no more can be remembered."""
        sighting = self._waiting.get(task_id) or self._submitted.get(task_id)
        if sighting is None or sighting.version != version:
            self._submitted.pop(task_id, None)
            if task_id not in self._waiting and not self._make_room(now):
                return None
            sighting = self._waiting[task_id] = _Sighting(version, since=now, quiet_until=now, round=self._round)
        sighting.round = self._round
        return sighting

    def _make_room(self, now: float) -> bool:
        if len(self) < self._limit:
            return True
        self._crowded = True
        oldest = next(iter(self._submitted), None)
        if oldest is None or self.was_crowded or now < self._submitted[oldest].quiet_until:
            return False
        # Most likely it was claimed since. If not, the next round finds it, and then nothing is forgotten: it would be
        # submitted all the time, as if it had just been found.
        del self._submitted[oldest]
        return True
