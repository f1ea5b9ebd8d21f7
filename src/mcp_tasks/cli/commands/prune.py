"""`mcp-tasks prune`: take tasks out of the ledger that have ended, or that their servers no longer know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from mcp_tasks.cli.options import Duration, Output, takes_ledger, takes_output
from mcp_tasks.cli.remembered import opened_ledger
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.client.ledger import UNKNOWN

EPILOG = """\
\b
Examples:
  mcp-tasks prune
  mcp-tasks prune --older-than 7d --dry-run
"""


@click.command(epilog=EPILOG)
@click.option(
    "--older-than",
    type=Duration(),
    metavar="DURATION",
    default="0s",
    help="Only tasks that were started longer ago: 90s, 30m, 1h30m, 7d, 2w.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and keep it.")
@takes_ledger
@takes_output
def command(*, older_than: timedelta, dry_run: bool, ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger that have ended, with their results, and those that their server did not know.

    Tasks that have not ended stay.
    """
    with opened_ledger(ledger_path) as ledger:
        before = datetime.now(UTC) - older_than
        over = [entry for entry in ledger.entries() if entry.is_final or entry.status == UNKNOWN]
        entries = [entry for entry in over if entry.started_at <= before]
        for entry in entries:
            if not dry_run:
                ledger.forget(entry.task_id, server=entry.server, identity=entry.identity)
    if output == "json":
        print_json([entry.task_id for entry in entries])
    else:
        say(f"{'Would remove' if dry_run else 'Removed'} {len(entries)} task{'' if len(entries) == 1 else 's'}.")
    return Exit.OK
