"""Housekeeping: finding what was lost, starting what waits, forgetting what has expired.

Every process does all of it for its own namespace, without an election: each act is a compare-and-swap, and doing it
twice does nothing. A sweep looks at a bounded number of tasks and goes on where the last one ended, so that no backlog
of one kind keeps another from its turn. What goes wrong with one task costs that task only, and a kind of sweep that
fails does not keep the others from running. Only expiry needs no lease: an expired task has no run.

A process that runs no tools keeps house like the others; what it would start, it can only hand to an engine that
carries it elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.ageing import Ageing
from mcp_tasks.runtime.expiry import Expiry
from mcp_tasks.runtime.queue_sweep import QueueSweep
from mcp_tasks.runtime.recovery import Recovery
from mcp_tasks.runtime.troubles import Troubles
from mcp_tasks.runtime.unattended import Unattended

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

CATCHING_UP = 0.05
"""Seconds between two looks at whether a part that has more to do than one sweep does can go on."""

ORPHANS_EVERY = 10
"""Sweeps between two looks for tasks of our own that nothing runs."""


class Part(Protocol):
    """One kind of housekeeping."""

    @property
    def is_behind(self) -> bool:
        """Whether there is more to do than one sweep does."""
        ...

    async def sweep(self) -> None:
        """Look for what there is to do, and do so much of it."""
        ...

    async def catch_up(self) -> None:
        """Go on with the rest, if anything can be done about it now."""
        ...


class Janitor:
    """Keeps house for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self.troubles: Troubles = Troubles()
        self.recovery: Recovery = Recovery(runtime, self.troubles)
        self.queue: QueueSweep = QueueSweep(runtime)
        self.expiry: Expiry = Expiry(runtime)
        self.ageing: Ageing = Ageing(runtime)
        # Expiry first: on a store that is full, it makes the room that all others need.
        self._parts: tuple[Part, ...] = (
            self.expiry,
            self.recovery,
            runtime.dispatch,
            self.queue,
            self.ageing,
            Unattended(runtime),
        )

    async def begin(self) -> None:
        """Look for what an earlier process left. A store that is full or read-only does not keep this one from
        starting: its sweeps may be what makes room."""
        for act in (self.recovery.sweep, self.start_waiting):
            with suppress(StoreUnavailable):
                await act()

    async def start_waiting(self) -> None:
        """Hand to the engine what waits in the store."""
        self._runtime.dispatch.look()
        await self.queue.sweep()

    async def take_up(self) -> None:
        """Give up at once what is ours and does not run here any more: its runs were stopped with the lease."""
        await self._runtime.late_writes.flush()
        await self.recovery.take_up()

    def note_trouble(self, task_id: str, exc: Exception) -> int:
        """Log once what is wrong with a task that everything else goes on without; how often it was so by now."""
        return self.troubles.note(task_id, exc)

    async def sweep(self) -> None:
        """Look once for everything there is to do."""
        for part in self._parts:
            await part.sweep()

    async def keep_sweeping(self) -> None:
        """Sweep for as long as this process serves."""
        sweeps = 0
        while True:
            await self._catch_up(anyio.current_time() + self._runtime.sweep_interval.total_seconds())
            for part in self._parts:
                await self._guarded(part.sweep, needs_lease=part is not self.expiry)
            sweeps += 1
            if sweeps % ORPHANS_EVERY == 0:
                await self._guarded(self.recovery.release_orphans)

    async def _catch_up(self, until: float) -> None:
        """Wait for the next sweep; those that have more to do than one sweep does go on meanwhile."""
        while (left := until - anyio.current_time()) > 0:
            behind = [part for part in self._parts if part.is_behind]
            await anyio.sleep(min(left, CATCHING_UP) if behind else left)
            for part in behind:
                await self._guarded(part.catch_up, needs_lease=part is not self.expiry)

    async def _guarded(self, act: Callable[[], Awaitable[None]], *, needs_lease: bool = True) -> None:
        """Do it, if this process may act; whatever goes wrong, the others have their turn, and the next sweep comes."""
        if needs_lease and not self._runtime.lease.is_valid:
            return
        try:
            await act()
        except StoreUnavailable as exc:
            logger.debug("a sweep did not finish: %s", exc)
        except StoreError as exc:
            logger.warning("a sweep did not finish: %s", exc)
        except Exception:
            logger.error("a sweep failed", exc_info=quietly())
