"""How a process stops: it starts nothing more, gives running tools their time, and hands over the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mcp_tasks.errors import StoreError
from mcp_tasks.runtime.run import Run

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = logging.getLogger(__name__)

DRAIN_LOOK = 0.05
"""Seconds between two looks for runs that only wait, while the process stops."""


async def drain(runtime: TaskRuntime, hurry: asyncio.Event | None = None) -> None:
    """Give running tools their time, or what is left of it until there is a `hurry`. What a run that only waits is
    waiting for may take days: it is let go at once, and so is one that comes to such a wait meanwhile."""
    draining = asyncio.create_task(runtime.engine.drain(runtime.settings.drains_for))
    try:
        while not (draining.done() or (hurry is not None and hurry.is_set())):
            await runtime.parking.park_all()
            for run in runtime.runs():
                if run.only_waits:
                    await _interrupt(run)
            await asyncio.wait({draining}, timeout=DRAIN_LOOK)
        if draining.done():
            await draining
    finally:
        draining.cancel()


async def hand_over(runtime: TaskRuntime) -> None:
    """Give up every run that is left, and sign off. Nothing is claimed by this process from here on."""
    for run in runtime.runs():
        await _interrupt(run)
    try:
        await runtime.engine.stop(runtime.settings.stop_timeout)
        if runtime.claims.unconfirmed():
            await runtime.janitor.take_up()
        await runtime.store.retire(runtime.worker)
    except StoreError as exc:
        logger.warning("could not sign off from the store: %s", exc)
    finally:
        await runtime.store.close()


async def _interrupt(run: Run) -> None:
    try:
        await run.interrupt()
    except StoreError as exc:
        # Its lease runs out, and the next process finds it.
        logger.warning("task %s… could not be handed over: %s", run.record.id[:12], exc)
