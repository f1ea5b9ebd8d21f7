"""`mcp-tasks watch`: several tasks in one table, as they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.options import Waiting, takes_timeout
from mcp_tasks.cli.remembered import Chosen, takes_tasks
from mcp_tasks.cli.terminal.attending import Attending
from mcp_tasks.cli.terminal.boards import JsonBoard, LineBoard, TableBoard
from mcp_tasks.cli.terminal.exits import Detached, Exit, problem_of
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import can_redraw, say
from mcp_tasks.client import Followed, WaitTimedOut, short_id


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=task_ids)
@takes_timeout("watching")
@takes_tasks
async def command(*, chosen: Chosen, timeout: float | None) -> int:
    """Watch several tasks in one table until they have ended; without IDs, all that have not.

    Nothing is asked and nothing is changed; Ctrl-C leaves. With --output json: one object per line and change.

    Examples:
      mcp-tasks watch
      mcp-tasks watch task_AhLN task_9xQz
      mcp-tasks watch --output json | jq -r 'select(.status == "failed").taskId'
    """
    access = chosen.options.access
    pending = chosen.ledger.pending(identity=access.identity)
    # What cannot be watched is for `ls`, and does not keep the rest from being watched.
    entries = chosen.entries or [entry for entry in pending if entry.attributed and not entry.is_over]
    if not entries:
        say("Nothing to watch: every task has ended.")
        return Exit.OK
    drawn = TableBoard(entries) if can_redraw() else LineBoard(with_ids=True)
    board = JsonBoard() if chosen.options.output == "json" else drawn
    attending = Attending(board, access, Waiting(timeout=timeout), asks=False)
    try:
        seen = await attending.follow(replace(chosen, entries=entries))
    except Detached:
        return Exit.OK
    if any(isinstance(followed.problem, WaitTimedOut) for followed in seen):
        say(f"Not all had ended within {timeout:.15g} s.", "yellow")
        return Exit.TIMEOUT
    return _report_problems(seen)


def _report_problems(seen: Sequence[Followed]) -> int:
    code = Exit.OK
    for followed in seen:
        if followed.problem is not None:
            problem = problem_of(followed.problem)
            say(f"{short_id(followed.entry.task_id)}: {one_line(problem.message)}", "red")
            code = code or problem.code
    return code
