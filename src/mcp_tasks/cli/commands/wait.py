"""`mcp-tasks wait`: come back to tasks, and stay until they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.options import Access, TaskOptions, takes_on_abandon, takes_save, takes_task_options, takes_timeout
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.attending import Attending, outcome_followed
from mcp_tasks.cli.terminal.desk import Desk, TimeUp
from mcp_tasks.cli.terminal.exits import Detached, Exit
from mcp_tasks.cli.terminal.outcomes import Outcome, report, say, what_became
from mcp_tasks.cli.terminal.text import command_line
from mcp_tasks.cli.terminal.views import new_board
from mcp_tasks.client import Followed, Follower, Ledger, LedgerEntry
from mcp_tasks.client.handle import OnAbandon
from mcp_tasks.client.servers.connecting import ask_through_the_task
from mcp_tasks.client.servers.grouping import by_server
from mcp_tasks.client.short_ids import short_id

EPILOG = """\
\b
Examples:
  mcp-tasks wait task_AhLN
  mcp-tasks wait task_AhLN task_9xQz --timeout 10m
  mcp-tasks wait 786512e2-9e0d-44bd-8f29-789f320fe840 --server http://localhost:8000/mcp

\b
Exit codes are those of `call`; of several tasks, that of the first that is
not well.
"""


@click.command(epilog=EPILOG)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_timeout("waiting")
@takes_on_abandon
@takes_save
@takes_task_options
def command(
    *, ids: Sequence[str], timeout: float | None, on_abandon: OnAbandon, save: Path | None, options: TaskOptions
) -> int:
    """Wait for tasks and print their results.

    An ID may be cut short as long as it names one task. Questions are asked at the prompt; Ctrl-C offers to cancel
    or to leave the tasks running. With --output json: one object for one ID, a list for several.
    """

    async def work() -> int:
        with opened_ledger(options.ledger_path) as ledger:
            entries = find_tasks(ledger, ids, options)
            outcomes = await wait_for(ledger, entries, options.access, limit=timeout, on_abandon=on_abandon)
        return report(outcomes, options.output, options.access, as_list=len(ids) > 1, save=save)

    return run(work)


async def wait_for(
    ledger: Ledger, entries: Sequence[LedgerEntry], access: Access, *, limit: float | None, on_abandon: OnAbandon
) -> list[Outcome]:
    """Wait for tasks to end; how they stand then."""
    # A result that is here is not asked for again: its server may have forgotten it.
    open_entries = [entry for entry in entries if not entry.is_final or entry.result is None]
    board = new_board(with_ids=len(entries) > 1)
    desk = Desk(board, limit=limit)
    desk.can_cancel = True
    follower = Follower(Attending(board, desk), on_abandon=on_abandon)
    with board:
        try:
            connect = connector(access, ledger=ledger, elicit=ask_through_the_task)
            work = follower.follow_servers(by_server(open_entries, access.headers), connect)
            await desk.supervise(work, follower)
        except TimeUp:
            pass
        except Detached:
            _say_goodbye(entries, follower, access)
            raise
    return [_outcome(entry, follower, limit) for entry in entries]


def _outcome(entry: LedgerEntry, follower: Follower, limit: float | None) -> Outcome:
    known = outcome_followed(follower.seen.get(entry.key) or Followed(entry=entry))
    if known.problem is not None or known.status not in ("working", "unknown"):
        return known
    problem = f"the task did not end within {limit or 0:.15g} s{what_became(known.fate)}"
    return replace(known, problem=problem, code=Exit.TIMEOUT)


def _say_goodbye(entries: Sequence[LedgerEntry], follower: Follower, access: Access) -> None:
    if any(followed.fate == "cancelled" for followed in follower.seen.values()):
        say("The tasks that had not ended were cancelled.")
        return
    names = [short_id(entry.task_id) for entry in entries]
    go_on = "The task goes on" if len(entries) == 1 else "The tasks go on"
    say(f"{go_on}. Come back with:\n  {command_line('wait', *names, options=access.repeated)}")
