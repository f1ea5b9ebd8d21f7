"""`mcp-tasks ls`: the tasks that were started from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click
from rich.console import RenderableType
from rich.text import Text

from mcp_tasks.cli.options import Options, takes_options
from mcp_tasks.cli.remembered import Chosen, takes_server
from mcp_tasks.cli.terminal.exits import Exit, problem_of
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Columns, listing, print_json, say, status_of, stdout
from mcp_tasks.client import Followed, LedgerEntry, ServerAddress, TaskHandle, TaskStatus, short_ids, user_ledger
from mcp_tasks.client.ledger_entry import UNKNOWN
from mcp_tasks.core.durations import ago, clock
from mcp_tasks.errors import InvalidAddress, UnknownTask


@click.command()
@click.option("--active", is_flag=True, help="Only tasks that have not ended.")
@click.option("--ended", is_flag=True, help="Only tasks that have ended.")
@click.option(
    "--status",
    type=click.Choice([*(status.value for status in TaskStatus), UNKNOWN]),
    help="Only tasks with this status; unknown for those that their server did not know when it was last asked.",
)
@click.option("--search", metavar="TEXT", help="Only tasks with this in their id, tool, arguments, message or server.")
@takes_server("Only tasks of this server.")
@click.option("--refresh", is_flag=True, help="Ask the servers first; otherwise it is what was last seen.")
@takes_options
async def command(
    *,
    active: bool,
    ended: bool,
    status: str | None,
    search: str | None,
    server: ServerAddress | None,
    refresh: bool,
    options: Options,
) -> int:
    """List the tasks that were started from here, as they were last seen.

    Examples:
      mcp-tasks ls
      mcp-tasks ls --active --refresh
      mcp-tasks ls --status failed --search render
      mcp-tasks ls --json | jq -r '.[].taskId'
      mcp-tasks ls --store URL --help                 (for operators: all of a store)
    """
    if active and ended:
        raise click.UsageError("--active and --ended exclude each other; without them, all tasks are listed")
    is_active = active if active or ended else None
    spec, identity, code = server and server.spec, options.access.identity, Exit.OK
    with user_ledger(options.ledger_path) as ledger:
        if refresh:
            pending = ledger.pending(server=spec, identity=identity)
            code = await _refresh(Chosen(ledger=ledger, entries=pending, options=options, several=True))
        entries = ledger.entries(server=spec, identity=identity, active=is_active, status=status, search=search)
    if options.output == "json":
        print_json([entry.to_json() for entry in entries])
    else:
        _print(entries, "" if refresh else ", as last seen")
    return code


async def _refresh(pending: Chosen) -> Exit:
    """Ask the servers; gives the exit code, which says whether one could not be asked."""
    seen = await pending.at_each(TaskHandle.status)
    problems = [found for found in seen.values() if isinstance(found, Exception)]
    for message, count in Counter(problem_of(problem).message for problem in problems).items():
        say(f"{count} task{'' if count == 1 else 's'} could not be refreshed: {message}", "yellow")
    # Of the others it is known that there is nobody to ask, or nothing to know.
    is_open = any(not isinstance(problem, UnknownTask | InvalidAddress) for problem in problems)
    return Exit.UNREACHABLE if is_open else Exit.OK


def _table(entries: Sequence[LedgerEntry], *, short: Mapping[str, str]) -> RenderableType:
    columns: Columns[Followed] = {
        "id": lambda task: short[task.entry.task_id],
        "status": status_of,
        "started": lambda task: ago(task.entry.age),
        "took": lambda task: clock(task.elapsed),
        "call": lambda task: f"{task.entry.tool} {task.entry.arguments or ''}",
        "message": lambda task: task.message,
        "server": lambda task: Text(one_line(task.entry.server_label), style="bright_black"),
    }
    return listing(columns, [Followed(entry=entry) for entry in entries], fixed=4, cut=True)


def _print(entries: Sequence[LedgerEntry], how: str) -> None:
    short = short_ids(entry.task_id for entry in entries)
    for title, is_final in (("Active", False), ("Ended", True)):
        group = [entry for entry in entries if entry.is_final == is_final]
        if group:
            stdout().print(f"{title} ({len(group)}){'' if is_final else how}", style="bold")
            stdout().print(_table(group, short=short))
    if not entries:
        say("No tasks.")
