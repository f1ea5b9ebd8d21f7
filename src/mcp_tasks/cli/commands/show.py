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
from mcp_tasks.cli.terminal.outcomes import Outcome, kept_outcome, outcome_of, print_json, result_texts, say, with_files
from mcp_tasks.cli.terminal.rows import clock, row_of
from mcp_tasks.cli.terminal.tables import took
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.cli.terminal.views import ago, badge, stdout
from mcp_tasks.client import Ledger, LedgerEntry, TaskSnapshot
from mcp_tasks.client.looking import look_at
from mcp_tasks.client.questions import questions_of
from mcp_tasks.client.servers.grouping import by_server
from mcp_tasks.core.record import Progress
from mcp_tasks.errors import InvalidAddress

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
        outcome = kept_outcome(entry) if snapshot is None else outcome_of(entry, snapshot)
        outcome = outcome if save is None else with_files(outcome, save)
        _print(entry, snapshot, outcome, options)
        return Exit.OK if outcome.not_saved is None else outcome.not_saved.code

    return run(work)


async def _look(ledger: Ledger, entry: LedgerEntry, access: Access) -> TaskSnapshot | Problem:
    try:
        found = (await look_at(by_server([entry], access.headers), connector(access, ledger=ledger)))[entry.key]
    except InvalidAddress as exc:
        found = exc
    if isinstance(found, TaskSnapshot):
        return found
    return problem_of(found) or Problem(str(found), Exit.FAILED)


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
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bright_black", no_wrap=True)
    card.add_column(overflow="fold")
    card.add_row("id", Text(one_line(entry.task_id)))
    card.add_row("status", badge(state))
    card.add_row("tool", Text(one_line(entry.tool) or "unknown"))
    if entry.arguments:
        card.add_row("arguments", Text(one_line(entry.arguments)))
    card.add_row("server", Text(one_line(entry.server_label)))
    if entry.identity:
        card.add_row("identity", Text(one_line(entry.identity)))
    card.add_row("started", f"{_local(entry.started_at)} ({ago(entry.started_at)})")
    if taken := took(entry) if snapshot is None else clock(row_of(entry, snapshot).elapsed):
        is_over = entry.is_final if snapshot is None else snapshot.is_final
        card.add_row("took" if is_over else "running for", taken)
    message = entry.message if snapshot is None else snapshot.message
    if message:
        card.add_row("message", Text(one_line(message)))
    if snapshot is not None:
        _add_times(card, snapshot)
    return card


def _expiry_text(snapshot: TaskSnapshot) -> str:
    if snapshot.expires_at is None:
        return "never"
    # Until it has ended the time is only what the server promises at least, and grows.
    return _local(snapshot.expires_at) if snapshot.is_final else "not before it has ended"


def _add_times(card: Table, snapshot: TaskSnapshot) -> None:
    if snapshot.progress is not None and not snapshot.is_final:
        card.add_row("progress", _progress_text(snapshot.progress))
    card.add_row("created", f"{_local(snapshot.created_at)} by the server's clock")
    card.add_row("last updated", _local(snapshot.updated_at))
    card.add_row("expires", _expiry_text(snapshot))
    if snapshot.poll_interval is not None and not snapshot.is_final:
        card.add_row("poll every", f"{snapshot.poll_interval.total_seconds():g} s")
    if snapshot.error is not None:
        text = f"{snapshot.error.get('message')} (code {snapshot.error.get('code')})"
        card.add_row("error", Text(one_line(text), style="red"))


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
