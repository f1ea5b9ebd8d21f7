"""`mcp-tasks doctor`: what a server does with tasks, and what it does wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import click
from mcp_types.version import LATEST_MODERN_VERSION
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.credentials import warn_of_plain_http
from mcp_tasks.cli.options import Access, Output, takes_access, takes_output
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.exits import DOCTOR_FOUND_FAULTS, Exit
from mcp_tasks.cli.terminal.outcomes import print_json
from mcp_tasks.cli.terminal.text import clean
from mcp_tasks.cli.terminal.views import stderr, stdout
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.unreachable import check_url, why_unreachable
from mcp_tasks.doctor import Checkup, Finding, Report, Verdict
from mcp_tasks.doctor.http_wire import http_wire
from mcp_tasks.doctor.stdio_wire import stdio_wire
from mcp_tasks.doctor.wire import Wire

MARKS: Final[dict[Verdict, tuple[str, str]]] = {
    "pass": ("✔", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✘", "red"),
    "skip": ("·", "bright_black"),
}

EPILOG = """\
\b
Examples:
  mcp-tasks doctor http://localhost:8000/mcp
  mcp-tasks doctor http://localhost:8000/mcp --tool render scene=forest
  mcp-tasks doctor "python server.py" --output json

\b
Exit codes: 0 nothing failed, 1 something did, 2 wrong usage, 6 the server
cannot be used, or speaks only 2025-11-25, so that nothing was checked.
"""


@click.command(epilog=EPILOG)
@click.argument("server")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tool", metavar="NAME", help="The tool to make tasks with, and then its arguments.")
@takes_access
@takes_output
def command(*, server: str, words: Sequence[str], tool: str | None, access: Access, output: Output) -> int:
    """Check a server's support for tasks, probe by probe, and say in plain words what is wrong.

    It sends raw requests, so it sees exactly what clients see. To look at tasks it has to make some: it calls the
    --tool three times, or by itself only tools that are marked readOnlyHint and need no arguments.
    """
    if words and tool is None:
        raise click.UsageError("arguments are for the --tool, and none is named")
    if access.era == "legacy":
        raise click.UsageError(
            f"doctor checks the tasks extension of {LATEST_MODERN_VERSION}, and nothing of 2025-11-25; leave --era out"
        )

    async def work() -> int:
        target = ServerAddress.parse(server)
        if access.has_credentials:
            warn_of_plain_http(target.url)
        async with _wire(target, access) as wire:
            with stderr().status("Examining the server ..."):
                report = await Checkup(wire, tool=tool, words=words).run()
        _print(report, output)
        if report.count("fail"):
            return DOCTOR_FOUND_FAULTS
        return Exit.UNREACHABLE if report.unexamined else Exit.OK

    return run(work)


@asynccontextmanager
async def _wire(target: ServerAddress, access: Access) -> AsyncGenerator[Wire]:
    if target.url is not None:
        problem = await check_url(target.url, access.headers)
        if problem is not None:
            raise problem
        async with http_wire(target.url, access.headers) as wire:
            yield wire
        return
    try:
        opened = stdio_wire(target)
        wire = await opened.__aenter__()
    except OSError as exc:
        raise await why_unreachable(target, exc, headers=access.headers) from exc
    try:
        yield wire
    finally:
        await opened.__aexit__(None, None, None)


def _print(report: Report, output: Output) -> None:
    if output == "json":
        values: dict[str, Any] = {"failed": report.count("fail"), "findings": [f.to_json() for f in report.findings]}
        print_json({**values, "unexamined": report.unexamined} if report.unexamined else values)
        return
    areas = dict.fromkeys(finding.area for finding in report.findings)
    width = max(len(finding.probe) for finding in report.findings)
    for area in areas:
        stdout().print(Text(area, style="bold"))
        stdout().print(_table([finding for finding in report.findings if finding.area == area], width))
    stdout().print(_summary(report))


def _table(findings: Sequence[Finding], width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=3, justify="right")
    table.add_column(no_wrap=True, min_width=width)
    table.add_column()
    for finding in findings:
        mark, style = MARKS[finding.verdict]
        says = Text(clean(finding.says))
        if finding.advice:
            says.append(f"\n→ {clean(finding.advice)}", style="cyan")
        table.add_row(Text(mark, style=style), Text(clean(finding.probe)), says)
    return table


def _summary(report: Report) -> Text:
    counts = [f"{report.count('pass')} passed", f"{report.count('warn')} to look at", f"{report.count('skip')} skipped"]
    failed = report.count("fail")
    if report.unexamined:
        return Text(f"\nNothing was checked of its tasks: {clean(report.unexamined)}", style="yellow")
    return Text(f"\n{failed} failed, {', '.join(counts)}", style="red" if failed else "green")
