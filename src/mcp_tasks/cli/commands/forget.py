"""`mcp-tasks forget` and `mcp-tasks prune`: take tasks out of the ledger, by their ids or because they are over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.options import Duration, Output, takes_ledger, takes_output
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.client import LedgerEntry, user_ledger


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_ledger
@takes_output
def forget(*, ids: Sequence[str], ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger, with their results.

    Their servers are not told, and a task that runs goes on: write down its id if you may want it back.

    Examples:
      mcp-tasks forget task_AhLN
    """
    with user_ledger(ledger_path) as ledger:
        entries = ledger.find_all(ids)
        for entry in entries:
            ledger.forget(entry.task_id, server=entry.server, identity=entry.identity)
    ends = ["" if entry.is_final else f", which goes on at {entry.server}" for entry in entries]
    gone = [f"Forgotten: {entry.task_id}{end}" for entry, end in zip(entries, ends, strict=True)]
    return _tell(entries, "\n".join(gone), output)


@click.command()
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
def prune(*, older_than: timedelta, dry_run: bool, ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger that have ended, with their results, and those that their server did not know.

    Tasks that have not ended stay.

    Examples:
      mcp-tasks prune
      mcp-tasks prune --older-than 7d --dry-run
    """
    with user_ledger(ledger_path) as ledger:
        entries = ledger.prune(older_than=older_than, dry_run=dry_run)
    count = f"{len(entries)} task{'' if len(entries) == 1 else 's'}"
    lines = [f"  {one_line(entry.task_id)}  {one_line(entry.tool)}  {entry.status}" for entry in entries]
    would = "\n".join([f"Would remove {count}{':' if lines else '.'}", *lines])
    return _tell(entries, would if dry_run else f"Removed {count}.", output)


def _tell(entries: Sequence[LedgerEntry], words: str, output: Output) -> int:
    if output == "json":
        print_json([entry.task_id for entry in entries])
    else:
        say(words)
    return Exit.OK
