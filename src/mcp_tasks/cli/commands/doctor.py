"""`mcp-tasks doctor`: what a server does with tasks, and what it does wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import click
from mcp_types.version import LATEST_MODERN_VERSION
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.commands.completion import tool_names
from mcp_tasks.cli.connection import SERVER, way_to
from mcp_tasks.cli.doctor import Report, Verdict, examine
from mcp_tasks.cli.options import Access, Output, takes_access, takes_output
from mcp_tasks.cli.prompt import read_arguments
from mcp_tasks.cli.servers import ServerAddress
from mcp_tasks.cli.terminal import NARROW, Exit, clean, print_json, stderr, stdout

VERDICTS: Final[Mapping[Verdict, tuple[str, str, str]]] = {
    "fail": ("✘", "red", "failed"),
    "pass": ("✔", "green", "passed"),
    "warn": ("!", "yellow", "to look at"),
    "skip": ("·", "bright_black", "skipped"),
}
"""Their marks, and how they are counted."""


@click.command
@click.argument("server", type=SERVER)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--tool", metavar="NAME", shell_complete=tool_names, help="The tool to make tasks with, and then its arguments."
)
@takes_access
@takes_output
async def command(
    *, server: ServerAddress, words: Sequence[str], tool: str | None, access: Access, output: Output
) -> int:
    """Check a server's support for tasks, probe by probe, and say in plain words what is wrong.

    It sends raw requests, so it sees exactly what clients see. To look at tasks it has to make some: it calls the
    --tool three times, or by itself only tools that are marked readOnlyHint and need no arguments.

    Examples:
      mcp-tasks doctor http://localhost:8000/mcp
      mcp-tasks doctor http://localhost:8000/mcp --tool render scene=forest
      mcp-tasks doctor "python server.py" --output json

    Exit codes: 0 nothing failed, 1 something did, 2 wrong usage, 6 the server
    cannot be used, or speaks only 2025-11-25, so that nothing was checked.
    """
    if words and tool is None:
        raise click.UsageError("arguments are for the --tool, and none is named")
    if access.era == "legacy":
        checks = f"doctor checks the tasks extension of {LATEST_MODERN_VERSION}, and nothing of 2025-11-25"
        raise click.UsageError(f"{checks}; leave --era out")
    address, access, environment = way_to(server, access)
    arguments = partial(read_arguments, words=words, json_text=None)
    with stderr().status("Examining the server ..."):
        report = await examine(address, tool=tool, arguments=arguments, headers=access.headers, environment=environment)
    if output == "json":
        print_json(report.to_json())
    else:
        _print(report)
    if report.failed:
        return Exit.TOOL_ERROR
    return Exit.UNREACHABLE if report.unexamined else Exit.OK


def _print(report: Report) -> None:
    # Where it is wide enough, what was looked at has a column of its own, the same for all areas.
    width = max(len(finding.probe) for finding in report) if stdout().width >= NARROW else 0
    for area in dict.fromkeys(finding.area for finding in report):
        grid = Table.grid(Column(width=3, justify="right"), Column(min_width=width), padding=(0, 1))
        for finding in (finding for finding in report if finding.area == area):
            mark, style, _ = VERDICTS[finding.verdict]
            probe, says = Text(clean(finding.probe)), Text(clean(finding.says))
            if finding.advice:
                says.append(f"\n→ {clean(finding.advice)}", style="cyan")
            grid.add_row(Text(mark, style=style), *([probe, says] if width else [Text("\n").join([probe, says])]))
        stdout().print(Text(area, style="bold"), grid, sep="\n")
    if report.unexamined:
        summary = Text(f"Nothing was checked of its tasks: {clean(report.unexamined)}", style="yellow")
    else:
        counts = ", ".join(f"{report.count(verdict)} {words}" for verdict, (_, _, words) in VERDICTS.items())
        summary = Text(counts, style="red" if report.failed else "green")
    stdout().print("", summary, sep="\n")
