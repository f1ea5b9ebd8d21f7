"""`mcp-tasks rerun`: have what a task asked for done again, as a new task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mcp_tasks.cli.outcomes import print_json
from mcp_tasks.cli.store.options import Session, StoreOptions, takes_store

EPILOG = """\
\b
Examples:
  mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks

\b
Exit codes: 0 queued, 2 wrong usage, 8 no such task, 10 the store cannot be used.
"""


@click.command(epilog=EPILOG)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@takes_store
def command(*, ids: Sequence[str], at: StoreOptions) -> int:
    """Run tasks that have ended again, each as a new task with the same request and owner; prints the new ids.

    While a new one has not ended, running the same task again gives that one.
    """

    async def work(here: Session) -> int:
        made: list[dict[str, Any]] = []

        async def run_again(task_id: str) -> None:
            new = await here.operator.run_again(await here.find(task_id))
            made.append({"taskId": new.id, "rerunOf": task_id, "status": new.status.value})
            # Also of one that is given because it was there already, and so is nothing that was made.
            here.note("rerun", new.namespace, owner=new.owner, task_id=new.id, tool=new.name, about=task_id)
            if here.output == "text":
                click.echo(new.id)

        code = await here.each(ids, run_again)
        if here.output == "json":
            print_json(made)
        return code

    return at.run(work)
