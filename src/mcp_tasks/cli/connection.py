"""Connections as the command line makes them: servers by name, what goes with a server, and tasks of the ledger."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp_types import Implementation

from mcp_tasks import __version__
from mcp_tasks.cli import servers
from mcp_tasks.cli.follow import Seen, ask_through_the_task, at_each
from mcp_tasks.cli.options import (
    CONFIG,
    SECRETS,
    TOKEN,
    Access,
    Command,
    Options,
    Takes,
    environment_for_servers,
    guard,
    takes_options,
    warn,
)
from mcp_tasks.cli.servers import KnownServer, KnownServers, ServerAddress, ServerTasks
from mcp_tasks.cli.terminal import one_line, problem_of
from mcp_tasks.client import Ledger, LedgerEntry, TaskHandle, user_ledger
from mcp_tasks.errors import Explained, InvalidInput

T = TypeVar("T")

_NAMED: Final = __name__
"""The key of the servers that were given to a command, by their names in the ledger: two names may have one address,
and an address that was typed belongs to no file."""


class ServerName(click.ParamType[ServerAddress]):
    """A URL, a command, or the name of a known server; a command gets its address."""

    name = "server"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ServerAddress:
        try:
            found = known_servers(ctx).resolve(str(value))
            known = found if isinstance(found, KnownServer) else None
            address = ServerAddress.parse(found.spec) if isinstance(found, KnownServer) else found
        except Explained as exc:
            raise problem_of(exc) from None
        if ctx is not None:
            ctx.meta.setdefault(_NAMED, {})[address.spec] = known
        return address

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [known for known in known_servers(ctx) if known.name.startswith(incomplete)]
        return [CompletionItem(known.name, help=where(known)) for known in found]


SERVER: Final = ServerName()


def known_servers(ctx: click.Context | None = None) -> KnownServers:
    """The servers that have names: in the file of `--config`, and in the user's own.

    Raises:
        InvalidInput: The file of `--config` cannot be read.
    """
    ctx = ctx or click.get_current_context(silent=True)
    return KnownServers(None if ctx is None else ctx.meta.get(CONFIG))


def known_as(server: ServerAddress, named: str | None = None) -> KnownServer | None:
    """The server of a file at this address: the one that was named on the command line; for a task of the ledger, the
    one that the call named (`LedgerEntry.named`). An address that was typed, now or for the call, takes nothing of a
    file."""
    if server.spec in _named():
        return _named()[server.spec]
    return None if named == "" else known_servers().at(server, name=named or "")


def name_of(server: ServerAddress) -> str:
    """The name by which a server was given to this command; empty if its address was typed."""
    known = _named().get(server.spec)
    return "" if known is None else known.name


def way_to(
    server: ServerAddress, access: Access, named: str | None = None
) -> tuple[ServerAddress, Access, dict[str, str]]:
    """How a server is reached, with its entry in a file: its address with variables filled in, its headers, and the
    environment variables of its process. Headers of the command line take precedence over those of the file, and these
    over the token of the environment, which goes only to a server that the user named or typed: now, or when they made
    the call whose task this is about.

    Raises:
        InvalidInput: A variable is not set.
    """
    # Nearly all of it, like any other command that is typed here; the SDK's own choice is for hosts.
    environment, headers = environment_for_servers(), dict(access.headers)
    known = known_as(server, named)
    is_users = named is not None or server.spec in _named()
    if known is not None:
        SECRETS.hide(*known.secrets)
        added = _add(known.headers, headers)
        server, environment = known.address, environment | known.environment
        source = f"{known.name} in {short_path(known.source)}"
        if known.is_command:
            _say(f"Starting {where(known)} ({source})")
        elif added and known not in _named().values():
            _say(f"Sending the headers of {source}")
    elif named and server.spec not in _named():
        _say(f"{named!r} is not the name of this server any more, so no headers or variables of a file are used.")
        _say("If it is in another mcp.json, name that file: --config FILE.")
    if server.url is not None:
        if is_users:
            _add(access.of_environment, headers)
        elif _add(access.of_environment, dict(headers)):
            why = "the ledger does not say that you named or typed this server. Give --server SERVER if it is yours"
            warn(f"{TOKEN} is not sent to {one_line(server.label)}: {why}")
        guard(server.url, with_credentials=bool(headers))
    return server, replace(access, headers=headers), environment


def _add(more: Mapping[str, str], headers: dict[str, str]) -> bool:
    """Add headers that are not there yet; whether there were any."""
    given = {name.lower() for name in headers}
    added = {name: value for name, value in more.items() if name.lower() not in given}
    headers.update(added)
    return bool(added)


def _say(text: str) -> None:
    click.secho(one_line(text), fg="bright_black", err=True)


def _named() -> dict[str, KnownServer | None]:
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.get(_NAMED, {})


def where(server: KnownServer) -> str:
    """The address of a known server, as it is written in its file."""
    try:
        return one_line(server.spec.rpartition(" && ")[2])
    except InvalidInput as exc:
        return one_line(f"cannot be used: {exc.what}")


def short_path(path: Path) -> str:
    """A path, with the home folder as `~`."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def connect(
    server: ServerAddress,
    access: Access,
    *,
    named: str | None = None,
    ledger: Ledger | None = None,
    elicit: ElicitationFnT | None = None,
) -> AbstractAsyncContextManager[Client]:
    """A connected client that knows tasks; see `servers.connect`. `named` is that of the ledger's entries."""
    server, access, environment = way_to(server, access, named)
    return servers.connect(
        server,
        headers=access.headers,
        environment=environment,
        era=access.era,
        ledger=ledger,
        identity=access.identity or "",
        elicit=elicit,
        client_info=Implementation(name="mcp-tasks-cli", version=__version__),
        # By default the server's log is kept, so that it does not run through a progress bar.
        errlog=sys.stderr if logging.getLogger().isEnabledFor(logging.INFO) else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The tasks of the ledger that a command is given.

    Attributes:
        several: Whether more than one was named, even if it is the same one.
    """

    ledger: Ledger
    entries: Sequence[LedgerEntry]
    options: Options
    several: bool

    def connect(self, tasks: ServerTasks, *, asks: bool = True) -> AbstractAsyncContextManager[Client]:
        """A client for some of them, as the user that they belong to. With `asks`, the server is told that there is a
        person to ask."""
        access = replace(self.options.access, identity=tasks.identity)
        elicit = ask_through_the_task if asks else None
        return connect(tasks.server, access, named=tasks.named, ledger=self.ledger, elicit=elicit)

    async def at_each(self, act: Callable[[TaskHandle], Awaitable[T]], *, asks: bool = False) -> Seen[T]:
        """Do something with each of them: see `follow.at_each`."""
        credentials = self.options.access.credentials
        return await at_each(self.entries, partial(self.connect, asks=asks), act, headers=credentials)


def takes_server(about: str) -> Takes:
    """`--server`, as the address `server`."""
    return click.option("--server", type=SERVER, metavar="SERVER", help=about)


def takes_tasks(command: Callable[..., Coroutine[Any, Any, int]]) -> Command:
    """A decorator for commands with an argument `ids`: they are given the tasks that it names, as `chosen`."""

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
