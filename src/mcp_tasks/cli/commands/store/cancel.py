"""`mcp-tasks cancel --store URL`: end tasks as cancelled, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_ids, takes_store
from mcp_tasks.core.status import TaskStatus


@click.command()
@takes_ids
@click.option(
    "--reason", default="Cancelled by an operator", show_default=True, metavar="TEXT", help="What its client is told."
)
@takes_store
async def command(*, ids: Sequence[str], reason: str, at: StoreOptions) -> int:
    """End tasks as cancelled. The worker that runs one hears of it and stops the tool.

    Examples:
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --reason "Maintenance" --store sqlite:///tasks.db

    Exit codes: 0 ended, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def cancel(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        before = await here.find(task_id)
        after = await here.operator.cancel(before, reason)
        was_first = after.version > before.version and after.status is TaskStatus.CANCELLED
        words = "cancelled" if was_first else f"had ended already, as {after.status.value}"
        return {"taskId": task_id, "status": after.status.value}, f"{task_id}: {words}"

    return await at.each(ids, cancel)
