"""How tasks are put into a server: as one thing, so that it cannot be half done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar

from mcp.server import MCPServer, Server
from mcp.server.extension import Extension

from mcp_tasks.errors import WiringError
from mcp_tasks.tools.host import ToolHost

StateT = TypeVar("StateT")
ServerT = TypeVar("ServerT", MCPServer[Any], Server[Any])
AnyServer: TypeAlias = MCPServer[Any] | Server[Any]

Lifespan: TypeAlias = Callable[[MCPServer[StateT]], AbstractAsyncContextManager[StateT]]
"""A lifespan of an `MCPServer`: entered when it starts, left when it stops, and its state is what tools see."""


class Wiring(TypedDict, Generic[StateT]):
    """The arguments of an `MCPServer` that has tasks: `MCPServer("name", **tasks.wiring())`."""

    extensions: Sequence[Extension]
    lifespan: Lifespan[StateT]


class TasksLifespan(Generic[ServerT]):
    """The lifespan of a server that has tasks. A server shows its lifespan, so this is how its tasks are found.

    Attributes:
        owner: The `Tasks` object.
        host: The server as a source of tools.
    """

    def __init__(
        self,
        owner: object,
        enter: Callable[[ServerT], AbstractAsyncContextManager[Any]],
        host: Callable[[ServerT], ToolHost],
    ) -> None:
        self.owner = owner
        self.host = host
        self._enter = enter

    def __call__(self, server: ServerT) -> AbstractAsyncContextManager[Any]:
        """The lifespan, to be entered."""
        return self._enter(server)


def lifespan_of(server: AnyServer) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """What is entered when the server starts.

    Raises:
        WiringError: Nothing is, so it has no tasks.
    """
    lifespan = server.settings.lifespan if isinstance(server, MCPServer) else server.lifespan
    if lifespan is None:
        raise without_tasks(server)
    return lifespan


def without_tasks(server: AnyServer) -> WiringError:
    """The error for a server that has none."""
    how = (
        "make it with MCPServer(..., **tasks.wiring())" if isinstance(server, MCPServer) else "say tasks.attach(server)"
    )
    return WiringError(f"server {server.name!r} has no tasks: {how}")


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
