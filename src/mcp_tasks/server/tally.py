"""What became of the tasks that were at work when a worker was told to stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mcp_tasks.core.events import RunAskedOnCall, RunCompleted, RunFailed, RunParked, RunReleased, TaskCancelled
from mcp_tasks.errors import Interrupted
from mcp_tasks.runtime.observing import Choosy, Observed, TaskChange

_WANTED: frozenset[type[Observed]] = frozenset(
    {RunReleased, RunParked, RunCompleted, RunFailed, RunAskedOnCall, TaskCancelled}
)


class Tally(Choosy):
    """Counts them, as an observer.

    Attributes:
        finished: Ended within the time that they were given.
        handed_back: Can run again, and are queued for others.
        interrupted: May not be run again, and have ended as interrupted.
        parked: Only waited, and wait on without a process.
        left_behind: Threads that did not end, and whose task is no longer theirs.
        cut_short: Whether a second signal ended the draining.
    """

    def __init__(self) -> None:
        self.finished: int = 0
        self.handed_back: int = 0
        self.interrupted: int = 0
        self.parked: int = 0
        self.left_behind: int = 0
        self.cut_short: bool = False
        self._running: frozenset[str] | None = None

    def begin(self, running: Iterable[str]) -> None:
        """Count from now on; these are at work."""
        self._running = frozenset(running)

    def wanted(self) -> Collection[type[Observed]]:
        """How runs end."""
        return _WANTED

    def __call__(self, change: TaskChange) -> None:
        """Take note of how a run ended."""
        # Sweeps look after tasks of others, too.
        if self._running is None or change.actor.kind == "sweep":
            return
        match change.event:
            case RunReleased():
                self.handed_back += 1
            case RunParked():
                self.parked += 1
            case RunFailed(reason=Interrupted.reason):
                self.interrupted += 1
            case _:
                # What ended just before it was told to stop may be heard of only now.
                self.finished += change.task.id in self._running
