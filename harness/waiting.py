"""Waiting for what nobody tells of: files, other processes, the insides of a server."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

import anyio

from harness.rpc import PATIENCE

BETWEEN_LOOKS: Final = 0.01
"""Seconds."""

T = TypeVar("T")


async def eventually(look: Callable[[], T | Awaitable[T]], limit: float = PATIENCE) -> T:
    """What `look` finds, asked again until it finds something."""
    with anyio.fail_after(limit):
        while True:
            looked = look()
            found = cast("T", await looked if inspect.isawaitable(looked) else looked)
            if found:
                return found
            await anyio.sleep(BETWEEN_LOOKS)
    raise AssertionError("unreachable: the limit raises")
