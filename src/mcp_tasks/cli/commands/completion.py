"""`mcp-tasks completion`: the script that has a shell complete words."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

from mcp_tasks.cli.terminal import Exit, one_line

if TYPE_CHECKING:
    from mcp_tasks.cli.options import Access
    from mcp_tasks.cli.servers import ServerAddress

_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
"""zsh completes nothing before this, and a new .zshrc does not have it."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> int:
    """Print the script that completes commands, options, ids of tasks, names of servers and tools.

    Examples:
      mcp-tasks completion bash
      eval "$(mcp-tasks completion bash)"

    Once, for all shells that are opened from then on:
      bash  echo 'eval "$(mcp-tasks completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(mcp-tasks completion zsh)"' >> ~/.zshrc
      fish  mkdir -p ~/.config/fish/completions
            mcp-tasks completion fish > ~/.config/fish/completions/mcp-tasks.fish
    """
    from mcp_tasks.cli.app import app

    complete = get_completion_class(shell)
    if shell == "zsh":
        click.echo(_ZSH)
    if complete is not None:
        click.echo(complete(app, {}, "mcp-tasks", "_MCP_TASKS_COMPLETE").source())
    return Exit.OK


# ---- completing
# The completions of a word. Errors are silent, and no file is created.


LIMIT: Final = 2.0
"""Seconds for a server to list its tools; the user waits for the rest of a word."""

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _silent(complete: Completer) -> Completer:
    @wraps(complete)
    def wrapper(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with redirect_stderr(io.StringIO()), suppress(Exception), ctx.scope(cleanup=False):
            return complete(ctx, param, incomplete)
        return []

    return wrapper


@_silent
def task_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tasks in the ledger, each with its tool and how it was last seen."""
    from mcp_tasks.client.ledger import short_ids, user_ledger

    path = _ledger_of(ctx)
    if not path.exists():
        return []
    # A task that has ended asks nothing any more, and cannot be stopped.
    active = True if ctx.info_name in ("answer", "cancel", "watch") else None
    with user_ledger(path) as ledger:
        entries = ledger.entries(active=active)
    short = short_ids(entry.task_id for entry in entries)
    given = ctx.params.get(param.name or "") or ()
    items: list[CompletionItem] = []
    for entry in entries:
        names = [name for name in (short[entry.task_id], entry.task_id) if name.startswith(incomplete)]
        if names and not {short[entry.task_id], entry.task_id} & set(given):
            items.append(CompletionItem(one_line(names[0]), help=one_line(f"{entry.tool} {entry.status}")))
    return items


@_silent
def tool_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tools of the server that is named, if the user has called it before. A command is started only if it is in
    the user's own file."""
    from mcp_tasks.cli.connection import SERVER, known_as, known_servers
    from mcp_tasks.cli.options import Access, environment_headers
    from mcp_tasks.client.ledger import user_ledger

    # Behind an option that has no value yet, click has not come to the arguments.
    server: ServerAddress = ctx.params.get("server") or SERVER.convert(ctx.args[0], None, ctx)
    path = _ledger_of(ctx)
    if not path.exists():
        return []
    with user_ledger(path) as ledger:
        if not ledger.was_called(server.spec):
            return []
    known = known_as(server)
    if server.url is None and (known is None or known.source != known_servers(ctx).kept_in):
        return []
    names = asyncio.run(_ask(server, Access(of_environment=environment_headers())))
    return [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]


def _ledger_of(ctx: click.Context) -> Path:
    """The ledger of a command, also of one that has no `--ledger`."""
    from mcp_tasks.cli.options import LEDGER
    from mcp_tasks.client.ledger import user_ledger_path

    named = ctx.params.get("ledger_path") or os.environ.get(LEDGER)
    return Path(named) if named else user_ledger_path()


async def _ask(server: ServerAddress, access: Access) -> dict[str, str]:
    from mcp_tasks.cli.connection import connect
    from mcp_tasks.cli.servers import list_tools

    async with asyncio.timeout(LIMIT), connect(server, access) as client:
        tools = await list_tools(client)
    return {tool.name: one_line(tool.description) for tool in tools if one_line(tool.name) == tool.name}
