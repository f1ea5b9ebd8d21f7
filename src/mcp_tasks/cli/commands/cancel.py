"""`mcp-tasks cancel`: ask for tasks to be cancelled."""

from __future__ import annotations

from collections.abc import Sequence

import click
from mcp import Client, MCPError

from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.options import TaskOptions, takes_task_options
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of, task_not_known
from mcp_tasks.cli.terminal.outcomes import print_json, say
from mcp_tasks.cli.terminal.text import clean
from mcp_tasks.client import Ledger, LedgerEntry, resume_task
from mcp_tasks.client.servers.grouping import by_server
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.errors import TasksError, UnknownTask

EPILOG = """\
\b
Examples:
  mcp-tasks cancel task_AhLN
  mcp-tasks cancel --store URL --help    (for operators: any task of a store)
  mcp-tasks cancel $(mcp-tasks ls --active --output json | jq -r '.[].taskId')
"""


@click.command(epilog=EPILOG)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_task_options
def command(*, ids: Sequence[str], options: TaskOptions) -> int:
    """Cancel tasks.

    A server acknowledges this and then does what it can: a task may still end in another way. What is printed is how
    each stands right after.
    """

    async def work() -> int:
        with opened_ledger(options.ledger_path) as ledger:
            return await _cancel_all(ledger, find_tasks(ledger, ids, options), options)

    return run(work)


async def _cancel_all(ledger: Ledger, entries: Sequence[LedgerEntry], options: TaskOptions) -> int:
    statuses: dict[str, str] = {}
    code = Exit.OK
    connect = connector(options.access, ledger=ledger)
    for group in by_server(entries, options.access.headers):
        try:
            async with connect(group) as client:
                for entry in group.entries:
                    statuses[entry.task_id] = await _cancel(client, entry)
        except (Problem, TasksError) as exc:
            problem = problem_of(exc) or Problem(str(exc), Exit.FAILED)
            problem.show()
            code = code or problem.code
    if options.output == "json":
        print_json([{"taskId": task_id, "status": status} for task_id, status in statuses.items()])
    else:
        for task_id, status in statuses.items():
            say(f"{short_id(task_id)}: {_WORDS.get(status, status)}")
    return code


_WORDS = {
    "cancelled": "cancelled",
    "working": "asked to stop; it is still working",
    "input_required": "asked to stop; it still waits for an answer",
    "completed": "had completed already",
    "failed": "had failed already",
}


async def _cancel(client: Client, entry: LedgerEntry) -> str:
    handle = resume_task(client, entry.task_id, tool=entry.tool)
    try:
        await handle.cancel()
        return (await handle.status()).status.value
    except UnknownTask as exc:
        raise Problem(f"{short_id(entry.task_id)}: {task_not_known(exc)}", Exit.UNKNOWN_TASK) from exc
    except MCPError as exc:
        raise Problem(f"{short_id(entry.task_id)}: the server answers: {clean(str(exc))}", Exit.FAILED) from exc
