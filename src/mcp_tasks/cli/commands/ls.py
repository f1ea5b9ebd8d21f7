"""`mcp-tasks ls`: the tasks that were started from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from mcp_tasks.cli.commands.servers.names import SERVER
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.options import Access, Options, Output, takes_options
from mcp_tasks.cli.remembered import opened_ledger
from mcp_tasks.cli.terminal.exits import Exit, problem_of
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.cli.terminal.tables import task_table
from mcp_tasks.cli.terminal.views import stdout
from mcp_tasks.client import Ledger, LedgerEntry, ServerAddress, TaskStatus, short_ids
from mcp_tasks.client.ledger import UNKNOWN
from mcp_tasks.client.looking import look_at

EPILOG = """\
\b
Examples:
  mcp-tasks ls
  mcp-tasks ls --active --refresh
  mcp-tasks ls --status failed --search render
  mcp-tasks ls --json | jq -r '.[].taskId'
  mcp-tasks ls --store URL --help                 (for operators: all of a store)
"""


@click.command(epilog=EPILOG)
@click.option("--active", is_flag=True, help="Only tasks that have not ended.")
@click.option("--ended", is_flag=True, help="Only tasks that have ended.")
@click.option(
    "--status",
    type=click.Choice([*(status.value for status in TaskStatus), UNKNOWN]),
    help="Only tasks with this status; unknown for those that their server did not know when it was last asked.",
)
@click.option("--search", metavar="TEXT", help="Only tasks with this in their id, tool, arguments, message or server.")
@click.option("--server", type=SERVER, metavar="SERVER", help="Only tasks of this server.")
@click.option("--refresh", is_flag=True, help="Ask the servers first; otherwise it is what was last seen.")
@takes_options
async def command(
    *,
    active: bool,
    ended: bool,
    status: str | None,
    search: str | None,
    server: str | None,
    refresh: bool,
    options: Options,
) -> int:
    """List the tasks that were started from here, as they were last seen."""
    if active and ended:
        raise click.UsageError("--active and --ended exclude each other; without them, all tasks are listed")

    def wanted(entry: LedgerEntry) -> bool:
        text = f"{entry.task_id} {entry.tool} {entry.arguments or ''} {entry.message or ''} {entry.server}".casefold()
        return (
            not (active and entry.is_final)
            and not (ended and not entry.is_final)
            and (status is None or entry.status == status)
            and (search is None or search.casefold() in text)
        )

    with opened_ledger(options.ledger_path) as ledger:
        spec = None if server is None else ServerAddress.parse(server).spec
        if refresh:
            await _refresh(ledger, spec, options.access)
        entries = ledger.entries(server=spec, identity=options.access.identity)
    _print([entry for entry in entries if wanted(entry)], options.output)
    return Exit.OK


async def _refresh(ledger: Ledger, spec: str | None, access: Access) -> None:
    pending = ledger.pending(server=spec, identity=access.identity)
    seen = await look_at(pending, connector(access, ledger=ledger), headers=access.headers)
    problems = Counter(problem_of(found).message for found in seen.values() if isinstance(found, Exception))
    for message, count in problems.items():
        say(f"{count} task{'' if count == 1 else 's'} could not be refreshed: {message}", "yellow")


def _print(entries: Sequence[LedgerEntry], output: Output) -> None:
    if output == "json":
        print_json([entry.to_json() for entry in entries])
        return
    short = short_ids(entry.task_id for entry in entries)
    for title, is_final in (("Active", False), ("Ended", True)):
        group = [entry for entry in entries if entry.is_final == is_final]
        if group:
            stdout().print(f"{title} ({len(group)})", style="bold")
            stdout().print(task_table(group, short=short))
    if not entries:
        say("No tasks.")
