"""`mcp-tasks servers`: servers by name, where each name comes from, and names of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from mcp_tasks.cli.connection import SERVER, known_servers, short_path, where
from mcp_tasks.cli.options import Output, takes_config, takes_output
from mcp_tasks.cli.servers import KnownServer, KnownServers, ServerAddress
from mcp_tasks.cli.terminal import Columns, Exit, Problem, listing, one_line, print_json, say, stdout
from mcp_tasks.errors import Explained, InvalidInput


@click.group(invoke_without_command=True)
@takes_config
@takes_output
@click.pass_context
def command(ctx: click.Context, *, output: Output) -> int:
    """List the servers that have names, and the file of each.

    Examples:
      mcp-tasks servers
      mcp-tasks servers add farm https://farm.example/mcp -H 'Authorization: Bearer ${FARM_TOKEN}'
      mcp-tasks servers add local "python server.py" --env 'FARM_DB=farm.db'
      mcp-tasks call farm render scene=forest
      mcp-tasks servers remove farm
      mcp-tasks call --config .mcp.json farm render scene=forest

    Names are those that you add here. Any other mcp.json is read only when you
    say so, for one command: --config FILE.
    """
    if ctx.invoked_subcommand is not None:
        return Exit.OK
    known = known_servers()
    servers = list(known)
    if output == "json":
        print_json([_json(server) for server in servers])
    elif servers:
        columns: Columns[KnownServer] = {
            "name": lambda server: Text(one_line(server.name), style="bold"),
            "server": where,
            "from": lambda server: Text(one_line(short_path(server.source)), style="bright_black"),
        }
        stdout().print(listing(columns, servers, fixed=1))
    else:
        say("No server has a name. Give it one: mcp-tasks servers add NAME SERVER")
    if known.problem:
        say(f"warning: {short_path(known.kept_in)} was not read: {known.problem}", "yellow")
    return Exit.OK


@command.command()
@click.argument("name")
@click.argument("server")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Send this HTTP header, always. Repeatable."
)
@click.option(
    "-e",
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="Start it with this environment variable. Repeatable.",
)
def add(*, name: str, server: str, headers: Sequence[str], environment: Sequence[str]) -> int:
    """Give a server a name. Credentials are not kept: write ${VARIABLE} for them, which is looked up on use."""
    try:
        servers = KnownServers()
        servers.add(
            name,
            ServerAddress.parse(server),
            headers=_pairs(headers, ":", "--header"),
            environment=_pairs(environment, "=", "--env"),
        )
    except Explained as exc:
        raise Problem(exc.what, Exit.USAGE, hint=exc.hint) from None
    say(f"{name} is kept in {short_path(servers.kept_in)}.")
    return Exit.OK


@command.command()
@click.argument("name", shell_complete=SERVER.shell_complete)
def remove(*, name: str) -> int:
    """Forget a name that was added here. The server's tasks stay in the ledger."""
    try:
        KnownServers().remove(name)
    except Explained as exc:
        raise Problem(exc.what, Exit.USAGE, hint=exc.hint) from None
    say(f"{name} is no longer kept.")
    return Exit.OK


def _pairs(texts: Sequence[str], sign: str, option: str) -> dict[str, str]:
    pairs = [text.partition(sign) for text in texts]
    for name, found, _ in pairs:
        if not found or not name.strip():
            raise click.UsageError(f"{option} takes NAME{sign}VALUE, not {name!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _json(server: KnownServer) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": server.name, "source": str(server.source)}
    try:
        return {**fields, "server": server.spec}
    except InvalidInput as exc:
        return {**fields, "problem": exc.what}
