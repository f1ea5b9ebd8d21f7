"""`mcp-tasks watch`: several tasks in one table, as they change."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.options import Access, Output, TaskOptions, takes_task_options, takes_timeout
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.attending import Attending
from mcp_tasks.cli.terminal.desk import Desk, TimeUp
from mcp_tasks.cli.terminal.exits import Detached, Exit, problem_of
from mcp_tasks.cli.terminal.outcomes import say
from mcp_tasks.cli.terminal.tables import JsonBoard, TableBoard
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Board, LineBoard, can_redraw
from mcp_tasks.client import Follower, Ledger, LedgerEntry
from mcp_tasks.client.ledger import UNKNOWN
from mcp_tasks.client.servers.connecting import ask_through_the_task
from mcp_tasks.client.servers.grouping import by_server
from mcp_tasks.client.short_ids import short_id

EPILOG = """\
\b
Examples:
  mcp-tasks watch
  mcp-tasks watch task_AhLN task_9xQz
  mcp-tasks watch --output json | jq -r 'select(.status == "failed").taskId'
"""


@click.command(epilog=EPILOG)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=task_ids)
@takes_timeout("watching")
@takes_task_options
def command(*, ids: Sequence[str], timeout: float | None, options: TaskOptions) -> int:
    """Watch several tasks in one table until they have ended; without IDs, all that have not.

    Nothing is asked and nothing is changed; Ctrl-C leaves. With --output json: one object per line and change.
    """

    async def work() -> int:
        with opened_ledger(options.ledger_path) as ledger:
            entries = _chosen(ledger, ids, options)
            if not entries:
                say("Nothing to watch: every task has ended.")
                return Exit.OK
            return await _watch(ledger, entries, options.access, options.output, limit=timeout)

    return run(work)


def _chosen(ledger: Ledger, ids: Sequence[str], options: TaskOptions) -> list[LedgerEntry]:
    if ids:
        return find_tasks(ledger, ids, options)
    # What cannot be watched is for `ls`, and does not keep the rest from being watched.
    pending = ledger.pending(identity=options.access.identity)
    return [entry for entry in pending if entry.attributed and entry.status != UNKNOWN]


async def _watch(
    ledger: Ledger, entries: Sequence[LedgerEntry], access: Access, output: Output, *, limit: float | None
) -> int:
    board = _board(entries, output)
    desk = Desk(board, limit=limit)
    follower = Follower(Attending(board, desk), asks=False)
    with board:
        try:
            groups = by_server(entries, access.headers)
            connect = connector(access, ledger=ledger, elicit=ask_through_the_task)
            await desk.supervise(follower.follow_servers(groups, connect))
        except TimeUp:
            board.stop()
            say(f"Not all had ended within {limit:.15g} s.", "yellow")
            return Exit.TIMEOUT
        except Detached:
            return Exit.OK
    return _report_problems(follower)


def _board(entries: Sequence[LedgerEntry], output: Output) -> Board:
    if output == "json":
        return JsonBoard()
    return TableBoard(entries) if can_redraw() else LineBoard(with_ids=True)


def _report_problems(follower: Follower) -> int:
    code = Exit.OK
    for followed in follower.seen.values():
        if followed.problem is not None:
            problem = problem_of(followed.problem)
            say(f"{short_id(followed.entry.task_id)}: {one_line(problem.message)}", "red")
            code = code or problem.code
    return code
