"""Finishing what must not be left half done, although the code that waits for it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def uncancelled(
    work: Coroutine[Any, Any, T] | asyncio.Task[T], *, context: contextvars.Context | None = None
) -> T:
    """The result of `work`, which runs to its end. A cancellation that comes meanwhile is raised after that.

    A shield of anyio's holds off the cancellation of a scope and not `Task.cancel()`; this holds off both.
    """
    done, cancelled = await to_the_end(work, context=context)
    if cancelled is not None:
        if not done.cancelled():
            # Looked at, so that asyncio does not report it as never retrieved.
            done.exception()
        raise cancelled
    return done.result()


async def to_the_end(
    work: Coroutine[Any, Any, T] | asyncio.Task[T], *, context: contextvars.Context | None = None
) -> tuple[asyncio.Task[T], asyncio.CancelledError | None]:
    """`work` once it has ended, and the cancellation that came meanwhile and is the caller's to raise."""
    inner = work if isinstance(work, asyncio.Task) else asyncio.get_running_loop().create_task(work, context=context)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not inner.done():
            try:
                await asyncio.wait({inner})
            except asyncio.CancelledError as exc:
                cancelled = exc
    return inner, cancelled


def uncancel() -> None:
    """Take back every cancellation of the calling asyncio task."""
    current = asyncio.current_task()
    while current is not None and current.cancelling() > 0:
        current.uncancel()
