"""`mcp-tasks prune`: take tasks out of the ledger that have ended, or that their servers no longer know."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from mcp_tasks.cli.options import Output, takes_ledger, takes_output
from mcp_tasks.cli.remembered import opened_ledger
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.client.ledger import UNKNOWN

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

EPILOG = """\
\b
Examples:
  mcp-tasks prune
  mcp-tasks prune --older-than 7d --dry-run
"""


def _read_age(context: click.Context, parameter: click.Parameter, text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not an age; write 90s, 30m, 12h, 7d or 2w", context, parameter)
    return timedelta(**{_UNITS[match[2]]: float(match[1])})


@click.command(epilog=EPILOG)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_read_age,
    default="0s",
    help="Only tasks that were started longer ago: 90s, 30m, 12h, 7d, 2w.",
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
