"""`mcp-tasks cancel`: ask for tasks to be cancelled."""

from __future__ import annotations

import click
from mcp import MCPError

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.remembered import Chosen, takes_tasks
from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.client import TaskHandle, UnknownTask, short_id

_WORDS = {
    "cancelled": "cancelled",
    "working": "asked to stop; it is still working",
    "input_required": "asked to stop; it still waits for an answer",
    "completed": "had completed already",
    "failed": "had failed already",
}


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_tasks
async def command(*, chosen: Chosen) -> int:
    """Cancel tasks.

    A server acknowledges this and then does what it can: a task may still end in another way. What is printed is how
    each stands right after.

    Examples:
      mcp-tasks cancel task_AhLN
      mcp-tasks cancel --store URL --help    (for operators: any task of a store)
      mcp-tasks cancel $(mcp-tasks ls --active --output json | jq -r '.[].taskId')
    """
    seen = await chosen.at_each(_cancel)
    statuses: dict[str, str] = {}
    problems: dict[str, Problem] = {}
    for entry in chosen.entries:
        match seen[entry.key]:
            case str(status):
                statuses[entry.task_id] = status
            case found:
                problem = problem_of(found)
                if isinstance(found, UnknownTask | MCPError):
                    problem.message = f"{short_id(entry.task_id)}: {problem.message}"
                # Several tasks of a server that is not there have one problem.
                problems[problem.message] = problem
    for problem in problems.values():
        problem.show()
    if chosen.options.output == "json":
        print_json([{"taskId": task_id, "status": status} for task_id, status in statuses.items()])
    else:
        for task_id, status in statuses.items():
            say(f"{short_id(task_id)}: {_WORDS.get(status, status)}")
    return next((problem.code for problem in problems.values()), Exit.OK)


async def _cancel(handle: TaskHandle) -> str:
    await handle.cancel()
    return (await handle.status()).status.value
