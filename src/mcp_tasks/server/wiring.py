"""How tasks are put into a server: as one thing, so that it cannot be half done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeAlias, TypedDict, TypeVar

from mcp.server import MCPServer
from mcp.server.extension import Extension

from mcp_tasks.errors import WiringError

StateT = TypeVar("StateT")

Lifespan: TypeAlias = Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]
"""A lifespan of an `MCPServer`: entered when it starts, left when it stops, and its state is what tools see."""


class Wiring(TypedDict, Generic[StateT]):
    """The arguments of an `MCPServer` that has tasks: `MCPServer("name", **tasks.wiring())`."""

    extensions: Sequence[Extension]
    lifespan: Lifespan[StateT]


def check_lifespan(lifespan: object) -> None:
    """Refuse a lifespan that the SDK could not enter.

    Raises:
        WiringError: It is not a function that gives a context manager.
    """
    name = getattr(lifespan, "__name__", repr(lifespan))
    if inspect.isasyncgenfunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise WiringError(
            f"tasks.wiring(lifespan={name}): a lifespan is an async context manager, and this function only yields. "
            "Write @asynccontextmanager (from contextlib) above it"
        )
    if not callable(lifespan):
        raise WiringError(
            f"tasks.wiring(lifespan=...) takes a function of the server, decorated with @asynccontextmanager; got "
            f"{lifespan!r}"
        )


def half_wired(given: str, missing: str) -> WiringError:
    """The error for a server that has only a part of it."""
    return WiringError(
        f"the server was given {given} without {missing}. Write MCPServer(..., **tasks.wiring()), which is both. A "
        "lifespan of your own goes into it as tasks.wiring(lifespan=yours), other extensions as "
        "tasks.wiring(extensions=[...])"
    )
