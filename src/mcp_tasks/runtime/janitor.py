"""Housekeeping: being alive, finding what was lost, forgetting what has expired.

Every process does all of it, without an election: each act is a compare-and-swap, and doing it twice does
nothing. A sweep that fails is logged and comes again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from mcp_tasks.core.events import Event, RunFailed, RunReleased
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import Interrupted, StoreError, TransitionRefused, UnknownTask, VersionConflict
from mcp_tasks.runtime.holder import is_gone

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger = logging.getLogger(__name__)

BATCH = 500
"""Records per look: enough to catch up quickly, few enough not to hold the event loop for long."""


class Janitor:
    """Keeps house for one runtime."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime

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
        while True:
            await anyio.sleep(self._runtime.settings.sweep.total_seconds())
            try:
                await self.sweep()
            except StoreError as exc:
                logger.warning("a sweep did not finish: %s", exc)
            except Exception:
                logger.exception("a sweep failed")

    async def recover_lost(self) -> None:
        """Take tasks from processes that are gone: to be run again, or ended as interrupted."""
        runtime = self._runtime
        now = runtime.now()
        for holder, until in (await runtime.store.holders()).items():
            if holder == runtime.holder or (until > now and not is_gone(holder)):
                continue
            while lost := await runtime.store.held(holder, limit=BATCH):
                for record in lost:
                    await self._recover(record)
            await runtime.store.retire(holder)

    async def start_queued(self) -> None:
        """Submit tasks that could run and that nobody has: new to this process, forgotten, or awake again."""
        runtime = self._runtime
        for record in await runtime.store.queued(runtime.now(), limit=BATCH):
            await runtime.submit(record.id)

    async def remove_expired(self) -> None:
        """Forget tasks whose time after the end is over."""
        runtime = self._runtime
        while expired := await runtime.store.expired(runtime.now(), limit=BATCH):
            for record in expired:
                try:
                    await runtime.store.delete(record.id, expected=record.version)
                except VersionConflict:
                    # Another process removed it.
                    continue

    async def _recover(self, record: TaskRecord) -> None:
        try:
            await self._runtime.change(record, await self._verdict(record))
        except (UnknownTask, TransitionRefused):
            # Another process recovered it first, or its holder was only slow and has given it up.
            logger.debug("task %s was recovered by somebody else", record.id)

    async def _verdict(self, record: TaskRecord) -> Event:
        tool = record.request.name
        if (await self._runtime.policy(tool)).rerun:
            logger.info("task %s (%s) was interrupted and will run again", record.id, tool)
            return RunReleased(attempt=record.attempt)
        logger.warning("task %s (%s) was interrupted and may not run again", record.id, tool)
        return RunFailed(attempt=record.attempt, error=self._runtime.describe(Interrupted(tool)))
