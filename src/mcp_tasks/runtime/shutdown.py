"""How a process stops: it starts nothing more, gives running tools their time, and hands over the rest."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from mcp_tasks.errors import StoreError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.child_process import has_children, kill_children
from mcp_tasks.runtime.life import State
from mcp_tasks.runtime.run import Run

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

DRAIN_LOOK = 0.05
"""Seconds between two looks for runs that only wait, while the process stops."""


KILL_LIMIT = 1.0
"""Seconds that a shutdown waits for the kernel to end what was killed: only what cannot be interrupted takes longer."""


async def drain(runtime: TaskRuntime, hurry: asyncio.Event | None = None) -> None:
    """Give running tools their time, or what is left of it until there is a `hurry`. What a run that only waits is
    waiting for may take days: it is let go at once, and so is one that comes to such a wait meanwhile."""
    draining = asyncio.create_task(runtime.engine.drain(_time_left(runtime)))
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


def _time_left(runtime: TaskRuntime) -> timedelta:
    """How long tools may still run: less if the drain began before their server stopped."""
    limit = runtime.settings.drains_for
    if runtime.draining_since is None:
        return limit
    return max(timedelta(0), limit - timedelta(seconds=asyncio.get_running_loop().time() - runtime.draining_since))


async def hand_over(runtime: TaskRuntime) -> None:
    """Give up every run that is left, and sign off. Nothing is claimed by this process from here on.

    The lease is kept meanwhile: a store that is slow may take longer than that to be told of every run.
    """
    try:
        # Also those that end while the children of others do.
        runs = runtime.runs()
        await _end_children(runtime)
        for run in runs:
            await _interrupt(run)
        await runtime.engine.stop(runtime.settings.stop_timeout)
        if runtime.claims.unconfirmed():
            await runtime.janitor.take_up()
        runtime.stop_keeping_lease()
        await runtime.store.retire(runtime.worker)
    except StoreError as exc:
        logger.warning("could not sign off from the store: %s", exc)
    finally:
        runtime.stop_keeping_lease()
        kill_children(runtime)
        await runtime.store.close()


async def _end_children(runtime: TaskRuntime) -> None:
    """Stop the runs with child processes, and end those: once a run is given up, another process may begin it again."""
    _stop_parents(runtime)
    await _childless(runtime, runtime.settings.stop_timeout.total_seconds() / 2)
    # Some may have started one meanwhile. A tool must not take the end of a child that we kill for an outcome.
    _stop_parents(runtime)
    kill_children(runtime)
    # The kernel takes a moment.
    await _childless(runtime, KILL_LIMIT)


def _stop_parents(runtime: TaskRuntime) -> None:
    for run in runtime.runs():
        if has_children(run) and run.life.state is not State.RETURNED:
            run.stop()


async def _childless(runtime: TaskRuntime, limit: float) -> None:
    """Return when no child process is left, or after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    while has_children(runtime) and loop.time() < until:  # noqa: ASYNC110 - nothing tells when the last has ended
        await asyncio.sleep(DRAIN_LOOK)


async def _interrupt(run: Run) -> None:
    try:
        await run.interrupt()
    except StoreError as exc:
        # Its lease runs out, and the next process finds it.
        logger.warning("task %s… could not be handed over: %s", run.record.id[:12], exc)
