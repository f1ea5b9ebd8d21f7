"""The seam behind which work is carried to where it runs.

An engine is handed ids and starts `execute` for each, in this process or another. It may do so twice: a run
begins by taking the task with a compare-and-swap, and the second one finds it taken. It knows nothing of
records, statuses or tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol, TypeAlias


class Slot(Protocol):
    """The right to use the worker. A run that only waits gives it back meanwhile."""

    def release(self) -> None:
        """Let another run have it. Releasing twice does nothing."""
        ...

    async def acquire(self) -> None:
        """Have it back; waits for its turn, by turns with runs that have not begun."""
        ...


class Place(Protocol):
    """Room for one run, kept free for a task that is about to be made."""

    def start(self, task_id: str) -> bool:
        """Run the task now. False if nothing is started here any more; the place is then given back."""
        ...

    def give_back(self) -> None:
        """There is no such task after all."""
        ...


Execute: TypeAlias = Callable[[str, Slot], Awaitable[None]]
"""Runs one task by its id. It never raises: what goes wrong in a run is that task's outcome."""


class Engine(Protocol):
    """Carries task ids to a worker."""

    @property
    def backlog(self) -> int:
        """How many ids that were submitted `again` wait here for room; those that wait elsewhere do not count."""
        ...

    async def start(self, execute: Execute) -> None:
        """Begin to hand submitted ids to `execute`."""
        ...

    def reserve(self) -> Place | None:
        """Room for a run right here and now, if there is any and nobody waits for it."""
        ...

    async def submit(self, task_id: str, *, again: bool = False) -> None:
        """Have the task run, once there is room, and not before an earlier run of it here has ended.

        Submitting one that is queued does nothing. New tasks and those submitted `again` (woken, recovered, left by
        another process) have room by turns, so that neither keeps the other from running.
        """
        ...

    async def drain(self, timeout: timedelta) -> None:
        """Start nothing more, and give what runs up to `timeout` to end. What is left then keeps running."""
        ...

    async def stop(self, timeout: timedelta) -> None:
        """Wait up to `timeout` for what was told to stop, and let go of everything. Safe twice, and before `start`.

        A thread that does not look whether it should stop cannot be made to; it is left behind.
        """
        ...
