"""`mcp-tasks drain`: have workers take nothing more, and finish what they have."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_store
from mcp_tasks.cli.commands.store.workers import find_worker, short_worker, worker_json
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.views import print_json, say


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="WORKER...")
@click.option("--undo", is_flag=True, help="Have them take tasks again.")
@takes_store
async def command(*, names: Sequence[str], undo: bool, at: StoreOptions) -> int:
    """Have workers take nothing more and finish what they have. Then they idle until --undo, or until they are ended.

    Each looks with its heartbeat whether it is to drain, so that takes some seconds; `workers` shows how far they are.

    Examples:
      mcp-tasks drain 1f0c9a2b --store postgresql://db/tasks
      mcp-tasks drain 1f0c9a2b --undo --store postgresql://db/tasks

    Exit codes: 0 noted, 2 wrong usage, 10 the store cannot be used.
    """

    async def work(here: Session) -> int:
        for worker in [await find_worker(here, name) for name in names]:
            await (here.operator.undrain(worker) if undo else here.operator.drain(worker))
            here.note("drained", worker.namespace, outcome="undone" if undo else None, worker=worker.name)
        seen = [await find_worker(here, name) for name in names]
        if here.output == "json":
            print_json([worker_json(worker) for worker in seen])
        else:
            for worker in seen:
                word = "takes tasks again" if undo else "is to take nothing more"
                tasks = f"{worker.claimed} task{'' if worker.claimed == 1 else 's'}"
                say(f"{short_worker(worker.name)} {word}; it has {tasks}")
        return Exit.OK

    return await at.run(work)
