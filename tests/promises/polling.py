"""Waiting for what nobody tells of."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio


async def until(look: Callable[[], Any | Awaitable[Any]], limit: float = 10.0) -> Any:
    """What `look` finds, asked again until it finds something."""
    with anyio.fail_after(limit):
        while True:
            found = look()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await anyio.sleep(0.01)
