"""`mcp-tasks show --store URL`: all that is kept of one task."""

from __future__ import annotations

from typing import Any, cast

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_store
from mcp_tasks.cli.commands.store.shapes import dossier_json
from mcp_tasks.cli.terminal.exits import Exit
from mcp_tasks.cli.terminal.text import json_text, one_line
from mcp_tasks.cli.terminal.views import badge, print_json, stdout


@click.command()
@click.argument("task_id", metavar="ID")
@click.option(
    "--secrets", is_flag=True, help="Show arguments, questions, answers, steps, messages and results as they are."
)
@takes_store
async def command(*, task_id: str, secrets: bool, at: StoreOptions) -> int:
    """Show what is kept of a task: its request, its journal, its runs and how long they took.

    What it is about is told by size and shape, unless you ask for --secrets; the audit log says which you did.

    Examples:
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --secrets --json --store sqlite:///tasks.db

    Exit codes: 0 shown, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def work(here: Session) -> int:
        record = await here.find(task_id)
        dossier = await here.operator.look(task_id)
        # Before it is shown: what cannot be written down is not to be seen.
        seen = "secrets" if secrets else None
        about = {"owner": record.owner, "tool": record.name, "method": record.method}
        here.note("shown", record.namespace, task_id=record.id, outcome=seen, **about)
        said = dossier_json(dossier, here.operator.now(), secrets=secrets)
        if here.output == "json":
            print_json(said)
        else:
            _print(said)
        return Exit.OK

    return await at.run(work)


def _print(said: dict[str, Any]) -> None:
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bright_black")
    card.add_column()
    for name, value in said.items():
        if name == "status":
            card.add_row(name, badge(value))
        elif name == "journal":
            card.add_row(name, Text(f"{len(value)} entries"))
            for entry in value:
                line = f"{entry['number']:>3}  {entry['kind']:<8} {entry['key']}  {_text(entry['value'])}"
                card.add_row("", Text(one_line(line)))
        elif isinstance(value, dict):
            for inner, part in cast("dict[str, Any]", value).items():
                if part is not None:
                    card.add_row(f"{name}.{one_line(inner)}", Text(one_line(_text(part))))
        else:
            card.add_row(name, Text(one_line(_text(value))))
    stdout().print(card)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
