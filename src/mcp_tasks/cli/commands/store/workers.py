"""`mcp-tasks workers`: the processes that run the tasks of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_store
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import print_json, say, stdout
from mcp_tasks.runtime.operator import MOST_CLAIMED, WorkerSeen


@click.command()
@takes_store
async def command(*, at: StoreOptions) -> int:
    """List the workers of a store: how often each has beaten, how many tasks it has, and whether it drains.

    A heartbeat is a number that grows: of one that stays the same over some seconds, the process is gone or hangs.

    Examples:
      mcp-tasks workers --store postgresql://db/tasks
      mcp-tasks workers --store postgresql://db/tasks --json
    """

    async def work(here: Session) -> int:
        seen = await here.operator.workers(await here.namespaces())
        if here.output == "json":
            print_json([worker_json(worker) for worker in seen])
        elif seen:
            stdout().print(_table(seen))
        else:
            say("No workers.")
        return Exit.OK

    return await at.run(work)


def short_worker(name: str) -> str:
    """What tells workers apart: the end of a name."""
    return one_line(name.rpartition("/")[2])


async def find_worker(here: Session, text: str) -> WorkerSeen:
    """The worker of that name, or with that end.

    Raises:
        Problem: There is none, or there are several.
    """
    seen = await here.operator.workers(await here.namespaces())
    found = [worker for worker in seen if text in (worker.name, short_worker(worker.name))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(short_worker(worker.name) for worker in seen) or "none"
    what = "no worker has that name" if not found else "several workers have that name; give the whole one"
    raise Problem(f"{text!r}: {what}", Exit.USAGE, hint=f"There are: {names}")


def worker_json(worker: WorkerSeen) -> dict[str, Any]:
    """A worker as JSON."""
    return {
        "worker": worker.name,
        "namespace": worker.namespace,
        "beats": worker.beats,
        "claimed": worker.claimed,
        "draining": worker.draining is not None,
        "drainedBy": worker.draining,
        "gone": worker.is_gone,
    }


def _table(seen: Sequence[WorkerSeen]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("worker", "server", "beats", "tasks", "state"):
        table.add_column(title, no_wrap=True)
    for worker in seen:
        tasks = f"{worker.claimed}{'+' if worker.claimed == MOST_CLAIMED else ''}"
        row = (short_worker(worker.name), one_line(worker.namespace), str(worker.beats), tasks, _state(worker))
        table.add_row(*(Text(text) for text in row))
    return table


def _state(worker: WorkerSeen) -> str:
    if worker.is_gone:
        return "gone"
    if not worker.beats:
        return "signed off"
    if worker.draining is None:
        return "working"
    return f"{'draining' if worker.claimed else 'drained'} (asked for by {one_line(worker.draining)})"
