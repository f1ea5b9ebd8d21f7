"""`mcp-tasks ls`: the tasks that were started from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.options import Access, Output, takes_access, takes_ledger, takes_output
from mcp_tasks.cli.remembered import opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.servers import SERVER
from mcp_tasks.cli.terminal.exits import Exit, problem_of
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.cli.terminal.tables import task_table
from mcp_tasks.cli.terminal.text import fields
from mcp_tasks.cli.terminal.views import stdout
from mcp_tasks.client import Ledger, LedgerEntry
from mcp_tasks.client.ledger import UNKNOWN
from mcp_tasks.client.looking import look_at
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.short_ids import short_ids
from mcp_tasks.core.status import TaskStatus

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
@click.option("--active", "which", flag_value="active", help="Only tasks that have not ended.")
@click.option("--ended", "which", flag_value="ended", help="Only tasks that have ended.")
@click.option(
    "--status",
    type=click.Choice([*(status.value for status in TaskStatus), UNKNOWN]),
    help="Only tasks with this status; unknown for those that their server did not know when it was last asked.",
)
@click.option("--search", metavar="TEXT", help="Only tasks with this in their id, tool, arguments, message or server.")
@click.option("--server", type=SERVER, metavar="SERVER", help="Only tasks of this server.")
@click.option("--refresh", is_flag=True, help="Ask the servers first; otherwise it is what was last seen.")
@takes_access
@takes_ledger
@takes_output
def command(
    *,
    which: str | None,
    status: str | None,
    search: str | None,
    server: str | None,
    refresh: bool,
    access: Access,
    ledger_path: Path | None,
    output: Output,
) -> int:
    """List the tasks that were started from here, as they were last seen."""

    def wanted(entry: LedgerEntry) -> bool:
        text = f"{entry.task_id} {entry.tool} {entry.arguments or ''} {entry.message or ''} {entry.server}".casefold()
        return (
            (which is None or entry.is_final == (which == "ended"))
            and (status is None or entry.status == status)
            and (search is None or search.casefold() in text)
        )

    with opened_ledger(ledger_path) as ledger:
        spec = None if server is None else ServerAddress.parse(server).spec
        if refresh:
            run(lambda: _refresh(ledger, spec, access))
        entries = ledger.entries(server=spec, identity=access.identity)
    _print([entry for entry in entries if wanted(entry)], output)
    return Exit.OK


async def _refresh(ledger: Ledger, spec: str | None, access: Access) -> int:
    pending = ledger.pending(server=spec, identity=access.identity)
    seen = await look_at(pending, connector(access, ledger=ledger), headers=access.headers)
    problems = Counter(problem_of(found).message for found in seen.values() if isinstance(found, Exception))
    for message, count in problems.items():
        say(f"{count} task{'' if count == 1 else 's'} could not be refreshed: {message}", "yellow")
    return Exit.OK


def _print(entries: Sequence[LedgerEntry], output: Output) -> None:
    if output == "json":
        print_json([entry_json(entry) for entry in entries])
        return
    active = [entry for entry in entries if not entry.is_final]
    ended = [entry for entry in entries if entry.is_final]
    short = short_ids(entry.task_id for entry in entries)
    for title, group in (("Active", active), ("Ended", ended)):
        if group:
            stdout().print(f"{title} ({len(group)})", style="bold")
            stdout().print(task_table(group, short=short))
    if not entries:
        say("No tasks.")


def entry_json(entry: LedgerEntry) -> dict[str, Any]:
    """A remembered task as JSON, in the protocol's words."""
    return fields(
        taskId=entry.task_id,
        server=entry.server,
        identity=entry.identity or None,
        tool=entry.tool,
        arguments=entry.arguments,
        status=entry.status,
        isError=entry.is_error or None,
        statusMessage=entry.message,
        startedAt=entry.started_at.isoformat(),
        finishedAt=None if entry.finished_at is None else entry.finished_at.isoformat(),
        result=entry.result,
    )
