"""`mcp-tasks forget`: take tasks out of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.options import Output, takes_ledger, takes_output
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.outcomes import print_json, say

EPILOG = """\
\b
Examples:
  mcp-tasks forget task_AhLN
"""


@click.command(epilog=EPILOG)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_ledger
@takes_output
def command(*, ids: Sequence[str], ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger, with their results.

    Their servers are not told, and a task that runs goes on: write down its id if you may want it back.
    """
    with opened_ledger(ledger_path) as ledger:
        entries = find_tasks(ledger, ids)
        for entry in entries:
            ledger.forget(entry.task_id, server=entry.server, identity=entry.identity)
    if output == "json":
        print_json([entry.task_id for entry in entries])
    for entry in entries:
        if output == "text":
            say(f"Forgotten: {entry.task_id}" + ("" if entry.is_final else f", which goes on at {entry.server}"))
    return Exit.OK
