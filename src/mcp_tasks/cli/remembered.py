"""The tasks that a command is given, out of those that were started from here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, TypeVar

import click
from mcp import Client

from mcp_tasks.cli.commands.servers.names import SERVER
from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.options import Command, Options, Takes, takes_options
from mcp_tasks.client import Ledger, LedgerEntry, ServerAddress, ServerTasks, TaskHandle, user_ledger
from mcp_tasks.client.looking import Seen, at_each
from mcp_tasks.client.servers.connecting import ask_through_the_task

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The tasks that a command is given, with the ledger that has them, and what else every such command takes.

    Attributes:
        several: Whether more than one was named, be it the same one.
    """

    ledger: Ledger
    entries: Sequence[LedgerEntry]
    options: Options
    several: bool

    def connect(self, tasks: ServerTasks, *, asks: bool = True) -> AbstractAsyncContextManager[Client]:
        """A client for some of them, as the user that they are of; what is seen goes into the ledger. With `asks`, the
        server is told that there is somebody to ask."""
        access = replace(self.options.access, identity=tasks.identity)
        elicit = ask_through_the_task if asks else None
        return connect(tasks.server, access, named=tasks.named, ledger=self.ledger, elicit=elicit)

    async def at_each(self, act: Callable[[TaskHandle], Awaitable[T]], *, asks: bool = False) -> Seen[T]:
        """Do something with each of them: see `mcp_tasks.client.looking.at_each`."""
        credentials = self.options.access.credentials
        return await at_each(self.entries, partial(self.connect, asks=asks), act, headers=credentials)


def takes_server(about: str) -> Takes:
    """`--server`, as the address `server`."""
    return click.option("--server", type=SERVER, metavar="SERVER", help=about)


def takes_tasks(command: Callable[..., Coroutine[Any, Any, int]]) -> Command:
    """A decorator for commands that have an argument `ids`: they are given the tasks that it names, as `chosen`."""

    @takes_server("The task's server, if the ledger does not know it. Needs the whole id.")
    @takes_options
    @wraps(command)
    async def wrapper(*, ids: str | Sequence[str], server: ServerAddress | None, options: Options, **given: Any) -> int:
        names, spec = [ids] if isinstance(ids, str) else ids, server and server.spec
        with user_ledger(options.ledger_path) as ledger:
            entries = ledger.find_all(names, server=spec, identity=options.access.identity)
            chosen = Chosen(ledger=ledger, entries=entries, options=options, several=len(names) > 1)
            return await command(chosen=chosen, **given)

    return wrapper
