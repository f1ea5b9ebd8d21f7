"""`mcp-tasks show`: everything about one task."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.commands.ls import entry_json
from mcp_tasks.cli.completing import task_ids
from mcp_tasks.cli.connection import connector
from mcp_tasks.cli.forms.questions import describe, how_to_answer
from mcp_tasks.cli.options import Access, TaskOptions, takes_save, takes_task_options
from mcp_tasks.cli.remembered import find_tasks, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of
from mcp_tasks.cli.terminal.outcomes import Outcome, outcome_of, print_json, result_texts, say, with_files
from mcp_tasks.cli.terminal.rows import clock, row_of
from mcp_tasks.cli.terminal.tables import took
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.cli.terminal.views import ago, badge, stdout
from mcp_tasks.client import Ledger, LedgerEntry, TaskSnapshot
from mcp_tasks.client.looking import look_at
from mcp_tasks.client.questions import questions_of
from mcp_tasks.core.record import Progress

EPILOG = """\
\b
Examples:
  mcp-tasks show task_AhLN
  mcp-tasks show task_AhLN --json
  mcp-tasks show task_AhLN --offline
  mcp-tasks show --store URL --help      (for operators: any task of a store)
"""


@click.command(epilog=EPILOG)
@click.argument("task_id", metavar="ID", shell_complete=task_ids)
@click.option("--offline", is_flag=True, help="Do not ask the server; show what was last seen.")
@takes_save
@takes_task_options
def command(*, task_id: str, offline: bool, save: Path | None, options: TaskOptions) -> int:
    """Show everything about one task: its state, what it asks, and its result.

    The server is asked; if it cannot be, what was last seen of the task is shown.
    """

    async def work() -> int:
        with opened_ledger(options.ledger_path) as ledger:
            [entry] = find_tasks(ledger, [task_id], options)
            found = None if offline else await _look(ledger, entry, options.access)
            known = any(other.key == entry.key for other in ledger.entries(server=entry.server))
        if isinstance(found, Problem):
            if not known:
                raise found
            say(f"As last seen, because {found.message}.", "yellow")
        snapshot = found if isinstance(found, TaskSnapshot) else None
        outcome = outcome_of(entry, snapshot)
        if save is not None:
            outcome = with_files(outcome, save)
        _print(entry, snapshot, outcome, options)
        return Exit.OK if outcome.not_saved is None else outcome.not_saved.code

    return run(work)


async def _look(ledger: Ledger, entry: LedgerEntry, access: Access) -> TaskSnapshot | Problem:
    seen = await look_at([entry], connector(access, ledger=ledger), headers=access.headers)
    found = seen[entry.key]
    return problem_of(found) if isinstance(found, Exception) else found


def _print(entry: LedgerEntry, snapshot: TaskSnapshot | None, outcome: Outcome, options: TaskOptions) -> None:
    if options.output == "json":
        times = {} if snapshot is None else _times(snapshot)
        print_json({**entry_json(entry), **outcome.to_json(), **times})
        return
    stdout().print(_card(entry, snapshot, outcome.state))
    if snapshot is not None and snapshot.input_requests:
        _print_questions(entry, snapshot, options.access)
    result = outcome.result
    if result is not None:
        stdout().print("\nresult" + (" (the tool failed)" if result.get("isError") else ""), style="bright_black")
        stdout().print(Text(clean("\n".join(result_texts(result, outcome.saved)))))


def _times(snapshot: TaskSnapshot) -> dict[str, Any]:
    times: dict[str, Any] = {
        "createdAt": snapshot.created_at.isoformat(),
        "lastUpdatedAt": snapshot.updated_at.isoformat(),
        "expiresAt": None if snapshot.expires_at is None else snapshot.expires_at.isoformat(),
        "pollIntervalMs": _milliseconds(snapshot.poll_interval),
    }
    progress = snapshot.progress
    if progress is not None:
        times["progress"] = {"progress": progress.progress, "total": progress.total}
    return times


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else round(duration.total_seconds() * 1000)


def _card(entry: LedgerEntry, snapshot: TaskSnapshot | None, state: str) -> Table:
    taken = took(entry) if snapshot is None else clock(row_of(entry, snapshot).elapsed)
    is_over = entry.is_final if snapshot is None else snapshot.is_final
    lines: list[tuple[str, str | Text | None]] = [
        ("id", entry.task_id),
        ("status", badge(state)),
        ("tool", one_line(entry.tool) or "unknown"),
        ("arguments", entry.arguments),
        ("server", entry.server_label),
        ("identity", entry.identity),
        ("started", f"{_local(entry.started_at)} ({ago(entry.started_at)})"),
        ("took" if is_over else "running for", taken),
        ("message", entry.message if snapshot is None else snapshot.message),
        *([] if snapshot is None else _seen(snapshot)),
    ]
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bright_black", no_wrap=True)
    card.add_column(overflow="fold")
    for name, value in lines:
        if value:
            card.add_row(name, value if isinstance(value, Text) else Text(one_line(value)))
    return card


def _seen(snapshot: TaskSnapshot) -> list[tuple[str, str | Text | None]]:
    """What only the server knows."""
    is_over, pace, error = snapshot.is_final, snapshot.poll_interval, snapshot.error
    # Until it has ended the time is only what the server promises at least, and grows.
    expires = "never" if snapshot.expires_at is None else "not before it has ended"
    if snapshot.expires_at is not None and is_over:
        expires = _local(snapshot.expires_at)
    failure = None if error is None else f"{error.get('message')} (code {error.get('code')})"
    return [
        ("progress", None if snapshot.progress is None or is_over else _progress_text(snapshot.progress)),
        ("created", f"{_local(snapshot.created_at)} by the server's clock"),
        ("last updated", _local(snapshot.updated_at)),
        ("expires", expires),
        ("poll every", None if pace is None or is_over else f"{pace.total_seconds():g} s"),
        ("error", None if failure is None else Text(one_line(failure), style="red")),
    ]


def _progress_text(progress: Progress) -> str:
    if not progress.total:
        return f"{progress.progress:g}"
    return f"{progress.progress:g} of {progress.total:g} ({100 * progress.progress / progress.total:.0f}%)"


def _print_questions(entry: LedgerEntry, snapshot: TaskSnapshot, access: Access) -> None:
    questions = questions_of(snapshot.input_requests, entry.tool)
    for question in questions:
        stdout().print("\nasks", Text(f"({one_line(question.key)})"), style="yellow")
        for line in describe(question):
            stdout().print(Text(f"  {line}"))
    stdout().print("\nanswer with", style="bright_black")
    for line in how_to_answer(entry.task_id, questions, access.repeated):
        stdout().print(Text(f"  {line}"), soft_wrap=True)


def _local(instant: datetime) -> str:
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")
