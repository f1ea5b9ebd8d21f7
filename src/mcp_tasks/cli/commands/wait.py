"""`mcp-tasks wait`: come back to tasks, and stay until they have ended."""

from __future__ import annotations

import click

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.options import Waiting, takes_waiting
from mcp_tasks.cli.remembered import Chosen, takes_tasks
from mcp_tasks.cli.terminal.attending import Attending
from mcp_tasks.cli.terminal.boards import new_board
from mcp_tasks.cli.terminal.outcomes import report


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_waiting("waiting")
@takes_tasks
async def command(*, chosen: Chosen, waiting: Waiting) -> int:
    """Wait for tasks and print their results.

    An ID may be cut short as long as it names one task. Questions are asked at the prompt; Ctrl-C offers to cancel
    or to leave the tasks running. With --output json: one object for one ID, a list for several.

    Examples:
      mcp-tasks wait task_AhLN
      mcp-tasks wait task_AhLN task_9xQz --timeout 10m
      mcp-tasks wait 786512e2-9e0d-44bd-8f29-789f320fe840 --server http://localhost:8000/mcp

    Exit codes are those of `call`; of several tasks, that of the first that is
    not well.
    """
    return await wait_for(chosen, waiting)


async def wait_for(chosen: Chosen, waiting: Waiting) -> int:
    """Wait for tasks to end, and print how they stand then; gives the exit code."""
    board = new_board(with_ids=len(chosen.entries) > 1)
    followed = await Attending(board, chosen.options.access, waiting).follow(chosen)
    return report(followed, chosen.options, save=waiting.save, as_list=chosen.several)
