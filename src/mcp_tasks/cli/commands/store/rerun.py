"""`mcp-tasks rerun`: have what a task asked for done again, as a new task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_ids, takes_store
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.core.record import TaskRecord


@click.command()
@takes_ids
@click.option("--yes", is_flag=True, help="Also what its tool has begun before, without asking.")
@takes_store
async def command(*, ids: Sequence[str], yes: bool, at: StoreOptions) -> int:
    """Run tasks that have ended again, each as a new task with the same request and owner; prints the new ids.

    A tool that has begun may have done its work, however its task ended: a payment may be paid. What it does a second
    time, only its author knows, so that is asked about, or wants --yes.

    While a new one has not ended, running the same task again gives that one.

    Examples:
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --yes --store postgresql://db/tasks

    Exit codes: 0 queued, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def run_again(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        record = await here.find(task_id)
        if record.is_final and record.attempt and not yes:
            _confirm(record)
        new = await here.operator.run_again(record)
        # Also of one that is given because it was there already, and so is nothing that was made.
        here.note("rerun", new.namespace, owner=new.owner, task_id=new.id, tool=new.name, about=task_id)
        return {"taskId": new.id, "rerunOf": task_id, "status": new.status.value}, new.id

    return await at.each(ids, run_again, tell=click.echo)


def _confirm(record: TaskRecord) -> None:
    """Have somebody say that what was begun may be done again.

    Raises:
        Problem: Nobody does.
    """
    what = (
        f"{record.id}: the tool {one_line(record.name)!r} has begun before, and may have done its work, though the "
        f"task is {record.status.value}"
    )
    if not sys.stdin.isatty():
        raise Problem(what, Exit.USAGE, hint="If it may be done a second time: --yes")
    if not click.confirm(f"{what}. Run it again?", err=True):
        raise Problem(f"{record.id} was not run again", Exit.USAGE)
