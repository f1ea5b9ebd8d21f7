"""`mcp-tasks delete`: forget tasks before their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_ids, takes_store
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.errors import TaskUnreadable


@click.command()
@takes_ids
@click.option("--force", is_flag=True, help="Cancel one that has not ended first; and delete one that cannot be read.")
@takes_store
async def command(*, ids: Sequence[str], force: bool, at: StoreOptions) -> int:
    """Delete tasks that have ended, with all that is kept of them. There is no way back.

    Examples:
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --force --store postgresql://db/tasks

    Exit codes: 0 gone, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def delete(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        await _delete(here, task_id, force=force)
        return {"taskId": task_id}, f"{task_id}: deleted"

    return await at.each(ids, delete)


async def _delete(here: Session, task_id: str, *, force: bool) -> None:
    try:
        record = await here.find(task_id)
    except TaskUnreadable as exc:
        if not force:
            raise
        await here.operator.delete_unreadable(task_id)
        # There is no record of it that an observer could be shown.
        here.note("deleted", "", task_id=task_id, reason=f"unreadable: {exc.why}")
        return
    if not (force or record.is_final):
        raise Problem(
            f"{task_id} has not ended: it is {record.status.value}", Exit.USAGE, hint="--force cancels it first."
        )
    if force:
        record = await here.operator.cancel(record, "Deleted by an operator")
    await here.operator.delete(record)
