"""Housekeeping: being alive, finding what was lost, forgetting what has expired.

Every process does all of it, without an election: each act is a compare-and-swap, and doing it twice does
nothing. A sweep that fails is logged and comes again.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import TYPE_CHECKING

import anyio

from mcp_tasks.core.events import Event, RunFailed, RunReleased
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import Interrupted, StoreError, TransitionRefused, UnknownTask, VersionConflict
from mcp_tasks.runtime.holder import is_alive, is_gone

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger = logging.getLogger(__name__)

BATCH = 100
"""Records per look: enough to catch up quickly, few enough not to hold the event loop for long. Each comes with its
request, which may be megabytes."""

CATCHING_UP = 0.05
"""Seconds between two looks while there is a backlog in the store."""

ORPHANS_EVERY = 10
"""Sweeps between two looks for tasks of our own that nothing runs: each reads all that do run."""


class Janitor:
    """Keeps house for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._more_queued = False
        self._suspects: set[str] = set()

    async def beat(self) -> None:
        """Say that this process is alive."""
        runtime = self._runtime
        await runtime.store.beat(runtime.holder, until=runtime.now() + runtime.settings.lease)

    async def sweep(self) -> None:
        """Look once for everything there is to do."""
        await self.recover_lost()
        await self.start_queued()
        await self.remove_expired()

    async def keep_beating(self) -> None:
        """Beat for as long as this process serves."""
        # Three beats to a lease: one may be late and one lost, and we are still believed.
        pause = self._runtime.settings.lease.total_seconds() / 3
        while True:
            await anyio.sleep(pause)
            try:
                await self.beat()
            except StoreError as exc:
                logger.warning("could not renew the lease of this process: %s", exc)

    async def keep_sweeping(self) -> None:
        """Sweep for as long as this process serves."""
        sweeps = 0
        while True:
            # With more queued than was taken, do not let the engine run dry in between.
            await anyio.sleep(CATCHING_UP if self._more_queued else self._runtime.settings.sweep.total_seconds())
            try:
                await self.sweep()
                sweeps += 1
                if sweeps % ORPHANS_EVERY == 0:
                    await self.release_orphans()
            except StoreError as exc:
                logger.warning("a sweep did not finish: %s", exc)
            except Exception:
                logger.exception("a sweep failed")

    async def recover_lost(self) -> None:
        """Take tasks from processes that are gone: to be run again, or ended as interrupted."""
        runtime = self._runtime
        now = runtime.now()
        for holder, until in (await runtime.store.holders()).items():
            if holder == runtime.holder or is_alive(holder) or (until > now and not is_gone(holder)):
                # One that is alive here keeps its tasks whatever its lease says: after a suspended machine wakes up, or
                # its clock was set, every lease has run out and nobody is gone.
                continue
            seen: set[tuple[str, int]] = set()
            while lost := await runtime.store.held(holder, limit=BATCH):
                if seen.issuperset((record.id, record.version) for record in lost):
                    # Nothing came of it the last time, and nothing would now; the next sweep may know better.
                    return
                seen.update((record.id, record.version) for record in lost)
                # Together, so that a store which groups its commits can.
                await asyncio.gather(*(self._recover(record) for record in lost))
            await runtime.store.retire(holder)

    async def release_orphans(self) -> None:
        """Give up tasks that are ours and that nothing here runs. There should be none; this is in case there are."""
        runtime = self._runtime
        held = await runtime.store.held(runtime.holder, limit=BATCH)
        orphans = {record.id for record in held if not runtime.has(record.id)}
        for record in held:
            # Twice in a row, so that one which is just beginning or ending is left alone.
            if record.id in orphans & self._suspects:
                logger.error("task %s was ours and nothing ran it", record.id)
                await self._recover(record)
        self._suspects = orphans

    async def start_queued(self) -> None:
        """Submit tasks that could run and that nobody has: new to this process, forgotten, or awake again."""
        runtime = self._runtime
        if runtime.engine.backlog:
            # It could not start more than it has; looking for more would only cost.
            self._more_queued = True
            return
        queued = await runtime.store.queued(runtime.now(), limit=BATCH)
        self._more_queued = len(queued) == BATCH
        for record in queued:
            await runtime.submit(record.id)

    async def remove_expired(self) -> None:
        """Forget tasks whose time after the end is over."""
        runtime = self._runtime
        while expired := await runtime.store.expired(runtime.now(), limit=BATCH):
            await asyncio.gather(*(self._remove(record) for record in expired))

    async def _remove(self, record: TaskRecord) -> None:
        try:
            await self._runtime.store.delete(record.id, expected=record.version)
        except VersionConflict:
            logger.debug("task %s was removed by another process", record.id)

    async def _recover(self, record: TaskRecord) -> None:
        try:
            await self._runtime.change(record, await self._verdict(record))
        except (UnknownTask, TransitionRefused):
            # Another process recovered it first, or its holder was only slow and has given it up.
            logger.debug("task %s was recovered by somebody else", record.id)

    async def _verdict(self, record: TaskRecord) -> Event:
        tool = record.request.name
        if (await self._runtime.policy(tool)).rerun:
            logger.info("task %s… (%s) was interrupted and will run again", record.id[:12], tool)
            return RunReleased(attempt=record.attempt, wake_at=await self._wake_at(record))
        logger.warning("task %s… (%s) was interrupted and may not run again", record.id[:12], tool)
        return RunFailed(attempt=record.attempt, error=self._runtime.describe(Interrupted(tool)))

    async def _wake_at(self, record: TaskRecord) -> datetime | None:
        """When a task that asks must be started even without an answer: it may sleep as well, so now, to find out."""
        if record.status is not TaskStatus.INPUT_REQUIRED:
            return None
        entries = await self._runtime.store.journal(record.id)
        return self._runtime.now() if any(entry.kind == "timer" for entry in entries) else None
